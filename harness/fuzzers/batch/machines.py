"""Our machines of memories, which compute no numbers, and their parts."""

from typing import Any

from lockstep.engine.memory.attention import Attention
from lockstep.engine.memory.base import Memory
from lockstep.engine.memory.hybrid import Hybrid
from lockstep.engine.memory.recurrent import Recurrent
from lockstep.engine.memory.schedule import Schedule as Machine
from lockstep.engine.memory.window import Window
from lockstep.harness.fuzzers.batch.schedule import ScheduleCase
from lockstep.harness.synth.small import N_VOCAB, WINDOW

KINDS = ("attention", "window", "recurrent", "hybrid")
STATES = ("recurrent", "hybrid")  # memories with a state, from which no part can be removed
CELLS = 256  # size of llama.cpp's smallest stream


def machine_of(kind: str, made: ScheduleCase) -> Machine:
    """Return our machine for a kind of memory, which computes no numbers."""
    cells = made.n_ctx if made.unified else made.n_ctx // made.n_seq
    shape: dict[str, Any] = {"size": cells, "n_seq": made.n_seq, "unified": made.unified}
    memory: Memory
    if kind == "recurrent":
        memory = Recurrent(made.n_seq)
    elif kind == "hybrid":
        memory = Hybrid(**shape)
    elif kind == "window":
        memory = Window(**shape, window=WINDOW, n_ubatch=made.n_ubatch)
    else:
        memory = Attention(**shape)
    return Machine(memory, None, N_VOCAB, made.n_ubatch)


def caches(memory: Memory) -> list[Attention]:
    if isinstance(memory, Window):
        return list(memory.both)
    if isinstance(memory, Hybrid):
        return [memory.attention]
    return [memory] if isinstance(memory, Attention) else []


def states(memory: Memory) -> Recurrent | None:
    if isinstance(memory, Hybrid):
        return memory.states
    return memory if isinstance(memory, Recurrent) else None


def in_streams(memory: Memory) -> bool:
    """Return True if each sequence has its own stream of cells."""
    return any(not cache.unified for cache in caches(memory))
