"""A small model of Triton for tests, and the interpreter whose Triton serves it.

Its model ``echo`` takes ``X`` (FP32) and, where ``TEXT`` is asked for, ``TEXT`` (BYTES); returns them, and ``SUM``,
the sum of each row of ``X``. It batches up to 8 requests.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpuserve.errors import ServerFailed
from pytest_gpuserve.servers.triton_install import find_triton

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PYTHON_VARIABLE = "GPUSERVE_TRITON_PYTHON"
"""Names the interpreter that has nvidia-pytriton, where it is not the one that runs the tests."""

START_SECONDS = 60.0

MODEL = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Echo and sum."""

    def execute(self, requests):
        """Answer each request of a batch by itself."""
        responses = []
        for request in requests:
            wanted = request.requested_output_names()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            tensors = {"Y": x, "SUM": x.sum(axis=1, keepdims=True)}
            if "SAID" in wanted:
                tensors["SAID"] = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, tensors[name]) for name in wanted]))
        return responses
'''

CONFIG = """
name: "echo"
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
input { name: "TEXT" data_type: TYPE_STRING dims: [-1] optional: true }
output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
output { name: "SUM" data_type: TYPE_FP32 dims: [1] }
output { name: "SAID" data_type: TYPE_STRING dims: [-1] }
dynamic_batching { max_queue_delay_microseconds: 100 }
instance_group { kind: KIND_CPU count: 1 }
"""


def write_model(repository: Path, config: str, files: Mapping[str, str] | None = None, *, version: int = 1) -> None:
    """Write a model into a repository, in a folder of the name that its configuration gives it."""
    named = re.search(r'name: "(\w+)"', config)
    assert named is not None
    folder = repository / named[1] / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "config.pbtxt").write_text(config)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)


def triton_python() -> str:
    """The interpreter whose Triton is tested; skip the test if none works."""
    python = os.environ.get(PYTHON_VARIABLE, sys.executable)
    try:
        find_triton(python)
    except ServerFailed as problem:
        pytest.skip(f"{problem}\nor name another interpreter by {PYTHON_VARIABLE}")
    return python
