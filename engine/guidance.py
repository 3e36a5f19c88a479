"""Classifier-free guidance: log-probabilities of a prompt, steered away from a negative prompt's.

l' = g + scale * (l - g), where l and g are the log-probabilities after the prompt and after the
negative prompt. Source: arXiv 2306.17806, and llama_sample_apply_guidance of older llama.cpp.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32

F64 = NDArray[np.float64]


def log_softmax(logits: NDArray[np.floating]) -> F64:
    """Return the log-probabilities of each row of logits: (rows, vocabulary)."""
    wide = logits.astype(np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    found: F64 = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return found


def guide(logits: F32, negative: F32, scale: float) -> F32:
    """Steer the logits away from those of the negative prompt. logits, negative: (rows, vocabulary)
    -> (rows, vocabulary). Scale 1: the negative prompt changes nothing."""
    away = log_softmax(negative)
    return (away + scale * (log_softmax(logits) - away)).astype(np.float32)
