"""A user's Python class gets the path of a model for each question of a fuzzer."""

from pathlib import Path

import pytest

from lockstep.harness.exit_codes import exit_code
from lockstep.harness.fuzzers.base import FuzzPlan, run_campaign

CLASS = """
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.engine.gguf.file import GgufFile

class Mine(Adapter):
    def __init__(self, model, settings):
        GgufFile.open(model).close()
        super().__init__(model, settings)
        self.inner = Reference(model, settings)

    def tokenize(self, texts, **flags):
        return self.inner.tokenize(texts, **flags)

    def detokenize(self, ids, **flags):
        return self.inner.detokenize(ids, **flags)

    def dequantize(self, type_name, raw):
        return self.inner.dequantize(type_name, raw)
"""


@pytest.mark.parametrize(("fuzzer", "target"), [("tokens", "builtin:llama"), ("quants", "Q8_0")])
def test_class_is_opened_with_a_model(fuzzer: str, target: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(CLASS)
    plan = FuzzPlan(
        targets=(target,), engine=f"adapter:{path}", oracle="reference", cases=20, witness=False
    )
    result = run_campaign(fuzzer, plan, tmp_path / "reports", ["lockstep", "fuzz", fuzzer])
    assert exit_code(result.verdicts) == 0, result.verdicts
