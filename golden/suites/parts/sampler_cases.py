"""Cases of sampler vectors: chains with parameters at their edges, and kinds of logit rows.

Logits are multiples of 1/256 or 1/2048, made from integers, so that short decimals are exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.samplers.parts.candidates import F32, F
from lockstep.engine.samplers.parts.constructors import BY_SAMPLER
from lockstep.harness.synth.draws import integers

GRID = 256.0
USUAL, FEW = 24, 100  # numbers of candidates; with more than FEW, values are closer to each other
Stage = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SamplerSpec:
    """A chain without its seeds, and the kinds of rows to draw."""

    id: str
    chain: tuple[Stage, ...]
    kind: str = "random"
    n: int = USUAL
    rows: int = 1
    told: tuple[int, ...] = ()  # tokens that the chain accepts before the first row
    prompt: tuple[int, ...] = ()  # tokens that the chain does not accept
    only: tuple[int, ...] = ()  # the candidates of a case that reads a vocabulary
    reach: tuple[float, float] = (0.0, 1.0)  # range of the last draw


# --- rows -----------------------------------------------------------------------------------------


# with "high" and "low", exp is infinite or zero in float32 and float64
OFFSETS = {"negative": -8.0, "high": 1000.0, "low": -1000.0}


def draw_row(kind: str, bits: Philox, n: int) -> F32:
    """Return n logits, all different except for the kind `flat`, with minus infinity for missing
    candidates."""
    fine = 1 if n <= FEW else 8
    sums = integers(bits, 3 * n, 1024 * fine).reshape(3, n).sum(axis=0) - 1536 * fine
    row = np.asarray(sums / (GRID * fine), F)  # within 6 of zero
    if kind == "flat":
        return np.full(n, 1.25, F)
    if kind in OFFSETS:
        return row + F(OFFSETS[kind])
    if kind == "wide":
        return row * F(4)
    if kind == "peaked":
        row = row / F(4)
        row[int(integers(bits, 1, n)[0])] = F(7.5)
    if kind == "masked":
        row[integers(bits, n, 2) == 0] = -np.inf
        row[n // 2] = F(2.75)
    return row


def has_ties(row: NDArray[Any]) -> bool:
    finite = row[np.isfinite(row)]
    return len(np.unique(finite)) < len(finite)


# --- one sampler ----------------------------------------------------------------------------------

KINDS = ("random", "peaked", "negative", "wide", "masked")
FAR = ("high", "low")
LAST = ("greedy", "dist", "mirostat", "mirostat_v2", "adaptive_p")
NONE: Stage = {"sampler": "greedy"}
TOLD = (3, 5, 3, 7, 3, 5, 11)
# 2 and 13 followed earlier occurrences of the repeated end
ECHO = (9, 4, 7, 2, 9, 4, 7, 13, 9, 4, 7)


def stage(sampler: str, **values: Any) -> Stage:
    """Return a stage with all parameters of the sampler; parameters not given are off or have usual
    values."""
    return {"sampler": sampler, **{k: values.get(k, OFF[k]) for k in BY_SAMPLER[sampler].fields}}


OFF: dict[str, Any] = {
    "seed": 0,
    "k": 0,
    "p": 1.0,
    "min_keep": 1,
    "t": 1.0,
    "delta": 0.0,
    "exponent": 1.0,
    "n": 0.0,
    "tau": 5.0,
    "eta": 0.1,
    "m": 100,
    "target": 0.3,
    "decay": 0.9,
    "biases": (),
    "penalty_last_n": 64,
    "penalty_repeat": 1.0,
    "penalty_freq": 0.0,
    "penalty_present": 0.0,
    "dry_multiplier": 0.8,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "seq_breakers": (),
}


def alone(sampler: str, name: str, kind: str = "random", **given: Any) -> SamplerSpec:
    """Return a case of one stage. given: fields of the case, and parameters of the stage."""
    own = {k: given.pop(k) for k in ("n", "rows", "told", "prompt", "reach") if k in given}
    if "sigma" in given:
        given["n"] = given.pop("sigma")
    chain = (stage(sampler, **given),)
    return SamplerSpec(id=f"{name}-{kind}", chain=chain, kind=kind, **own)


def cut(
    sampler: str, values: Mapping[str, Mapping[str, Any]], kinds: tuple[str, ...] = KINDS
) -> list[SamplerSpec]:
    """Return a case of each setting on a random row, and of the first setting on rows of every
    kind."""
    first, *_ = values
    found = [alone(sampler, name, **given) for name, given in values.items()]
    found += [alone(sampler, first, kind, **values[first]) for kind in kinds[1:]]
    return [*found, alone(sampler, first + "-one", n=1, **values[first])]


def penalties() -> list[SamplerSpec]:
    values: dict[str, dict[str, Any]] = {
        "repeat": {"penalty_repeat": 1.5},
        "repeat-below-1": {"penalty_repeat": 0.5},
        "frequency": {"penalty_freq": 0.75},
        "presence": {"penalty_present": 0.75},
        "all": {"penalty_repeat": 1.25, "penalty_freq": -0.25, "penalty_present": 0.5},
        "window-of-3": {"penalty_last_n": 3, "penalty_repeat": 2.0, "penalty_freq": 0.5},
        "no-window": {"penalty_last_n": 0, "penalty_repeat": 2.0},
        "window-below-0": {"penalty_last_n": -1, "penalty_repeat": 2.0},
    }
    given: dict[str, Any] = {"told": TOLD, "prompt": (1, 2, 3)}
    found = [alone("penalties", name, **v, **given) for name, v in values.items()]
    found += [alone("penalties", "all", kind, **values["all"], **given) for kind in KINDS[1:]]
    last = (stage("penalties", **values["window-of-3"]), NONE)
    return [*found, SamplerSpec(id="row-by-row", chain=last, rows=4, **given)]


def dry() -> list[SamplerSpec]:
    values: dict[str, dict[str, Any]] = {
        "usual": {},
        "allows-4": {"dry_allowed_length": 4},
        "allows-1": {"dry_allowed_length": 1, "dry_base": 3.0},
        "window-of-5": {"dry_penalty_last_n": 5},
        "multiplier-0": {"dry_multiplier": 0.0},
        "base-below-1": {"dry_base": 0.5},
        "no-window": {"dry_penalty_last_n": 0},
    }
    found = [alone("dry", name, told=ECHO, **given) for name, given in values.items()]
    chain = (stage("dry"), NONE)
    found.append(SamplerSpec(id="row-by-row", chain=chain, rows=5, told=ECHO, kind="peaked"))
    told = (260, 356, 262, 264, 263, 260, 356, 262, 264)  # the text of 356 ends with a full stop
    only = (260, 262, 263, 264, 356, 266)
    breaking = [
        SamplerSpec(
            id=name,
            chain=(stage("dry", seq_breakers=breakers),),
            told=told,
            only=only,
        )
        for name, breakers in (("point-breaks", (b".",)), ("nothing-breaks", (b"?",)))
    ]
    return [*found, *breaking]


def infill() -> list[SamplerSpec]:
    """Return cases of infill on rows with few words. In some rows a word begins another word, or an
    end-of-generation token is present."""
    words = {
        "words": (261, 337, 352, 268, 271),
        "one-begins-another": (319, 363, 337, 271),  # the texts "he" and "he "
        "all-begin-another": (312, 337, 325, 352),  # the texts "di", "dig", "te" and "tes"
        "an-end": (2, 261, 268, 337),
    }
    nothing = (261, 262, 263, 264, 265, 266, 267, 268)
    none = SamplerSpec(id="no-word-is-likely", chain=few(nothing), kind="flat", only=nothing)
    return [none] + [
        SamplerSpec(id=f"{name}-{kind}", chain=few(only), kind=kind, only=only)
        for name, only in words.items()
        for kind in ("random", "peaked")
        # unlikely candidates would be too close to each other
        if kind == "random" or "another" not in name
    ]


def few(only: tuple[int, ...]) -> tuple[Stage, ...]:
    return (stage("top_k", k=len(only)), stage("infill"))


def draw_settings(sampler: str, values: Mapping[str, Mapping[str, Any]]) -> list[SamplerSpec]:
    """Return cases of a sampler that draws: each setting with a low, a middle and a high draw."""
    thirds = ((0.0, 0.2), (0.4, 0.6), (0.8, 1.0))
    found = [
        alone(sampler, f"{name}-{i}", reach=reach, **given)
        for name, given in values.items()
        for i, reach in enumerate(thirds)
    ]
    first, *_ = values.values()
    return [*found, *(alone(sampler, "first", kind, **first) for kind in KINDS[1:4])]


SAMPLERS: dict[str, list[SamplerSpec]] = {
    "greedy": [alone("greedy", "largest", kind) for kind in KINDS] + [alone("greedy", "one", n=1)],
    "dist": [
        *draw_settings("dist", {"draw": {}}),
        *(alone("dist", "draw", kind) for kind in ("masked", "flat", *FAR)),
        alone("dist", "one", n=1),
    ],
    "top_k": [
        *cut("top_k", {"5": {"k": 5}, "0-is-all": {"k": 0}, "below-0": {"k": -1}, "1": {"k": 1}}),
        *cut("top_k", {"all": {"k": USUAL}, "more-than-all": {"k": USUAL + 5}})[:2],
        alone("top_k", "129-of-200", k=129, n=200),
    ],
    "top_p": cut(
        "top_p",
        {
            "0.9": {"p": 0.9},
            "0.3": {"p": 0.3},
            "0-keeps-1": {"p": 0.0},
            "1-is-all": {"p": 1.0},
            "keeps-6": {"p": 0.3, "min_keep": 6},
            "keeps-0": {"p": 0.5, "min_keep": 0},
        },
        (*KINDS, *FAR),
    ),
    "min_p": cut(
        "min_p",
        {
            "0.1": {"p": 0.1},
            "0.5": {"p": 0.5},
            "0-is-all": {"p": 0.0},
            "1-keeps-1": {"p": 1.0},
            "keeps-6": {"p": 0.5, "min_keep": 6},
        },
        (*KINDS, *FAR),
    ),
    "typical": cut(
        "typical",
        {
            "0.5": {"p": 0.5},
            "0.2": {"p": 0.2},
            "0.9": {"p": 0.9},
            "1-is-all": {"p": 1.0},
            "keeps-6": {"p": 0.2, "min_keep": 6},
        },
        (*KINDS, *FAR),
    ),
    "temp": cut(
        "temp",
        {"0.7": {"t": 0.7}, "1": {}, "2": {"t": 2.0}, "0": {"t": 0.0}, "below-0": {"t": -1.0}},
    ),
    "temp_ext": cut(
        "temp_ext",
        {
            "usual": {"t": 2.0, "delta": 0.5},
            "exponent-2": {"t": 2.0, "delta": 0.5, "exponent": 2.0},
            "exponent-half": {"t": 1.5, "delta": 0.3, "exponent": 0.5},
            "delta-above-t": {"t": 1.5, "delta": 1.75},
            "no-delta": {"t": 0.8},
        },
    ),
    "xtc": [
        *cut(
            "xtc",
            {
                "always": {"p": 1.0, "t": 0.1},
                "never": {"p": 0.0, "t": 0.1},
                "too-high": {"p": 1.0, "t": 0.6},
                "low": {"p": 1.0, "t": 0.05},
                "keeps-all": {"p": 1.0, "t": 0.1, "min_keep": USUAL},
            },
        ),
        alone("xtc", "draw-below", p=0.5, t=0.05, reach=(0.0, 0.4)),
        alone("xtc", "draw-above", p=0.5, t=0.05, reach=(0.6, 1.0)),
    ],
    "top_n_sigma": cut(
        "top_n_sigma",
        {
            "1": {"sigma": 1.0},
            "half": {"sigma": 0.5},
            "2": {"sigma": 2.0},
            "0-is-all": {"sigma": 0.0},
            "below-0": {"sigma": -1.0},
        },
    ),
    "penalties": penalties(),
    "dry": dry(),
    "logit_bias": [
        alone("logit_bias", "one", biases=((3, 2.5),)),
        alone("logit_bias", "out", biases=((3, float("-inf")), (4, 1.5))),
        alone("logit_bias", "twice", biases=((3, 1.5), (3, -0.25))),
        alone("logit_bias", "not-there", biases=((100, 1.5), (-1, 1.5))),
        alone("logit_bias", "none"),
        alone("logit_bias", "of-masked", "masked", biases=((12, -1.0),)),
    ],
    "mirostat": [
        *draw_settings("mirostat", {"2": {"tau": 2.0, "m": 5}, "5": {}, "3": {"tau": 3.0}}),
        alone("mirostat", "learns", rows=4, tau=2.0, eta=0.5, n=40),
    ],
    "mirostat_v2": [
        *draw_settings("mirostat_v2", {"1": {"tau": 1.0}, "5": {}, "2": {"tau": 2.0}}),
        alone("mirostat_v2", "learns", rows=4, tau=1.5, eta=0.5),
    ],
    "adaptive_p": [
        *draw_settings(
            "adaptive_p",
            {"0.3": {}, "0": {"target": 0.0}, "1": {"target": 1.0}, "off": {"target": -1.0}},
        ),
        alone("adaptive_p", "follows", rows=4, n=6),
        alone("adaptive_p", "forgets", rows=3, n=6, decay=0.0),
        alone("adaptive_p", "remembers", rows=3, n=6, decay=1.0),
    ],
    "infill": infill(),
}
