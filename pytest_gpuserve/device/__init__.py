"""The device that is measured: which card it is, the host around it, and the lock on it."""

from pytest_gpuserve.device.card import AUTO, CPU, RESERVED_NAMES, Card, NvmlAnswer, device_name, list_cards
from pytest_gpuserve.device.host import DEFAULT_DISTRIBUTIONS, HOST_VARIABLE, Host, read_host, read_software
from pytest_gpuserve.device.lock import DeviceLock, Holder
from pytest_gpuserve.device.select import Device, select_device, visible_cards

__all__ = [
    "AUTO",
    "CPU",
    "DEFAULT_DISTRIBUTIONS",
    "HOST_VARIABLE",
    "RESERVED_NAMES",
    "Card",
    "Device",
    "DeviceLock",
    "Holder",
    "Host",
    "NvmlAnswer",
    "device_name",
    "list_cards",
    "read_host",
    "read_software",
    "select_device",
    "visible_cards",
]
