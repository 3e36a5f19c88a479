"""Hints on where to look if no op is wrong, depending on the suites that differ."""

import pytest

from lockstep.harness.report.text import where_to_look

RACE = ("logits", {"kind": "not-deterministic"})
LEFT = ("logits", {"kind": "not-deterministic", "by_history": True})


@pytest.mark.parametrize(
    ("others", "place"),
    [
        ([("tokens", {})], "look at the tokenizer"),
        ([("metadata", {}), ("tokens", {})], "the tokenizer (its runs are right), and at the file"),
        ([RACE], "sums in thread order"),
        ([("logits", {"n_threads": 3})], "memory that threads share"),
        ([("logits", {"n_threads": 3}), ("long-context", {"kind": "value"})], "threads share"),
        ([("long-context", {"kind": "value"})], "state kept between calls"),
        ([("logits", {"n_threads": 3}), ("decode", {})], "state kept between calls"),
        ([("logits", {"kind": "value"}), ("tokens", {})], "state kept between calls"),
        ([RACE, ("logits", {"kind": "value"}), ("decode", {})], "look at sums in thread order"),
        ([("decode", {}), RACE], "; if these are right, at state kept between calls"),
        ([LEFT, RACE], "sums in thread order"),
        ([LEFT, ("decode", {})], "look at state of an earlier run that is not cleared"),
        ([("decode", {})], "at sampling"),
        ([("black-box", {}), ("black-box", {})], "look for differences on probe models"),
        ([], "state kept between calls"),
    ],
)
def test_place_follows_from_the_differing_suites(others, place: str) -> None:
    assert place in where_to_look(others)
