"""Hints where to look if no op is wrong, by what differs."""

import pytest

from lockstep.harness.report.text import where_to_look

RACE = ("logits", {"kind": "not-deterministic"})
LEFT = ("logits", {"kind": "not-deterministic", "by_history": True})


@pytest.mark.parametrize(
    ("others", "place"),
    [
        ([("tokens", {})], "look at the tokenizer"),
        ([("metadata", {}), ("tokens", {})], "the tokenizer (its runs are right), and at how the"),
        ([RACE], "threads that add up in any order"),
        ([("logits", {"n_threads": 3})], "what threads share"),
        ([("logits", {"n_threads": 3}), ("long-context", {"kind": "value"})], "threads share"),
        ([("long-context", {"kind": "value"})], "what is kept from call to call"),
        ([("logits", {"n_threads": 3}), ("decode", {})], "what is kept from call to call"),
        ([("logits", {"kind": "value"}), ("tokens", {})], "what is kept from call to call"),
        ([RACE, ("logits", {"kind": "value"}), ("decode", {})], "look at threads that add up"),
        ([("decode", {}), RACE], "; if these are in order, at what is kept from call to call"),
        ([LEFT, RACE], "threads that add up in any order"),
        ([LEFT, ("decode", {})], "look at what an earlier run left behind, and is not cleared"),
        ([("decode", {})], "at sampling"),
        ([("black-box", {}), ("black-box", {})], "look at what differs on models made of this one"),
        ([], "what is kept from call to call"),
    ],
)
def test_the_place_follows_from_the_suites_that_differ(others, place: str) -> None:
    assert place in where_to_look(others)
