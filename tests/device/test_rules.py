"""Comparability of measurements: the table of rules, over all pairs of scripted GPUs and on made-up facts."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuserve.device.gpu import Gpu
from pytest_gpuserve.device.host import Host
from pytest_gpuserve.device.rules import (
    DEVICE_RULES,
    HOST_RULES,
    Compatibility,
    Kind,
    changes,
    compare,
    kind_of,
)
from pytest_gpuserve.store.schema import DeviceRecord, HostRecord
from pytest_gpuserve.units import format_fraction
from tests.fakes.children.toolkit import ROOT, printed
from tests.fakes.nvml import gpus
from tests.fakes.nvml.gpus import MIB, Error, Script, second


def table_of_rules() -> str:
    """The table of ``docs/reference/devices.md``."""
    lines = ["| Fact | Rule | Why |", "|---|---|---|"]
    for rule in (*DEVICE_RULES, *HOST_RULES):
        within = f", within {format_fraction(rule.tolerance)}" if rule.tolerance else ""
        lines.append(f"| {rule.what} | {rule.kind.value}{within} | {rule.why} |")
    return "\n".join(lines)


PRINT_RECORDS = """
import json, os, sys
import msgspec
from pytest_gpuserve.device.gpu import list_gpus
from pytest_gpuserve.device import Device
from tests.support.builders import here
from dataclasses import replace
for script in sys.argv[1:]:
    os.environ["FAKE_NVML_SCRIPT"] = script
    answer = list_gpus()
    assert not answer.problem, answer.problem
    where = here()
    devices = [Device(gpu.name, gpu, where.host) for gpu in answer.gpus]
    print(json.dumps([msgspec.to_builtins(replace(where, device=device).device_record()) for device in devices]))
"""

SLICES = gpus.DIVIDED_A100
SCRIPTS = {
    "T4": Script((gpus.T4,)),
    "another T4": Script((second(gpus.T4),)),
    "T4 at 69 W": Script((replace(gpus.T4, power_limit_watts=69),)),
    "T4 at half its power": Script((replace(gpus.T4, power_limit_watts=35),)),
    "T4 without ECC": Script((replace(gpus.T4, ecc=0),)),
    "T4 of 8 GiB": Script((replace(gpus.T4, memory_bytes=8192 * MIB),)),
    "T4 as an older driver counts": Script((replace(gpus.T4, memory_bytes=15109 * MIB),), driver="460.1"),
    "T4 with a new driver": Script((gpus.T4,), driver="580.1", cuda=13000),
    "T4 with set clocks": Script((replace(gpus.T4, application_graphics_clock=1005),)),
    "T4 not persistent": Script((replace(gpus.T4, persistence=0),)),
    "T4 of unknown power": Script((gpus.T4,), (Error("nvmlDeviceGetPowerManagementLimit", 999),)),
    "A100": Script((gpus.A100,)),
    "A100 1g": Script((replace(SLICES, slices=SLICES.slices[:1]),)),
    "another A100 1g": Script((replace(SLICES, slices=SLICES.slices[1:2]),)),
    "A100 3g": Script((replace(SLICES, slices=SLICES.slices[2:]),)),
    "H100 PCIe": Script((gpus.H100_PCIE,)),
    "H200": Script((gpus.H200,)),
}

ALIKE = [
    {"T4", "another T4", "T4 at 69 W"},
    {"T4 as an older driver counts"},
    {"T4 with a new driver"},
    {"T4 with set clocks"},
    {"T4 not persistent"},
    {"A100 1g", "another A100 1g"},
]
"""Within each set nothing is to be said of a difference."""

COMPARABLE = [set[str]().union(*ALIKE[:-1]), ALIKE[-1]]
"""Within each set a baseline of one is a baseline for the others; everything else is only for itself."""


@pytest.fixture(scope="module")
def records(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Records of each GPU for a baseline, read through the real binding."""
    environment, paths = gpus.write_each(SCRIPTS.values(), tmp_path_factory.mktemp("gpus"), library=library)
    lines = printed(PRINT_RECORDS, *paths, env=environment).splitlines()
    return {name: json.loads(line)[0] for name, line in zip(SCRIPTS, lines, strict=True)}


