"""Results of ggml on other processors are honest. Wrong results that are close to these results are
not honest."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from lockstep.engine.activations.base import AMX, HALVES
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.attention import call
from lockstep.engine.ops.ggml.base import expect
from lockstep.harness.graph.node_designs import Computed, compute_design, designs_of
from lockstep.harness.judging.designs import agrees
from lockstep.harness.judging.other_builds import other_builds
from tests.engine.ops.test_other_builds import (
    CELLS,
    Add,
    K,
    Q,
    V,
    attended,
    first_fused,
    fused,
    in_floats,
    unfused,
)

HERE = Build(lanes=16)
THERE = replace(HERE, generic=(AMX, HALVES))


@pytest.mark.parametrize("here", [HERE, THERE], ids=["added in floats here", "in halves here"])
@pytest.mark.parametrize(
    ("add", "honest"), [(in_floats, True), (first_fused, True), (unfused, False), (fused, False)]
)
def test_sums_in_another_processors_order_are_honest(add: Add, honest: bool, here: Build) -> None:
    shown = attended(add).reshape(1, 1, 1, -1)
    node = call(Q, K, V, 1.0, np.ones((1, CELLS), np.bool_), 0.0, None)
    with np.errstate(invalid="ignore"):
        seen = Computed([replace(node, value=shown)], expect(node, here), here)
        others = designs_of(seen)
    assert others is not None
    ways = [partial(compute_design, node, here), *others]
    assert any(agrees(way, shown) for way in ways) == honest


@pytest.mark.parametrize(
    ("build", "ops", "others"),
    [
        (HERE, {"MUL_MAT"}, []),  # a build without conversion of activations is tried anyway
        (HERE, {"MUL_MAT", "FLASH_ATTN_EXT"}, [(HALVES,)]),
        (THERE, {"MUL_MAT"}, [(HALVES,)]),
        (THERE, {"FLASH_ATTN_EXT"}, [(AMX,)]),
        (THERE, {"MUL_MAT", "FLASH_ATTN_EXT"}, [(HALVES,), (AMX,), ()]),
        (THERE, {"SOFT_MAX"}, []),
    ],
)
def test_other_builds_differ_only_in_ops_that_the_graph_uses(
    build: Build, ops: set[str], others: list[tuple[str, ...]]
) -> None:
    assert [other.generic for other in other_builds(build, ops)] == others
