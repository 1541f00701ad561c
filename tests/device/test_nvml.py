"""GPUs as read through the real binding from a fake C library, each time in a process of its own."""

from __future__ import annotations

import ctypes
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.device.gpu import RESERVED_NAMES, device_name
from tests.fakes.children.toolkit import printed
from tests.fakes.nvml import gpus
from tests.fakes.nvml.gpus import LIBRARY, Error, FakeGpu, Moment, Script, fake_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


PRINT_GPUS = """
import dataclasses, json, os, sys
from pytest_gpuserve.device.gpu import list_gpus
for script in sys.argv[1:] or [os.environ.get("FAKE_NVML_SCRIPT")]:
    if script is not None:
        os.environ["FAKE_NVML_SCRIPT"] = script
    print(json.dumps(dataclasses.asdict(list_gpus())))
"""


def read_gpus(environment: dict[str, str]) -> dict[str, Any]:
    """List the GPUs in a fresh process."""
    (answer,) = read_each(environment)
    return answer


def read_each(environment: dict[str, str], *scripts: str) -> list[dict[str, Any]]:
    """List the GPUs of each script; anything on the process's standard error, a traceback above all, is a failure."""
    return [json.loads(line) for line in printed(PRINT_GPUS, *scripts, env=environment).splitlines()]


def has_real_library() -> bool:
    """Whether this machine has NVIDIA's own library."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


CLOCKS = {
    "default": gpus.T4,
    "graphics set": replace(gpus.T4, application_graphics_clock=1590),
    "memory set": replace(gpus.T4, application_memory_clock=405),
    "memory set, graphics unknown": replace(gpus.T4, application_memory_clock=405, application_graphics_clock=None),
    "default unknown": replace(gpus.T4, default_application_memory_clock=None),
    "graphics unknown": replace(gpus.T4, application_graphics_clock=None),
}

NAMELESS = replace(gpus.DIVIDED_A100.slices[0], profile="")
LOST = Error("nvmlDeviceGetMigDeviceHandleByIndex", 15, gpu=0, moment=Moment(call=2, only=True))

SCRIPTS = {
    **{name: Script((gpu,)) for name, gpu in CLOCKS.items()},
    "two GPUs": Script((gpus.H200, replace(gpus.T4, power_limit_watts=65.5))),
    "all off": Script((replace(gpus.T4, ecc=0, persistence=0),)),
    "A100": Script((gpus.A100,)),
    "divided": Script((gpus.DIVIDED_A100,)),
    "without instances": Script((replace(gpus.DIVIDED_A100, slices=()), gpus.T4)),
    "without a profile": Script((replace(gpus.DIVIDED_A100, slices=(NAMELESS,)),)),
    "lost instance": Script((gpus.DIVIDED_A100,), (LOST,)),
}


@pytest.fixture(scope="module")
def answers(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Answers of each of the machines."""
    environment, paths = gpus.write_each(SCRIPTS.values(), tmp_path_factory.mktemp("gpus"), library=library)
    return dict(zip(SCRIPTS, read_each(environment, *paths), strict=True))


def read_failing(
    library: Path, folder: Path, gpu: FakeGpu, errors: Sequence[Error]
) -> list[tuple[Error, dict[str, Any]]]:
    """List a GPU once with each of the errors, all in one process."""
    scripts = [Script((gpu,), (error,)) for error in errors]
    environment, paths = gpus.write_each(scripts, folder, library=library)
    return list(zip(errors, read_each(environment, *paths), strict=True))


def test_every_fact_of_every_gpu_is_read(answers: dict[str, dict[str, Any]]) -> None:
    """Two GPUs give two entries with all facts, in NVML's order, and no problem."""
    answer = answers["two GPUs"]
    assert answer["problem"] == ""
    assert answer["absent"] is False
    assert [gpu["name"] for gpu in answer["gpus"]] == ["H200", "T4"]
    assert answer["gpus"][1] == {
        "index": 1,
        "product": "Tesla T4",
        "name": "T4",
        "uuid": "GPU-00000000-1111-2222-3333-444444444444",
        "memory_bytes": 15 * 2**30,
        "driver": "570.133.20",
        "cuda": "12.8",
        "power_limit_watts": 65.5,
        "max_sm_clock_mhz": 1590,
        "mig_profile": None,
        "power_default_watts": 70.0,
        "max_memory_clock_mhz": 5001,
        "application_clock_mhz": 585,
        "application_memory_clock_mhz": 5001,
        "application_clocks_set": False,
        "ecc": True,
        "persistence": True,
        "compute_capability": [7, 5],
    }


@pytest.mark.parametrize(("name", "expected"), list(zip(CLOCKS, (False, True, True, True, None, None), strict=True)))
def test_set_application_clocks_are_seen(
    answers: dict[str, dict[str, Any]], name: str, *, expected: bool | None
) -> None:
    """One clock off its default shows that clocks were set; all four are needed to exclude that, else it is unknown."""
    assert answers[name]["problem"] == ""
    (gpu,) = answers[name]["gpus"]
    assert gpu["application_clocks_set"] is expected


