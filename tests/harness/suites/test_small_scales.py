"""Scales that are subnormal halves, which a file need not have."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.suites.parts.small_scales import LARGEST, with_small_scales
from tests.contexts import check_engine, diverged, statuses
from tests.models import written


class FlushesHalves(Reference, name="small scales: subnormal halves are zero"):
    def dequantize(self, type_name: str, raw: Any) -> F32:
        layout = WeightFormat.named(type_name).layout
        if "d" in (layout.names or ()):
            blocks = np.array(raw).view(layout)
            blocks["d"][np.abs(blocks["d"]) < 2.0**-14] = 0
            raw = blocks.view(np.uint8).reshape(-1)
        return super().dequantize(type_name, raw)


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K", "Q4_0"])
def test_a_file_without_small_scales_does_not_hide_who_reads_them_as_zero(
    quant: str, tmp_path: Path
) -> None:
    model = written(tmp_path, n_layer=1, n_embd=256, n_ff=256, quant=quant)
    wrong = check_engine(model, FlushesHalves, "dequant")
    (found,) = diverged(wrong)
    assert found.summary.startswith(f"{quant}: ")
    assert "subnormal halves" in found.summary
    right = check_engine(model, "reference", "dequant")
    assert statuses(right) == {"agreed"}


def test_every_half_of_a_block_is_a_small_one_and_the_rest_stays() -> None:
    kind = WeightFormat.named("Q4_K")
    raw = np.arange(40 * kind.layout.itemsize, dtype=np.uint8)
    found = with_small_scales("Q4_K", raw)
    assert found is not None
    before, after = raw.view(kind.layout)[:32], found.view(kind.layout)
    for name in ("d", "dmin"):
        bits = after[name].view(np.uint16)
        assert bits.min() == 1
        assert bits.max() == LARGEST
    assert np.array_equal(before["qs"], after["qs"])


@pytest.mark.parametrize(("kind", "has"), [("F32", False), ("BF16", False), ("F16", True)])
def test_types_without_scales(kind: str, has: bool) -> None:
    assert (with_small_scales(kind, np.zeros(64, np.uint8)) is not None) == has
