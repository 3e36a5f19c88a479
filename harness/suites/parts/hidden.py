"""Faults that agreeing logits may hide, in tokens with small logits, or by erf GELU.

A token whose logits are smaller than the limit agrees with any small logits.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context
from lockstep.harness.graph.honest_runs import AlongLlamaCpp
from lockstep.harness.locate.segments import shows_tensors

BY_CHANCE = 0.01  # share of the tokens; in fewer cases, logits may be close to zero by chance
BY_TANH = frozenset({"GELU", "GEGLU"})
# GELU by tanh and GELU by erf differ by at most 4.7e-4, at -2.7. ggml reads the first from an F16
# table, which is off by up to 2.0e-3 between -4 and 4. Engines without a table are honest too, so
# the limits of logits usually allow for both.
HIDDEN = (
    "tanh GELU and erf GELU cannot be told apart here, because the error of ggml's table is four "
    "times their difference; tensors show which of them an engine uses"
)


def hidden_tokens(expected: F32, allowed: float) -> int:
    """Return the number of tokens whose logits are all below the limit because another logit is
    much larger. Tokens whose logits are all zero are not counted. expected: (outputs,
    vocabulary)."""
    with np.errstate(invalid="ignore"):
        largest = np.nan_to_num(np.abs(expected), nan=np.inf).max(axis=0, initial=0.0)
    found = int(((largest > 0) & (largest <= allowed)).sum())
    return found if found > BY_CHANCE * len(largest) else 0


def most_are_hidden(detail: Mapping[str, Any]) -> bool:
    """Return True if most tokens are hidden, so that agreement proves little. detail: a verdict's
    detail."""
    return 2 * int(detail.get("hidden_tokens", 0)) > int(detail.get("vocabulary", 0))


def in_words(detail: Mapping[str, Any]) -> str:
    text = f"{detail['hidden_tokens']} of {detail['vocabulary']} tokens"
    return f"{text} have only logits smaller than the limit"


def hidden_by_the_table(context: Context) -> list[str]:
    """Return a list with the sentence HIDDEN for a subject without tensors, if the model's graph
    uses a GELU table. llama.cpp's graph of the usual run is already known."""
    along = context.honest
    if shows_tensors(context) or not isinstance(along, AlongLlamaCpp):
        return []
    graphs = along.program(context.batches).graphs
    return [HIDDEN] if any(node.op in BY_TANH for graph in graphs for node in graph.nodes) else []
