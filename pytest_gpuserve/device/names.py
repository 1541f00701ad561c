"""From a vendor's product name to the name of a baseline folder and of a ``--gpu`` value."""

from __future__ import annotations

import re

AUTO = "auto"
"""The ``--gpu`` value that means: whatever is there."""

CPU = "cpu"
"""The ``--gpu`` value and baseline folder of a run without a card."""

RESERVED_NAMES = frozenset({AUTO, CPU})
"""Names with a meaning of their own, which no card may have."""

_LONGEST_NAME = 96  # NVML's own buffer for a product name, well below the 255 bytes of a folder name

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# The vendor alone stays: something must be left to name.
_VENDOR = re.compile(r"^(?:(?:nvidia|tesla)-[-._]*)+(?=[a-z0-9])", re.IGNORECASE)


def device_name(product: str) -> str:
    """Shorten a product name to what people call the card: ``Tesla T4`` is ``T4``.

    ``NVIDIA A100-SXM4-80GB`` becomes ``A100-SXM4-80GB``, ``NVIDIA GeForce RTX 3090`` becomes ``GeForce-RTX-3090``.
    The result names one folder on any file system: ASCII letters, digits, ``.``, ``_`` and ``-``, at most 96 of them,
    beginning with a letter or digit; never empty and never ``cpu`` or ``auto`` in any case. Applying it twice changes
    nothing.

    Args:
        product: The name as NVML gives it.
    """
    # Stripped at the front so that the name is neither hidden, a relative path, nor read as an option.
    safe = _UNSAFE.sub("-", product).lstrip("-._")
    short = _VENDOR.sub("", safe)[:_LONGEST_NAME].rstrip("-._") or "unnamed-card"
    return f"{short}-card" if short.lower() in RESERVED_NAMES else short
