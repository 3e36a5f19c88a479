"""Samplers with wrong choices, and chains in another order."""

from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.harness.mutants.parts.wrong_samplers import (
    WrongSampler,
    changed,
    of_logits,
    right,
)
from lockstep.harness.records import SampleRequest

add = WrongSampler.add_fault

# --- mirostat, adaptive_p, choices ----------------------------------------------------------------


def surprise_in_nats(sampler: Any, p: Any) -> int:
    over = np.flatnonzero(-np.log(p) > sampler.mu)
    return max(int(over[0]) if len(over) else len(p), 1)


def choose_first(sampler: Any, c: CandidateList) -> CandidateList:
    return right(sampler, c).change(selected=0)


def draw_from_end(sampler: Any, c: CandidateList) -> CandidateList:
    sampler.source.value = 1 - sampler.source.value
    return right(sampler, c)


def draw_by_powers(sampler: Any, c: CandidateList) -> CandidateList:
    with np.errstate(all="ignore"):
        p = np.exp(c.logits) / np.exp(c.logits).sum(dtype=np.float64)
    reached = np.flatnonzero(np.cumsum(p) >= sampler.source.double())
    at = int(reached[0]) if len(reached) else len(c) - 1
    return c.change(p=np.asarray(p, F), selected=at)


add("mirostat-never-learns", "mu stays", "mirostat_v2", learn=lambda s, p: None)
add(
    "mirostat-in-nats",
    "the surprise is computed by the natural logarithm",
    "mirostat_v2",
    size=surprise_in_nats,
)
add(
    "mirostat-of-llama",
    "the vocabulary has 32,000 tokens whatever the model",
    "mirostat",
    apply=changed(n_vocab=32000),
)
add("mirostat-keeps-all", "the list is not cut to k", "mirostat", size=lambda s, p: len(p))
add(
    "adaptive-p-of-zeros",
    "the remembered probability of a chosen token is zero",
    "adaptive_p",
    "ik_llama.cpp #1155",
    remember=lambda s, t, p: type(s).remember(s, t, F(0)),
)
add(
    "adaptive-p-far",
    "candidates far from the target are preferred",
    "adaptive_p",
    reshape=lambda s, c: -type(s).reshape(s, c),
)
add(
    "greedy-takes-first",
    "the first candidate of the list is taken, sorted or not",
    "greedy",
    apply=choose_first,
)
add(
    "dist-is-greedy",
    "the likeliest is taken, whatever the draw",
    "dist",
    apply=lambda s, c: right(s, c).change(selected=int(np.argmax(c.logits))),
)
add("dist-from-end", "the draw is taken from the end", "dist", apply=draw_from_end)
add(
    "dist-overflows",
    "powers are of the logits, not of their distance from the largest",
    "dist",
    apply=draw_by_powers,
)
add(
    "dist-of-logits",
    "candidates are drawn by their logits, not by powers of them",
    "dist",
    apply=of_logits(lambda s, c: np.log(np.maximum(c.logits, F(1e-6)))),
)


def temperature_first(self: WrongSampler, request: SampleRequest) -> SampleRequest:
    """Move the temperature to the beginning of the chain. The answer keeps the requested names of
    stages, so the first stage shows other logits."""
    order = sorted(range(len(request.chain)), key=lambda i: request.chain[i]["sampler"] != "temp")
    chain = tuple(request.chain[i] for i in order)
    return replace(request, chain=chain, draws=request.draws[:, order])


def temperature_last(self: WrongSampler, request: SampleRequest) -> SampleRequest:
    order = sorted(range(len(request.chain)), key=lambda i: request.chain[i]["sampler"] == "temp")
    chain = tuple(request.chain[i] for i in order)
    return replace(request, chain=chain, draws=request.draws[:, order])


add(
    "temp-first",
    "the temperature comes first, whatever the order",
    "temp",
    "mlc-llm #951",
    change=temperature_first,
)
add(
    "temp-last",
    "the temperature comes last, whatever the order",
    "temp",
    "Camelid #534",
    change=temperature_last,
)
