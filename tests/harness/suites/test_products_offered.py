"""A program whose products are wrong, and that shows no tensors, is not told that all agrees."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import open_plan, run_suites
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EngineInfo
from tests.harness.check.test_check import plan_for
from tests.models import builtin


class HalfOfEachRow(Reference, name="products: what nobody asks for"):
    """It offers weights and products, of which the second half of each row is left out."""

    levels: tuple[str, ...] = ("dequantize", "multiply")

    def describe(self) -> EngineInfo:
        return EngineInfo(engine=self.name, version="1", levels=self.levels, shows=())

    def multiply(self, type_name: str, raw: Any, x: Any) -> Any:
        return super().multiply(type_name, raw, np.where(np.arange(x.shape[1]) < 128, x, 0))


class WeightsAlone(HalfOfEachRow, name="products: weights alone"):
    levels = ("dequantize",)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (HalfOfEachRow.name, ["what %s answers to multiply is not asked by check: lockstep "]),
        (WeightsAlone.name, []),
    ],
)
def test_what_is_offered_and_not_asked_is_said(
    engine: str, said: list[str], tmp_path: Path
) -> None:
    opened = open_plan(plan_for(builtin("q4_0", tmp_path), engine=engine), lambda _: None)
    try:
        found = list(run_suites(opened.context, ("dequant", "products")))
    finally:
        opened.close()
    assert exit_code(found) == 0
    begin = [text % engine for text in said]
    offered = [v.summary for v in found if "is not asked by check" in v.summary]
    assert [text[: len(b)] for text, b in zip(offered, begin, strict=True)] == begin
