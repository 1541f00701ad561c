"""The measured device: choice of the GPU, facts of the host, and the lock."""

from pytest_gpuserve.device.gpu import AUTO, CPU, RESERVED_NAMES, Gpu, NvmlAnswer, device_name, list_gpus
from pytest_gpuserve.device.host import DEFAULT_DISTRIBUTIONS, HOST_VARIABLE, Host, read_host, read_software
from pytest_gpuserve.device.lock import DeviceLock
from pytest_gpuserve.device.select import Device, select_device, visible_gpus

__all__ = [
    "AUTO",
    "CPU",
    "DEFAULT_DISTRIBUTIONS",
    "HOST_VARIABLE",
    "RESERVED_NAMES",
    "Device",
    "DeviceLock",
    "Gpu",
    "Host",
    "NvmlAnswer",
    "device_name",
    "list_gpus",
    "read_host",
    "read_software",
    "select_device",
    "visible_gpus",
]
