"""Building a model of a user's file: on the meta device and filled from a state dict, or at random from a seed."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from pytest_gpuserve.errors import ServerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


def load_callable(file: Path, name: str) -> Callable[..., Any]:
    """Import a file and return the callable that it names, a dotted name too; what lies beside it can be imported.

    Raises:
        ServerFailed: There is none.
        Exception: What the file raised.
    """
    # A file may be named like a module that is there already.
    module_name = file.stem if file.stem.isidentifier() and file.stem not in sys.modules else f"model_{abs(hash(file))}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ServerFailed(f"torch_worker cannot import {file}", remedies=["name a Python file: file.py:callable"])
    module = importlib.util.module_from_spec(spec)
    # dynamo looks a function's globals up by the name of its module.
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        public = sorted(each for each in vars(module) if not each.startswith("_") and callable(getattr(module, each)))
        raise ServerFailed(
            f"torch_worker: {file} has no callable {name}",
            found=", ".join(public) or "no callable at all",
            remedies=["name what returns the model: torch_worker('file.py:callable')"],
        )
    return found  # type: ignore[no-any-return]


def random_model(build: Callable[..., Any], arguments: Mapping[str, object], seed: int) -> Any:  # noqa: ANN401 -- torch's
    """Build a model with the weights that it gives itself.

    Raises:
        ServerFailed: What was built is no module.
        Exception: What the callable raised.
    """
    torch.manual_seed(seed)
    return _module(build(**arguments))


def empty_model(build: Callable[..., Any], arguments: Mapping[str, object], seed: int) -> Any:  # noqa: ANN401 -- torch's
    """Build a model without memory for its weights, on the meta device; with weights where it cannot be built so.

    Raises:
        ServerFailed: What was built is no module.
        Exception: What the callable raised.
    """
    try:
        with torch.device("meta"):
            model = _module(build(**arguments))
    except (RuntimeError, NotImplementedError) as problem:
        _say(f"built with memory: it cannot be built on the meta device ({_first_line(problem)})")
        return random_model(build, arguments, seed)
    # What is in no state dict would stay without a value.
    unsaved = sorted(set(dict(_meta_tensors(model))) - set(model.state_dict()))
    if unsaved:
        _say(f"built with memory: its state dict lacks {', '.join(unsaved)}")
        return random_model(build, arguments, seed)
    return model


def fill(model: Any, weights: Path, device: Any) -> None:  # noqa: ANN401 -- torch's
    """Give a model the weights of a state dict, mapped from its file where that allows it.

    Raises:
        ServerFailed: It is no state dict of this model; names what is missing, unknown or of another shape.
    """
    state = _state_dict(weights, device)
    own = model.state_dict()
    problems = {
        "it lacks": sorted(own.keys() - state.keys()),
        "the model has no": sorted(state.keys() - own.keys()),
        "another shape has": sorted(
            f"{name} {list(state[name].shape)}, in the model {list(own[name].shape)}"
            for name in own.keys() & state.keys()
            if state[name].shape != own[name].shape
        ),
    }
    found = "; ".join(f"{what} {_some(names)}" for what, names in problems.items() if names)
    if found:
        raise ServerFailed(
            f"torch_worker: {weights} is no state dict of this model",
            found=found,
            remedies=["save it with torch.save(model.state_dict(), FILE) of the same model"],
        )
    model.load_state_dict(state, assign=True)
    empty = sorted(name for name, _ in _meta_tensors(model))
    if empty:
        raise ServerFailed("torch_worker: parts of the model have no value", found=f"still on meta: {_some(empty)}")


def parameter_facts(model: Any) -> dict[str, str]:  # noqa: ANN401 -- torch's
    """What the loaded model is made of: parameters, and their precision by share, the most first."""
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        dtype = str(parameter.dtype).removeprefix("torch.")
        counts[dtype] = counts.get(dtype, 0) + parameter.numel()
    return {
        "precision": ", ".join(sorted(counts, key=lambda dtype: -counts[dtype])) or "no parameters",
        "parameters": str(sum(counts.values())),
    }


def _state_dict(weights: Path, device: Any) -> dict[str, Any]:  # noqa: ANN401 -- torch's
    try:
        try:
            state = torch.load(weights, mmap=True, weights_only=True, map_location=device)
        except RuntimeError as problem:
            # torch maps only what its own zip format holds.
            if "mmap" not in str(problem):
                raise
            state = torch.load(weights, weights_only=True, map_location=device)
    except Exception as problem:  # noqa: BLE001
        # Unpickling errors, zip errors, RuntimeError, OSError: each says in its way that this is no state dict.
        _unreadable(weights, problem)
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        _unreadable(weights, TypeError("it holds no dict of tensors"))
    return state


def _unreadable(weights: Path, problem: Exception) -> NoReturn:
    raise ServerFailed(
        f"torch_worker: {weights} cannot be read as a state dict",
        found=f"{type(problem).__name__}: {_first_line(problem)}",
        remedies=["save it with torch.save(model.state_dict(), FILE); nothing else in a file is unpickled"],
    ) from problem


def _module(built: object) -> Any:  # noqa: ANN401 -- torch's
    if not isinstance(built, torch.nn.Module):
        raise ServerFailed(
            "torch_worker: the callable returned no module",
            found=type(built).__name__,
            remedies=["return a torch.nn.Module"],
        )
    return built


def _meta_tensors(model: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 -- torch's
    """Parameters, buffers and plain attributes on the meta device, by name."""
    for prefix, module in model.named_modules():
        everything = {**vars(module), **module._parameters, **module._buffers}  # noqa: SLF001 -- with the unsaved ones
        for name, value in everything.items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                yield f"{prefix}.{name}" if prefix else name, value


def _some(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).splitlines()), "")


def _say(text: str) -> None:
    print(f"torch_worker: {text}", flush=True)  # noqa: T201 -- its log
