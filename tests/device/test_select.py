"""The device of `--gpu`, and the text of a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuserve.device.gpu import Gpu, NvmlAnswer
from pytest_gpuserve.device.host import Host
from pytest_gpuserve.device.select import Device, select_device, visible_gpus
from pytest_gpuserve.errors import DeviceProblem

HOST = Host(id="pool", cpu="AMD EPYC", cores=2, memory_bytes=2**34, kernel="6.1", system="Debian GNU/Linux 12")


def gpu(index: int, product: str, name: str) -> Gpu:
    """Make a GPU whose uuid begins with its index."""
    return Gpu(
        index=index,
        product=product,
        name=name,
        uuid=f"GPU-{index}aaaaaaa-0000",
        memory_bytes=2**34,
        driver="570.133.20",
        cuda="12.8",
        power_limit_watts=70.0,
        max_sm_clock_mhz=1590,
    )


T4 = gpu(0, "Tesla T4", "T4")
H200 = gpu(1, "NVIDIA H200", "H200")
SECOND_T4 = gpu(2, "Tesla T4", "T4")
ALL = NvmlAnswer((T4, H200, SECOND_T4), "")
NO_GPU = NvmlAnswer((), "libnvidia-ml.so.1 is not on this machine", absent=True)
MISMATCH = NvmlAnswer((), "NVML said: Driver/library version mismatch")
ONE_LOST = NvmlAnswer((H200,), "GPU 0: its name cannot be read; NVML said: GPU is lost")


def select(asked: str, answer: NvmlAnswer = ALL, visible: str | None = None) -> Device:
    """Select with two baseline sets known."""
    return select_device(asked, known_names=["T4", "cpu"], answer=answer, host=HOST, visible=visible)


def refusal(asked: str, answer: NvmlAnswer = ALL, visible: str | None = None) -> str:
    """Return the whole text of the refusal."""
    with pytest.raises(DeviceProblem) as caught:
        select(asked, answer, visible)
    return str(caught.value)


@pytest.mark.parametrize(
    ("asked", "answer", "visible", "chosen"),
    [
        ("auto", ALL, None, T4),
        ("auto", NO_GPU, None, None),
        ("auto", ALL, "1,0", H200),
        ("auto", ALL, "GPU-2", SECOND_T4),
        ("auto", ALL, "", None),
        ("auto", ALL, "NoDevFiles", None),
        ("cpu", MISMATCH, None, None),
        ("H200", ALL, None, H200),
        ("T4", ALL, None, T4),
        ("T4", ALL, "2", SECOND_T4),
        ("H200", ONE_LOST, None, H200),
    ],
)
def test_the_device_that_is_meant(asked: str, answer: NvmlAnswer, visible: str | None, chosen: Gpu | None) -> None:
    """The first visible GPU (of the name); `auto` without GPUs, or where they are hidden on purpose, is `cpu`.

    On purpose is an empty CUDA_VISIBLE_DEVICES, or what schedulers write for it.
    """
    device = select(asked, answer, visible)
    assert (device.name, device.gpu) == (chosen.name if chosen else "cpu", chosen)
    assert device.is_gpu is (chosen is not None)


@pytest.mark.parametrize("answer", [MISMATCH, ONE_LOST], ids=["mismatch", "one-lost"])
def test_auto_refuses_where_a_gpu_may_be_hidden_by_a_fault(answer: NvmlAnswer) -> None:
    """No silent run on something else; `--gpu=cpu` is how to say so, or the name of a readable GPU."""
    text = refusal("auto", answer)
    assert answer.problem in text
    assert "--gpu=cpu" in text
    assert ("--gpu=H200" in text) is (answer is ONE_LOST)


@pytest.mark.parametrize("asked", ["t4", "Tesla T4", "tesla t4", "T4X"])
def test_a_near_miss_is_a_hint_and_not_a_match(asked: str) -> None:
    """Other capitals, the product's full name and a slip are refused, with the right option."""
    assert "did you mean --gpu=T4?" in refusal(asked)


