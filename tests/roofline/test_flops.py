"""Counting a model's operations: what is counted and how, with torch in this process and in the program's own."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import GpuserveError, UsageProblem
from pytest_gpuserve.roofline import Work, ceiling_per_second, count_flops, flops, peak_of
from pytest_gpuserve.units import format_seconds

torch = pytest.importorskip("torch")

from pytest_gpuserve.servers.inside import torch_flops  # noqa: E402 -- imports torch
from pytest_gpuserve.servers.inside.torch_flops import Count, InputSpec, count  # noqa: E402 -- imports torch
from tests.fakes import convnext  # noqa: E402 -- imports torch
from tests.fakes.children.toolkit import printed  # noqa: E402 -- below what imports torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Torch: TypeAlias = Any
"""A module or tensor of torch, whose types a checker does not see."""

Checked: TypeAlias = Any
"""What a user may have typed."""

X = {"x": (2, 8)}

sizes = st.integers(min_value=1, max_value=9)


def counted(build: Callable[[], Torch], *shape: int, dtype: str = "float32") -> Count:
    """The count of a model with one input."""
    return count(build, {}, [InputSpec("x", shape, dtype)])


def module_of(function: Callable[..., object], **parts: Torch) -> Torch:
    """A module that does this, and has these parts."""
    module = torch.nn.Module()
    module.forward = function
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def forward(function: Callable[[Torch], object]) -> Callable[[], Torch]:
    """Builds a module that does this to ``x``."""
    return lambda: module_of(function)


@pytest.fixture
def model_file(tmp_path: Path) -> Callable[[str], str]:
    """Writes a model's file; returns how it is named."""

    def write(source: str) -> str:
        (tmp_path / "model.py").write_text(f"import torch\n{source}")
        return "model.py:build"

    return write


def test_convnext_tiny_is_4_4548_gmac() -> None:
    """The number of its authors, 4.5 G, is of multiply-adds: it has 8.909 GFLOP, as transformers' own ConvNeXt has.

    A T4's ceilings are half of what taking MACs for FLOPs promises. The architecture is the published one.
    """
    found = counted(lambda: convnext.build(2), 1, 3, 224, 224)
    assert found == Count(8_909_529_600, ["aten.mean", "aten.native_layer_norm"])
    work = Work(flops=found.flops)
    assert work.macs == pytest.approx(4.4548e9, rel=1e-3)
    assert round(ceiling_per_second(work, peak_of("Tesla T4", "fp32"))) == 909
    assert round(ceiling_per_second(work, peak_of("Tesla T4", "fp16"))) == 7296
    with torch.device("meta"):
        model = convnext.build(2)
    assert sum(parameter.numel() for parameter in model.parameters()) == 27_821_666


@settings(max_examples=25)
@given(sizes, sizes, st.integers(min_value=4, max_value=9))
def test_layers_cost_what_their_weights_do(batch: int, channels: int, size: int) -> None:
    """Two operations for each weight and row, without bias; of a grouped convolution not of all pairs of channels."""
    found = counted(lambda: torch.nn.Linear(channels, size), batch, channels)
    assert found == Count(2 * batch * channels * size, [])
    found = counted(lambda: torch.nn.Conv2d(channels, channels, 3, groups=channels), batch, channels, size, size)
    assert found.flops == 2 * batch * channels * 9 * (size - 2) ** 2


def test_attention_is_counted() -> None:
    """Both products of attention count, on the meta device and where it runs on the CPU, whose own kernel has none."""
    batch, heads, tokens, width = 2, 3, 5, 7
    products = 2 * 2 * batch * heads * tokens * tokens * width

    def attend(x: Torch) -> object:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    def attend_to_values(x: Torch) -> object:
        x.sum().item()
        return attend(x)

    for each in (attend, attend_to_values):
        assert counted(forward(each), batch, heads, tokens, width).flops == products


