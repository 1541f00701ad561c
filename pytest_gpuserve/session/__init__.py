"""A run that measures: what it finds and takes, the judges of its tests, and what it has to say at its end."""

from pytest_gpuserve.session.gate_session import GateSession
from pytest_gpuserve.session.judges import FOREIGN_SHARE

__all__ = ["FOREIGN_SHARE", "GateSession"]
