"""Logits -> token."""

import numpy as np

from lockstep.engine.quants.base import F32


def greedy(logits: F32) -> int:
    """Return the id with the largest logit; the lowest id wins a tie. logits: (vocabulary,)"""
    return int(np.argmax(logits))
