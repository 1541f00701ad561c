"""What ``server.post(...).ask()`` answers and raises, for annotations and ``pytest.raises`` in tests."""

from pytest_gpuserve.experiment.asking import Answer, Refused, WrongAnswer

__all__ = ["Answer", "Refused", "WrongAnswer"]