def test_a_refusal_tells_what_is_there_and_what_helps() -> None:
    """It lists the present products, or NVML's problem, the baseline sets, and each way out."""
    text = refusal("A100-SXM4-80GB")
    for part in ("--gpu=A100-SXM4-80GB", "Tesla T4", "NVIDIA H200", "baseline sets: T4, cpu"):
        assert part in text
    for way in ("auto", "cpu", "T4", "H200"):
        assert f"--gpu={way}" in text
    assert "did you mean" not in text
    for answer in (NO_GPU, MISMATCH):
        text = refusal("T4", answer)
        assert f"found: {answer.problem}" in text
        assert "did you mean" not in text


def test_a_hidden_gpu_is_explained() -> None:
    """The cause is CUDA_VISIBLE_DEVICES, with the uuid as a way out; an invalid value does not mean `cpu`."""
    text = refusal("H200", visible="0")
    assert "CUDA_VISIBLE_DEVICES=0 hides" in text
    assert H200.uuid in text
    for visible in ("7", "GPU-f", "MIG-1234", "0x0"):
        text = refusal("auto", visible=visible)
        assert f"CUDA_VISIBLE_DEVICES={visible}" in text
        assert "Tesla T4" in text


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (T4, H200, SECOND_T4)),
        ("", ()),
        ("1", (H200,)),
        (" 1 , 0 ", (H200, T4)),
        ("0,9,1", (T4,)),
        (H200.uuid, (H200,)),
        ("GPU-1aaa,0", (H200, T4)),
        ("GPU-", ()),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_show(visible: str | None, expected: tuple[Gpu, ...]) -> None:
    """Order counts, the list ends at the first invalid entry, and a prefix must match exactly one GPU."""
    assert visible_gpus(ALL.gpus, visible) == expected


def test_a_server_sees_only_its_device() -> None:
    """A GPU by its index, on `cpu` none, so that a server cannot prefer one; each GPU has its own lock, `cpu` one."""
    assert Device("H200", H200, HOST).environment() == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert Device("cpu", None, HOST).environment() == {"CUDA_VISIBLE_DEVICES": ""}
    assert Device("T4", T4, HOST).lock_key != Device("T4", SECOND_T4, HOST).lock_key
    assert Device("cpu", None, HOST).lock_key == "cpu"


@pytest.mark.parametrize("answer", [ONE_LOST, NvmlAnswer((replace(T4, mig_profile="1g"), H200), "")])
def test_where_cuda_may_count_otherwise_a_gpu_goes_by_its_uuid(answer: NvmlAnswer) -> None:
    """Beside a GPU that NVML cannot read, or that is divided, NVML's index may be another GPU to CUDA."""
    assert select("H200", answer).environment()["CUDA_VISIBLE_DEVICES"] == H200.uuid


# -- instances of a divided GPU

SLICES = tuple(
    replace(gpu(0, "NVIDIA A100 MIG 1g.10gb", "A100-MIG-1g.10gb"), uuid=f"MIG-{number}", mig_profile="1g.10gb")
    for number in range(2)
)
DIVIDED = NvmlAnswer((*SLICES, H200), "")


def test_an_instance_is_given_by_its_own_uuid() -> None:
    """Servers see the instance alone, and each has its own lock; the whole GPU is refused, its instances offered."""
    devices = [select("A100-MIG-1g.10gb", DIVIDED, visible) for visible in ("MIG-0", "MIG-1")]
    assert [device.environment()["CUDA_VISIBLE_DEVICES"] for device in devices] == ["MIG-0", "MIG-1"]
    assert len({device.lock_key for device in devices}) == 2
    assert "--gpu=A100-MIG-1g.10gb" in refusal("A100", DIVIDED)


@pytest.mark.parametrize(("visible", "expected"), [("MIG-1", (SLICES[1],)), ("0", (SLICES[0],)), ("MIG-", ())])
def test_instances_are_visible_by_uuid_or_as_the_first_of_their_gpu(visible: str, expected: tuple[Gpu, ...]) -> None:
    """CUDA takes an instance's UUID, and of a divided GPU's index its first instance."""
    assert visible_gpus(DIVIDED.gpus, visible) == expected
