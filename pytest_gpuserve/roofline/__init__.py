"""What a card could do of a model at most: the model's operations, the card's peak rate, and a run's share of it."""

from pytest_gpuserve.roofline.flops import count_flops
from pytest_gpuserve.roofline.peak import PRECISIONS, Peak, peak_of
from pytest_gpuserve.roofline.share import Work, ceiling_per_second, share_of_peak

__all__ = ["PRECISIONS", "Peak", "Work", "ceiling_per_second", "count_flops", "peak_of", "share_of_peak"]
