"""Bounds of the difference between an engine's learnt state and ours.

Each choice of a token adds the error of its probability, and the roundings of the update in both
engines.
"""

from typing import Any

import numpy as np

from lockstep.engine.samplers.adaptive_p import AdaptiveP
from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.mirostat import Mirostat
from lockstep.engine.samplers.mirostat_v2 import MirostatV2
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.harness.samplers.probabilities import LAST_PLACE, UNIT, probabilities_of

LEARNING = (Mirostat, MirostatV2, AdaptiveP)
UPDATE = 4 * UNIT  # roundings of an error, a product, a difference, and the tau or weight in it


def learn_error(sampler: Sampler, before: CandidateList, after: CandidateList) -> float:
    """Return the error that the choice in `after` adds to mu, or to the average of
    probabilities."""
    if isinstance(sampler, Mirostat | MirostatV2):
        return mu_error(sampler, after)
    if isinstance(sampler, AdaptiveP):
        held = probabilities_of(before.logits)
        at = int(np.flatnonzero(before.ids == after.token)[0])
        average = float(sampler.weighted) / float(sampler.weight)
        return 2 * (float(held.radius[at]) + UPDATE * (average + 1))
    return 0.0


def mu_error(sampler: Any, after: CandidateList) -> float:
    """Return the error of mu. The surprise -log2 p has the relative error of p, and one unit in the
    last place of log2."""
    held = probabilities_of(after.logits)
    p, radius = float(held.p[after.selected]), float(held.radius[after.selected])
    if p <= 0:
        return float("inf")
    surprise = -float(np.log2(p))
    off = radius / p / float(np.log(2)) + LAST_PLACE * surprise
    size = abs(float(sampler.mu)) + sampler.eta * (surprise + abs(sampler.tau))
    return float(2 * (abs(sampler.eta) * off + UPDATE * size))
