"""Arguments of the two servers by variant: as published, and equalised for a comparison of the servers."""

from __future__ import annotations

from typing import Final

AS_PUBLISHED: Final = "as_published"
EQUALISED: Final = "equalised"

MOSEC: Final[dict[str, dict[str, str | int | bool]]] = {
    AS_PUBLISHED: {"grad_mode": "no_grad", "no_attention_mask": True},
    EQUALISED: {},
}
"""The published service really waited the 10 ms of its text."""

PYTRITON: Final[dict[str, dict[str, str | int | bool]]] = {
    AS_PUBLISHED: {"max_queue_delay_us": 10, "grad_mode": "enable_grad", "no_warm_up": True},
    EQUALISED: {"max_queue_delay_us": 10_000},
}
"""The published service waited 10 microseconds, built autograd's graph, and did not warm up; see its app."""

MAX_BATCH_SIZE: Final = 32
"""Largest batch of both servers and variants: the apps' default."""

PUBLISHED_REQUESTS: Final = 50_000

FULL_SECONDS: Final = 10.0
"""Seconds; a start that ends by its requests may take 15 times that."""
