"""What a card could do of a model at most: the model's operations, the card's peak rate, and a run's share of it."""

from pytest_gpuserve.roofline.flops import count_flops
from pytest_gpuserve.roofline.peak import PRECISIONS, Peak, Work, ceiling_per_second, peak_of, share_of_peak

__all__ = ["PRECISIONS", "Peak", "Work", "ceiling_per_second", "count_flops", "peak_of", "share_of_peak"]
