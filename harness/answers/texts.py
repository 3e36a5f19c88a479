"""Checks of answers about text: ids for texts, texts for ids, and continuations."""

from collections.abc import Sequence
from typing import Any

from lockstep.harness.answers.base import (
    Facts,
    MalformedAnswer,
    expect_ids,
    expect_many,
    expect_type,
)

LONGEST_TOKEN = 1 << 12  # bytes of one generated token


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


def check_generate(value: Any, facts: Facts, prompt: bytes, n: int) -> None:
    expect_type(value, bytes, "the text that follows")
    if len(value) > n * LONGEST_TOKEN:
        raise MalformedAnswer("the text that follows", f"that of {n} tokens", value)


def check_logprobs(
    value: Any, facts: Facts, prefixes: Sequence[Sequence[int] | bytes], k: int
) -> None:
    """Check that there is one list for each prefix. A list may hold an id only once; several tokens
    may have the same text."""
    expect_many(value, len(prefixes), "lists of candidates", "the candidates")
    for i, listed in enumerate(value):
        where = f"the candidates of prefix {i}"
        expect_type(listed, list, where)
        for candidate in listed:
            if type(candidate) is not tuple or len(candidate) != 2:
                raise MalformedAnswer(where, "pairs of a token and a number", candidate)
            if type(candidate[1]) is not float:
                raise MalformedAnswer(where, "log-probabilities of type float", candidate[1])
        tokens = [token for token, _ in listed]
        if {*map(type, tokens)} <= {bytes}:
            continue
        expect_ids(tokens, facts, where)
        if len({*tokens}) < len(tokens):
            raise MalformedAnswer(where, "each token once", "a repeated one")