def test_what_waits_for_a_reset_does_not_count(answers: dict[str, dict[str, Any]]) -> None:
    """ECC and MIG are the current modes, off is False and not unknown, and a whole GPU has no profile."""
    (gpu,) = answers["all off"]["gpus"]
    assert (gpu["ecc"], gpu["persistence"]) == (False, False)
    (gpu,) = answers["A100"]["gpus"]
    assert (gpu["name"], gpu["mig_profile"]) == ("A100-SXM4-80GB", None)


# -- instances of a divided GPU


def test_a_divided_gpu_is_its_instances(answers: dict[str, dict[str, Any]]) -> None:
    """In its place stand its instances: name, UUID and memory are their own, the rest is the GPU's."""
    answer = answers["divided"]
    assert answer["problem"] == ""
    names = [gpu["name"].removeprefix("A100-SXM4-80GB-MIG-") for gpu in answer["gpus"]]
    assert names == ["1g.10gb", "1g.10gb", "3g.40gb"]
    last = answer["gpus"][2]
    assert (last["mig_profile"], last["uuid"][:12]) == ("3g.40gb", "MIG-33333333")
    assert (last["memory_bytes"], last["power_limit_watts"], last["max_sm_clock_mhz"]) == (40192 * 2**20, 400.0, 1410)
    assert last["index"] == 0


def test_a_gpu_whose_mig_mode_is_unknown_is_whole_unless_it_has_instances(
    answers: dict[str, dict[str, Any]], library: Path, tmp_path: Path
) -> None:
    """Some drivers answer "Unknown Error" for the mode: the GPU can be measured."""
    error = Error("nvmlDeviceGetMigMode", 999)
    scripts = (Script((gpu,), (error,)) for gpu in (gpus.A100, gpus.DIVIDED_A100))
    environment, paths = gpus.write_each(scripts, tmp_path, library=library)
    (whole,), instances = (answer["gpus"] for answer in read_each(environment, *paths))
    assert whole["mig_profile"] is None
    assert instances == answers["divided"]["gpus"]


@pytest.mark.parametrize(
    ("machine", "profiles", "begin", "words"),
    [
        ("without instances", [None], "GPU 0 is divided (MIG mode is on), but has no instance", ""),
        ("without a profile", [], "GPU 0, MIG instance 0: ", "does not contain a profile"),
        ("lost instance", ["1g.10gb", "3g.40gb"], "GPU 0, MIG instance 1: ", "GPU is lost"),
    ],
)
def test_a_divided_gpu_is_never_taken_for_the_whole_one(
    answers: dict[str, dict[str, Any]], machine: str, profiles: list[str | None], begin: str, words: str
) -> None:
    """Without instances, or without the profile that says which share one is, it is a problem, and others remain."""
    answer = answers[machine]
    assert [gpu["mig_profile"] for gpu in answer["gpus"]] == profiles
    assert answer["problem"].startswith(begin)
    assert words in answer["problem"]
    assert answer["absent"] is False


# -- each call may fail


def called_functions(library: Path, folder: Path, gpu: FakeGpu) -> list[str]:
    """The functions of the library that listing a GPU calls, in the order of their first call."""
    trace = folder / "trace"
    trace.unlink(missing_ok=True)
    environment = gpus.write(Script((gpu,)), folder, library=library)
    read_gpus({**environment, "FAKE_NVML_TRACE": str(trace)})
    return list(dict.fromkeys(trace.read_text().split()))


REFUSING = {
    "nvmlInitWithFlags",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
}
"""Without these a GPU cannot be named; all others may fail."""

REFUSING_INSTANCES = REFUSING | {"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"}
"""Without these the instances of a divided GPU are not known."""


@pytest.mark.parametrize("gpu", [gpus.T4, gpus.DIVIDED_A100], ids=["whole", "divided"])
def test_each_function_may_fail(
    library: Path, tmp_path: Path, answers: dict[str, dict[str, Any]], gpu: FakeGpu
) -> None:
    """A failing call gives an unknown fact, or an error with NVML's words; it never gives a traceback.

    The functions are those that a trace of the library shows.
    """
    functions = called_functions(library, tmp_path, gpu)
    assert len(functions) > 15
    whole = answers["default" if gpu is gpus.T4 else "divided"]
    refusing = REFUSING if gpu is gpus.T4 else REFUSING_INSTANCES
    words = {gpus.NOT_SUPPORTED: "Not Supported", gpus.GPU_IS_LOST: "GPU is lost", 999: "Unknown Error"}
    errors = [Error(function, code) for function in functions for code in words]
    for error, answer in read_failing(library, tmp_path, gpu, errors):
        if error.function in refusing:
            assert answer["gpus"] == [], error
            assert words[error.code] in answer["problem"], error
            assert answer["absent"] is False, error
            continue
        assert answer["problem"] == "", error
        for read, known in zip(answer["gpus"], whole["gpus"], strict=True):
            assert all(read[fact] is None for fact in known if read[fact] != known[fact]), error


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (Script((gpus.T4,), (Error("nvmlInitWithFlags", 18),)), "NVML said: Driver/library version mismatch"),
        (Script((gpus.T4,), (Error("nvmlInitWithFlags", 9),)), "NVML said: Driver Not Loaded"),
        (Script(()), "NVML found no NVIDIA GPU on this machine"),
    ],
)
def test_a_library_that_does_not_start_is_no_machine_without_a_gpu(
    library: Path, tmp_path: Path, script: Script, problem: str
) -> None:
    """An error of nvmlInit gives no GPUs and NVML's own words; only no device at all is of the harmless kind."""
    answer = read_gpus(gpus.write(script, tmp_path, library=library))
    assert answer == {"gpus": [], "problem": problem, "absent": not script.gpus}


