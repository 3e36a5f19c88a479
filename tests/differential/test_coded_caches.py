"""Engines with quantised caches are compared, or are refused at the start."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.stored import STORED, store_rows
from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.check.check import BadInput
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import DEFAULT
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import LANES, written

ENGINE = """
from dataclasses import replace
from lockstep.harness.adapters.llama_cpp.adapter import LlamaCpp

class Mine(LlamaCpp):
    def __init__(self, model, settings):
        self.said = replace(settings, type_k="{k}", type_v="{v}", flash_attn=True)
        super().__init__(model, replace(self.said, type_v="{really}"))

    def describe(self):
        return replace(super().describe(), engine="mine", settings=self.said)
"""


def engine(folder: Path, k: str, v: str, really: str = "") -> str:
    path = folder / "mine.py"
    path.write_text(ENGINE.format(k=k, v=v, really=really or v))
    return f"adapter:{path}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return written(tmp_path, n_layer=1, n_embd=128, n_head=4, n_head_kv=4)


@pytest.mark.parametrize("kind", sorted(STORED))
def test_stored_bytes_decode_to_their_values(kind: str) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 5, 64)).astype(np.float32)
    rows[0, 0, :32] = 0
    values, slack, raw = store_rows(rows, kind, Build(lanes=LANES))
    decoded = WeightFormat.member(kind).dequantize(raw.reshape(-1)).reshape(rows.shape)
    assert np.array_equal(decoded, values.astype(np.float32))
    assert slack.shape == rows.shape


@pytest.mark.parametrize(("k", "v"), [("F16", "Q8_0"), ("Q8_0", "Q4_0"), ("Q5_1", "Q5_0")])
def test_engine_with_a_coded_cache_conforms(k: str, v: str, model: Path, tmp_path: Path) -> None:
    plan = plan_for(
        model,
        oracle="llama.cpp",
        engine=engine(tmp_path, k, v),
        settings=DEFAULT,
        suites=("logits", "trace"),
    )
    found = verdicts_of(plan)
    assert exit_code(found) == 0, [v.summary for v in found]


def test_engine_with_undeclared_cache_is_found(model: Path, tmp_path: Path) -> None:
    plan = plan_for(
        model,
        oracle="llama.cpp",
        engine=engine(tmp_path, "F16", "Q8_0", really="Q4_0"),
        settings=DEFAULT,
        suites=("logits",),
    )
    assert exit_code(verdicts_of(plan)) == 1


def test_engine_with_a_dishonest_cache_is_refused(model: Path, tmp_path: Path) -> None:
    plan = plan_for(model, oracle="llama.cpp", engine=engine(tmp_path, "F16", "IQ4_NL"))
    with pytest.raises(BadInput, match="type IQ4_NL, which"):
        verdicts_of(plan)
