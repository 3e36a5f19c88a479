"""Answers about text: ids for texts, texts for ids, and ids that go on."""

from collections.abc import Sequence
from typing import Any

from harness.answers.base import Facts, expect_ids, expect_many, expect_type


def check_tokenize(value: Any, facts: Facts, texts: Sequence[bytes], **flags: bool) -> None:
    expect_many(value, len(texts), "lists of ids", "the ids")
    for i, ids in enumerate(value):
        expect_ids(ids, facts, f"the ids of text {i}")


def check_detokenize(value: Any, facts: Facts, ids: Sequence[Sequence[int]], **flags: bool) -> None:
    expect_many(value, len(ids), "texts", "the texts")
    for i, text in enumerate(value):
        expect_type(text, bytes, f"text {i}")


def check_greedy(value: Any, facts: Facts, prompt: Sequence[int], n: int) -> None:
    expect_many(value, n, "ids", "the ids that follow")
    expect_ids(value, facts, "the ids that follow")
