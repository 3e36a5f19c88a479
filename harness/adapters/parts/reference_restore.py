"""Our reader as a reader of llama.cpp's state files: kinds of failure and reasons."""

from collections.abc import Callable, Sequence
from typing import Any

from lockstep.engine.errors import MalformedFile, Unsupported
from lockstep.engine.states.file import read_state
from lockstep.engine.states.fit import ContextLimits, StateShape, find_misfits
from lockstep.harness.adapters.llama_cpp.model import MAX_SEQUENCES
from lockstep.harness.adapters.parts.parsing import ACCEPTED, CRASHED, Row, answer_of
from lockstep.harness.adapters.parts.restoring import REFUSED_STATE
from lockstep.harness.records import Settings

Judge = Callable[[bytes], str]  # returns the reason of a refusal, or "" if the state is accepted


def limits_of(settings: Settings) -> ContextLimits:
    """Return the limits of the contexts that llama.cpp makes with these settings."""
    return ContextLimits(
        n_ctx=settings.n_ctx,
        n_sequences=MAX_SEQUENCES,
        n_streams=1,
        type_k=settings.type_k,
        type_v=settings.type_v,
        transposed=not settings.flash_attn,
    )


def reason_to_refuse(
    raw: bytes, shape: StateShape, limits: ContextLimits, sequence: int | None
) -> str:
    """Return the kind and the words of the first reason to refuse a file, or "". Raises
    MalformedFile."""
    state = read_state(raw, shape.layouts)
    expected = "context" if sequence is None else "sequence"
    if state.kind != expected:
        return f"kind: a {state.kind} file, expected a {expected} file"
    first = next(find_misfits(state, shape, limits), None)
    return "" if first is None else f"{first.kind}: {first}"


def restore_each(judge: Judge, files: Sequence[bytes]) -> dict[str, Any]:
    """Return the answer of a reader that computes nothing. It reads each file in this process."""
    rows: list[Row] = []
    words: dict[int, str] = {}
    for at, raw in enumerate(files):
        try:
            why = judge(raw)
        except MalformedFile as error:
            why = f"{error.kind}: {error}"
        except Unsupported as error:
            why = f"unsupported: {error}"
        except Exception as error:
            rows.append((CRASHED, 0, -1))
            words[at] = f"{type(error).__name__}: {error}"
            continue
        rows.append((REFUSED_STATE if why else ACCEPTED, 0, -1))
        if why:
            words[at] = why
    return answer_of(rows, words)
