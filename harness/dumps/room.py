"""Size check of a dump before Lockstep reads it. The comparison needs all tensors in memory at
once, in single precision.

The size of a file on disk is no measure. A sparse file takes no space on disk, but its full size in
memory.
"""

from collections.abc import Iterable
from math import prod
from pathlib import Path

from safetensors import safe_open

from lockstep.engine.errors import InvalidModel
from lockstep.harness.processes.limits import memory_of_machine

FLOAT32 = 4  # number of bytes


def check_room(folder: Path, paths: Iterable[Path]) -> None:
    """Compare the sizes in the headers of safetensors files with the machine's memory. Raises
    InvalidModel if the tensors do not fit."""
    needed, there = sum(map(bytes_of, set(paths))), memory_of_machine()
    if needed > there:
        raise InvalidModel(
            f"{folder}: its tensors take {needed:,} bytes in F32, but this machine has "
            f"{there:,} bytes of memory: dump fewer nodes, layers or tokens"
        )


def bytes_of(path: Path) -> int:
    with safe_open(path, framework="numpy") as file:
        return sum(FLOAT32 * prod(file.get_slice(key).get_shape()) for key in list(file.keys()))
