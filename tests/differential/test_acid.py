"""Acid models in llama.cpp: every test is ok, in both presets, at temperature 1, for each type."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError
from lockstep.harness.acid.architectures import ARCHITECTURES
from lockstep.harness.acid.read import AcidReading, read_report
from lockstep.harness.acid.report import report_for
from lockstep.harness.acid.tokens import PROMPT
from lockstep.harness.acid.write import PLAIN, TYPES, write_acid
from lockstep.harness.asking.environments import python_of
from lockstep.harness.catalogue.acid import SHORT, TOKENS
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import EXACT, PRESETS, Request
from lockstep.harness.runs.quick import answer

pytest.importorskip("llama_cpp", reason="llama_cpp is missing: acid models were not run in it")


def reading_of(path: Path, preset: str, prompt: str, engine: str = "llama.cpp") -> AcidReading:
    with Runner().open(engine, path, PRESETS[preset]) as session:
        ids = answer(session, "tokenize", [prompt.encode()])[0]
        new = answer(session, "greedy", ids, TOKENS)
        flags = {"remove_special": True, "unparse_special": False}
        return read_report(answer(session, "detokenize", [new], **flags)[0].decode())


@pytest.mark.parametrize("prompt", [PROMPT, SHORT], ids=["acid prompt", "another"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("quant", ["F32", "Q4_K"])
def test_every_test_is_ok_in_llama_cpp(
    tmp_path: Path, quant: str, preset: str, prompt: str
) -> None:
    write_acid(tmp_path / "acid.gguf", quant=quant)
    reading = reading_of(tmp_path / "acid.gguf", preset, prompt)
    assert reading.code == 0
    assert reading.complete
    assert reading.prompted is (prompt == PROMPT)


@pytest.mark.parametrize("quant", TYPES)
def test_every_type_is_ok_with_default_settings(tmp_path: Path, quant: str) -> None:
    write_acid(tmp_path / "acid.gguf", quant=quant)
    reading = reading_of(tmp_path / "acid.gguf", "default", SHORT)
    assert (reading.code, reading.quant) == (0, quant)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("quant", ["F32", "BF16", "Q4_0", "Q4_K"])
@pytest.mark.parametrize("version", ["0.3.8", "0.3.16"])
def test_every_test_is_ok_in_other_versions(
    tmp_path: Path, version: str, quant: str, preset: str
) -> None:
    try:
        python_of(f"llama.cpp@{version}")
    except EngineError as error:
        pytest.skip(f"llama.cpp@{version} was not asked: {error}")
    write_acid(tmp_path / "acid.gguf", quant=quant)
    reading = reading_of(tmp_path / "acid.gguf", preset, PROMPT, f"llama.cpp@{version}")
    assert (reading.code, reading.prompted, reading.complete) == (0, True, True)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_is_ok_in_llama_cpp(tmp_path: Path, arch: str, preset: str) -> None:
    path, acid_prompt = tmp_path / "acid.gguf", ARCHITECTURES[arch].vocabulary.prompt
    write_acid(path, arch)
    for prompt in (acid_prompt, SHORT, ""):
        reading = reading_of(path, preset, prompt)
        assert (reading.code, reading.complete, reading.arch) == (0, True, arch)
        assert reading.prompted is (prompt == acid_prompt)


@pytest.mark.parametrize(
    ("arch", "quant"),
    [(arch, kind) for arch, own in ARCHITECTURES.items() for kind in own.types if kind in PLAIN],
)
def test_every_plain_type_of_an_architecture_is_ok(tmp_path: Path, arch: str, quant: str) -> None:
    write_acid(tmp_path / "acid.gguf", arch, quant)
    prompt = ARCHITECTURES[arch].vocabulary.prompt
    assert reading_of(tmp_path / "acid.gguf", "default", prompt).code == 0


def test_a_report_sampled_at_temperature_one_is_the_same(tmp_path: Path) -> None:
    """Every token of the report is drawn 1000 times from llama.cpp's logits."""
    path = tmp_path / "acid.gguf"
    write_acid(path)
    n = len(report_for("llama", "F32").tests) + 3
    with Runner().open("llama.cpp", path, EXACT) as session:
        ids = answer(session, "tokenize", [PROMPT.encode()])[0]
        new = answer(session, "greedy", ids, n)
        request = Request(batches=(Batch.of([*ids, *new[:-1]]),))
        logits = answer(session, "evaluate", request).logits[0]
    rows = logits[len(ids) - 1 :].astype(np.float64)
    p = np.exp(rows - rows.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    right = p[np.arange(n), new]
    assert 1 - float(right.prod()) < 1e-9
    drawn = np.random.Generator(np.random.Philox(0)).random((1000, n))
    assert bool((drawn < right).all())
