"""Models with gates of every size, which show a clamp or a branch for large values.

Seeded models have gates of about one, so a clamp at 7 changes nothing. Trained models have a few
larger gates, with a large effect.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.blackbox.changes import Change, times
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import is_values, whole_or_layer
from lockstep.harness.sites import IN_A_LAYER

READ, ROUTER, WRITTEN = ("ffn_gate", "ffn_up"), "ffn_gate_inp", "ffn_down"
# With this factor, seeded gates exceed 20, which is beyond the clamps of all published models.
# Trained gates reach 20, and with this factor the product of two still fits into F16.
LARGER = 8.0


def with_large_gates(
    file: GgufFile,
    layer: int | None = None,
    role: Mapping[str, int] | None = MappingProxyType({}),
) -> Recipe:
    """Return a recipe with large gates, for the whole model or for one layer (as in
    `slices.small`). The FFN adds about as much as before."""
    whole = whole_or_layer(file, layer, role)
    changes = changes_of_gates(set(whole.names) - whole.stored)
    return replace(whole, changes={**whole.changes, **changes})


def changes_of_gates(names: set[str]) -> dict[str, Change]:
    """Return changes that enlarge the gate and up matrices, and shrink the down matrices to
    compensate."""
    changes: dict[str, Change] = {}
    for name in filter(is_values, names):
        inside = IN_A_LAYER.fullmatch(name)
        stem, _, end = inside[2].rpartition(".") if inside else ("", "", "")
        if stem.startswith(READ) and not stem.startswith(ROUTER):
            changes[name] = times(LARGER)
        elif stem.startswith(WRITTEN) and end == "weight":
            changes[name] = times(LARGER**-2)
    return changes


def has_gates(file: GgufFile) -> bool:
    return bool(changes_of_gates(set(file.tensors)))
