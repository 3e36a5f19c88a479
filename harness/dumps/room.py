"""Size check of a dump before it is read: its tensors must fit into memory. A dump is held whole,
in single precision, before it is compared.

A file's size on disk says little: a sparse file takes no room there, and its full size once it is
read.
"""

from collections.abc import Iterable
from math import prod
from pathlib import Path

from safetensors import safe_open

from lockstep.engine.errors import InvalidModel
from lockstep.harness.processes.limits import memory_of_machine

FLOAT32 = 4  # bytes


def check_room(folder: Path, paths: Iterable[Path]) -> None:
    """Check the headers of safetensors against the memory. Raises InvalidModel."""
    needed, there = sum(map(bytes_of, set(paths))), memory_of_machine()
    if needed > there:
        raise InvalidModel(
            f"{folder}: its tensors take {needed:,} bytes in F32, and this machine has "
            f"{there:,}: dump fewer nodes, layers or tokens"
        )


def bytes_of(path: Path) -> int:
    with safe_open(path, framework="numpy") as file:
        return sum(FLOAT32 * prod(file.get_slice(key).get_shape()) for key in list(file.keys()))
