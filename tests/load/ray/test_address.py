"""What makes loads is read as it is typed, and versions of nodes are compared as they are told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.load.ray.address import ClusterAddress, parse_address, parse_engine
from pytest_gpuserve.load.ray.cluster import Versions, difference, remedies

OPTION = "--load-engine"

OURS = Versions(python="3.11.7", ray="2.60.0", package="1.2.3")


# -- what is typed


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("local", "local"),
        ("ray", "ray"),
        ("head:6379", ClusterAddress("head", 6379)),
        ("10.0.0.1:1", ClusterAddress("10.0.0.1", 1)),
        ("ray://head.example.org:10001", ClusterAddress("head.example.org", 10001, by_client=True)),
        ("ray://[fd00::1]:65535", ClusterAddress("fd00::1", 65535, by_client=True)),
        ("[::1]:6379", ClusterAddress("::1", 6379)),
    ],
)
def test_engines_are_read_and_written_alike(text: str, address: ClusterAddress | str) -> None:
    """A name, or an address with Ray's client or without it, of IPv6 in brackets."""
    assert parse_engine(text, OPTION) == address
    assert str(address) == text


REFUSED = ["", "Ray", "auto", "head", "head:", ":6379", "head:0", "head:65536", "head:6379x", "head:٣", "ray://head"]
REFUSED += ["ray://", "http://head:80", "ray://head:1/path", "fd00::1:6379", "[fd00::zz]:1", "[fe80::1%eth0]:1"]
REFUSED += ["-rf:1", "head :1", "head:1\n"]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_engine_is_refused(text: str) -> None:
    """With what was found and all that could have been meant; what stands before an ``@`` may be a password."""
    with pytest.raises(UsageProblem) as caught:
        parse_engine(text, OPTION)
    assert caught.value.found == repr(text)
    told = str(caught.value)
    assert all(f"{OPTION}={form}" in told for form in ("local", "ray", "ray://HOST:PORT", "HOST:PORT"))
    with pytest.raises(UsageProblem) as caught:
        parse_engine("ray://me:secret@head:10001", OPTION)
    assert "secret" not in str(caught.value)
    assert "@" not in caught.value.found


ADDRESSES = st.builds(
    ClusterAddress,
    st.from_regex(r"[a-z0-9][a-z0-9.-]{0,30}", fullmatch=True) | st.ip_addresses(v=6).map(str),
    st.integers(1, 65535),
    st.booleans(),
)


@settings(max_examples=50)
@given(ADDRESSES, st.text())
def test_every_address_is_read_back(address: ClusterAddress, text: str) -> None:
    """Nothing that can be typed gives another error, nor an address that would be written in another way."""
    assert parse_address(str(address)) == address
    try:
        found = parse_engine(text, OPTION)
    except UsageProblem:
        return
    # A port may be typed with zeros before it, an address of IPv6 in many ways.
    assert parse_engine(str(found), OPTION) == found


# -- versions


@pytest.mark.parametrize(
    ("theirs", "words", "helps"),
    [
        (Versions("3.11.7", "2.60.0", "1.2.2"), ["pytest-gpuserve 1.2.2", "1.2.3"], "install pytest-gpuserve==1.2.3"),
        (Versions("3.11.7", "2.60.0", ""), ["not installed", "1.2.3"], "pip install pytest-gpuserve==1.2.3"),
        (Versions("3.11.7", "2.49.1", "1.2.3"), ["ray 2.49.1", "2.60.0"], "pip install ray==2.60.0"),
        (Versions("3.12.7", "2.60.0", "1.2.3"), ["Python 3.12.7", "3.11.7"], "Python 3.11"),
        (Versions("3.1.7", "2.60.0", "1.2.3"), ["Python 3.1.7", "3.11.7"], "Python 3.11"),
    ],
)
def test_each_difference_is_told_with_what_helps(theirs: Versions, words: list[str], helps: str) -> None:
    """Both versions stand in it, and the command; the last number of Python's may differ."""
    told = difference(theirs, OURS)
    assert all(word in told for word in words)
    (help_text,) = remedies([OURS, theirs], OURS)
    assert helps in help_text
    assert difference(OURS, OURS) == difference(Versions("3.11.2", OURS.ray, OURS.package), OURS) == ""
    assert remedies([OURS], OURS) == []
