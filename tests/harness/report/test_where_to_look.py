"""Where no op is wrong, what differs says where to look."""

import pytest

from lockstep.harness.report.text import where_to_look


@pytest.mark.parametrize(
    ("others", "place"),
    [
        ([("tokens", {})], "look at the tokenizer"),
        ([("metadata", {}), ("tokens", {})], "the tokenizer (its runs are right), and at how the"),
        ([("logits", {"kind": "not-deterministic"})], "threads that add up in any order"),
        ([("logits", {"kind": "value"}), ("tokens", {})], "what is kept from call to call"),
        ([("decode", {})], "at sampling"),
        ([], "what is kept from call to call"),
    ],
)
def test_the_place_follows_from_the_suites_that_differ(others, place: str) -> None:
    assert place in where_to_look(others)
