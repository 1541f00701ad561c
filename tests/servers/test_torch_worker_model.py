"""Models from files, their weights, and one execution, with torch in this process."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.inside import torch_model
from pytest_gpuserve.servers.inside.torch_http import ITEM_BYTES, BadRequest, InferenceRequest, Tensor

torch = pytest.importorskip("torch")


Torch: TypeAlias = Any
"""A module or tensor of torch, whose types a checker does not see."""

MODELS = Path(__file__).parents[1] / "fakes" / "torch_models.py"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def small() -> Callable[..., Any]:
    """A model with weights and buffers."""
    return torch_model.load_callable(MODELS, "scores")


def executed(module: Torch, *requests: InferenceRequest, batching: bool = True) -> list[list[Tensor]]:
    """The answers of a module, or of its ``forward``, to requests that are put together."""
    if not isinstance(module, torch.nn.Module):
        forward, module = module, torch.nn.Module()
        module.forward = forward
    names = torch_model.parameter_names(module)
    with torch.no_grad():
        return torch_model.Execution(module, names, CPU, batching=batching)(requests)


def rows_of(*rows: float) -> InferenceRequest:
    """A request with an FP32 input ``x`` of so many rows of one element."""
    return InferenceRequest((Tensor("x", "FP32", (len(rows), 1), np.array(rows, "<f4").tobytes()),))


def values(tensor: Tensor) -> list[float]:
    """FP32 elements of a tensor."""
    return [float(value) for value in np.frombuffer(bytes(tensor.data), "<f4")]


def test_weights_from_a_file_make_the_same_model(small: Callable[..., Any], tmp_path: Path) -> None:
    """A model that is filled from a file answers as the saved one."""
    saved = torch_model.built_model(small, {"classes": 4}, seed=1).eval()
    torch.save(saved.state_dict(), tmp_path / "w.pth")
    model = torch_model.built_model(small, {"classes": 4}, seed=2)
    torch_model.fill(model, tmp_path / "w.pth", CPU)
    images = torch.ones(2, 3, 6, 6)
    assert torch.equal(model.eval()(images), saved(images))


def test_a_seed_makes_the_weights(small: Callable[..., Any]) -> None:
    """The same seed gives the same model, and another seed another one."""
    first, again, other = (torch_model.built_model(small, {}, seed)[5].weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_weights_of_another_model_are_refused_by_name(small: Callable[..., Any], tmp_path: Path) -> None:
    """Missing and surplus entries, and those of another shape, are named, buffers too."""
    state = torch_model.built_model(small, {}, seed=0).state_dict()
    del state["1.running_mean"], state["0.bias"]
    state["head.weight"] = torch.zeros(1)
    torch.save(state, tmp_path / "w.pth")
    model = torch_model.built_model(small, {"classes": 2}, seed=0)
    with pytest.raises(ServerFailed) as problem:
        torch_model.fill(model, tmp_path / "w.pth", CPU)
    for words in (
        'Missing key(s) in state_dict: "0.bias", "1.running_mean"',
        'Unexpected key(s) in state_dict: "head.weight"',
        "size mismatch for 5.bias",
        "size mismatch for 5.weight",
    ):
        assert words in problem.value.found


class Mischief:
    """Code that unpickling would run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("content", ["garbage", "empty", "list", "module", "code", "code in the old format"])
def test_what_is_no_state_dict_is_refused(small: Callable[..., Any], tmp_path: Path, content: str) -> None:
    """Garbage, another object and a pickled module are errors that name the file; no code in a file is run."""
    path, ran = tmp_path / "w.pth", tmp_path / "ran"
    if content in {"garbage", "empty"}:
        path.write_bytes(b"garbage" * 100 * (content == "garbage"))
    elif content.startswith("code"):
        torch.save({"5.weight": Mischief(ran)}, path, _use_new_zipfile_serialization=content == "code")
    else:
        torch.save([1, 2] if content == "list" else torch.nn.Linear(2, 2), path)
    with pytest.raises(ServerFailed, match=r"w\.pth is not a state dict of this model"):
        torch_model.fill(torch_model.built_model(small, {}, seed=0), path, CPU)
    assert not ran.exists()


