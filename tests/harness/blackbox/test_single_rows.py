"""A wrong kernel for one row of a quantised matrix. No F32 slice and no lens uses this kernel. Only
the whole model differs, and its runs show which batches are wrong."""

from pathlib import Path

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.quants.q8_0 import Q8_0
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from tests.black_boxes import bisected, wrong_tensors
from tests.models import builtin

ONE_ROW = "a first batch of size 1 differs: look at the kernels for a single row"


class OneRow(Mirror):
    def linear(self, x: F32, weight: Weight) -> F32:
        out = super().linear(x, weight)
        wrong = len(x) == 1 and weight.format is Q8_0
        return np.roll(out, 1, axis=-1) if wrong else out


class WrongForOneRow(Reference, name="single rows: those of Q8_0 come one late"):
    ops = OneRow


def test_differing_run_is_described_if_no_part_differs(tmp_path: Path) -> None:
    path = builtin("q8_0", tmp_path)
    found = bisected(path, tmp_path / "made", engine=WrongForOneRow.name)
    assert found.exit_code == 1
    assert not found.guilty
    assert not wrong_tensors(found)
    assert found.whole.summary.endswith(ONE_ROW)


def test_report_describes_no_run_of_an_honest_engine(tmp_path: Path) -> None:
    path = builtin("q8_0", tmp_path)
    found = bisected(path, tmp_path / "made", engine="reference")
    assert found.exit_code == 0
    assert ONE_ROW not in found.whole.summary
