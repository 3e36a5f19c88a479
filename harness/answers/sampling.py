"""Checks of answers about samplers: lists of candidates after each stage of a chain."""

from typing import Any

import numpy as np

from lockstep.harness.answers.base import (
    Facts,
    MalformedAnswer,
    expect_array,
    expect_ids,
    expect_record,
)
from lockstep.harness.records import DrawAnswer, DrawRequest, SampleAnswer, SampleRequest

NEARLY_ONE = 1e-5  # limit by which float32 sums may exceed 1


def check_sample(value: Any, facts: Facts, request: SampleRequest) -> None:
    """Check that each list holds tokens of the vocabulary, each at most once."""
    expect_record(value, SampleAnswer, "what was sampled")
    rows, n_vocab = request.logits.shape
    stages = value.sizes.shape[1] if value.sizes.ndim == 2 else 0
    if stages not in (1, len(request.chain)):
        where = "the stages that are shown"
        raise MalformedAnswer(where, f"1 or {len(request.chain)}", value.sizes)
    for name in ("sizes", "selected"):
        expect_array(getattr(value, name), np.int32, (rows, stages), name)
    if value.sorted is not None:
        expect_array(value.sorted, np.bool_, (rows, stages), "sorted")
    check_within(value.sizes, 0, n_vocab, "sizes")
    total = int(value.sizes.sum(dtype=np.int64))
    for name, kind in (("ids", np.int32), ("logits", np.float32), ("p", np.float32)):
        expect_array(getattr(value, name), kind, (total,), f"{name} of all lists")
    check_within(value.ids, 0, n_vocab - 1, "ids")
    check_within(value.selected, -1, n_vocab - 1, "selected")
    lists = np.repeat(np.arange(rows * stages), value.sizes.reshape(-1))
    places = lists.astype(np.int64) * n_vocab + value.ids
    if len(np.unique(places)) < total:
        raise MalformedAnswer("ids", "each candidate of a list once", "a repeated one")


def check_draw(value: Any, facts: Facts, request: DrawRequest) -> None:
    """Check the drawn tokens and the listed candidates: known tokens, each listed once, with
    probabilities from 0 to 1."""
    expect_record(value, DrawAnswer, "what was drawn")
    listed = value.listed or ()
    tokens = [token for token, _ in listed]
    if len({*tokens}) < len(tokens):
        raise MalformedAnswer("the candidates", "each token once", "a repeated one")
    ids = [each for each in (value.token, *value.more, *tokens) if type(each) is int]
    expect_ids(ids, facts, "what was drawn")
    if wrong := [p for _, p in listed if not 0 <= p <= 1 + NEARLY_ONE]:
        raise MalformedAnswer("a probability", "a number from 0 to 1", wrong[0])


def check_within(values: Any, least: int, most: int, where: str) -> None:
    if values.size and not least <= values.min() <= values.max() <= most:
        wrong = next(each for each in values.reshape(-1).tolist() if not least <= each <= most)
        raise MalformedAnswer(where, f"{least} to {most}", wrong)
