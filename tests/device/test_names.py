"""Names of cards: what people call them, and safe as one folder."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gpuserve.device import RESERVED_NAMES, device_name

PRODUCTS = {
    "Tesla T4": "T4",
    "NVIDIA Tesla T4": "T4",
    "NVIDIA L4": "L4",
    "NVIDIA A10G": "A10G",
    "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB",
    "NVIDIA H100 80GB HBM3": "H100-80GB-HBM3",
    "NVIDIA H200": "H200",
    "Tesla V100-SXM2-16GB": "V100-SXM2-16GB",
    "NVIDIA GeForce RTX 3090": "GeForce-RTX-3090",
    "NVIDIA RTX 6000 Ada Generation": "RTX-6000-Ada-Generation",
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
    """Any text whatever gives a short safe folder name that is not reserved, and naming it again keeps it."""
    name = device_name(product)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name)
    assert not name.endswith(".")
    assert name.lower() not in RESERVED_NAMES
    assert device_name(name) == name
