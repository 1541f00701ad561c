"""Performance gates for model servers, as pytest tests."""

from pytest_gpuserve.units import ms, s, us

__all__ = ["__version__", "ms", "s", "us"]

__version__ = "0.1.0"
