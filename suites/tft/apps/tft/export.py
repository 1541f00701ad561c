"""The network as a file that needs none of its code: a TorchScript trace or, where the package is there, ONNX."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from .contract import INPUTS, OUTPUT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OPSET = 13
"""ONNX's version of operators, as published."""


def traced(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> torch.jit.ScriptModule:
    """Record the network's operations on these inputs, for any batch size and the same placeholders.

    Args:
        model: A network in eval mode.
        inputs: Example of the eight inputs, with at least two rows, because tracing would take one row for a constant.
    """
    with warnings.catch_warnings(), torch.inference_mode():
        # Tracing decides that a placeholder is one, as it should. Triton's PyTorch backend takes TorchScript, although
        # that is deprecated.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        trace: torch.jit.ScriptModule = torch.jit.trace(model, tuple(inputs), check_trace=False)
    return trace


def export_trace(model: torch.nn.Module, inputs: Sequence[torch.Tensor], path: Path) -> None:
    """Write the trace of a network; ``torch.jit.load`` reads it.

    Args:
        model: In eval mode.
        inputs: As for `traced`.
        path: The file.

    Raises:
        OSError: It cannot be written.
    """
    trace = traced(model, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(trace, str(path))


def load_trace(path: Path, device: str = "cpu") -> torch.jit.ScriptModule:
    """Read a trace that `export_trace` wrote.

    Raises:
        RuntimeError, ValueError: The file does not exist, or is not a trace.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        trace: torch.jit.ScriptModule = torch.jit.load(str(path), map_location=device)
    return trace


def export_onnx(model: torch.nn.Module, inputs: Sequence[torch.Tensor], path: Path) -> None:
    """Write a network as ONNX, with the names of Triton's tensors and any batch size; needs the package ``onnx``.

    Args:
        model: A network in eval mode.
        inputs: As for `traced`.
        path: The file.

    Raises:
        ImportError: The package is not installed.
        OSError: The file cannot be written.
    """
    names = [spec.name for spec in INPUTS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            model,
            tuple(inputs),
            str(path),
            input_names=names,
            output_names=[OUTPUT.name],
            dynamic_axes={name: {0: "batch"} for name in (*names, OUTPUT.name)},
            opset_version=OPSET,
            dynamo=False,
        )
