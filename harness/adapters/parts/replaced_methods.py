"""Replacement of methods of one object, in wrong engines or honest engines of other designs."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lockstep.engine.memory.attention import Attention
from lockstep.engine.memory.base import Memory, Pair
from lockstep.engine.memory.store import Store


def put(owner: Any, method: str, other: Callable[..., Any]) -> None:
    """Replace a method of this object. The new method takes the old one as its first argument."""
    setattr(owner, method, partial(other, getattr(owner, method)))


def stores_of(memory: Memory) -> Iterator[Store]:
    if isinstance(memory, Pair):
        for part in memory.both:
            yield from stores_of(part)
    elif isinstance(memory, Attention):
        yield memory.store
