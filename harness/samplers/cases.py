"""Seeded questions about samplers: chains in any order, and rows of difficult logits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from lockstep.engine.samplers.base import SamplerVocabulary
from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.engine.samplers.parts.chain import Chain, make_chain
from lockstep.engine.samplers.parts.ways import LLAMA_CPP
from lockstep.harness.records import SampleRequest
from lockstep.harness.samplers.grammars import GRAMMARS, READING, Parameters, grammar_stage

Rows = NDArray[np.float32]
SIZES = (1, 2, 3, 17, 100, 128, 129, 300, 1024, 1025, 3000)  # sizes of vocabularies
MAX_STAGES = 5  # number of stages before the choice
PROMPT_TOKENS, ACCEPTED_TOKENS = 12, 20
FEW = 40  # candidates for infill, which compares each one with all others
MAX_BIASES = 4
GRAMMAR_ROWS, LAZY_CASES = 8, 8


@dataclass(frozen=True, kw_only=True)
class SampleCase:
    """A question, with the seed and the kinds of logits that it uses."""

    seed: int
    kinds: tuple[str, ...]  # the kind of each row
    request: SampleRequest

    @property
    def samplers(self) -> list[str]:
        return [stage["sampler"] for stage in self.request.chain]


# --- rows -----------------------------------------------------------------------------------------


def plain_row(rng: Generator, n: int) -> Rows:
    return rng.normal(0, 4, n).astype(F)


def mask(rng: Generator, n: int) -> Rows:
    row = plain_row(rng, n)
    row[rng.random(n) < 0.5] = -np.inf
    row[rng.integers(n)] = F(1)
    return row


def huge(rng: Generator, n: int) -> Rows:
    return np.asarray(plain_row(rng, n) * F(10) ** rng.integers(0, 30, n), F)


def peak(rng: Generator, n: int) -> Rows:
    row = np.asarray(rng.normal(0, 0.1, n), F)
    row[rng.integers(n)] += F(12)
    return row


KINDS: dict[str, Callable[[Generator, int], Rows]] = {
    "random": plain_row,
    "tied": lambda rng, n: np.round(plain_row(rng, n)),
    "flat": lambda rng, n: np.full(n, 1.25, F),
    "masked": mask,
    "huge": huge,
    "wide": lambda rng, n: plain_row(rng, n) * F(40),
    "peaked": peak,
}


# --- parameters, at their edges and between -------------------------------------------------------


def single(value: Any) -> float:
    """Return the number rounded to float32, so that every engine gets the same number."""
    return float(F(value))


def share(rng: Generator) -> float:
    return single(rng.choice([0.0, 1e-6, 0.05, 0.3, 0.5, 0.9, 0.95, 0.999, 1.0, rng.random()]))


def keep(rng: Generator) -> int:
    return int(rng.choice([0, 1, 1, 2, 5]))


def seed(rng: Generator) -> int:
    return int(rng.integers(0, 2**32 - 1))  # the largest number means a random seed


def count(rng: Generator, n: int) -> int:
    return int(rng.choice([-1, 0, 1, 2, 40, 127, 128, 129, 200, n, n + 5]))


def biases(rng: Generator, n: int) -> tuple[tuple[int, float], ...]:
    tokens = rng.integers(0, n, int(rng.integers(1, MAX_BIASES + 1)))
    numbers = rng.choice([-np.inf, -5.0, 1.0, 3.5], len(tokens))
    return tuple((int(t), single(b)) for t, b in zip(tokens, numbers, strict=True))


CUTTING: dict[str, Parameters] = {
    "top_k": lambda rng, n: {"k": count(rng, n)},
    "top_p": lambda rng, n: {"p": share(rng), "min_keep": keep(rng)},
    "min_p": lambda rng, n: {"p": share(rng), "min_keep": keep(rng)},
    "typical": lambda rng, n: {"p": share(rng), "min_keep": keep(rng)},
    "top_n_sigma": lambda rng, n: {"n": single(rng.choice([-1, 0, 0.5, 1, 2, 3]))},
    "xtc": lambda rng, n: {
        "p": single(rng.choice([0.0, 0.5, 1.0])),
        "t": single(rng.choice([0.01, 0.1, 0.3, 0.5, 0.6])),
        "min_keep": keep(rng),
        "seed": seed(rng),
    },
    "temp": lambda rng, n: {"t": single(rng.choice([-1.0, 0.0, 1e-3, 0.7, 1.0, 1.5, 100.0]))},
    "temp_ext": lambda rng, n: {
        "t": single(rng.choice([0.5, 0.8, 1.0, 1.5])),
        "delta": single(rng.choice([0.0, 0.3, 0.5])),
        "exponent": single(rng.choice([0.5, 1.0, 1.5])),
    },
    "penalties": lambda rng, n: {
        "penalty_last_n": int(rng.choice([-1, 0, 3, 64])),
        "penalty_repeat": single(rng.choice([0.5, 1.0, 1.1, 1.5])),
        "penalty_freq": single(rng.choice([0, 0.1, -0.3])),
        "penalty_present": single(rng.choice([0, 0.2])),
    },
    "dry": lambda rng, n: {
        "dry_multiplier": single(rng.choice([0.0, 0.8, 2.0])),
        "dry_base": single(rng.choice([0.9, 1.0, 1.75, 3.0])),
        "dry_allowed_length": int(rng.choice([0, 1, 2, 4])),
        "dry_penalty_last_n": int(rng.choice([-1, 0, 8, 64])),
        "seq_breakers": (),
    },
    "logit_bias": lambda rng, n: {"biases": biases(rng, n)},
}
CHOOSING: dict[str, Parameters] = {
    "greedy": lambda rng, n: {},
    "dist": lambda rng, n: {"seed": seed(rng)},
    "mirostat": lambda rng, n: {
        "seed": seed(rng),
        "tau": single(rng.choice([0.1, 2, 5, 8])),
        "eta": single(rng.choice([0.1, 0.5])),
        "m": int(rng.choice([5, 100])),
    },
    "mirostat_v2": lambda rng, n: {
        "seed": seed(rng),
        "tau": single(rng.choice([0.1, 2, 5, 8])),
        "eta": single(rng.choice([0.1, 0.5])),
    },
    "adaptive_p": lambda rng, n: {
        "target": single(rng.choice([-1.0, 0.0, 0.3, 0.9, 1.0])),
        "seed": seed(rng),
        "decay": single(rng.choice([0.0, 0.5, 0.9, 1.0])),
    },
}
INFILL: list[dict[str, Any]] = [{"sampler": "top_k", "k": FEW}, {"sampler": "infill"}]
BREAKERS: tuple[tuple[bytes, ...], ...] = ((b"\n",), (b"\n", b":", b'"', b"*"), (b"the",))


def stage_for(name: str, rng: Generator, n: int) -> dict[str, Any]:
    return {"sampler": name, **(CUTTING | CHOOSING | READING)[name](rng, n)}


@dataclass(frozen=True, kw_only=True)
class CaseLimits:
    """Limits of a case: the samplers that the engine has, and the vocabulary that some of them
    need."""

    samplers: frozenset[str] = frozenset((*CUTTING, *CHOOSING))
    words: SamplerVocabulary | None = None
    kinds: tuple[str, ...] = tuple(KINDS)
    sizes: tuple[int, ...] = SIZES


ANY = CaseLimits()


def random_stages(rng: Generator, n: int, limits: CaseLimits) -> list[dict[str, Any]]:
    """Return random stages in any order. If there is a vocabulary, they may include the stages that
    read it."""
    cutting, choosing = (
        [name for name in table if name in limits.samplers] for table in (CUTTING, CHOOSING)
    )
    names = rng.choice(cutting, int(rng.integers(0, MAX_STAGES + 1))).tolist() if cutting else []
    stages = [stage_for(name, rng, n) for name in names]
    for stage in stages if limits.words is not None else ():
        if "seq_breakers" in stage:
            stage["seq_breakers"] = BREAKERS[int(rng.integers(len(BREAKERS)))]
    if limits.words is not None and "infill" in limits.samplers and rng.random() < 0.5:
        stages += INFILL
    for name in READING if limits.words is not None else ():
        if name in limits.samplers and rng.random() < 0.3:
            place = int(rng.integers(len(stages) + 1)) if rng.random() < 0.3 else 0
            stages.insert(place, stage_for(name, rng, n))
    last = [stage_for(str(rng.choice(choosing)), rng, n)] if choosing else []
    return [*stages, *last] or [stage_for(cutting[0], rng, n)]


def make_case(
    seed: int,
    n_rows: int,
    limits: CaseLimits = ANY,
    stages: Sequence[Mapping[str, Any]] = (),
) -> SampleCase:
    """Return a question. Its draws are those that llama.cpp derives from seeds, and its accepted
    tokens include the chosen tokens.

    `stages` is the chain; if it is empty, the chain is random.
    """
    rng = np.random.default_rng(seed)
    words = limits.words
    n = len(words.pieces) if words is not None else int(rng.choice(limits.sizes))
    chosen = tuple(rng.choice([*limits.kinds], n_rows).tolist())
    described = tuple(stages) or tuple(random_stages(rng, n, limits))
    logits = np.stack([KINDS[kind](rng, n) for kind in chosen]).astype(F)
    return SampleCase(seed=seed, kinds=chosen, request=complete(described, logits, rng, words))


def grammar_cases(seed: int, limits: CaseLimits) -> Iterator[SampleCase]:
    """Yield a case for each grammar, and several cases for each sampler that waits for a trigger.
    If the engine can draw, each chain ends with a draw."""
    assert limits.words is not None
    rng, n = np.random.default_rng(seed), len(limits.words.pieces)
    stages = [grammar_stage(text) for text in GRAMMARS]
    lazy = [name for name in READING if name != "grammar"] * LAZY_CASES
    for i, stage in enumerate((*stages, *(stage_for(name, rng, n) for name in lazy))):
        if stage["sampler"] in limits.samplers:
            last = [stage_for("dist", rng, n)] if "dist" in limits.samplers else []
            yield make_case(seed + i, GRAMMAR_ROWS, limits, [stage, *last])


def complete(
    stages: tuple[Mapping[str, Any], ...],
    logits: Rows,
    rng: Generator,
    words: SamplerVocabulary | None = None,
) -> SampleRequest:
    """Return the request, with the tokens accepted before each row and the draws of each row."""
    n = logits.shape[1]
    chain = make_chain(stages, n, words, LLAMA_CPP)
    few = rng.integers(0, n, 6)  # tokens that are repeated
    accepted, draws = [rng.choice(few, ACCEPTED_TOKENS).tolist()], []
    for i, row in enumerate(logits):
        accepted[i] = accept_permitted(chain, accepted[i])
        draws.append([np.nan if draw is None else draw for draw in chain.draws()])
        last = chain.apply(CandidateList.of_logits(row))[-1]
        accepted.append([next_token(last, int(few[0]), stages), int(rng.choice(few))])
    return SampleRequest(
        chain=stages,
        logits=logits,
        accepted=tuple(tuple(map(int, tokens)) for tokens in accepted[:-1]),
        draws=np.array(draws, np.float64).reshape(len(logits), len(stages)),
        prompt=tuple(int(t) for t in rng.integers(0, n, PROMPT_TOKENS)),
    )


def accept_permitted(chain: Chain, tokens: Sequence[int]) -> list[int]:
    """Let the chain accept each token that it permits, and return these tokens."""
    told = []
    for token in tokens:
        if chain.permits(token):
            chain.accept(token)
            told.append(token)
    return told


def next_token(last: CandidateList, other: int, stages: Sequence[Mapping[str, Any]]) -> int:
    """Return the selected token. If none is selected, return the most likely token if the chain has
    a grammar, else `other`."""
    if last.token >= 0:
        return last.token
    is_reading = any(stage["sampler"] in READING for stage in stages)
    return int(last.ids[np.argmax(last.logits)]) if is_reading and len(last) else other
