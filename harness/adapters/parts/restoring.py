"""Questions to engines that read state files, many at a time, and what the answers mean.

The question is `restore(blob, ends, sequence, then)`; the answer has the form of `parse` (parsing).
Its digest tells what the engine's state is behind a file: of an accepted one a hash of the logits of
`then`, or STUCK where these tokens are refused; of a refused one CLEAN, or CELLS_STAY.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import MalformedFile
from lockstep.engine.states.file import read_state
from lockstep.engine.states.fit import ContextLimits, StateShape, find_misfits
from lockstep.harness.adapters.llama_cpp.model import MAX_SEQUENCES
from lockstep.harness.adapters.parts.parsing import ACCEPTED, CRASHED, answer_of
from lockstep.harness.records import Settings

REFUSED_STATE = "other"  # of the endings of `parse`: the digest and the words say more
CLEAN, STUCK, CELLS_STAY = 0, 0, 1
LEAST_HASH = 2
Judge = Callable[[bytes], str]  # -> why it is refused; "": it is taken


def digest_of_logits(logits: NDArray[np.float32]) -> int:
    """Return a hash of the bits, which is none of the other digests."""
    raw = hashlib.blake2b(logits.tobytes(), digest_size=8).digest()
    return max(int.from_bytes(raw, "little"), LEAST_HASH)


def limits_of(settings: Settings) -> ContextLimits:
    """Return the limits of the contexts that llama.cpp is asked in."""
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
    """Return the kind and the words of the first reason, or "". Raises MalformedFile."""
    state = read_state(raw, shape.layouts)
    expected = "context" if sequence is None else "sequence"
    if state.kind != expected:
        return f"kind: a {state.kind} file, expected a {expected} file"
    first = next(find_misfits(state, shape, limits), None)
    return "" if first is None else f"{first.kind}: {first}"


def restore_each(judge: Judge, files: Sequence[bytes]) -> dict[str, Any]:
    """Return the answer of a reader that computes nothing: each file is read in this process."""
    rows, words = [], {}
    for at, raw in enumerate(files):
        try:
            why = judge(raw)
        except MalformedFile as error:
            why = f"{error.kind}: {error}"
        except Exception as error:
            rows.append((CRASHED, 0, -1))
            words[at] = f"{type(error).__name__}: {error}"
            continue
        rows.append((REFUSED_STATE if why else ACCEPTED, 0, -1))
        if why:
            words[at] = why
    return answer_of(rows, words)
