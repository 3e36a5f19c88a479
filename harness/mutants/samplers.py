"""Samplers that keep the wrong candidates."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lockstep.engine.samplers.parts.candidates import CandidateList, F
from lockstep.harness.mutants.parts.wrong_samplers import (
    WrongSampler,
    changed,
    of_logits,
    p_of,
    right,
)

add = WrongSampler.add_fault

# --- top_k ----------------------------------------------------------------------------------------

add("top-k-one-less", "k - 1 candidates are kept", "top_k", apply=changed(k=lambda s: s.k - 1 or 1))
add(
    "top-k-one-more",
    "k + 1 candidates are kept",
    "top_k",
    apply=changed(k=lambda s: s.k + (s.k > 0)),
)
add(
    "top-k-off-is-greedy",
    "a k of zero, which means no limit, keeps one candidate",
    "top_k",
    "tpu-inference #1386",
    apply=changed(k=lambda s: s.k if s.k > 0 else 1),
)
add(
    "top-k-smallest",
    "the k smallest logits are kept",
    "top_k",
    apply=of_logits(lambda s, c: -c.logits),
)
add(
    "top-k-of-magnitudes",
    "the k logits of largest magnitude are kept",
    "top_k",
    apply=of_logits(lambda s, c: np.abs(c.logits)),
)

# --- top_p ----------------------------------------------------------------------------------------


def drop_crossing(sampler: Any, c: CandidateList) -> CandidateList:
    found = right(sampler, c)
    return found.take(slice(-1)) if 1 < len(found) < len(c) else found


def sum_unsorted(sampler: Any, c: CandidateList) -> CandidateList:
    if F(sampler.p) >= 1:
        return c
    c = sampler.ways.softmax(c, sort=False)
    return c.take(slice(sampler.size(c) or len(c)))


add(
    "top-p-drops-crossing",
    "the candidate that reaches p is left out",
    "top_p",
    "tiny-llm #32",
    apply=drop_crossing,
)
add(
    "top-p-unsorted",
    "probabilities are added up in the order of ids",
    "top_p",
    "gluon-nlp #1481",
    apply=sum_unsorted,
)
add("top-p-no-min-keep", "min_keep is ignored", "top_p", apply=changed(min_keep=1))
add("top-p-zero-is-off", "a p of zero keeps all", "top_p", apply=changed(p=lambda s: s.p or 1.0))
add(
    "top-p-of-squares",
    "probabilities are those of doubled logits",
    "top_p",
    apply=of_logits(lambda s, c: c.logits * F(2)),
)
add(
    "top-p-of-complement", "1 - p is used instead of p", "top_p", apply=changed(p=lambda s: 1 - s.p)
)

# --- min_p ----------------------------------------------------------------------------------------


def cut_absolutely(sampler: Any, c: CandidateList) -> CandidateList:
    c = p_of(sampler, c)
    n = max(int(np.count_nonzero(c.p >= F(sampler.p))), sampler.min_keep, 1)
    return c.take(slice(n))


def cut_logits(sampler: Any, c: CandidateList) -> CandidateList:
    if F(sampler.p) <= 0:
        return c
    c = sampler.ways.sort(c)
    n = max(int(np.count_nonzero(c.logits >= F(sampler.p) * c.logits[0])), sampler.min_keep, 1)
    return c.take(slice(n))


add(
    "min-p-absolute",
    "p itself is the threshold, not p times the largest",
    "min_p",
    apply=cut_absolutely,
)
add(
    "min-p-of-logits",
    "logits of at least p times the largest logit are kept",
    "min_p",
    "sglang-jax #1563",
    apply=cut_logits,
)
add("min-p-no-min-keep", "min_keep is ignored", "min_p", apply=changed(min_keep=1))
add(
    "min-p-of-complement", "1 - p is used instead of p", "min_p", apply=changed(p=lambda s: 1 - s.p)
)

# --- typical, top_n_sigma -------------------------------------------------------------------------


def distances(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return a wrong method of the sampler: `function` applied to the surprises and their mean."""

    def found(sampler: Any, p: Any) -> Any:
        log = sampler.ways.log(p)
        mean = sampler.ways.total(np.where(p > 0, -p * log, F(0)))
        return np.asarray(function(-log, mean), F)

    return found


def sigma(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda sampler, logits: F(function(logits.astype(np.float64)))


def cut_below_mean(sampler: Any, c: CandidateList) -> CandidateList:
    valid = c.logits[c.logits != -np.inf]
    if F(sampler.n) <= 0 or len(c) <= 1 or not len(valid):
        return c
    least = valid.mean(dtype=np.float64) - float(sampler.n) * valid.std(dtype=np.float64)
    return c.change(logits=np.where(c.logits < least, F(-np.inf), c.logits))


add(
    "typical-bits",
    "the entropy is in bits, surprises are not",
    "typical",
    distances=distances(lambda s, m: np.abs(s - m / F(np.log(2)))),
)
add(
    "typical-unlikeliest",
    "the candidates farthest from the entropy are kept",
    "typical",
    distances=distances(lambda s, m: -np.abs(s - m)),
)
add(
    "typical-no-distance",
    "candidates are sorted by surprise, not by distance",
    "typical",
    distances=distances(lambda s, m: s - m),
)
add("typical-no-min-keep", "min_keep is ignored", "typical", apply=changed(min_keep=1))
add(
    "sigma-of-sample",
    "the deviation is divided by n - 1",
    "top_n_sigma",
    deviation=sigma(lambda x: x.std(ddof=min(1, len(x) - 1))),
)
add(
    "sigma-squared",
    "the variance is used, not its root",
    "top_n_sigma",
    deviation=sigma(lambda x: x.var()),
)
add(
    "sigma-below-mean",
    "the threshold is n deviations below the mean, not below the largest",
    "top_n_sigma",
    apply=cut_below_mean,
)
