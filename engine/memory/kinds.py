"""Choice of a model's memory by the data that its layers keep."""

from collections.abc import Sequence

from lockstep.engine.memory.attention import Attention
from lockstep.engine.memory.base import Memory
from lockstep.engine.memory.hybrid import Hybrid
from lockstep.engine.memory.none import NoMemory
from lockstep.engine.memory.recurrent import Recurrent, States
from lockstep.engine.memory.store import KeysValues, Numbers, Rotate
from lockstep.engine.memory.window import Window


def memory_of(
    kept: Sequence[KeysValues | States],
    *,
    causal: bool,
    size: int,
    n_seq: int,
    unified: bool,
    n_ubatch: int | None,
    type_k: str,
    type_v: str,
    rotate: Rotate,
) -> Memory:
    """Make the memory that the layers need.

    size: cells of a stream; n_ubatch: None for full-size caches in layers with a window.
    """
    states = {layer: each for layer, each in enumerate(kept) if isinstance(each, States)}
    layers = {layer: each for layer, each in enumerate(kept) if isinstance(each, KeysValues)}
    numbers = Numbers(layers, type_k, type_v, rotate)
    if not causal:
        return NoMemory(n_seq, layers)
    if not layers:
        return Recurrent(n_seq, states)
    if states:
        return Hybrid(size=size, n_seq=n_seq, unified=unified, numbers=numbers, layers=states)
    window = max(each.window for each in layers.values())
    if not window:
        return Attention(size=size, n_seq=n_seq, unified=unified, numbers=numbers)
    return Window(
        size=size, n_seq=n_seq, unified=unified, window=window, n_ubatch=n_ubatch, numbers=numbers
    )
