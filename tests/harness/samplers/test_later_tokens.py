"""Servers that sample with a draft: a right draft changes no share, and a wrong draft is found."""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest

from lockstep.harness.records import DrawAnswer, DrawRequest
from lockstep.harness.samplers.drawn import Labels, NextToken, Unlikely
from lockstep.harness.samplers.later import LATER_TEXTS, MORE_LATER_TEXTS, N_LATER
from lockstep.harness.samplers.probabilities import F64
from lockstep.harness.samplers.served import LATER, Result, ServedPart, ServedRun

PROMPT = (3, 1, 4)
N_VOCAB = 20
NOISE = 1e-4
RIGHT = ("top_k", "temp")
Rng = np.random.Generator
Share = Callable[[tuple[int, ...]], F64]
Server = Callable[[Share, tuple[int, ...], Rng], tuple[int, ...]]


@cache
def row_after(text: tuple[int, ...]) -> NextToken:
    row = np.random.default_rng((1, *text)).normal(0, 1, N_VOCAB).astype(np.float32)
    return NextToken(row=row, noise=NOISE, accepted=())


def draw(p: F64, rng: Rng) -> int:
    return int(rng.choice(len(p), p=p))


def draft_of(before: tuple[int, ...]) -> F64:
    """Return the probabilities of a smaller model, which resembles the model."""
    errors = np.random.default_rng((2, *before)).normal(0, 1, N_VOCAB)
    p = np.exp(4 * row_after(before).row.astype(np.float64) + 2 * errors)
    return p / p.sum()


# --- servers --------------------------------------------------------------------------------------


def without_a_draft(share: Share, before: tuple[int, ...], rng: Rng) -> tuple[int, ...]:
    return (draw(share(before), rng),)


def sampled_first(share: Share, before: tuple[int, ...], rng: Rng) -> tuple[int, ...]:
    """Sample each token of the model, and go on while the draft proposes the same."""
    new: tuple[int, ...] = ()
    while True:
        proposed = draw(draft_of((*before, *new)), rng)
        new += (draw(share((*before, *new)), rng),)
        if new[-1] != proposed:
            return new


def speculative(
    share: Share,
    before: tuple[int, ...],
    rng: Rng,
    *,
    accept: Callable[[float, float], float] = lambda p, q: min(1.0, p / q),
    residual: bool = True,
    stale: bool = False,
) -> tuple[int, ...]:
    """Decode as Leviathan et al. state it (arXiv 2211.17192), two tokens at a time."""
    new: tuple[int, ...] = ()
    for _ in range(2):
        q, p = draft_of((*before, *new)), share((*before, *new))
        proposed = draw(q, rng)
        if rng.random() >= accept(p[proposed], q[proposed]):
            left = np.maximum(p - q, 0) if residual else p
            return (*new, draw(left / left.sum(), rng))
        new += (proposed,)
    return (*new, draw(share((*before, *new[: 1 if stale else 2])), rng))


def likeliest_later(share: Share, before: tuple[int, ...], rng: Rng) -> tuple[int, ...]:
    return (int(share(before).argmax()),) if before[len(PROMPT) :] else (draw(share(before), rng),)


HONEST = {
    "without a draft": without_a_draft,
    "samples first": sampled_first,
    "speculative": speculative,
}
WRONG: dict[str, Server] = {
    "a draft that is not verified": partial(speculative, accept=lambda p, q: 1.0),
    "a draft that is accepted if possible": partial(speculative, accept=lambda p, q: float(p > 0)),
    "a draft that is accepted too rarely": partial(speculative, accept=lambda p, q: p),
    "a rejected token that is sampled again": partial(speculative, residual=False),
    "logits of an earlier token": partial(speculative, stale=True),
    "the likeliest token after the first": likeliest_later,
}


def judge(server: Server, seed: int) -> ServedPart:
    requests = iter(range(10**6))

    def ask(request: DrawRequest) -> DrawAnswer:
        @cache
        def share(text: tuple[int, ...]) -> F64:
            return row_after(text).probabilities(request.chain)

        rng, text = np.random.default_rng((seed, next(requests))), PROMPT
        while len(text) < len(PROMPT) + 1 + request.more:
            text += server(share, text, rng)
        first, *more = text[len(PROMPT) : len(PROMPT) + 1 + request.more]
        return DrawAnswer(token=first, more=tuple(more))

    return run_of(ask).judge_later_tokens(RIGHT)


def run_of(ask: Callable[[DrawRequest], DrawAnswer]) -> ServedRun:
    return ServedRun(
        token=row_after(PROMPT),
        labels=Labels.by_id(N_VOCAB, ()),
        prompt=PROMPT,
        ask=ask,
        find_token=lambda before: row_after((*PROMPT, *before)),
    )


@pytest.mark.parametrize("name", HONEST)
def test_honest_server_is_not_accused(name: str) -> None:
    for seed in range(4):
        found = judge(HONEST[name], seed)
        assert found.result is Result.RIGHT
        assert found.draws > LATER_TEXTS


@pytest.mark.parametrize("name", WRONG)
def test_draft_that_changes_shares_is_found(name: str) -> None:
    found = judge(WRONG[name], 0)
    assert found.result is Result.WRONG
    assert found.difference is not None
    assert found.difference.before
    assert found.difference.actual > found.difference.high
    assert found.draws <= N_LATER * (LATER_TEXTS + MORE_LATER_TEXTS)


def test_token_outside_the_chain_is_a_finding() -> None:
    found = judge(lambda share, before, rng: (int(share(before).argmin()),), 0)
    assert found.difference is not None
    assert (found.result, found.difference.kind) == (Result.WRONG, Unlikely.KEPT)


def test_server_without_ids_of_later_tokens_is_not_asked() -> None:
    run = run_of(lambda request: DrawAnswer(token=1))
    assert run.judge_later_tokens(RIGHT).result is Result.UNASKED


def test_later_tokens_wait_for_the_samplers_of_their_chain() -> None:
    run = run_of(lambda request: DrawAnswer(token=1, more=(1, 1, 1)))
    found = run.judge_later_tokens(["top_k"])
    assert (found.part, found.result, run.requests) == (LATER, Result.UNASKED, 0)


def test_later_tokens_with_other_logits_are_not_judged() -> None:
    run = run_of(lambda request: DrawAnswer(token=1, more=(1, 1, 1)))
    run.find_token = lambda before: None
    assert run.judge_later_tokens(RIGHT).result is Result.UNTOLD