def test_each_pair_of_gpus(records: dict[str, dict[str, Any]]) -> None:
    """Only GPUs of a kind, as they are set up now, are compared; and only those that are alike without a word."""

    def together(pair: set[str], sets: list[set[str]]) -> bool:
        return len(pair) == 1 or any(pair <= each for each in sets)

    for name, other in product(SCRIPTS, SCRIPTS):
        found = compare(records[name], records[other])
        assert (not found.incompatible) is together({name, other}, COMPARABLE), (name, other)
        if not found.incompatible:
            assert (not found.warnings) is together({name, other}, ALIKE), (name, other)


def test_reasons_are_for_people(records: dict[str, dict[str, Any]]) -> None:
    """A reason names the fact, both values with their units, and why it matters."""
    (reason,) = compare(records["T4"], records["T4 at half its power"]).incompatible
    assert reason == "power limit: the baseline's is 70 W, this run's is 35 W (under load it decides the clocks)"
    reasons = "\n".join(compare(records["A100"], records["A100 1g"]).incompatible)
    assert "MIG profile: the baseline's is none, the whole GPU, this run's is 1g.10gb" in reasons


@pytest.mark.parametrize("rule", [rule for rule in DEVICE_RULES if rule.kind is Kind.MUST_MATCH])
def test_an_unknown_on_one_side_forbids(records: dict[str, dict[str, Any]], rule: Any) -> None:  # noqa: ANN401 -- a rule
    """A fact that must match and is known only once does not match."""
    known = records["A100 1g"]
    unknown = {**known, rule.field: None}
    for found in (compare(known, unknown), compare(unknown, known)):
        (reason,) = found.incompatible
        assert reason.startswith(f"{rule.what}: ")
    assert compare(unknown, unknown) == Compatibility()


def test_information_is_never_a_difference(records: dict[str, dict[str, Any]]) -> None:
    """Another GPU of the kind in another slot makes no difference."""
    now = records["T4"]
    other = {**now, "gpu_id": "x", "power_default_watts": 1.0}
    assert compare(other, now) == Compatibility()
    assert changes(other, now) == []


def test_a_host_only_warns() -> None:
    """Differences of two hosts with one name are reported, and passed to the settlement side by side."""
    before = {"id": "pool", "cpu": "A", "cores": 4, "memory_gib": 16.0, "governor": "performance", "kernel": "6.1"}
    now = {"id": "pool", "cpu": "A", "cores": 8, "memory_gib": 15.9, "governor": "powersave", "kernel": "6.2"}
    found = compare(before, now, HOST_RULES)
    assert found.incompatible == ()
    assert [warning.partition(":")[0] for warning in found.warnings] == [
        "cores of the host",
        "frequency governor of the host",
    ]
    assert "governor performance -> powersave" in changes(before, now, HOST_RULES)


def test_every_read_fact_is_recorded_and_has_a_rule() -> None:
    """Facts that only inform have no rule, nor has the host's identity; few facts have another form, or are derived."""
    informing = {"gpu_id", "power_default_watts"}
    assert {rule.field for rule in DEVICE_RULES} == set(DeviceRecord.__struct_fields__) - informing
    assert {rule.field for rule in HOST_RULES} == set(HostRecord.__struct_fields__) - {"id", "system", "kernel"}
    other_form = {"index", "uuid", "memory_bytes", "application_clocks_set"}
    assert {field.name for field in fields(Gpu)} - other_form <= set(DeviceRecord.__struct_fields__)
    assert {field.name for field in fields(Host)} - {"memory_bytes"} <= set(HostRecord.__struct_fields__)


def test_the_readme_shows_the_table() -> None:
    """The rules that people read are those that are applied."""
    text = (ROOT / "pytest_gpuserve" / "docs" / "reference" / "devices.md").read_text(encoding="utf-8")
    begin, end = "<!-- device rules -->\n", "\n<!-- end of device rules -->"
    assert text.partition(begin)[2].partition(end)[0] == table_of_rules()


def test_what_may_be_pooled_is_named_by_what_must_match() -> None:
    """Another power limit makes another kind of a GPU, another driver does not; a CPU is its name alone."""
    assert kind_of({"name": "cpu", "product": None}) == "cpu"
    gpu = {"name": "T4", "product": "Tesla T4", "power_limit_watts": 70.0, "driver": "570"}
    assert kind_of({**gpu, "driver": "580"}) == kind_of(gpu)
    assert kind_of({**gpu, "power_limit_watts": 35.0}) != kind_of(gpu)
    assert kind_of(gpu).startswith("T4 sha256:")
