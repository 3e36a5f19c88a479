"""Models with time steps of every size, for architectures with a scan.

A step is the softplus of a number x: log(1 + exp(x)). For x above 20, engines use x itself, because
exp overflows at 89. In seeded models x stays far below 20, so their runs show neither a wrong
branch nor a missing one. In trained models x is above 20 for some rare tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.blackbox.changes import in_turn
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import whole_or_layer
from lockstep.harness.sites import IN_A_LAYER

# Offsets, one channel after the other; a small model may have only two channels. They lie on both
# sides of 20 and of 89. The product with ssm_dt is of size one and is added to them.
OFFSETS = (25.0, 1.0, 100.0, 15.0, 5.0, 40.0, 0.0, 60.0)
BIAS = "ssm_dt.bias"


def has_steps(file: GgufFile) -> bool:
    return bool(layers_with_steps(file))


def layers_with_steps(file: GgufFile) -> list[int]:
    inside = filter(None, map(IN_A_LAYER.fullmatch, file.tensors))
    return [int(name[1]) for name in inside if name[2] == BIAS]


def is_bias(name: str) -> bool:
    inside = IN_A_LAYER.fullmatch(name)
    return inside is not None and inside[2] == BIAS


def with_large_steps(
    file: GgufFile,
    layer: int | None = None,
    role: Mapping[str, int] | None = MappingProxyType({}),
) -> Recipe:
    """Return a recipe with large time steps, for the whole model or for one layer (as in
    `slices.small`)."""
    whole = whole_or_layer(file, layer, role)
    biases = filter(is_bias, set(whole.names) - whole.stored)
    changes = {name: in_turn(OFFSETS) for name in biases}
    return replace(whole, changes={**whole.changes, **changes})
