"""Objectives of a goodput, which the engine checks for each answer."""

from __future__ import annotations

from typing import Final

import msgspec

from pytest_gpuserve.errors import UsageProblem

MOST_SECONDS: Final = 1e6


class Objectives(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Conditions that a good answer meets, all of them, in seconds.

    Goodput is that of Y. Zhong et al. ("DistServe: Disaggregating Prefill and Decoding for Goodput-optimized Large
    Language Model Serving", OSDI 2024), and of vLLM's ``bench serve --goodput``. An answer of one token does not have a
    TPOT, and meets any.

    Args:
        ttft: Most seconds until the first chunk with content.
        tpot: Most seconds for each token after the first.
        latency: Most seconds until the last byte.

    Raises:
        UsageProblem: All objectives are missing, or one is not a number above 0.
    """

    ttft: float | None = None
    tpot: float | None = None
    latency: float | None = None

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}
        for name, value in given.items():
            # Plain types only: a NumPy number is a float, but cannot be sent to the engine.
            if type(value) not in {int, float} or not 0 < value <= MOST_SECONDS:
                raise UsageProblem(f"Objectives({name}=...) is a plain number of seconds above 0, not {value!r}")
        if not given:
            raise UsageProblem("Objectives() needs at least one objective", remedies=["Objectives(ttft=200 * ms)"])

    def __str__(self) -> str:
        """``ttft <= 0.2 s, tpot <= 0.03 s``; unique to the objectives, because it is part of the workload."""
        known = {name: getattr(self, name) for name in self.__struct_fields__}
        return ", ".join(f"{name} <= {float(limit)!r} s" for name, limit in known.items() if limit is not None)

    @property
    def is_of_streams(self) -> bool:
        """Whether only a stream can meet the objectives."""
        return self.ttft is not None or self.tpot is not None

    def met(self, latency_ns: int, ttft_ns: int | None, tpot_ns: int | None) -> bool | None:
        """Whether an answer meets all objectives; None if an unknown value decides that."""
        limits = ((self.latency, latency_ns), (self.ttft, ttft_ns), (self.tpot, tpot_ns))
        asked = [(limit * 1e9, found_ns) for limit, found_ns in limits if limit is not None]
        if any(found_ns is not None and found_ns > limit_ns for limit_ns, found_ns in asked):
            return False
        return None if any(found_ns is None for _, found_ns in asked) else True