@pytest.mark.skipif(has_real_library(), reason="this machine has NVIDIA's library")
def test_a_machine_without_the_library_says_so(tmp_path: Path) -> None:
    """A missing library is the problem, of the harmless kind."""
    answer = read_gpus(fake_environment(tmp_path))
    assert answer == {"gpus": [], "problem": "libnvidia-ml.so.1 is not on this machine", "absent": True}


def test_a_damaged_library_is_not_a_missing_one(tmp_path: Path) -> None:
    """A library file that does not load may hide a GPU, so it is a problem of the serious kind."""
    (tmp_path / LIBRARY).write_bytes(b"\x7fELF")
    answer = read_gpus(fake_environment(tmp_path))
    assert answer["gpus"] == []
    assert answer["absent"] is False
    assert "cannot be loaded" in answer["problem"]
    assert "file too short" in answer["problem"]


def test_a_gpu_that_cannot_be_named_is_a_problem(library: Path, tmp_path: Path) -> None:
    """A lost second GPU leaves the first, with its index and NVML's words; a GPU without a name gets none made up."""
    lost = Script((gpus.T4, gpus.H200), (Error("nvmlDeviceGetName", gpus.GPU_IS_LOST, 1),))
    nameless = Script((replace(gpus.T4, product=""), gpus.second(gpus.T4)))
    environment, paths = gpus.write_each((lost, nameless), tmp_path, library=library)
    answer, other = read_each(environment, *paths)
    assert [gpu["name"] for gpu in answer["gpus"]] == ["T4"]
    assert answer["absent"] is False
    assert answer["problem"].startswith("GPU 1: ")
    assert "GPU is lost" in answer["problem"]
    assert [gpu["name"] for gpu in other["gpus"]] == ["T4"]
    assert other["problem"] == "GPU 0: NVML gave an empty name"


@pytest.mark.parametrize("errors", [(), (Error("nvmlDeviceGetName", gpus.GPU_IS_LOST),)], ids=["well", "gpu"])
def test_nvml_is_open_once_for_a_process(library: Path, tmp_path: Path, errors: tuple[Error, ...]) -> None:
    """From its first look to its end, also when reading fails: each opening may take the driver seconds."""
    calls = tmp_path / "calls"
    looks = "from pytest_gpuserve.device.gpu import list_gpus; list_gpus(); list_gpus()"
    environment = gpus.write(Script((gpus.T4,), errors), tmp_path, library=library)
    printed(looks, env={**environment, "FAKE_NVML_TRACE": str(calls)})
    names = calls.read_text().split()
    assert (names.count("nvmlInitWithFlags"), names.count("nvmlShutdown")) == (1, 1)


PRODUCTS = {
    "NVIDIA Tesla T4": "T4",
    "NVIDIA H100 80GB HBM3": "H100-80GB-HBM3",
    "Tesla V100-SXM2-16GB": "V100-SXM2-16GB",
    "Quadro RTX 6000": "Quadro-RTX-6000",
}


@pytest.mark.parametrize(("product", "name"), PRODUCTS.items(), ids=PRODUCTS.values())
def test_a_product_is_named_without_its_vendor(product: str, name: str) -> None:
    """Real product names become what people write after ``--gpu=``."""
    assert device_name(product) == name


@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from(["NVIDIA", "Tesla", "cpu", "AUTO", " ", "-", "/", ".", "T4", "\0", "é"])).map("".join),
    )
)
@example("NVIDIA:.NVIDIA:0")
@example("NVIDIA CPU")
@example("../../etc")
@example("cpu" + "-" * 200 + "x")
def test_every_product_gives_one_safe_folder_name(product: str) -> None:
    """Any text gives a short safe folder name that is not reserved, and naming it again keeps it."""
    name = device_name(product)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name)
    assert not name.endswith(".")
    assert name.lower() not in RESERVED_NAMES
    assert device_name(name) == name
