"""Names of a tensor's axes in the shape in which an engine shows it.

An engine may show the same numbers in another shape: with heads side by side, or with a leading
axis of size one. The names of llama.cpp's axes do not fit such a shape, and would for example call
tokens heads.
"""

from collections.abc import Sequence

AND = " * "


def axes_in_words(names: str, whole: Sequence[int], shape: Sequence[int]) -> str | None:
    """Return the names of a shown tensor's axes. names: the names of the node's last axes; whole:
    the node's sizes; shape: the shown shape. Return None if a shown axis does not consist of whole
    axes of the node."""
    axes = names.strip("()").split(", ")
    parts = [part for axis in axes for part in axis.split(AND)]
    before = len(shape) - len(axes)
    if len(shape) in (len(axes), len(parts)):
        found: list[str] | None = axes if len(shape) == len(axes) else parts
    elif before > 0 and set(shape[:before]) == {1}:
        found = axes  # leading axes of size one have no name
    else:
        found = join_axes(axes, whole[-len(axes) :], shape)
    return None if found is None else f"({', '.join(found)})"


def join_axes(axes: Sequence[str], sizes: Sequence[int], shape: Sequence[int]) -> list[str] | None:
    """Return the names of the shown axes, each made of neighbouring axes whose sizes multiply to
    the shown size. Return None if no grouping matches."""
    found, rest = [], list(zip(axes, sizes, strict=False))
    for size in shape:
        group, room = list[str](), 1
        while rest and (not group or room < size):
            name, of_it = rest.pop(0)
            group.append(name)
            room *= of_it
        if room != size or not group:
            return None
        found.append(AND.join(group))
    return None if rest else found
