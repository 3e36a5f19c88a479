"""A lens puts rows of any matrix into the output matrix. If all rows are wrong, the product may be
at fault instead of the decoder."""

from contextlib import closing
from pathlib import Path

import numpy as np

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.lenses import lenses_of
from lockstep.harness.blackbox.looking import AS_A_HEAD, Looked, through
from tests.black_boxes import asker_of, copy_with, one_nibble
from tests.models import builtin


class WrongHead(Mirror):
    def linear(self, x: F32, weight: Weight) -> F32:
        found = super().linear(x, weight)
        of_head = weight.name == "output.weight" and weight.format.name == "Q4_0"
        return found * np.float32(1.01) if of_head else found


class WithAWrongHead(Reference, name="test:wrong-head"):
    ops = WrongHead


def seen(model: Path, **changes: object) -> list[Looked]:
    with closing(
        asker_of(model, model.parent / "made", **{"oracle": "llama.cpp", **changes})
    ) as asker:
        lenses, _ = lenses_of(asker.file, asker.layers_to_load)
        return [through(asker, lens) for lens in lenses if lens.type == "Q4_0"]


def test_report_says_the_head_may_be_wrong_if_every_matrix_is_wrong(tmp_path: Path) -> None:
    found = seen(builtin("q4_0", tmp_path), engine="test:wrong-head")
    assert {look.answer.status for look in found} == {"diverged"}
    assert all(look.answer.summary.endswith(AS_A_HEAD) for look in found if len(look.tensors) > 1)
    assert any(len(look.tensors) > 1 for look in found)


def test_report_does_not_name_the_head_for_one_wrong_matrix(tmp_path: Path) -> None:
    model = builtin("q4_0", tmp_path)
    name = "blk.1.ffn_down.weight"
    other = copy_with(model, tmp_path / "other.gguf", name, one_nibble)
    wrong = [look for look in seen(model, subject_model=other) if look.answer.differs]
    assert [look.tensors for look in wrong] == [(name,)]
    assert all(AS_A_HEAD not in look.answer.summary for look in wrong)
