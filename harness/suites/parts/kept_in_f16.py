"""A note on undeclared F16 caches, for a program that declares F32 for keys and values, or declares
nothing.

An undeclared F16 cache is not a faulty op, but it is not excused either. llama.cpp uses an F16
cache too as soon as the program declares one.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import Any

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.judging.compare import worst_distance
from lockstep.harness.protocol.session import ProgramSession

# Share of the distance from honest runs in F32. The engine's numbers differ a little from ours, so
# a few are rounded to another F16 number. An engine with another fault is equally far from both
# runs.
NEARER = 0.25
# Share of the largest logit. An F16 number is off by at most 2^-12 of itself. Errors of activations
# in Q8_0, which are ten times as large, grow to one or two hundredths after tens of layers.
AT_MOST = 2.0**-5
WORDS = (
    "the {what}s are much nearer to a run with an F16 cache. If your engine has one, "
    'declare it in the answer to start, "settings":{{"type_k":"F16","type_v":"F16"}}, '
    "and llama.cpp runs with an F16 cache too"
)


def with_f16_cache(
    context: Context, batches: Sequence[Batch], got: F32, detail: Mapping[str, Any], what: str
) -> str:
    """Return a note to add to a small difference with this detail; "" if there is none. A large
    difference gets no note, so that a wrong engine is not delayed by two runs for each probe
    model."""
    small = detail["worst_relative_to_largest_logit"] <= AT_MOST
    if detail["at_fault"] != "subject" or not small:
        return ""
    words = kept_in_f16(context, batches, got, what)
    return words and f"; {words}"


def kept_in_f16(context: Context, batches: Sequence[Batch], got: F32, what: str) -> str:
    """Return a note if the engine seems to keep numbers in F16; "" if the engine declares something
    else, or if its logits are not nearer to a run with an F16 cache. got: the subject's logits,
    (outputs, vocabulary)."""
    settings = context.settings
    in_full = (settings.type_k, settings.type_v) == ("F32", "F32")
    if not in_full or not isinstance(context.subject, ProgramSession):
        return ""
    rounded = replace(settings, type_k="F16", type_v="F16")
    halves = context.runner.open("llama.cpp", context.model, rounded)
    try:
        with suppress(NoAnswer):  # llama.cpp may not offer such a cache
            other = context.make_honest(replace(context, llama_cpp=halves, begun={}))
            near = min(worst_distance(run, got) for run in other.logits(batches))
            far = min(worst_distance(run, got) for run in context.honest_runs(batches))
            if not isfinite(near):  # with NaN, both distances are infinite
                return ""
            return WORDS.format(what=what) if near <= NEARER * far else ""
    finally:
        halves.close()
    return ""
