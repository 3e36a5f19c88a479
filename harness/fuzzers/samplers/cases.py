"""Numbered questions about samplers: a chain with a certain sampler, extreme parameters, and odd
logits."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from lockstep.engine.samplers.base import SamplerVocabulary
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.parts.chain import make_chain
from lockstep.engine.samplers.parts.ways import LLAMA_CPP
from lockstep.harness.records import SampleRequest
from lockstep.harness.samplers.cases import (
    CHOOSING,
    CUTTING,
    INFILL,
    KINDS,
    CaseLimits,
    Rows,
    accept_permitted,
    complete,
    random_stages,
    single,
    stage_for,
)
from lockstep.harness.samplers.grammars import READING

ROWS = 3
SIZES = (1, 2, 3, 4, 6, 9, 17, 40, 128, 129, 200)
WITH_WORDS = 8  # one case in so many reads the vocabulary
UNDEFINED = 12  # one case in so many has rows for which nothing is defined
MAX_BEFORE = 3  # stages before the stage under test


# --- rows -----------------------------------------------------------------------------------------


def put_odd(values: Sequence[float]) -> Callable[[Generator, int], Rows]:
    """Return a function that draws rows in which some candidates have one of these logits."""

    def row(rng: Generator, n: int) -> Rows:
        found = np.asarray(KINDS["random"](rng, n), np.float32)
        places = rng.integers(0, n, max(1, n // 4))
        found[places] = rng.choice(np.array(values, np.float32), len(places))
        return found

    return row


def draw_neighbours(rng: Generator, n: int) -> Rows:
    """Return logits that differ by one or two units in the last place."""
    steps = rng.integers(0, 4, n).astype(np.float32)
    return np.asarray(np.float32(3) + steps * np.spacing(np.float32(3)), np.float32)


ODD_KINDS: dict[str, Callable[[Generator, int], Rows]] = {
    **KINDS,
    "neighbours": draw_neighbours,
    "zeros": put_odd((0.0, -0.0)),
    "tiny": put_odd((1e-45, -1e-45, 1e-38)),
    "one-left": lambda rng, n: np.where(
        np.arange(n) == rng.integers(n), np.float32(1.5), np.float32(-np.inf)
    ),
}
UNDEFINED_KINDS: dict[str, Callable[[Generator, int], Rows]] = {
    "nan": put_odd((np.nan,)),
    "infinite": put_odd((np.inf,)),
    "nothing": lambda rng, n: np.full(n, -np.inf, np.float32),
    "all-nan": lambda rng, n: np.full(n, np.nan, np.float32),
}

# --- chains ---------------------------------------------------------------------------------------

LARGE = 2**31 - 1
EDGES: dict[str, tuple[Any, ...]] = {
    "k": (LARGE, -LARGE),
    "p": (-1.0, 2.0, float(np.nextafter(np.float32(1), np.float32(0)))),
    "min_keep": (7, 10_000),
    "n": (1e-6, 1e6),
    "m": (1, 2),
    "penalty_last_n": (1, 10_000),
    "dry_allowed_length": (50,),
    "dry_penalty_last_n": (1, 2, 10_000),
    "tau": (0.0, 30.0),
    "eta": (0.0, 1.0),
    "target": (1.5,),
    "decay": (-1.0, 2.0),
}


def edge_stage(name: str, rng: Generator, n: int) -> dict[str, Any]:
    """Return a stage with usual parameters. In some cases one of them has an extreme value."""
    found = stage_for(name, rng, n)
    fields = [field for field in found if field in EDGES]
    if fields and rng.random() < 0.3:
        field = str(rng.choice(fields))
        value = EDGES[field][int(rng.integers(len(EDGES[field])))]
        found[field] = single(value) if isinstance(value, float) else value
    return found


def draw_chain(name: str, rng: Generator, n: int, limits: CaseLimits) -> list[dict[str, Any]]:
    """Return a chain with the sampler in a random valid place."""
    others = random_stages(rng, n, limits)
    last = [each for each in others if each["sampler"] in CHOOSING]
    before = [each for each in others if each not in last and each not in INFILL]
    before = before[: int(rng.integers(MAX_BEFORE + 1))]
    if name == "infill":
        return [*before, *INFILL, *last]
    if name in CHOOSING:
        return [*before, edge_stage(name, rng, n)]
    if name in READING:
        before = [each for each in before if each["sampler"] not in READING]
    before.insert(int(rng.integers(len(before) + 1)), edge_stage(name, rng, n))
    return [*before, *last]


def make_question(
    seed: int, number: int, name: str, samplers: frozenset[str], words: SamplerVocabulary
) -> SampleRequest:
    """Return a case of a target, which the seed and the number determine. samplers: the samplers
    that the engine has; words: the vocabulary of the engine's model."""
    rng = np.random.default_rng([seed, number, *name.encode()])
    reads = name in OF_WORDS or number % WITH_WORDS == 0
    limits = CaseLimits(samplers=samplers, words=words if reads else None)
    n = len(words.pieces) if reads else int(rng.choice(SIZES))
    chain = draw_chain(name, rng, n, limits)
    if rng.random() < 1 / UNDEFINED:
        kind = str(rng.choice([*UNDEFINED_KINDS]))
        return raw_question(chain, UNDEFINED_KINDS[kind](rng, n)[None])
    kinds = rng.choice(["random", "wide", "peaked"] if name in OF_WORDS else [*ODD_KINDS], ROWS)
    rows = np.stack([ODD_KINDS[kind](rng, n) for kind in kinds.tolist()]).astype(np.float32)
    return complete(tuple(chain), rows, rng, limits.words)


def raw_question(chain: Sequence[Any], logits: Rows) -> SampleRequest:
    """Return a question with one row for which no sampler is computed here."""
    drawn = make_chain(chain, logits.shape[1], None, LLAMA_CPP).draws()
    return SampleRequest(
        chain=tuple(chain),
        logits=logits,
        accepted=((),),
        draws=np.array([[np.nan if each is None else each for each in drawn]], np.float64),
    )


def has_finite_best(request: SampleRequest) -> bool:
    """Return True if each row has a finite largest logit and no NaN, so that definitions apply."""
    return bool(np.isfinite(request.logits.max(axis=1)).all())


def draw_anew(request: SampleRequest, words: SamplerVocabulary | None) -> SampleRequest:
    """Return the question with the draws that llama.cpp's seeds give on these rows, and without
    accepted tokens that its grammar forbids."""
    if not has_finite_best(request):
        return raw_question(request.chain, request.logits[:1])
    chain = make_chain(request.chain, request.logits.shape[1], words, LLAMA_CPP)
    draws, accepted = [], []
    for row, tokens in zip(request.logits, request.accepted, strict=True):
        accepted.append(tuple(accept_permitted(chain, tokens)))
        draws.append([np.nan if draw is None else draw for draw in chain.draws()])
        chain.apply(CandidateList.of_logits(row))
    return SampleRequest(
        chain=request.chain,
        logits=request.logits,
        accepted=tuple(accepted),
        draws=np.array(draws, np.float64).reshape(len(draws), len(request.chain)),
        prompt=request.prompt,
    )


OF_WORDS = ("infill", *READING)  # samplers that always read the vocabulary
TARGETS = (*CUTTING, *CHOOSING, *OF_WORDS)
