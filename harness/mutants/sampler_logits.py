"""Samplers with wrong logits: temperature, penalties, biases."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.harness.mutants.parts.wrong_samplers import (
    Apply,
    WrongSampler,
    changed,
    p_of,
    right,
)
from lockstep.harness.records import SampleRequest

add = WrongSampler.add_fault

# --- temperature ----------------------------------------------------------------------------------


def scale(function: Callable[[Any], float]) -> Apply:
    return lambda s, c: c.change(logits=c.logits * F(function(s))) if s.t > 0 else right(s, c)


add(
    "temp-multiplies",
    "logits are multiplied by the temperature",
    "temp",
    apply=scale(lambda s: s.t),
)
add(
    "temp-twice",
    "logits are divided twice",
    "temp",
    "RL-Kernel #81",
    apply=scale(lambda s: s.t**-2),
)
add(
    "temp-zero-ignored",
    "a temperature of zero does not change logits",
    "temp",
    apply=lambda s, c: right(s, c) if s.t > 0 else c,
)
add(
    "temp-ext-no-exponent",
    "the exponent is always 1",
    "temp_ext",
    apply=changed(exponent=1.0),
)
add(
    "temp-ext-upside-down",
    "a high entropy lowers the temperature",
    "temp_ext",
    entropy=lambda s, p: F(np.log(len(p))) - type(s).entropy(s, p),
)
add(
    "temp-ext-no-floor",
    "the range begins at the temperature, not delta below it",
    "temp_ext",
    apply=changed(t=lambda s: s.t + s.delta / 2, delta=lambda s: s.delta / 2),
)

# --- xtc ------------------------------------------------------------------------------------------


def leave_out_all(sampler: Any, c: CandidateList) -> CandidateList:
    found = right(sampler, c)
    return found.take(slice(1, None)) if 1 < len(found) < len(c) else found


def leave_out_first(sampler: Any, c: CandidateList) -> CandidateList:
    found = right(sampler, c)
    return p_of(sampler, c).take(slice(1, None)) if len(found) < len(c) - 1 else found


add(
    "xtc-leaves-none",
    "the last candidate that reaches the threshold is removed as well",
    "xtc",
    apply=leave_out_all,
)
add("xtc-first-alone", "only the likeliest candidate is removed", "xtc", apply=leave_out_first)
add(
    "xtc-seldom",
    "candidates are removed if the draw is above p",
    "xtc",
    apply=changed(p=lambda s: 2.0 if s.source.value > s.p > 0 else 0.0),
)

# --- penalties ------------------------------------------------------------------------------------


def per_occurrence(sampler: Any, c: CandidateList) -> CandidateList:
    counts = {token: sampler.tokens.count(token) for token in sampler.tokens}
    logits = c.logits.copy()
    repeat, present = F(sampler.penalty_repeat), F(sampler.penalty_present)
    for i, token in enumerate(() if sampler.is_off else c.ids.tolist()):
        if n := counts.get(token, 0):
            x = logits[i] * repeat**n if logits[i] <= 0 else logits[i] / repeat**n
            logits[i] = x - (F(n) * F(sampler.penalty_freq) + present)
    return c.change(logits=logits, sorted=False)


def divide_always(sampler: Any, c: CandidateList) -> CandidateList:
    found = right(sampler, c)
    back = np.where(
        (c.logits < 0) & (found.logits != c.logits), F(sampler.penalty_repeat) ** 2, F(1)
    )
    return found.change(logits=np.where(back != 1, found.logits / back, found.logits))


def tell_prompt(self: WrongSampler, request: SampleRequest) -> SampleRequest:
    first, *others = request.accepted
    return replace(request, accepted=((*request.prompt, *first), *others))


def keep_first(sampler: Any, token: int) -> None:
    sampler.tokens = [*sampler.tokens, token][: max(sampler.penalty_last_n, 0)]


twice = {"penalty_repeat": lambda s: s.penalty_repeat**2}
times = {
    "penalty_present": lambda s: 0.0,
    "penalty_freq": lambda s: s.penalty_freq + s.penalty_present,
}
once = {
    "penalty_freq": lambda s: 0.0,
    "penalty_present": lambda s: s.penalty_freq + s.penalty_present,
}
add(
    "penalty-per-occurrence",
    "the repeat penalty counts each occurrence",
    "penalties",
    "lattice #312, react-native-executorch #1483",
    apply=per_occurrence,
)
add(
    "penalty-divides-negative",
    "negative logits are divided as well",
    "penalties",
    "cerebros-core-algorithm-alpha #294",
    apply=divide_always,
)
add(
    "penalty-twice",
    "the repeat penalty is applied twice",
    "penalties",
    "sglang-omni #1360",
    apply=changed(**twice),
)
add(
    "penalty-of-first",
    "the first tokens are remembered, not the last",
    "penalties",
    "llama-cpp-python #1295",
    accept=keep_first,
)
add(
    "penalty-no-window",
    "all tokens are penalised, whatever penalty_last_n",
    "penalties",
    accept=lambda s, t: setattr(s, "tokens", [*s.tokens, t]),
)
add(
    "penalty-forgets",
    "generated tokens are not passed to the sampler",
    "penalties",
    "vllm-ascend #7785",
    accept=lambda s, t: None,
)
add(
    "penalty-presence-counts",
    "presence is counted per occurrence",
    "penalties",
    apply=changed(**times),
)
add(
    "penalty-frequency-once",
    "frequency is counted once per token",
    "penalties",
    apply=changed(**once),
)
add(
    "penalty-counts-prompt",
    "tokens of the prompt are penalised as well",
    "penalties",
    "vllm-metal #69, TensorRT-LLM #5623",
    change=tell_prompt,
)

# --- dry, logit_bias ------------------------------------------------------------------------------


def penalise_last(sampler: Any, c: CandidateList) -> CandidateList:
    held = sampler.tokens
    try:
        sampler.tokens = held[:-1]
        return right(sampler, c)
    finally:
        sampler.tokens = held


def last_bias(sampler: Any, c: CandidateList) -> CandidateList:
    return changed(biases=lambda s: tuple(dict(s.biases).items()))(sampler, c)


def scale_by_bias(sampler: Any, c: CandidateList) -> CandidateList:
    factors = dict(sampler.biases)
    found = [x * F(factors.get(t, 1)) for t, x in zip(c.ids.tolist(), c.logits, strict=True)]
    return c.change(logits=np.array(found, F))


add(
    "dry-allows-one-more",
    "the allowed length is one token longer",
    "dry",
    apply=changed(dry_allowed_length=lambda s: s.dry_allowed_length + 1),
)
add(
    "dry-linear",
    "base times length, not base to the power of length",
    "dry",
    penalty=lambda s, n: F(s.dry_multiplier * s.dry_base * (n - s.dry_allowed_length)),
)
add("dry-one-late", "the last token is ignored", "dry", apply=penalise_last)
add(
    "bias-last-wins",
    "if a token has several biases, only the last is added",
    "logit_bias",
    apply=last_bias,
)
add("bias-multiplies", "logits are multiplied by the bias", "logit_bias", apply=scale_by_bias)
