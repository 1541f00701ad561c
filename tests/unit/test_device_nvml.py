"""Cards as read through the real binding from a fake C library, each time in a process of its own."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml.build import LIBRARY, build_fake_nvml, fake_environment

ROOT = Path(__file__).parents[2]

PRINT_CARDS = """
import dataclasses, json
from pytest_gpuserve.device import list_cards
print(json.dumps(dataclasses.asdict(list_cards())))
"""


@pytest.fixture(scope="module")
def library_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the fake library."""
    folder = tmp_path_factory.mktemp("nvml")
    build_fake_nvml(folder)
    return folder


def read_cards(environment: dict[str, str]) -> dict[str, Any]:
    """List the cards in a fresh process; anything on its standard error, a traceback above all, is a failure."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_CARDS],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def has_real_library() -> bool:
    """Whether this machine has NVIDIA's own library."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def test_every_fact_of_every_card_is_read(library_folder: Path) -> None:
    """Two cards give two entries with all facts, in NVML's order, and no problem."""
    answer = read_cards(fake_environment(library_folder, ["Tesla T4", "NVIDIA H200"]))
    assert answer["problem"] == ""
    assert answer["absent"] is False
    assert [card["name"] for card in answer["cards"]] == ["T4", "H200"]
    assert answer["cards"][1] == {
        "index": 1,
        "product": "NVIDIA H200",
        "name": "H200",
        "uuid": "GPU-00000001-0000-0000-0000-000000000000",
        "pci_bus_id": "00000000:02:00.0",
        "memory_bytes": 16 * 2**30,
        "driver": "570.133.20",
        "cuda": "12.8",
        "power_limit_watts": 70.0,
        "max_sm_clock_mhz": 1590,
        "mig": False,
    }


@pytest.mark.parametrize("code", [3, 13], ids=["not-supported", "driver-too-old"])
def test_a_fact_that_a_card_does_not_have_is_none(library_folder: Path, code: int) -> None:
    """Unsupported memory, power, clock and MIG queries leave None and are no problem."""
    answer = read_cards(
        fake_environment(
            library_folder, ["Tesla T4"], memory_error=code, power_error=code, clock_error=code, mig_error=code
        )
    )
    assert answer["problem"] == ""
    (card,) = answer["cards"]
    assert card["name"] == "T4"
    assert [card[key] for key in ("memory_bytes", "power_limit_watts", "max_sm_clock_mhz", "mig")] == [None] * 4


def test_mig_is_the_mode_of_now(library_folder: Path) -> None:
    """The current mode counts, not the one that waits for a reset."""
    (card,) = read_cards(fake_environment(library_folder, ["NVIDIA H200"], mig=1))["cards"]
    assert card["mig"] is True


@pytest.mark.parametrize(
    ("code", "words"),
    [(18, "Driver/library version mismatch"), (9, "Driver Not Loaded"), (4, "Insufficient Permissions")],
)
def test_a_library_that_does_not_start_is_quoted(library_folder: Path, code: int, words: str) -> None:
    """An error of nvmlInit gives no cards and NVML's own words, and does not count as a machine without a card."""
    answer = read_cards(fake_environment(library_folder, ["Tesla T4"], init_error=code))
    assert answer == {"cards": [], "problem": f"NVML said: {words}", "absent": False}


def test_a_machine_without_a_card_says_so(library_folder: Path) -> None:
    """No device at all is a problem in words, of the harmless kind."""
    answer = read_cards(fake_environment(library_folder, []))
    assert answer == {"cards": [], "problem": "NVML found no NVIDIA card on this machine", "absent": True}


@pytest.mark.skipif(has_real_library(), reason="this machine has NVIDIA's library")
def test_a_machine_without_the_library_says_so(tmp_path: Path) -> None:
    """Where the library is not installed that is the problem, of the harmless kind."""
    answer = read_cards(fake_environment(tmp_path, []))
    assert answer == {"cards": [], "problem": "libnvidia-ml.so.1 is not on this machine", "absent": True}


def test_a_damaged_library_is_not_a_missing_one(tmp_path: Path) -> None:
    """A library file that does not load may hide a card, so it is a problem of the serious kind."""
    (tmp_path / LIBRARY).write_bytes(b"\x7fELF")
    answer = read_cards(fake_environment(tmp_path, []))
    assert answer["cards"] == []
    assert answer["absent"] is False
    assert "cannot be loaded" in answer["problem"]
    assert "file too short" in answer["problem"]


@pytest.mark.parametrize("fact", ["handle", "name", "uuid", "pci"])
def test_a_card_that_cannot_be_named_is_a_problem(library_folder: Path, fact: str) -> None:
    """A lost second card leaves the first, and a problem that names its index and NVML's words."""
    answer = read_cards(fake_environment(library_folder, ["Tesla T4", "NVIDIA H200"], **{f"{fact}_error": "15@1"}))
    assert [card["name"] for card in answer["cards"]] == ["T4"]
    assert answer["absent"] is False
    assert answer["problem"].startswith("card 1: ")
    assert "GPU is lost" in answer["problem"]


def test_an_optional_fact_that_fails_is_a_problem(library_folder: Path) -> None:
    """Only "not supported" is None; another error on the same query is reported."""
    answer = read_cards(fake_environment(library_folder, ["Tesla T4"], power_error=15))
    assert answer["cards"] == []
    assert answer["problem"] == "card 0: its power limit cannot be read; NVML said: GPU is lost"


def test_an_empty_name_is_a_problem(library_folder: Path) -> None:
    """A card without a name gets no made-up one."""
    answer = read_cards(fake_environment(library_folder, ["", "Tesla T4"]))
    assert [card["name"] for card in answer["cards"]] == ["T4"]
    assert answer["problem"] == "card 0: NVML gave an empty name"


@pytest.mark.parametrize("error", [{}, {"name_error": 15}, {"driver_error": 999}], ids=["well", "card", "driver"])
def test_each_start_of_the_library_has_its_end(library_folder: Path, tmp_path: Path, error: dict[str, int]) -> None:
    """NVML is shut down as often as it was initialised, also when reading fails."""
    calls = tmp_path / "calls"
    read_cards(fake_environment(library_folder, ["Tesla T4"], calls=str(calls), **error))
    assert calls.read_text().split() == ["init", "shutdown"]


def test_importing_the_package_does_not_import_the_binding() -> None:
    """A pytest run that measures nothing does not pay for NVML."""
    code = "import sys, pytest_gpuserve.device; sys.exit('pynvml' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
