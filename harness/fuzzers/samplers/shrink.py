"""Shrinks a question about samplers: fewer rows, stages, candidates and tokens, and simpler
numbers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.harness.fuzzers.samplers.question import question_text
from lockstep.harness.fuzzers.shrink import shrink
from lockstep.harness.records import SampleRequest

QUESTIONS = 800  # for one finding
COUNTS = ("k", "m", "min_keep", "penalty_last_n", "dry_penalty_last_n", "dry_allowed_length")
SIMPLE: dict[str, Any] = {"seed": 1, "min_keep": 1, "seq_breakers": (), "penalty_last_n": 64}


def shrink_question(
    request: SampleRequest, shows: Callable[[SampleRequest], bool], *, budget: int = QUESTIONS
) -> SampleRequest:
    """Return the smallest question found for which `shows` is true. It must be true for
    `request`."""
    return shrink(
        request,
        MAKERS,
        lambda some: [shows(each) for each in some],
        size_of,
        budget=budget,
        at_once=1,
        identity=question_text,
    )


def size_of(request: SampleRequest) -> tuple[int, ...]:
    """Return the sizes by which questions are ordered, the most important first."""
    finite = int(np.isfinite(request.logits).any(axis=0).sum())
    tokens = [token for told in request.accepted for token in told]
    digits = sum(len(repr(value)) for value in request.logits.reshape(-1).tolist())
    odd = sum(stage.get(k) != v for stage in request.chain for k, v in SIMPLE.items())
    counts = sum(abs(stage.get(k, 0)) for stage in request.chain for k in COUNTS)
    sizes = (len(request.logits), len(request.chain), finite, request.logits.shape[1])
    return *sizes, len(tokens), digits, odd, counts


def fewer_rows(request: SampleRequest) -> Iterator[SampleRequest]:
    """Yield questions with fewer rows. Tokens accepted before a removed row are then accepted
    before the next row."""
    n = len(request.logits)
    for at in range(n):
        yield keep_rows(request, [at])
    for at in range(n):
        yield keep_rows(request, [i for i in range(n) if i != at])


def keep_rows(request: SampleRequest, rows: Sequence[int]) -> SampleRequest:
    if not rows:
        return request
    accepted, begun = [], 0
    for row in rows:
        told = request.accepted[begun : row + 1]
        accepted.append(tuple(token for tokens in told for token in tokens))
        begun = row + 1
    kept = list(rows)
    return replace(
        request,
        logits=request.logits[kept],
        accepted=tuple(accepted),
        draws=request.draws[kept],
        prompt=request.prompt,
    )


def fewer_stages(request: SampleRequest) -> Iterator[SampleRequest]:
    n = len(request.chain)
    for kept in ([at] for at in range(n)):
        yield keep_stages(request, kept)
    for at in range(n):
        yield keep_stages(request, [i for i in range(n) if i != at])


def keep_stages(request: SampleRequest, stages: Sequence[int]) -> SampleRequest:
    if not stages:
        return request
    chain = tuple(request.chain[i] for i in stages)
    return replace(request, chain=chain, draws=request.draws[:, list(stages)])


def smaller_counts(request: SampleRequest) -> Iterator[SampleRequest]:
    for at, stage in enumerate(request.chain):
        for name in sorted(stage.keys() & {*COUNTS}):
            for value in (1, stage[name] // 2, stage[name] - 1):
                chain = (*request.chain[:at], {**stage, name: value}, *request.chain[at + 1 :])
                yield replace(request, chain=chain)


def fewer_candidates(request: SampleRequest) -> Iterator[SampleRequest]:
    """Yield questions with fewer candidates, first without half of them. Candidates are removed, or
    get a logit of minus infinity."""
    n = request.logits.shape[1]
    there = np.flatnonzero(np.isfinite(request.logits).any(axis=0)).tolist()
    if len(there) < n:
        yield keep_candidates(request, there)
    length = max(len(there) // 2, 1)
    while length and len(there) > 1:
        for at in range(0, len(there), length):
            kept = there[:at] + there[at + length :]
            yield keep_candidates(request, kept)
            yield mask_candidates(request, kept)
        length //= 2


def keep_candidates(request: SampleRequest, kept: Sequence[int]) -> SampleRequest:
    """Return the question with only these candidates. All ids are renumbered."""
    if not kept:
        return request
    number = {token: at for at, token in enumerate(kept)}

    def rename(tokens: Iterable[int]) -> tuple[int, ...]:
        return tuple(number[token] for token in tokens if token in number)

    chain = tuple(
        {**stage, "biases": tuple((number[t], b) for t, b in stage["biases"] if t in number)}
        if "biases" in stage
        else stage
        for stage in request.chain
    )
    return replace(
        request,
        chain=chain,
        logits=request.logits[:, list(kept)],
        accepted=tuple(map(rename, request.accepted)),
        prompt=rename(request.prompt),
    )


def mask_candidates(request: SampleRequest, kept: Sequence[int]) -> SampleRequest:
    logits = np.full_like(request.logits, -np.inf)
    logits[:, list(kept)] = request.logits[:, list(kept)]
    return replace(request, logits=logits)


def fewer_tokens(request: SampleRequest) -> Iterator[SampleRequest]:
    for row, tokens in enumerate(request.accepted):
        length = len(tokens)
        while length:
            for at in range(0, len(tokens), length):
                told = tokens[:at] + tokens[at + length :]
                accepted = (*request.accepted[:row], told, *request.accepted[row + 1 :])
                yield replace(request, accepted=accepted)
            length //= 2
    if request.prompt:
        yield replace(request, prompt=())
        yield replace(request, prompt=request.prompt[:1])


def simpler_numbers(request: SampleRequest) -> Iterator[SampleRequest]:
    for digits in (0, 1):
        yield replace(request, logits=np.round(request.logits, digits) + np.float32(0))
    for at, stage in enumerate(request.chain):
        for name, value in SIMPLE.items():
            if name in stage and stage[name] != value:
                changed = {**stage, name: value}
                chain = (*request.chain[:at], changed, *request.chain[at + 1 :])
                yield replace(request, chain=chain)
    for row, column in np.ndindex(request.logits.shape):
        for value in (0.0, 1.0, float(np.round(request.logits[row, column]))):
            logits = request.logits.copy()
            logits[row, column] = value
            yield replace(request, logits=logits)


MAKERS = (
    *(fewer_rows, fewer_stages, smaller_counts),
    *(fewer_candidates, fewer_tokens, simpler_numbers),
)
