"""Chooses sampler chains whose draws, on given logits, reveal a wrong stage.

A chain has one or two stages. Each chain is compared with slightly wrong chains, its neighbours. A
neighbour of one stage lacks the stage, has another value of a parameter, miscounts penalties, or
keeps one candidate fewer or more. A neighbour of two stages lacks one of them, or swaps them.
`choose_chains` takes the chains that distinguish most neighbours.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.engine.quants.base import F32
from lockstep.harness.samplers.cases import BREAKERS, single
from lockstep.harness.samplers.drawn import (
    Labels,
    NextToken,
    Stage,
    is_clear,
    largest_change,
    total_variation,
)
from lockstep.harness.samplers.grammars import GRAMMARS, grammar_stage
from lockstep.harness.samplers.probabilities import F64

RANKS = (1, 2, 3, 4, 6)  # numbers of candidates that cuts should leave
MAX_CHAINS = 4  # chains for one stage
MOST_CHAINS = {"penalties": 8, "grammar": 16}  # chains for stages with many parameters
LEAST_GAIN = 0.05
# distance that counts of draws certainly show, and distance of one candidate that a list certainly
# shows
BY_DRAWS, BY_LIST = 0.35, 0.03
# share of that distance between the chain and the chain without the stage; below it, nothing is
# shown
TOLD = 0.7
BANNED = -100.0
DRAW: Stage = {"sampler": "dist", "seed": 0}
PENALTIES = ("penalty_last_n", "penalty_repeat", "penalty_freq", "penalty_present")
ORDERED = (("temp", "top_p"), ("temp", "min_p"), ("temp", "typical"))


def stages_for(token: NextToken) -> dict[str, list[Stage]]:
    """Return stages whose parameters have an effect on these logits, in a dict by sampler."""
    row, p = token.row.astype(np.float64), np.sort(token.probabilities(()))[::-1]
    found: dict[str, list[dict[str, Any]]] = {"top_k": [{"k": n} for n in (*RANKS, 0)]}
    found |= {"top_p": shares(p), "typical": shares(p[typical_order(p)])}
    ranks = [n for n in RANKS if n < len(p) and p[n] > 0]
    ratios = [single(np.sqrt(p[n - 1] * p[n]) / p[0]) for n in ranks]
    found["min_p"] = [{"p": r, "min_keep": 0} for r in ratios]
    found["min_p"] += [{"p": r, "min_keep": 3} for r in ratios[:1]]
    found["xtc"] = [
        {"p": 1.0, "t": single(np.sqrt(p[n - 1] * p[n])), "min_keep": 0, "seed": 0}
        for n in ranks
        if n > 1 and np.sqrt(p[n - 1] * p[n]) <= 0.5
    ]
    best, finite = np.sort(row)[::-1], row[np.isfinite(row)]
    deviation = float(finite.std()) or 1.0
    found["top_n_sigma"] = [
        {"n": single((best[0] - (best[n - 1] + best[n]) / 2) / deviation)} for n in ranks
    ]
    found["temp"] = [{"t": single(t)} for t in (0.2, 0.4, 0.7, 1.5, 2.0, 0.0)]
    found["temp_ext"] = [
        {"t": t, "delta": single(d), "exponent": e}
        for t, d, e in ((1.0, 0.9, 1.0), (1.0, 0.9, 3.0), (1.0, 0.7, 0.5), (0.5, 0.4, 1.0))
    ]
    found["penalties"] = [
        {k: single(v) if k != PENALTIES[0] else v for k, v in zip(PENALTIES, row, strict=True)}
        for row in penalty_rows()
    ]
    if token.words is not None:
        found["dry"] = [
            {
                "dry_multiplier": single(multiplier),
                "dry_base": single(base),
                "dry_allowed_length": allowed,
                "dry_penalty_last_n": window,
                "seq_breakers": BREAKERS[0],
            }
            for multiplier, base in ((0.8, 1.75), (2.0, 1.5))
            for allowed, window in ((1, 64), (2, 64), (3, 64), (2, 6))
        ]
    found["logit_bias"] = [{"biases": pairs} for pairs in biases_for(token.row)]
    if token.words is not None:
        found["grammar"] = [
            {k: v for k, v in grammar_stage(text).items() if k != "sampler"} for text in GRAMMARS
        ]
    return {name: [{"sampler": name, **each} for each in rows] for name, rows in found.items()}


def penalty_rows() -> Iterator[tuple[int, float, float, float]]:
    """Yield parameters of penalties. Negative parameters make tokens of the prompt more likely,
    which is easiest to see in draws."""
    for repeat in (0.2, 0.5, 1.5, 4.0):
        yield 64, repeat, 0.0, 0.0
    for number in (-2.0, 2.0, -4.0):
        yield 64, 1.0, number, 0.0
        yield 64, 1.0, 0.0, number
    for window in (2, 3, 5):
        yield window, 0.2, 0.0, 0.0
        yield window, 1.0, -4.0, 0.0
        yield window, 1.0, 0.0, -4.0


def biases_for(row: F32) -> Iterator[tuple[tuple[int, float], ...]]:
    ranked = np.argsort(-row, kind="stable")[:8].tolist()
    last, far = ranked[-1], single(row[ranked[0]] - row[ranked[-1]])
    yield ((ranked[0], BANNED),)
    yield ((last, far + 1.0),)
    yield ((ranked[1], BANNED), (last, far + 2.0))
    yield ((last, far), (last, 2.0))
    yield ((ranked[0], 2.0),)
    yield tuple((t, BANNED) for t in ranked[:3])


def shares(p: F64) -> list[dict[str, Any]]:
    """Return parameters halfway between successive cumulative sums of `p`. The sums are taken in
    the order of `p`."""
    sums = np.concatenate([[0.0], np.cumsum(p)])
    middles = [single((sums[n - 1] + sums[n]) / 2) for n in RANKS if n < len(p)]
    found = [{"p": share, "min_keep": 0} for share in middles if 0 < share < 1]
    found += [{"p": share, "min_keep": 3} for share in middles[:1]]
    return [*found, {"p": 0.0, "min_keep": 1}]


def typical_order(p: F64) -> Any:
    there = p > 0
    surprise = np.where(there, -np.log(np.where(there, p, 1.0)), np.inf)
    mean = float((p[there] * surprise[there]).sum())
    return np.argsort(np.abs(surprise - mean), kind="stable")


def orders_for(stages: Mapping[str, Sequence[Stage]]) -> Iterator[tuple[Stage, ...]]:
    """Yield pairs of stages, each in both orders."""
    for first, second in ORDERED:
        for heat in stages.get(first, [])[:3]:
            for cut in stages.get(second, [])[1:3]:
                yield (heat, cut)
                yield (cut, heat)


# --- neighbours -----------------------------------------------------------------------------------


def neighbours(token: NextToken, chain: Sequence[Stage], right: F64) -> Iterator[tuple[str, F64]]:
    """Yield the name of each mistake and the probabilities of the wrong chain. `right` are the
    probabilities of the right chain."""
    without = token.probabilities(chain[1:])
    yield "without", without
    if len(chain) > 1:
        yield "without the other", token.probabilities(chain[:1])
        yield "order", token.probabilities(chain[::-1])
        return
    (stage,) = chain
    for name, value in stage.items():
        if name == "grammar_str":
            yield value, without  # each grammar must be distinguished from no grammar
        for how, other in other_values(value):
            yield f"{name} {how}", token.probabilities([{**stage, name: other}])
    for how, numbers in miscounts(stage) if stage["sampler"] == "penalties" else ():
        yield how, token.probabilities([{**stage, **numbers}])
    whole, kept = token.probabilities(()), np.flatnonzero(right)
    for how, change in (("less", kept[np.argsort(right[kept])[:1]]), ("more", [])):
        other = np.where(right > 0, whole, 0.0)
        other[change] = 0.0
        if how == "more" and len(kept) < len(right):
            left_out = int(np.argmax(np.where(right > 0, -1.0, whole)))
            other[left_out] = whole[left_out]
        if other.sum() > 0 and len(kept) < len(right):
            yield how, other / other.sum()


def miscounts(stage: Stage) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield penalties that count a repeated token in a wrong way."""
    repeat, each, once = (stage[name] for name in PENALTIES[1:])
    yield "a repeated token counted once", {"penalty_freq": 0.0, "penalty_present": each + once}
    yield (
        "presence counted at each repetition",
        {"penalty_freq": each + once, "penalty_present": 0.0},
    )
    yield "repeat twice", {"penalty_repeat": repeat**2}


