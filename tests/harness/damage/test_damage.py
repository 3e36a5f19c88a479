"""Changes of one element: their choice by the seed, and the condition under which a change counts
as found."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.bisect.bisection import Bisection
from lockstep.harness.damage.changes import BIT, Damage, damages, write_damaged
from lockstep.harness.damage.run import counts, table
from lockstep.harness.damage.trials import ending_of
from lockstep.harness.graph.node_judge import OWN_WEIGHTS
from lockstep.harness.judging.findings import Findings
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.records import Mismatch, Site, Verdict
from tests.models import written


def decoded(path: Path, name: str) -> Any:
    import_members("lockstep.engine.quants")
    with GgufFile.open(path) as file:
        return WeightFormat.member(file.tensors[name].type.name).dequantize(file.raw(name)).copy()


@pytest.mark.parametrize("quant", ["F32", "Q4_0", "Q8_0", "Q4_K"])
def test_change_affects_one_tensor_and_stays_finite(quant: str, tmp_path: Path) -> None:
    path = written(tmp_path, quant=quant, n_embd=256, n_ff=256)
    made = list(damages(path, 1, 100))
    assert len({change.tensor for change in made}) == len(made) > 10
    if quant != "F32":
        assert BIT in {change.kind for change in made}
    for change in made:
        write_damaged(path, tmp_path / "damaged.gguf", change)
        before, after = (decoded(p, change.tensor) for p in (path, tmp_path / "damaged.gguf"))
        differ = np.flatnonzero(before != after)
        assert differ[0] == change.element
        assert change.kind == BIT or len(differ) == 1
        assert (before[differ[0]], after[differ[0]]) == (change.before, change.after)
        assert np.isfinite(after).all()
        same = [c for c in made if c.tensor != change.tensor][:1]
        assert all(
            np.array_equal(decoded(path, c.tensor), decoded(tmp_path / "damaged.gguf", c.tensor))
            for c in same
        )


def test_seed_decides_the_changes(tmp_path: Path) -> None:
    path = written(tmp_path)
    first, again, other = ([str(d) for d in damages(path, seed, 3)] for seed in (1, 1, 2))
    assert first == again != other


# --- definition of a found change -------------------------------------------------------------

CHANGE = Damage(
    tensor="a.weight", kind="sign", element=0, before=1.0, after=-1.0, at=0, raw=bytes(4)
)


def finding(weight: str, reason: str = "a bound") -> SiteFinding:
    return SiteFinding(
        site=Site(step=0, layer=0, name="Qcur"),
        op="MUL_MAT",
        err_local=1.0,
        err_oracle=0.0,
        allowed=0.1,
        reason=reason,
        size=1.0,
        mismatch=Mismatch(kind="value"),
        at_fault="subject",
        weight=weight,
    )


def bisection(*culprits: SiteFinding) -> Bisection:
    found = Findings(all=culprits, not_shown=(), hidden=(), not_given=(), free={}, values={})
    return Bisection(found=found, layers=(), culprits=culprits, patched=None, logits=None)


@pytest.mark.parametrize(
    ("weights", "moves", "status", "alone"),
    [
        (("a.weight",), True, "agreed", True),
        (("b.weight, a.weight",), True, "agreed", True),
        (("a.weight", "b.weight"), True, "agreed", False),
        (("b.weight",), True, "diverged", False),
        ((), True, "diverged", False),
        ((), False, "excused", False),
        (("aa.weight",), True, "diverged", False),
    ],
)
def test_change_is_found_only_if_its_tensor_is_named(
    weights: tuple[str, ...], moves: bool, status: str, alone: bool
) -> None:
    ending, text, detail = ending_of(CHANGE, bisection(*map(finding, weights)), moves)
    assert (ending, detail["alone"], detail["changed"]) == (status, alone, moves)
    assert "element 0 of a.weight" in text


def test_table_counts_changes_that_move_an_output() -> None:
    verdicts = []
    for weights, moves, reason in (
        (["a.weight"], True, "a bound"),
        (["a.weight"], True, OWN_WEIGHTS),
        (["b.weight"], True, ""),
        ([], False, ""),
    ):
        found = bisection(*(finding(w, reason) for w in weights))
        status, text, detail = ending_of(CHANGE, found, moves)
        detail |= {"damage": {}}
        verdicts.append(
            Verdict(suite="damage", case="m", status=status, summary=text, detail=detail)
        )
    assert counts(verdicts) == [4, 3, 2, 1, 2, 0]
    lines = list(table(verdicts))
    assert lines[-1] == "1 models: 2 of 3 changes that move an output are named (66.7%)"
    assert sum("diverged" in line for line in lines) == 1
