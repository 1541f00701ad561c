"""Which device `--gpu` means, and what a refusal says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuserve.device import Card, Device, Host, NvmlAnswer, select_devices, visible_cards
from pytest_gpuserve.errors import DeviceProblem

HOST = Host(id="pool", cpu="AMD EPYC", cores=2, memory_bytes=2**34, kernel="6.1", system="Debian GNU/Linux 12")


def card(index: int, product: str, name: str) -> Card:
    """Make a card whose uuid begins with its index."""
    return Card(
        index=index,
        product=product,
        name=name,
        uuid=f"GPU-{index}aaaaaaa-0000",
        pci_bus_id=f"00000000:0{index + 1}:00.0",
        memory_bytes=2**34,
        driver="570.133.20",
        cuda="12.8",
        power_limit_watts=70.0,
        max_sm_clock_mhz=1590,
        mig=None,
    )


T4 = card(0, "Tesla T4", "T4")
H200 = card(1, "NVIDIA H200", "H200")
SECOND_T4 = card(2, "Tesla T4", "T4")
ALL = NvmlAnswer((T4, H200, SECOND_T4), "")
NO_CARD = NvmlAnswer((), "libnvidia-ml.so.1 is not on this machine", absent=True)
MISMATCH = NvmlAnswer((), "NVML said: Driver/library version mismatch")
ONE_LOST = NvmlAnswer((H200,), "card 0: its name cannot be read; NVML said: GPU is lost")


def select(asked: str, answer: NvmlAnswer = ALL, visible: str | None = None) -> Device:
    """Select with two baseline sets known."""
    return select_devices(asked, known_names=["T4", "cpu"], answer=answer, host=HOST, visible=visible)[0]


def refusal(asked: str, answer: NvmlAnswer = ALL, visible: str | None = None) -> str:
    """Return the whole text of the refusal."""
    with pytest.raises(DeviceProblem) as caught:
        select(asked, answer, visible)
    return str(caught.value)


def test_auto_is_the_first_card() -> None:
    """With several cards `auto` takes the first."""
    device = select("auto")
    assert (device.name, device.card, device.host, device.is_gpu) == ("T4", T4, HOST, True)


def test_auto_is_cpu_on_a_machine_without_a_card() -> None:
    """No library or no device means `cpu`."""
    device = select("auto", NO_CARD)
    assert (device.name, device.card, device.is_gpu) == ("cpu", None, False)


@pytest.mark.parametrize("answer", [MISMATCH, ONE_LOST], ids=["mismatch", "one-lost"])
def test_auto_refuses_where_a_card_may_be_hidden_by_a_fault(answer: NvmlAnswer) -> None:
    """A faulty driver or card never turns into a silent run on something else; `--gpu=cpu` is how to say so."""
    text = refusal("auto", answer)
    assert answer.problem in text
    assert "--gpu=cpu" in text


def test_auto_offers_the_readable_card_beside_a_faulty_one() -> None:
    """The refusal names the card that could be asked for by name, and asking for it works."""
    assert "--gpu=H200" in refusal("auto", ONE_LOST)
    assert select("H200", ONE_LOST).card == H200


@pytest.mark.parametrize("answer", [ALL, NO_CARD, MISMATCH], ids=["cards", "none", "mismatch"])
def test_cpu_is_always_cpu(answer: NvmlAnswer) -> None:
    """`--gpu=cpu` measures without a card whatever the machine has."""
    assert select("cpu", answer) == Device("cpu", None, HOST)


def test_a_name_takes_the_first_card_of_that_name() -> None:
    """A name selects among unlike cards, and the first of several alike."""
    assert select("H200").card == H200
    assert select("T4").card == T4


@pytest.mark.parametrize("asked", ["t4", "Tesla T4", "tesla t4", "T4X"])
def test_a_near_miss_is_a_hint_and_not_a_match(asked: str) -> None:
    """Other capitals, the product's full name and a slip are refused, with the right option."""
    assert "did you mean --gpu=T4?" in refusal(asked)


def test_a_refusal_tells_what_is_there_and_what_helps() -> None:
    """A card that is not there: the products that are, the baseline sets, and each way out."""
    text = refusal("A100-SXM4-80GB")
    for part in (
        "--gpu=A100-SXM4-80GB",
        "Tesla T4",
        "NVIDIA H200",
        "baseline sets: T4, cpu",
        "--gpu=auto",
        "--gpu=cpu",
        "--gpu=T4",
        "--gpu=H200",
    ):
        assert part in text
    assert "did you mean" not in text


@pytest.mark.parametrize("answer", [NO_CARD, MISMATCH], ids=["none", "mismatch"])
def test_a_refusal_without_cards_quotes_nvml(answer: NvmlAnswer) -> None:
    """Where NVML gave no cards its problem is the finding."""
    text = refusal("T4", answer)
    assert f"found: {answer.problem}" in text
    # The folder exists, but it is what was asked for: offering it again would be no help.
    assert "did you mean" not in text


