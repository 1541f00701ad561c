"""The load generator: requests, schedules, engines, and the check of answers."""

from pytest_gpuserve.load.prompt_set import LogNormal, Uniform, prompts
from pytest_gpuserve.load.schedule import Burst, Closed, Constant, Gamma, Objectives, Poisson, Schedule, Steps, Trace

__all__ = [
    "Burst",
    "Closed",
    "Constant",
    "Gamma",
    "LogNormal",
    "Objectives",
    "Poisson",
    "Schedule",
    "Steps",
    "Trace",
    "Uniform",
    "prompts",
]
