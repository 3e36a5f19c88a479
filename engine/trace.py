"""Probe that receives the engine's intermediate results, named as llama.cpp's nodes."""

from typing import Any, Protocol

from numpy.typing import NDArray


class Probe(Protocol):
    """Called with every site's value, in execution order; the returned value is used from there on.

    Returning the argument observes. Returning another engine's value for the site makes the ops
    that follow work on that engine's inputs (teacher forcing): that is how one op is judged alone.
    """

    def __call__(self, name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]: ...


def silent(name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
    """Return the probe that neither records nor replaces."""
    return value
