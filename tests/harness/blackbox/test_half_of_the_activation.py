"""A buffer that another is written into: the end of one factor of the FFN is the other's."""

from pathlib import Path

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from tests.black_boxes import bisected
from tests.models import builtin

SAID = "of the activation the first half alone was looked at"


class OneBuffer(Mirror):
    def swiglu(self, gate: F32, up: F32) -> F32:
        up = np.concatenate([up[..., :-4], gate[..., -4:]], axis=-1)
        return super().swiglu(gate, up)


class WithOneBuffer(Reference, name="test:the end of up is the gate's"):
    ops = OneBuffer


def test_what_was_not_looked_at_of_the_activation_is_said(tmp_path: Path) -> None:
    found = bisected(builtin("f32", tmp_path), tmp_path / "made", engine=WithOneBuffer.name)
    assert {row.layer for row in found.guilty} == {0, 1}
    assert all(part.name.startswith("FFN") for row in found.guilty for part in row.parts)
    assert all(SAID in part.words for row in found.guilty for part in row.parts)


def test_of_a_matrix_that_is_named_nothing_is_said_of_it(tmp_path: Path) -> None:
    engine = "mutant:gate-and-up-exchanged"
    found = bisected(builtin("f32", tmp_path), tmp_path / "made", engine=engine)
    assert found.guilty
    assert not any(SAID in part.words for row in found.guilty for part in row.parts)
