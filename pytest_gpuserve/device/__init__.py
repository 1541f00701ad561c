"""The measured device: choice of the GPU, facts of the host, and the lock."""

from pytest_gpuserve.device.select import Device

__all__ = ["Device"]
