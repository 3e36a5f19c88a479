"""Checks that an answer has the form that its question demands, before the answer is compared.

Each question has one check. A check takes the answer, the facts of the session's file, and the
arguments that it needs, in the order of the adapter's method. It copies no data and reads no tensor
values.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.answers import files, ops, runs, sampling, texts
from lockstep.harness.answers.base import Facts, MalformedAnswer, facts_of

__all__ = ["FORMS", "PIECES", "Facts", "MalformedAnswer", "check_answer", "check_piece", "facts_of"]

FORMS: dict[str, Callable[..., None]] = {
    "describe": files.check_describe,
    "metadata": files.check_metadata,
    "parse": files.check_parse,
    "name_tensors": files.check_name_tensors,
    "tokenize": texts.check_tokenize,
    "detokenize": texts.check_detokenize,
    "greedy": texts.check_greedy,
    "logprobs": texts.check_logprobs,
    "generate": texts.check_generate,
    "evaluate": runs.check_evaluate,
    "embed": runs.check_embed,
    "capture": runs.check_capture,
    "schedule": runs.check_schedule,
    "save": runs.check_save,
    "load": runs.check_load,
    "guide": runs.check_guide,
    "restore": files.check_restore,
    "dequantize": ops.check_dequantize,
    "multiply": ops.check_multiply,
    "time_dequantize": ops.check_time_dequantize,
    "time_capture": ops.check_time_capture,
    "compute": ops.check_compute,
    "operate": ops.check_operate,
    "sample": sampling.check_sample,
    "draw": sampling.check_draw,
}
PIECES: dict[str, Callable[..., None]] = {"capture": runs.check_nodes}


def check_answer(
    question: str, value: Any, facts: Facts, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Check the form of an answer. Raises MalformedAnswer."""
    FORMS[question](value, facts, *args, **kwargs)


def check_piece(
    question: str, value: Any, facts: Facts, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Check the form of one piece of an answer. Raises MalformedAnswer."""
    PIECES[question](value, facts, *args, **kwargs)
