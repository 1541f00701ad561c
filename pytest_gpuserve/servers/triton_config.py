"""Model repositories for Triton from typed arguments: ``config.pbtxt`` and the folders around it.

The format is protobuf's text format of ``inference.ModelConfig`` (Triton's ``model_config.proto``).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Literal

from pytest_gpuserve.errors import ServerFailed, UsageProblem
from pytest_gpuserve.process.git import git_text
from pytest_gpuserve.units import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

HASHED_BYTES: Final = 8 << 20
"""Larger files, weights as a rule, are told apart by size and time: reading them would take longer than a start."""

LISTED_FILES: Final = 32
"""A model with more files than this is told by one hash over all."""

CODE: Final = frozenset({".py", ".pbtxt", ".so"})
"""What makes a model what it is; the rest is its data."""

_STEP = re.compile(r"""\bmodel_name\s*:\s*["']([^"']+)["']""")

_PYTHON = re.compile(r"""^\s*backend\s*:\s*["']python["']""", re.MULTILINE)
_OTHER_FILE = re.compile(r"\bdefault_model_filename\b")


def model_folders(repository: Path, models: Iterable[str]) -> list[Path]:
    """The folders of these models, and of the models that those ensembles are made of; of all where none is named."""
    names = list(models) or sorted(entry.name for entry in repository.iterdir() if entry.is_dir())
    found: dict[str, Path] = {}
    while names:
        name = names.pop(0)
        folder = repository / name
        if name in found or not folder.is_dir():
            continue
        found[name] = folder
        names += _STEP.findall(config_text(folder))
    return [found[name] for name in sorted(found)]


def main_model(repository: Path, models: Sequence[str]) -> str:
    """The one that requests name as a rule: the one model to load, or the one ensemble; empty where neither is one."""
    folders = [repository / name for name in models] or model_folders(repository, ())
    ensembles = [folder for folder in folders if "ensemble_scheduling" in config_text(folder)]
    return next((found[0].name for found in (folders, ensembles) if len(found) == 1), "")


def config_text(model: Path) -> str:
    """The text of a model's configuration; empty where it has none, which Triton allows for some backends."""
    try:
        return (model / CONFIG_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def check_files(folders: Iterable[Path]) -> None:
    """See that Python models have their file: without it Triton's start does not fail, it hangs.

    Raises:
        ServerFailed: One has not.
    """
    for folder in folders:
        text = config_text(folder)
        if not _PYTHON.search(text) or _OTHER_FILE.search(text):
            continue
        versions = [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.isdecimal()]
        missing = [version / "model.py" for version in versions if not (version / "model.py").is_file()]
        if missing or not versions:
            raise ServerFailed(
                f"triton_server: a file of model {folder.name} is missing",
                found=f"there is no {missing[0] if missing else folder / '1' / 'model.py'}",
                looked=[str(folder / CONFIG_FILE)],
                remedies=["a Python model's code is in MODEL/1/model.py, with a folder for each version"],
            )


def fingerprints(folders: Iterable[Path]) -> dict[str, str]:
    """What tells the files of these models from other ones, by their paths: a hash, or size and time of large ones."""
    found = {}
    for folder in folders:
        files = [file for file in sorted(folder.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
        told = {f"{folder.name}/{file.relative_to(folder).as_posix()}": _fingerprint(file) for file in files}
        if len(told) > LISTED_FILES:
            whole = hashlib.sha256("\n".join(f"{name} {told[name]}" for name in told).encode()).hexdigest()
            told = {f"{folder.name}/": f"{len(told)} files, sha256:{whole}"}
        found.update(told)
    return found


def untracked_data(repository: Path) -> list[Path]:
    """Files of the repository that git does not track, such as weights, as far as they are no code."""
    listed = git_text(repository, "ls-files", "--others", "-z", "--", ".") or ""
    files = [repository / name for name in listed.split("\0") if name]
    return [file for file in files if file.suffix not in CODE and "__pycache__" not in file.parts]


def overlay(repository: Path, data: Sequence[Path], origin: Path, folder: Path) -> Path:
    """Put another checkout's repository together with the data that git did not bring there, by links.

    Args:
        repository: The other checkout's.
        data: Files of this checkout's repository that the other one shares.
        origin: This checkout's repository.
        folder: Where to make it.

    Returns:
        The repository itself where it has all, else the folder.
    """
    missing = {
        inside: file
        for file in data
        if (repository / (inside := file.relative_to(origin)).parts[0]).is_dir() and not (repository / inside).exists()
    }
    if not missing:
        return repository
    for file in repository.rglob("*"):
        if not file.is_dir() and "__pycache__" not in file.parts:
            _link(folder / file.relative_to(repository), file)
        elif file.is_dir():
            (folder / file.relative_to(repository)).mkdir(parents=True, exist_ok=True)
    for inside, file in missing.items():
        _link(folder / inside, file)
    return folder


def _link(place: Path, file: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(file.absolute())


def _fingerprint(file: Path) -> str:
    status = file.stat()
    if status.st_size > HASHED_BYTES:
        return f"{status.st_size} bytes, changed at {status.st_mtime_ns / 1e9:.3f}"
    return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


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


CONFIG_FILE: Final = "config.pbtxt"

DATA_TYPES: Final = frozenset(
    "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BF16 BYTES".split()  # noqa: SIM905 -- a table
)
"""As requests name them; Triton's configuration calls ``BYTES`` ``TYPE_STRING``."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a model.

    Args:
        name: Its name.
        data_type: One of `DATA_TYPES`.
        dims: Its shape without the batch dimension; -1 is any length.
        optional: Whether an input may be left out.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """How Triton puts requests together.

    Args:
        preferred_batch_size: Sizes that are executed at once when they are reached; empty: only the largest.
        max_queue_delay_us: How long a request may wait for others, in microseconds.
        preserve_ordering: Whether answers leave in the order of their requests.
    """

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    preserve_ordering: bool = False


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """Copies of a model that execute side by side.

    Args:
        kind: Where they run; ``MODEL`` leaves it to the model, ``AUTO`` to Triton.
        count: How many; on GPUs, on each.
        gpus: Which GPUs, counted from 0 among the visible ones; empty: all.
    """

    kind: Literal["CPU", "GPU", "MODEL", "AUTO"] = "CPU"
    count: int = 1
    gpus: tuple[int, ...] = ()

    def __str__(self) -> str:
        """``2 x CPU``, ``1 x GPU 0 1``."""
        return " ".join([f"{self.count} x {self.kind}", *map(str, self.gpus)])


@dataclass(frozen=True, slots=True)
class Step:
    """A model of an ensemble.

    Args:
        model: The model's name.
        inputs: Its inputs, by name: which tensor of the ensemble each takes.
        outputs: Its outputs, by name: which tensor of the ensemble each becomes.
        version: -1 takes the latest.
    """

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    version: int = -1


@dataclass(frozen=True)
class ModelConfig:
    """A model's configuration.

    Args:
        name: The model's, and its folder's.
        inputs: What it takes.
        outputs: What it answers.
        backend: What runs it.
        platform: The older way to say that, such as ``onnxruntime_onnx``; the backend is then left out.
        max_batch_size: 0: its tensors have no batch dimension.
        dynamic_batching: None: a request is executed as it comes.
        instances: Empty leaves them to Triton.
        parameters: Of the backend.
        steps: The models of an ensemble; it has no backend, no instances and no dynamic batching of its own.
        text: More of the configuration, in protobuf's text format, as it is.

    Raises:
        UsageProblem: Parts of it contradict each other, or a name or number cannot be.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    backend: str = "python"
    platform: str = ""
    max_batch_size: int = 0
    dynamic_batching: DynamicBatching | None = None
    instances: tuple[InstanceGroup, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    text: str = ""

    def __post_init__(self) -> None:
        for wrong in self._contradictions():
            raise UsageProblem(f"the configuration of model {self.name!r}: {wrong}")

    def to_pbtxt(self) -> str:
        """The text of its ``config.pbtxt``; a first line of comment keeps what was asked for."""
        return stamped("".join(f"{line}\n" for line in self._lines()), self.asked())

    def asked(self) -> dict[str, str]:
        """What Triton is asked for, in the words in which `used_settings` says what it uses."""
        asked = {"max_batch_size": str(self.max_batch_size)}
        if self.steps:
            return asked
        batching = self.dynamic_batching
        asked["preferred_batch_size"] = NOT_BATCHED if batching is None else sizes_text(batching.preferred_batch_size)
        asked["max_queue_delay_us"] = NOT_BATCHED if batching is None else str(batching.max_queue_delay_us)
        settled = all(group.kind != "AUTO" and (group.kind != "GPU" or group.gpus) for group in self.instances)
        if self.instances and settled:
            asked["instances"] = ", ".join(map(str, self.instances))
        return asked

    def _contradictions(self) -> list[str]:
        wrong = []
        if self.name in {"", ".", ".."} or "/" in self.name or "\0" in self.name:
            wrong.append("its name is a folder's too, so it is not empty and has no slash")
        for tensor in (*self.inputs, *self.outputs):
            if tensor.data_type not in DATA_TYPES:
                known = ", ".join(sorted(DATA_TYPES))
                wrong.append(f"{tensor.name} has data type {tensor.data_type!r}, which is none of {known}")
        if self.max_batch_size < 0:
            wrong.append(f"max_batch_size={self.max_batch_size} is below 0")
        if self.steps and (self.dynamic_batching is not None or self.instances):
            wrong.append("an ensemble has no dynamic_batching= and no instances= of its own; its models have")
        if any(group.count < 1 for group in self.instances):
            wrong.append("an instance group has at least one instance")
        return wrong + self._contradictions_of(self.dynamic_batching)

    def _contradictions_of(self, batching: DynamicBatching | None) -> list[str]:
        if batching is None:
            return []
        wrong = []
        if self.max_batch_size < 1:
            wrong.append("dynamic_batching= needs max_batch_size= of at least 1")
        if any(not 1 <= size <= self.max_batch_size for size in batching.preferred_batch_size):
            wrong.append(f"preferred_batch_size={batching.preferred_batch_size} is not within 1..{self.max_batch_size}")
        if batching.max_queue_delay_us < 0:
            wrong.append(f"max_queue_delay_us={batching.max_queue_delay_us} is below 0")
        return wrong

    def _lines(self) -> list[str]:
        lines = [f"name: {quoted(self.name)}"]
        if self.steps or self.platform:
            lines.append(f"platform: {quoted('ensemble' if self.steps else self.platform)}")
        else:
            lines.append(f"backend: {quoted(self.backend)}")
        lines.append(f"max_batch_size: {self.max_batch_size}")
        lines += [f"input {{ {_tensor(tensor)} }}" for tensor in self.inputs]
        lines += [f"output {{ {_tensor(tensor)} }}" for tensor in self.outputs]
        if self.dynamic_batching is not None:
            lines.append(f"dynamic_batching {{ {_batching(self.dynamic_batching)} }}")
        for group in self.instances:
            gpus = f" gpus: {list(group.gpus)}" if group.gpus else ""
            lines.append(f"instance_group {{ kind: KIND_{group.kind} count: {group.count}{gpus} }}")
        if self.steps:
            lines += ["ensemble_scheduling {", *(f"  step {{ {_step(step)} }}" for step in self.steps), "}"]
        for name, value in self.parameters.items():
            lines.append(f"parameters {{ key: {quoted(name)} value {{ string_value: {quoted(value)} }} }}")
        return [*lines, *self.text.splitlines()]


def write_model(
    repository: Path, config: ModelConfig, files: Mapping[str, Path | str] | None = None, *, version: int = 1
) -> Path:
    """Write a model into a repository: ``MODEL/config.pbtxt``, and its files in ``MODEL/VERSION``.

    Args:
        repository: The repository's folder; made where it is missing.
        config: The model.
        files: By their path in the version's folder, such as ``model.py``: a text, or a file that is copied.
        version: Its version.

    Returns:
        The model's folder.

    Raises:
        UsageProblem: A path leads out of the version's folder.
    """
    model = repository / config.name
    folder = model / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (files or {}).items():
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts or not inside.parts:
            raise UsageProblem(f"model {config.name!r}: {name!r} is no path in the folder of its version")
        place = folder / inside
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, place)
        else:
            place.write_text(content, encoding="utf-8")
    (model / CONFIG_FILE).write_text(config.to_pbtxt(), encoding="utf-8")
    return model


def quoted(value: str) -> str:
    """Write a string in protobuf's text format: what is not plain ASCII as octal escapes of its UTF-8 bytes.

    Raises:
        UsageProblem: It cannot be encoded.
    """
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise UsageProblem(f"{value!r} is no text that a configuration can hold") from None
    plain = {*range(0x20, 0x7F)} - {ord('"'), ord("\\"), ord("'")}
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in data) + '"'


def _tensor(tensor: Tensor) -> str:
    kind = "STRING" if tensor.data_type == "BYTES" else tensor.data_type
    optional = " optional: true" if tensor.optional else ""
    return f"name: {quoted(tensor.name)} data_type: TYPE_{kind} dims: {list(tensor.dims)}{optional}"


def _batching(batching: DynamicBatching) -> str:
    parts = [f"max_queue_delay_microseconds: {batching.max_queue_delay_us}"]
    if batching.preferred_batch_size:
        parts.insert(0, f"preferred_batch_size: {list(batching.preferred_batch_size)}")
    if batching.preserve_ordering:
        parts.append("preserve_ordering: true")
    return " ".join(parts)


def _step(step: Step) -> str:
    maps = [("input_map", step.inputs), ("output_map", step.outputs)]
    pairs = [f"{what} {{ key: {quoted(k)} value: {quoted(v)} }}" for what, names in maps for k, v in names.items()]
    return " ".join([f"model_name: {quoted(step.model)} model_version: {step.version}", *pairs])
