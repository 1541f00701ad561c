"""The suites read the numbers that others published."""

from __future__ import annotations

import pytest

from suites.published import BASELINES, NAMELESS, published, records_of


def test_a_record_is_found_by_its_keys() -> None:
    """Every record is found by its keys and device; a record without a named device is a reference for none."""
    suites = {path.stem for path in BASELINES.glob("*/published/*.json")}
    assert suites == {"catdog", "codegen", "distilbert", "resnet", "tft"}
    known = {suite: records_of(suite) for suite in suites}
    assert sum(len(records) for devices in known.values() for records in devices.values()) == 799
    for suite, devices in known.items():
        for device, records in devices.items():
            for record in records[:20]:
                if device == NAMELESS:
                    with pytest.raises(pytest.skip.Exception):
                        published(device, suite, **record["keys"])
                else:
                    assert published(device, suite, **record["keys"]) == record.get("values", {})


def test_a_wrong_or_an_open_question_is_an_error() -> None:
    """A wrong keyword, and keys of several records, are errors; another GPU skips the test."""
    with pytest.raises(ValueError, match="no record of distilbert has sytem"):
        published("T4", "distilbert", sytem="mosec")
    with pytest.raises(ValueError, match="describes"):
        published("T4", "distilbert", system="mosec")
    with pytest.raises(pytest.skip.Exception, match="no number was published for A30"):
        published("A30", "distilbert", system="mosec", concurrency=50)
