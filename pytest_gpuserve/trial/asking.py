"""Where `pytest_gpuserve.asking` was: suites that import it from here go on."""

from pytest_gpuserve.asking import Answer, Refused, WrongAnswer

__all__ = ["Answer", "Refused", "WrongAnswer"]
