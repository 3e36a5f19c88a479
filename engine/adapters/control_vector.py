"""Control vectors in GGUF: a direction for each layer, added to that layer's output.

Tensors are named `direction.N`, N from 1 to the last layer. Layer 0 has no direction. If there are
several files, llama.cpp multiplies each vector by its file's strength and adds the vectors of a
layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from lockstep.engine.adapters.factors import float32_factor
from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32
from lockstep.engine.trace import Probe
from lockstep.engine.weights import Weights

NAME = "direction."
SITE = "l_out"  # llama.cpp's name of the sum


def read_directions(
    files: Sequence[tuple[Path, float]], *, n_layer: int, width: int
) -> dict[int, F32]:
    """Return a vector (width,) for each layer that has one.

    files: paths with strengths. Raises EngineError or OSError.
    """
    found: dict[int, F32] = {}
    for path, strength in files:
        try:
            with GgufFile.open(path) as file:
                factor = float32_factor(strength, "the strength")
                for layer, vector in directions_in(file, n_layer, width):
                    added = vector * factor
                    found[layer] = found[layer] + added if layer in found else added
        except EngineError as error:
            raise InvalidModel(f"control vector {path.name}: {error}") from error
    return found


def directions_in(file: GgufFile, n_layer: int, width: int) -> Iterator[tuple[int, F32]]:
    weights = Weights(file)
    if not file.tensors:
        raise InvalidModel(f"it has no tensor {NAME}1 to {NAME}{n_layer - 1}")
    for name, info in file.tensors.items():
        number = name.removeprefix(NAME)
        if number == name or not number.isascii() or not number.isdecimal():
            raise InvalidModel(f"tensor {name!r}: expected {NAME}1 to {NAME}{n_layer - 1}")
        if not 1 <= (layer := int(number[:9])) < n_layer:
            raise InvalidModel(f"tensor {name!r}: expected {NAME}1 to {NAME}{n_layer - 1}")
        if info.type.name != "F32" or info.shape != (width,):
            got = f"{info.type.name} {info.shape}"
            raise InvalidModel(f"tensor {name!r} is {got}, expected F32 {(width,)}")
        yield layer, weights.vector(name, width)


def steer(probe: Probe, directions: Mapping[int, F32]) -> Probe:
    """Return a probe that adds the directions to the layers' outputs."""

    def steered(name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
        if name == SITE and layer is not None and layer in directions:
            value = value + directions[layer]
        return probe(name, layer, value)

    return steered
