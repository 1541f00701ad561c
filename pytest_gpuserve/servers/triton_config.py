"""Model repositories of Triton: ``config.pbtxt`` by Triton's own schema, and the files around it.

``config.pbtxt`` is protobuf's text format of ``inference.ModelConfig``, which tritonclient brings.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from pytest_gpuserve.errors import UsageProblem, import_extra

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

CONFIG_FILE: Final = "config.pbtxt"

ModelConfig: TypeAlias = Any
"""The message ``inference.ModelConfig``; its class is generated when tritonclient is imported."""

HASHED_BYTES: Final = 8 << 20
"""Largest file that is hashed. Larger ones, usually weights, are identified by size and time, which is faster."""

LISTED_FILES: Final = 32
"""Most files of a model that are listed one by one; a model with more gets one hash over all."""


def parse_config(text: str, origin: str) -> ModelConfig:
    """Read a model's configuration; fields of a newer Triton are ignored.

    Args:
        text: The configuration, in protobuf's text format.
        origin: The file or model that it belongs to, for messages.

    Raises:
        UsageProblem: The text does not fit the schema; names the line. Or tritonclient is missing.
    """
    schema = import_extra("tritonclient.grpc.model_config_pb2", f"reading {origin}")
    text_format = import_extra("google.protobuf.text_format", f"reading {origin}")
    try:
        return text_format.Parse(text, schema.ModelConfig(), allow_unknown_field=True)
    except text_format.ParseError as problem:
        raise UsageProblem(
            f"{origin}: line {problem.GetLine()} does not fit Triton's ModelConfig",
            found=str(problem),
            remedies=[
                "correct that line; every field is described in Triton's model_config.proto",
                "a value that only a newer Triton knows: pip install --upgrade 'tritonclient[grpc]'",
            ],
        ) from None


@dataclass(frozen=True)
class Repository:
    """A model repository as Triton reads it.

    Args:
        folder: Path of the repository.
        config_name: Value of ``--model-config-name``: models with ``configs/NAME.pbtxt`` are configured by that file.
    """

    folder: Path
    config_name: str = ""

    def config_file(self, model: str) -> Path:
        """The file that configures a model; it may not exist."""
        own = self.folder / model / "configs" / f"{self.config_name}.pbtxt"
        return own if self.config_name and own.exists() else self.folder / model / CONFIG_FILE

    def config(self, model: str) -> ModelConfig:
        """Read a model's configuration; an empty one if the file does not exist, which some backends allow.

        Raises:
            UsageProblem: See `parse_config`.
        """
        file = self.config_file(model)
        try:
            text = file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            text = ""
        except (OSError, ValueError) as problem:
            raise UsageProblem(
                f"{file} cannot be read", found=str(problem), remedies=["make it text in UTF-8, readable for this user"]
            ) from None
        return parse_config(text, str(file))

    def models(self, wanted: Iterable[str] = ()) -> list[str]:
        """These models and the parts of their ensembles; all models if none is named."""
        names = list(wanted) or [entry.name for entry in self.folder.iterdir() if entry.is_dir()]
        found: set[str] = set()
        while names:
            name = names.pop()
            if name not in found and (self.folder / name).is_dir():
                found.add(name)
                names += [step.model_name for step in self.config(name).ensemble_scheduling.step if step.model_name]
        return sorted(found)

    def main_model(self, wanted: Sequence[str]) -> str:
        """The model that requests usually name: the only loaded model, or the only ensemble; else empty."""
        names = list(wanted) or self.models()
        ensembles = [name for name in names if self.config(name).HasField("ensemble_scheduling")]
        return next((found[0] for found in (names, ensembles) if len(found) == 1), "")


def fingerprints(folders: Iterable[Path]) -> dict[str, str]:
    """Fingerprints of these models' files, by their paths: a hash, or size and time of large files."""
    found = {}
    for folder in folders:
        files = [file for file in sorted(folder.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
        told = {f"{folder.name}/{file.relative_to(folder).as_posix()}": _fingerprint(file) for file in files}
        if len(told) > LISTED_FILES:
            whole = hashlib.sha256("\n".join(f"{name} {told[name]}" for name in told).encode()).hexdigest()
            told = {f"{folder.name}/": f"{len(told)} files, sha256:{whole}"}
        found.update(told)
    return found


def _fingerprint(file: Path) -> str:
    status = file.stat()
    if status.st_size > HASHED_BYTES:
        return f"{status.st_size} bytes, changed at {status.st_mtime_ns / 1e9:.3f}"
    return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


NOT_BATCHED: Final = "no dynamic batching"


class _Batching(msgspec.Struct):
    preferred_batch_size: list[int] = []
    max_queue_delay_microseconds: int = 0


class _Group(msgspec.Struct):
    kind: str
    count: int
    gpus: list[int] = []


class _Step(msgspec.Struct):
    model_name: str


class _Ensemble(msgspec.Struct):
    step: list[_Step] = []


class ServedConfig(msgspec.Struct):
    """A model's configuration in a running Triton: its answer to ``GET /v2/models/MODEL/config``."""

    max_batch_size: int
    dynamic_batching: _Batching | None = None
    sequence_batching: dict[str, object] | None = None
    ensemble_scheduling: _Ensemble | None = None
    instance_group: list[_Group] = []

    @property
    def batches(self) -> bool:
        """Whether it joins requests."""
        return self.max_batch_size > 1 and (self.dynamic_batching is not None or self.sequence_batching is not None)

    @property
    def steps(self) -> tuple[str, ...]:
        """Models of an ensemble; empty for others."""
        return () if self.ensemble_scheduling is None else tuple(s.model_name for s in self.ensemble_scheduling.step)


def used_settings(config: ServedConfig) -> dict[str, str]:
    """Settings of a running model."""
    used = {"max_batch_size": str(config.max_batch_size)}
    if config.ensemble_scheduling is not None:
        return used
    batching = config.dynamic_batching
    if batching is None:
        used["preferred_batch_size"] = used["max_queue_delay_us"] = NOT_BATCHED
    else:
        used["preferred_batch_size"] = " ".join(map(str, batching.preferred_batch_size)) or "any"
        used["max_queue_delay_us"] = str(batching.max_queue_delay_microseconds)
    # Such as ``2 x CPU, 1 x GPU 0 1``.
    used["instances"] = ", ".join(
        " ".join([f"{group.count} x {group.kind.removeprefix('KIND_')}", *map(str, group.gpus)])
        for group in config.instance_group
    )
    return used