def test_what_makes_no_module_is_named() -> None:
    """A missing callable is named with the existing ones, and so is a callable that does not return a module."""
    for name in ("nothing", "torch.nothing"):
        with pytest.raises(ServerFailed, match=f"has no callable {name}") as problem:
            torch_model.load_callable(MODELS, name)
        assert "doubling" in problem.value.found
    with pytest.raises(ServerFailed, match="did not return a module"):
        torch_model.built_model(torch_model.load_callable(MODELS, "no_module"), {}, 0)


@settings(deadline=None)
@given(
    st.sampled_from(sorted(ITEM_BYTES)),
    st.lists(st.integers(0, 3), max_size=2),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(0, 7),
    st.data(),
)
def test_elements_go_through_unchanged(
    datatype: str, trailing: list[int], rows: list[int], shift: int, data: st.DataObject
) -> None:
    """Requests of any datatype, from any address, come back as they were, each its own rows; truth values as 0 or 1."""
    requests = []
    for count in rows:
        size = count * math.prod(trailing) * ITEM_BYTES[datatype]
        raw = data.draw(st.binary(min_size=size, max_size=size))
        view = memoryview(bytes(shift) + raw)[shift:]
        requests.append(InferenceRequest((Tensor("x", datatype, (count, *trailing), view),)))
    answers = executed(lambda x: x, *requests)
    for request, answer in zip(requests, answers, strict=True):
        sent = bytes(request.inputs[0].data)
        expected = bytes(byte != 0 for byte in sent) if datatype == "BOOL" else sent
        assert answer == [Tensor("output", datatype, request.inputs[0].shape, expected)]


def test_outputs_that_are_views_are_cut_right() -> None:
    """Transposed, expanded and sliced outputs are sent as they look; without batching they have any shape."""

    def views(x: Torch) -> dict[str, Torch]:
        wide = torch.cat([x, x + 10, x + 20], 1)
        return {"turned": wide.t().contiguous().t(), "spread": x.expand(-1, 2), "middle": wide[:, 1:2]}

    first, second = executed(views, rows_of(1, 2), rows_of(3))
    assert [values(tensor) for tensor in first] == [[1, 11, 21, 2, 12, 22], [1, 1, 2, 2], [11, 12]]
    assert [values(tensor) for tensor in second] == [[3, 13, 23], [3, 3], [13]]
    assert [tensor.shape for tensor in second] == [(1, 3), (1, 2), (1, 1)]
    (answer,) = executed(lambda x: x.sum(), rows_of(1, 2), batching=False)
    assert (answer[0].shape, values(answer[0])) == ((), [3])


def test_a_model_may_write_into_its_inputs() -> None:
    """The bytes of the request stay as they were."""
    request = rows_of(1, 2)
    (answer,) = executed(lambda x: x.add_(1), request)
    assert (values(answer[0]), values(request.inputs[0])) == ([2, 3], [1, 2])


def test_inputs_are_passed_by_name_where_forward_has_them() -> None:
    """Several inputs are passed by name in any order, and an unknown one is refused; a single one may have any name."""

    class Minus(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, a: Torch, b: Torch | None = None) -> Torch:
            return -a if b is None else a - b

    def answer(*names: str) -> list[float]:
        inputs = (rows_of(number).inputs[0]._replace(name=name) for number, name in enumerate(names, 1))
        return values(executed(Minus(), InferenceRequest(tuple(inputs)))[0][0])

    assert (answer("a", "b"), answer("b", "a"), answer("whatever")) == ([-1], [1], [-1])
    with pytest.raises(BadRequest, match="has no 'x'"):
        answer("x", "a")


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda x: 7, "the model returned int; a tensor, or a tuple or dict of them, is needed"),
        (lambda x: (), "the model returned no tensor"),
        (lambda x: {"y": None}, "output 'y' is a NoneType; return tensors only"),
        (lambda x: x.to(torch.complex64), "output 'output' is torch.complex64"),
        (lambda x: x.to_sparse(), "torch.sparse_coo, which cannot be sent"),
        (lambda x: x.sum(), "output 'output' has the shape [] for a batch of 3"),
        (lambda x: (x, x[:1]), "output 'output_1' has the shape [1, 1] for a batch of 3"),
    ],
)
def test_outputs_that_cannot_be_sent_are_named(returned: Callable[..., object], words: str) -> None:
    """An output that cannot be cut into the requests' rows is not an answer to any of them."""
    with pytest.raises(torch_model.BadOutput) as problem:
        executed(returned, rows_of(1, 2), rows_of(3))
    assert words in str(problem.value)
