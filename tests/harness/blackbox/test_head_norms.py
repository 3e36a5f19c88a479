"""Norms of heads read values that a layer's norm has enlarged. So the effect of a wrong eps is
visible only if heads are small."""

from contextlib import closing
from pathlib import Path

import pytest

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.slices import small
from tests.black_boxes import asker_of, model_of_arch


class OtherEpsForHeads(Mirror):
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return super().rms_norm(x, weight, 10 * eps if x.ndim == 3 else eps)


class WithOtherEpsForHeads(Reference, name="test:eps-of-heads"):
    ops = OtherEpsForHeads


@pytest.mark.parametrize(
    ("engine", "status"), [("test:eps-of-heads", "diverged"), ("reference", "agreed")]
)
def test_wrong_eps_of_head_norms_is_found_if_heads_are_small(
    engine: str, status: str, tmp_path: Path
) -> None:
    path = model_of_arch("gemma3", tmp_path, {})
    with closing(asker_of(path, tmp_path / "made", engine=engine, oracle="llama.cpp")) as asker:
        assert asker.ask(small).status == status