def test_a_hidden_card_is_explained() -> None:
    """A card that CUDA_VISIBLE_DEVICES hides is refused by that reason, with its uuid as a way out."""
    text = refusal("H200", visible="0")
    assert "CUDA_VISIBLE_DEVICES=0 hides" in text
    assert H200.uuid in text


def test_a_hidden_twin_does_not_count() -> None:
    """Of two cards alike the visible one is taken."""
    assert select("T4", visible="2").card == SECOND_T4


def test_auto_follows_the_order_of_the_visible_cards() -> None:
    """CUDA's device 0 is the first one listed, and so is `auto`."""
    assert select("auto", visible="1,0").card == H200
    assert select("auto", visible="GPU-2").card == SECOND_T4


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_cards_hidden_on_purpose_make_auto_cpu(visible: str) -> None:
    """An empty CUDA_VISIBLE_DEVICES, or what schedulers write for it, is a wish for no card, faulty driver or not."""
    assert select("auto", visible=visible).name == "cpu"
    assert select("auto", MISMATCH, visible=visible).name == "cpu"


@pytest.mark.parametrize("visible", ["7", "GPU-f", "MIG-1234", "0x0"])
def test_cards_hidden_by_a_wrong_value_are_refused(visible: str) -> None:
    """A CUDA_VISIBLE_DEVICES that names nothing here is no wish for `cpu`."""
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
        ("0,-1,1", (T4,)),
        ("0,9,1", (T4,)),
        ("1,1", (H200,)),
        (H200.uuid, (H200,)),
        ("GPU-1aaa,0", (H200, T4)),
        ("GPU-", ()),
    ],
)
def test_visible_cards_are_those_that_cuda_would_show(visible: str | None, expected: tuple[Card, ...]) -> None:
    """Order counts, the list ends at the first entry that names nothing, and a prefix must fit one card alone."""
    assert visible_cards(ALL.cards, visible) == expected


def test_a_server_sees_only_its_device() -> None:
    """A card is given by uuid; on `cpu` every card is hidden, so that a server cannot prefer one."""
    assert Device("T4", T4, HOST).environment()["CUDA_VISIBLE_DEVICES"] == T4.uuid
    assert Device("cpu", None, HOST).environment() == {"CUDA_VISIBLE_DEVICES": ""}


def test_each_card_is_locked_by_itself() -> None:
    """Two cards of one name have different locks; `cpu` has one."""
    assert Device("T4", T4, HOST).lock_key != Device("T4", SECOND_T4, HOST).lock_key
    assert Device("cpu", None, HOST).lock_key == "cpu"


@pytest.mark.parametrize("asked", ["T4", "auto"])
def test_all_cards_of_the_kind_will_do(asked: str) -> None:
    """Of several alike each may be taken, in the order of the visible cards; those of another kind may not."""
    for visible, expected in ((None, [T4, SECOND_T4]), ("2,1,0", [SECOND_T4, T4]), ("0,1", [T4])):
        devices = select_devices(asked, known_names=[], answer=ALL, host=HOST, visible=visible)
        assert [device.card for device in devices] == expected


# -- instances of a divided card

SLICES = tuple(
    replace(
        card(0, "NVIDIA A100 MIG 1g.10gb", "A100-MIG-1g.10gb"), uuid=f"MIG-{number}", mig=True, mig_profile="1g.10gb"
    )
    for number in range(2)
)
DIVIDED = NvmlAnswer((*SLICES, H200), "")


def test_an_instance_is_given_by_its_own_uuid() -> None:
    """Servers see the instance alone, and each has its own lock."""
    devices = select_devices("A100-MIG-1g.10gb", known_names=[], answer=DIVIDED, host=HOST, visible=None)
    assert [device.environment()["CUDA_VISIBLE_DEVICES"] for device in devices] == ["MIG-0", "MIG-1"]
    assert len({device.lock_key for device in devices}) == 2


def test_the_whole_card_is_not_there_when_it_is_divided() -> None:
    """Asked for by its name it is refused, and its instances are offered."""
    assert "--gpu=A100-MIG-1g.10gb" in refusal("A100", DIVIDED)


@pytest.mark.parametrize(("visible", "expected"), [("MIG-1", (SLICES[1],)), ("0", (SLICES[0],)), ("MIG-", ())])
def test_instances_are_visible_by_uuid_or_as_the_first_of_their_card(visible: str, expected: tuple[Card, ...]) -> None:
    """CUDA takes an instance's UUID, and of a divided card's index its first instance."""
    assert visible_cards(DIVIDED.cards, visible) == expected
