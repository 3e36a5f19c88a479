"""Weights that are NaN, in another byte order, or with subnormal scales, in the suite dequant."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.judging.compare import in_other_byte_order
from lockstep.harness.records import Evaluation, Request, Trace, Verdict
from lockstep.harness.suites.parts.small_scales import LARGEST, with_small_scales
from tests.contexts import check_engine, diverged, statuses
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin, with_values, written

WORDS = "with swapped byte order all numbers are right"


class TurnsBytesRound(Reference, name="byte order: turns bytes round"):
    """An engine whose arrays are big-endian, so that some of its numbers are signalling NaNs."""

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        return super().dequantize(type_name, raw).byteswap()

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        logits = tuple(rows.byteswap() for rows in found.logits)
        if found.trace is None:
            return replace(found, logits=logits)
        records = tuple(replace(r, value=r.value.byteswap()) for r in found.trace.records)
        return Evaluation(logits=logits, trace=Trace(engine=self.name, records=records))


def with_nan(model: Path, copy: Path) -> Path:
    def first_is_nan(values: NDArray[np.float32]) -> NDArray[np.float32]:
        values[0, 0] = np.nan
        return values

    return with_values(model, copy, "blk.1.ffn_up.weight", first_is_nan)


def test_nan_weight_is_named(tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    assert statuses(check_engine(model, "reference", "dequant")) == {"agreed"}
    wrong = with_nan(model, tmp_path / "nan.gguf")
    agreed, odd = check_engine(wrong, "reference", "dequant")
    assert (agreed.status, odd.status) == ("agreed", "excused")
    assert odd.summary.endswith("in both engines: 1 of blk.1.ffn_up.weight")


def test_zero_or_nan_weights_are_not_compared(tmp_path: Path) -> None:
    """Zero bytes decode to zeros even if the decoder is wrong."""
    model = written(tmp_path, quant="Q8_0", n_embd=64, n_layer=1)
    with GgufFile.open(model) as file:
        coded = [info for info in file.tensors.values() if info.type.name == "Q8_0"]
        start = file.data_offset
    for number in (0.0, np.nan):
        raw = bytearray(model.read_bytes())
        for info in coded:
            for at in range(start + info.offset, start + info.offset + info.n_bytes, 34):
                raw[at : at + 2] = np.float16(number).tobytes()
        model.write_bytes(raw)
        said = {
            v.summary.split(":")[0]: v.status for v in check_engine(model, "reference", "dequant")
        }
        assert (said["F32"], said["Q8_0"]) == ("agreed", "not-compared")


def test_nan_of_one_engine_is_a_difference(tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    wrong = with_nan(model, tmp_path / "nan.gguf")
    assert "diverged" in statuses(check_engine(model, "reference", "dequant", subject_model=wrong))


def checked(engine: str, folder: Path, *suites: str) -> list[Verdict]:
    plan = plan_for(builtin("f32", folder), engine=engine, suites=suites)
    return diverged(verdicts_of(plan))


def test_exchanged_byte_order_of_weights_and_logits_is_named(tmp_path: Path) -> None:
    found = checked(TurnsBytesRound.name, tmp_path, "dequant", "logits")
    for suite in ("dequant", "logits"):
        said = [v.summary for v in found if v.suite == suite]
        assert said
        assert WORDS in said[0]


def test_summary_mentions_byte_order_only_for_swapped_numbers(tmp_path: Path) -> None:
    found = checked("mutant:rope-half-split", tmp_path, "logits")
    assert found
    assert not any(WORDS in v.summary for v in found)
    one = np.ones(4, np.float32)
    assert WORDS in in_other_byte_order(one, one.byteswap(), 0.0)
    assert not in_other_byte_order(one, one + 1, 0.0)


def test_signalling_nan_tensors_are_differences_without_warnings(tmp_path: Path) -> None:
    """An earlier version printed numpy's warnings, with paths of our files, above the report. In
    this test warnings are errors."""
    found = checked(TurnsBytesRound.name, tmp_path, "trace", "products")
    assert any(v.suite == "trace" for v in found)


class FlushesHalves(Reference, name="small scales: subnormal halves are zero"):
    def dequantize(self, type_name: str, raw: Any) -> F32:
        layout = WeightFormat.member(type_name).layout
        if "d" in (layout.names or ()):
            blocks = np.array(raw).view(layout)
            blocks["d"][np.abs(blocks["d"]) < 2.0**-14] = 0
            raw = blocks.view(np.uint8).reshape(-1)
        return super().dequantize(type_name, raw)


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K", "Q4_0"])
def test_engine_that_flushes_small_scales_is_found_on_a_file_without_them(
    quant: str, tmp_path: Path
) -> None:
    model = written(tmp_path, n_layer=1, n_embd=256, n_ff=256, quant=quant)
    wrong = check_engine(model, FlushesHalves, "dequant")
    (found,) = diverged(wrong)
    assert found.summary.startswith(f"{quant}: ")
    right = check_engine(model, "reference", "dequant")
    assert statuses(right) == {"agreed"}


def test_half_precision_scales_become_small_and_other_bytes_stay() -> None:
    kind = WeightFormat.member("Q4_K")
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
def test_types_without_scales_are_listed(kind: str, has: bool) -> None:
    assert (with_small_scales(kind, np.zeros(64, np.uint8)) is not None) == has