@pytest.mark.parametrize("values_needed", [False, True])
def test_fused_layers_are_taken_apart(values_needed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    """An encoder layer and an LSTM count by their products, where torch would execute each as one operator."""
    tokens, width, wide = 5, 8, 12

    def build() -> Torch:
        encoder = torch.nn.TransformerEncoderLayer(width, 2, wide, batch_first=True)
        lstm = torch.nn.LSTM(width, width, batch_first=True)

        def run(x: Torch) -> object:
            if values_needed:
                x.sum().item()
            return lstm(encoder(x))

        return module_of(run, encoder=encoder, lstm=lstm)

    projections = 4 * width * width + 2 * width * wide
    attention = 2 * tokens * width
    gates = 2 * 4 * width * width
    assert counted(build, 1, tokens, width).flops == 2 * tokens * (projections + attention + gates)


def test_a_model_is_built_without_memory() -> None:
    """Also one with a buffer that no state dict has, and one that fails, which would fail with values too.

    torch's settings are put back.
    """
    devices = []

    def failing() -> Torch:
        devices.append(torch.get_default_device().type)
        return module_of(lambda x: 1 // 0)

    def buffered() -> Torch:
        linear = torch.nn.Linear(3, 3)

        def run(x: Torch) -> object:
            devices.append(module.scale.device.type)
            return linear(x * module.scale + torch.arange(3))

        module = module_of(run, linear=linear)
        module.register_buffer("scale", torch.ones(3), persistent=False)
        return module

    with pytest.raises(ZeroDivisionError):
        counted(failing, 1)
    assert torch.backends.mkldnn.enabled
    assert counted(buffered, 1, 3).flops == 18
    assert devices == ["meta", "meta"]


def test_what_has_no_formula_is_named() -> None:
    """Operators that calculate more than an operation an element and are not counted are told; others are not.

    In inference mode torch hands over whole layers; their parts have formulas, so nothing of them is uncounted.
    """
    found = counted(forward(lambda x: torch.linalg.svdvals(torch.cat([x @ x, x.t().relu()]).cumsum(0))), 4, 4)
    assert found == Count(2 * 4 * 4 * 4, ["aten._linalg_svd", "aten.cumsum"])
    build = forward(torch.inference_mode()(lambda x: torch.nn.functional.linear(x, x)))
    assert counted(build, 3, 4) == Count(2 * 3 * 4 * 3, [])


def test_indices_are_within_every_table() -> None:
    """An input of whole numbers is looked up in a table of any length, also where the model really runs.

    The empty shape, a scalar, is an input too.
    """

    def build() -> Torch:
        table, linear = torch.nn.Embedding(1, 8), torch.nn.Linear(8, 4)
        return module_of(lambda x: linear(table(x)) if x.max().item() == 0 else x)

    for dtype in ("int64", "int32"):
        assert counted(build, 3, dtype=dtype).flops == 2 * 3 * 8 * 4
    scale = torch.eye(2)
    assert counted(forward(lambda x: (scale.to(x.device) * x) @ scale.to(x.device))).flops == 2 * 2 * 2 * 2


def test_operations_are_counted_not_bits() -> None:
    """Half precision costs the same; a model is counted on a machine that could not hold its weights."""
    assert counted(lambda: torch.nn.Linear(8, 4).half(), 3, 8, dtype="float16").flops == 2 * 3 * 8 * 4
    wide = 2**18
    assert counted(lambda: torch.nn.Linear(wide, wide + wide // 2, bias=False), 1, wide).flops == 3 * wide * wide


def test_several_inputs_are_taken_by_name() -> None:
    """Inputs whose names forward() does not have are refused by those that it has."""

    def build() -> Torch:
        return module_of(lambda left, right: left @ right)

    inputs = [InputSpec("right", (3, 5), "float32"), InputSpec("left", (2, 3), "float32")]
    assert count(build, {}, inputs).flops == 2 * 2 * 3 * 5
    with pytest.raises(TypeError, match=r"forward\(\) has no other; it takes left, right"):
        count(build, {}, [*inputs, InputSpec("other", (1,), "float32")])


def test_the_package_imports_no_torch_for_it() -> None:
    """The half that runs in the tests' process knows nothing of torch."""
    code = "import sys, pytest_gpuserve.roofline; print('torch' in sys.modules or 'numpy' in sys.modules)"
    assert printed(code, env=os.environ) == "False\n"


def test_a_model_that_needs_values(model_file: Callable[[str], str], tmp_path: Path) -> None:
    """It really runs, on the CPU, uncompiled; what it prints and threads that it leaves behind do no harm."""
    model = model_file(
        "import os, threading, time\n"
        "class Picky(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        print('{}', flush=True)\n"
        "        assert os.environ['TORCHDYNAMO_DISABLE'] == '1'\n"
        "        return super().forward(x).cumsum(0) if x.isfinite().all() else x\n"
        "def build(width):\n"
        "    threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "    assert (os.environ['CUDA_VISIBLE_DEVICES'], os.environ['MINE']) == ('', 'yes')\n"
        "    return torch.compile(Picky(8, width))\n"
    )
    env = {"MINE": "yes", "CUDA_VISIBLE_DEVICES": "0"}
    work = count_flops(model, X, folder=tmp_path, args={"width": 3}, env=env, timeout_seconds=60)
    assert work == Work(flops=2 * 2 * 8 * 3, uncounted=("aten.cumsum",))


def test_own_formulas_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the model's file registers with torch's counter counts."""
    from torch.utils import flop_counter

    monkeypatch.setattr(flop_counter, "flop_registry", dict(flop_counter.flop_registry))

    def build() -> Torch:
        flop_counter.register_flop_formula(torch.ops.aten.cumsum)(lambda shape, *rest, out_shape=None: 1234)
        return module_of(lambda x: x.cumsum(0))

    assert counted(build, 3) == Count(1234, [])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("build = torch.nn.ReLU", "no operator at all"),
        ("build = lambda: torch.nn.LayerNorm(8)", "aten.native_layer_norm"),
        ("def build():\n    return 7", "the callable returned no module; there is: int"),
        ("def other():\n    pass", "has no callable build; there is: other"),
        ("build = lambda: torch.nn.Linear(9, 9)", r"\[2, 8\] X \[9, 9\]"),
        ("import torch_of_another_name", "ModuleNotFoundError: No module named 'torch_of_another_name'"),
    ],
)
def test_a_count_that_fails_says_why(model_file: Callable[[str], str], tmp_path: Path, source: str, found: str) -> None:
    """A model that cannot be counted is an error with its own words, never a number."""
    model_file(source)
    told = torch_flops.answer(tmp_path / "model.py", "build", {}, [InputSpec("x", (2, 8), "float32")])
    with pytest.raises(GpuserveError, match="a model: ") as problem:
        flops._work("a model", told)
    assert re.search(found, problem.value.found)
    assert "torch_worker" not in str(problem.value)


def test_a_failure_is_told_with_where_it_was(model_file: Callable[[str], str], tmp_path: Path) -> None:
    """The user's own lines are shown, and nothing of what torch and the program called on the way."""
    model_file("def build():\n    return torch.nn.Sequential(*size())\ndef size():\n    return {}['tiny']\n")
    told = torch_flops.answer(tmp_path / "model.py", "build", {}, [InputSpec("x", (2, 8), "float32")])
    with pytest.raises(GpuserveError) as problem:
        flops._work("a model", told)
    assert problem.value.found == "KeyError: 'tiny'"
    assert re.findall(r"in (\S+)", problem.value.log_tail) == ["build", "size"]


def script(path: Path, text: str) -> str:
    """A shell script in the place of an interpreter."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_a_program_that_hangs_is_ended(model_file: Callable[[str], str], tmp_path: Path) -> None:
    """After the longest wait it and what it started are gone; without an answer there is no count."""
    note = tmp_path / "pids"
    slow = script(tmp_path / "slow", f'sleep 600 &\necho $$ $! >"{note}.new" && mv "{note}.new" "{note}"\nwait')
    for seconds in (1, 60):  # a busy machine may not have begun with it in the first
        with pytest.raises(GpuserveError, match="could not be counted") as problem:
            count_flops(model_file(""), X, folder=tmp_path, python=slow, timeout_seconds=seconds)
        assert problem.value.found == f"no answer in {format_seconds(seconds)}"
        if note.exists():
            break
    assert [pid for pid in map(int, note.read_text().split()) if psutil.pid_exists(pid)] == []
    silent = script(tmp_path / "silent", "exit 0")
    with pytest.raises(GpuserveError, match=r"count_flops\('model.py:build'\): .* could not be counted") as problem:
        count_flops(model_file(""), X, folder=tmp_path, python=silent)
    assert problem.value.found == "exit code 0"


def test_an_interpreter_without_torch(model_file: Callable[[str], str], tmp_path: Path) -> None:
    """The error names the interpreter, and the option for another."""
    bare = script(tmp_path / "bare", "echo \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1")
    with pytest.raises(GpuserveError, match="could not be counted") as problem:
        count_flops(model_file("build = torch.nn.ReLU"), X, folder=tmp_path, python=bare)
    assert problem.value.looked == (bare,)
    assert "No module named 'torch'" in problem.value.log_tail
    assert any("python=" in remedy for remedy in problem.value.remedies)


@pytest.mark.parametrize("model", ["model.py", "missing.py:build", ":build", "model.py:"])
def test_a_model_is_a_file_and_a_callable(model_file: Callable[[str], str], tmp_path: Path, model: str) -> None:
    """Anything else is refused before a process is started."""
    model_file("build = torch.nn.ReLU")
    with pytest.raises(UsageProblem, match="a file and what in it returns the model"):
        count_flops(model, X, folder=tmp_path)


@pytest.mark.parametrize(
    ("inputs", "dtypes", "problem"),
    [
        ({}, {}, "needs the shapes"),
        ([("x", (1,))], {}, "needs the shapes"),
        ({"x": 3}, {}, "3 is no shape of 'x'"),
        ({"x": "12"}, {}, "'12' is no shape"),
        ({"x": (1, 0)}, {}, "is no shape"),
        ({"x": (1.0,)}, {}, "is no shape"),
        ({"x": (True,)}, {}, "is no shape"),
        ({"x": (1,)}, {"y": "int64"}, "names 'y', which is no input"),
        ({"x": (1,)}, {"x": "torch.int64"}, "'torch.int64' is no type of 'x'"),
    ],
)
def test_inputs_are_checked_before_anything_starts(
    model_file: Callable[[str], str], tmp_path: Path, inputs: Checked, dtypes: Checked, problem: str
) -> None:
    """Shapes and types that are none are refused by what was given, with an example of what is right."""
    with pytest.raises(UsageProblem, match=problem) as found:
        count_flops(model_file("build = torch.nn.ReLU"), inputs, folder=tmp_path, dtypes=dtypes, timeout_seconds=1)
    assert any("dtypes=" in remedy for remedy in found.value.remedies)
