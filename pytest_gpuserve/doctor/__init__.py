"""``python -m pytest_gpuserve.doctor``: facts of this machine, and disturbances of a measurement on it."""
