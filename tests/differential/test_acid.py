"""Acid models in llama.cpp: every test ok, in both presets, at temperature 1, for each type."""

from pathlib import Path

import numpy as np
import pytest

from engine.batch import Batch
from harness.acid.read import read_report
from harness.acid.report import report_for
from harness.acid.tokens import PROMPT
from harness.acid.write import TYPES, write_acid
from harness.catalogue.acid import SHORT, TOKENS
from harness.quick import generate
from harness.records import EXACT, PRESETS, Request
from harness.runner import Runner


@pytest.fixture(scope="module", params=TYPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("acid") / f"{request.param}.gguf"
    write_acid(path, quant=request.param)
    return path


@pytest.mark.parametrize("prompt", [PROMPT, SHORT], ids=["acid prompt", "another"])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_test_is_ok_in_llama_cpp(model: Path, preset: str, prompt: str) -> None:
    text = generate(model, "llama.cpp", preset, prompt, TOKENS, lambda _: None)["text"]
    reading = read_report(text)
    assert reading.code == 0
    assert reading.complete
    assert reading.prompted is (prompt == PROMPT)


def test_a_report_sampled_at_temperature_one_is_the_same(tmp_path: Path) -> None:
    """1000 draws of every token of the whole report, from the logits that llama.cpp gives."""
    path = tmp_path / "acid.gguf"
    write_acid(path)
    n = len(report_for("llama", "F32").tests) + 3
    with Runner().open("llama.cpp", path, EXACT) as session:
        ids = session.ask("tokenize", [PROMPT.encode()]).value[0]  # type: ignore[union-attr]
        new = session.ask("greedy", ids, n).value  # type: ignore[union-attr]
        request = Request(batches=(Batch.of([*ids, *new[:-1]]),))
        logits = session.ask("evaluate", request).value.logits[0]  # type: ignore[union-attr]
    rows = logits[len(ids) - 1 :].astype(np.float64)
    p = np.exp(rows - rows.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    right = p[np.arange(n), new]
    assert 1 - float(right.prod()) < 1e-9
    drawn = np.random.Generator(np.random.Philox(0)).random((1000, n))
    assert bool((drawn < right).all())
