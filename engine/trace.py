"""Probe that receives the engine's intermediate results, named like llama.cpp's nodes."""

from typing import Any, Protocol

from numpy.typing import NDArray


class Probe(Protocol):
    """Function that gets every site's value in execution order; the engine continues with the
    returned value.

    A probe that returns its argument only observes. If it returns another engine's value for the
    site, the next ops work on that engine's inputs (teacher forcing). So a single op can be judged.
    """

    def __call__(self, name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]: ...


def silent(name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
    """Return the value unchanged; this probe neither records nor replaces."""
    return value
