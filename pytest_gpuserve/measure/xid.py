"""What the driver's error numbers mean: the common ones, in short.

Source: NVIDIA, "XID Errors" (docs.nvidia.com/deploy/xid-errors), table of XID error listings.
"""

from __future__ import annotations

from typing import Final

COMMON: Final = {
    13: "graphics engine exception, most often a kernel of the server that reads or writes out of bounds",
    31: "memory page fault, most often an address of the server's that is not mapped",
    32: "invalid or corrupted push buffer, of the driver, the bus or the card",
    38: "driver firmware error",
    43: "the card stopped processing for a program, which did something illegal",
    45: "preemptive cleanup of a program that was ended or failed before",
    48: "double-bit ECC error: memory of the card is corrupted",
    61: "internal microcontroller breakpoint or warning",
    62: "internal microcontroller halt",
    63: "a page or row of the card's memory was retired or remapped",
    64: "a page or row of the card's memory could not be retired or remapped",
    68: "video processor exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "the card has fallen off the bus: power, heat, or the slot",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error: the program that it befell is ended",
    95: "uncontained ECC error: all programs on the card are affected",
    109: "context switch timeout",
    119: "the card's system processor (GSP) does not answer",
    120: "error of the card's system processor (GSP)",
    140: "ECC error that was not recovered from",
}


def describe_xid(number: int) -> str:
    """Say what an XID means; the numbers that are not common are in NVIDIA's list."""
    return COMMON.get(number, "see docs.nvidia.com/deploy/xid-errors for its meaning")
