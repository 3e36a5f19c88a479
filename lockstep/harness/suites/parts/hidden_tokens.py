"""Tokens whose logits are smaller than what they may be off by: any small ones agree."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.engine.quants.base import F32

BY_CHANCE = 0.01  # of the tokens: in few rows some logits are next to zero, and no more than these


def hidden_tokens(expected: F32, allowed: float) -> int:
    """How many, where one logit is so much larger than the others that its errors are; zeros in
    every row are what they are. expected: (outputs, vocabulary)."""
    with np.errstate(invalid="ignore"):
        largest = np.nan_to_num(np.abs(expected), nan=np.inf).max(axis=0, initial=0.0)
    found = int(((largest > 0) & (largest <= allowed)).sum())
    return found if found > BY_CHANCE * len(largest) else 0


def most_are_hidden(detail: Mapping[str, Any]) -> bool:
    """Then the few others that agree are no agreement of the model. detail: of a verdict."""
    return 2 * int(detail.get("hidden_tokens", 0)) > int(detail.get("vocabulary", 0))


def in_words(detail: Mapping[str, Any]) -> str:
    text = f"{detail['hidden_tokens']} of {detail['vocabulary']} tokens"
    return f"{text}, whose logits are all smaller than what is allowed"