def other_values(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple) and isinstance(value[0], tuple):
        yield "last", tuple(dict(value).items())
        yield "half", tuple((token, bias / 2) for token, bias in value)
    elif isinstance(value, float):
        yield "twice", value * 2
        yield "half", value / 2
        yield "negative", -value
        if 0 <= value < 1:
            yield "complement", 1 - value
    elif isinstance(value, int):
        yield "more" if value else "zero taken for one", value + 1
        yield "less", max(value - 1, 0)
        yield "none", 0


# --- the choice -----------------------------------------------------------------------------------


def choose_chains(
    token: NextToken, labels: Labels, chains: Sequence[tuple[Stage, ...]], *, by_list: bool
) -> tuple[list[tuple[Stage, ...]], bool]:
    """Return the chains that distinguish most neighbours, and True if one of the chains tests the
    stage itself."""
    far = BY_LIST if by_list else BY_DRAWS
    told = [shown_by(token, labels, chain, far, by_list=by_list) for chain in chains]
    names = sorted({name for each in told for name in each})
    table = np.array([[each.get(name, 0.0) for name in names] for each in told])
    without = np.array([each.get("without", 0.0) for each in told])

    def clear(place: int) -> bool:
        return is_clear(token.runs(chains[place]))

    if by_list:  # a list takes only one request for each chain
        ranked = np.argsort(-without, kind="stable").tolist()
        return list(chains), any(without[i] >= TOLD and clear(i) for i in ranked)
    most = MOST_CHAINS.get(chains[0][0]["sampler"], MAX_CHAINS)
    chosen, seen = list[int](), np.zeros(len(names))
    while len(chosen) < min(most, len(chains)):
        gains = np.maximum(table - seen, 0).sum(axis=1)
        best = int(gains.argmax())
        if gains[best] < LEAST_GAIN:
            break
        if not clear(best):
            table[best] = 0.0
            continue
        chosen.append(best)
        seen = np.maximum(seen, table[best])
    is_told = any(without[i] >= TOLD for i in chosen)
    return [chains[i] for i in chosen], is_told


def shown_by(
    token: NextToken, labels: Labels, chain: Sequence[Stage], far: float, *, by_list: bool
) -> dict[str, float]:
    """Return the distance of each neighbour from the right chain, as a share of the distance that a
    test certainly detects."""
    right = token.probabilities(chain)
    if by_list:  # every chain is asked
        without = token.probabilities(chain[1:])
        return {"without": min(1.0, largest_change(right, without) / far) * right.any()}

    def sums(p: F64) -> F64:
        return np.bincount(labels.of, p).astype(np.float64)

    found = dict[str, float]()
    for name, p in neighbours(token, chain, right) if right.any() else ():
        found[name] = min(1.0, total_variation(sums(right), sums(p)) / far)
    return found
