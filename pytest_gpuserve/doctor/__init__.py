"""``python -m pytest_gpuserve.doctor``: what this machine is, and what would disturb a measurement on it."""
