"""Answers and errors of ``server.post(...).ask()``, for annotations and ``pytest.raises`` in tests."""

from pytest_gpuserve.experiment.single_request import Answer, Refused, WrongAnswer

__all__ = ["Answer", "Refused", "WrongAnswer"]
