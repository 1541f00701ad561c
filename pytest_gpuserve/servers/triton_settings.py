"""What Triton was asked for in a model's configuration, and what it uses, in the same words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from pytest_gpuserve.units import digest

NOT_BATCHED: Final = "no dynamic batching"

_ASKED: Final = "# asked for "


def sizes_text(sizes: Iterable[int]) -> str:
    """Preferred batch sizes as text: ``4 8``; ``any`` where none is preferred."""
    return " ".join(map(str, sizes)) or "any"


def stamped(body: str, asked: Mapping[str, str]) -> str:
    """Put what a configuration asks for before it, as a comment, with the body's hash: it may be edited later."""
    return f"{_ASKED}{json.dumps({'of': digest(body), **asked}, sort_keys=True)}\n{body}"


def asked_settings(text: str) -> dict[str, str]:
    """What a ``config.pbtxt`` asks for; empty where it was not written by `ModelConfig.to_pbtxt`, or changed since."""
    first, _, body = text.partition("\n")
    if not first.startswith(_ASKED):
        return {}
    try:
        known = json.loads(first.removeprefix(_ASKED))
    except ValueError:
        return {}
    if not isinstance(known, dict) or known.pop("of", None) != digest(body):
        return {}
    return {str(name): str(value) for name, value in known.items()}


def used_settings(config: Mapping[str, object]) -> dict[str, str]:
    """What a running Triton uses, from its answer to ``GET /v2/models/MODEL/config``.

    Raises:
        LookupError, TypeError, ValueError: It is no such answer.
    """
    used = {"max_batch_size": str(_whole(config["max_batch_size"]))}
    if "ensemble_scheduling" in config:
        return used
    batching = config.get("dynamic_batching")
    if batching is None:
        used["preferred_batch_size"] = used["max_queue_delay_us"] = NOT_BATCHED
    else:
        batching = _mapping(batching)
        sizes = tuple(_whole(size) for size in _list(batching.get("preferred_batch_size", [])))
        used["preferred_batch_size"] = sizes_text(sizes)
        used["max_queue_delay_us"] = str(_whole(batching.get("max_queue_delay_microseconds", 0)))
    groups = []
    for entry in map(_mapping, _list(config.get("instance_group", []))):
        kind = str(entry["kind"]).removeprefix("KIND_")
        gpus = "".join(f" {_whole(gpu)}" for gpu in _list(entry.get("gpus", [])))
        groups.append(f"{_whole(entry['count'])} x {kind}{gpus}")
    used["instances"] = ", ".join(groups)
    return used


def _whole(value: object) -> int:
    # Protobuf writes 64-bit numbers as strings in JSON.
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"{value!r} is no whole number")
    return int(value)


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is no object")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value
