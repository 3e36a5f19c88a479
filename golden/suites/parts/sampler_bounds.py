"""The bound of an honest engine's error, from stage to stage of a chain.

The roundings of a stage are those that the suite `samplers` counts. An error at the input of a
stage is multiplied by the stage's slope.
"""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.ops.functions import log
from lockstep.engine.samplers.adaptive_p import SHARPNESS, WIDTH, AdaptiveP
from lockstep.engine.samplers.base import Sampler
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.penalties import Penalties
from lockstep.engine.samplers.temp import Temp
from lockstep.engine.samplers.temp_ext import TempExt
from lockstep.harness.samplers.learned import learn_error
from lockstep.harness.samplers.limits import logit_limits
from lockstep.harness.samplers.probabilities import UNIT, probabilities_of


@dataclass(kw_only=True)
class ErrorBound:
    """The bound on the error of one row's logits, after the stages passed so far."""

    logit: float = 0.0

    def pass_stage(
        self, sampler: Sampler, before: CandidateList, after: CandidateList, learnt: float
    ) -> float:
        """Update the bound for a stage; return the bound of the stage's logits and probabilities.

        sampler: the sampler in its state before the stage. learnt: the error that this state may
        have.
        """
        with np.errstate(all="ignore"):
            limits = logit_limits(sampler, before, after, learnt)
        there = limits is not None and np.isfinite(limits.logits)
        radius = 0.0 if limits is None else float(limits.radius[there].max())
        # an engine may or may not round parameters to float32
        parameters = 2 * UNIT * float(np.abs(finite(after)).max())
        self.logit = slope_of(sampler, before, after) * self.logit + radius + parameters
        held = probabilities_of(after.logits)
        return max(self.logit, float((2 * held.p * self.logit + held.radius).max()))


def finite(c: CandidateList) -> np.ndarray:
    return c.logits[np.isfinite(c.logits)].astype(np.float64)


def slope_of(sampler: Sampler, before: CandidateList, after: CandidateList) -> float:
    match sampler:
        case Temp():
            return 1 / sampler.t if sampler.t > 0 else 1.0
        case TempExt() if sampler.delta > 0 and len(before) > 1:
            spread = float(np.ptp(finite(after))) / max(float(np.ptp(finite(before))), 1e-9)
            entropy = 2 * float(log(len(before)))  # upper limit of the entropy's slope by logits
            return spread + spread * spread * entropy * 2 * sampler.delta * sampler.exponent
        case Penalties():
            return max(abs(sampler.penalty_repeat), 1 / max(abs(sampler.penalty_repeat), 1e-9))
        case AdaptiveP() if sampler.target >= 0:
            return float(SHARPNESS * WIDTH) / 2  # a probability's slope by logits is at most 1/4
    return 1.0


def learn_more(sampler: Sampler, before: CandidateList, after: CandidateList) -> float:
    """Return the error that a choice adds to the sampler's state."""
    return learn_error(sampler, before, after) if after.selected >= 0 else 0.0
