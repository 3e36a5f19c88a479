"""Names of a tensor's axes in the shape in which an engine shows it.

The same numbers in another shape will do: heads side by side, or a batch of one before all. In such
a shape llama.cpp's axes have other names, and tokens were called heads.
"""

from collections.abc import Sequence

AND = " * "


def axes_in_words(names: str, whole: Sequence[int], shape: Sequence[int]) -> str | None:
    """Name the axes of a shown tensor. names: the names of the node's last axes; whole: its sizes;
    shape: the shape as shown. None: a shown axis is no whole number of the node's axes."""
    axes = names.strip("()").split(", ")
    parts = [part for axis in axes for part in axis.split(AND)]
    before = len(shape) - len(axes)
    if len(shape) in (len(axes), len(parts)):
        found: list[str] | None = axes if len(shape) == len(axes) else parts
    elif before > 0 and set(shape[:before]) == {1}:
        found = axes  # those of one that stand before them have no name
    else:
        found = join_axes(axes, whole[-len(axes) :], shape)
    return None if found is None else f"({', '.join(found)})"


def join_axes(axes: Sequence[str], sizes: Sequence[int], shape: Sequence[int]) -> list[str] | None:
    """Join neighbouring axes whose sizes make up one that is shown."""
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
