"""Acid models of architectures other than llama, without llama.cpp: their bytes and margins, and
the reports of our engines."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.harness.acid.architectures import ARCHITECTURES
from lockstep.harness.acid.measurements.base import LEAD, Measurement, answers_of, honest_lead, room
from lockstep.harness.acid.read import read_report
from lockstep.harness.acid.report import report_for
from lockstep.harness.acid.write import write_acid
from lockstep.harness.catalogue.acid import SHORT, text_of, try_engine
from lockstep.harness.catalogue.run import honest_engines, wrong_engines
from lockstep.harness.cli import acid as acid_cli
from lockstep.harness.honest.base import HonestEngine
from lockstep.harness.records import EXACT, PRESETS
from tests.command_line import Lockstep, lockstep

__all__ = ["lockstep"]

HASHES = {
    ("qwen3", "F32"): "962889f86ed2a2d0f7c7ba3611ad2854c13e06561cca6ae12bfc0954d3b255e1",
    ("qwen3", "F16"): "a80a85a82d14a8f0b3c38d9910db2c34c0ec10ccc8d3c9c01be02ebcf880184f",
    ("llama-moe", "F32"): "feaa4502f8beab436a21a7405f22b23a4920a8b53ebacdda03419048014f8760",
    ("llama-moe", "BF16"): "59112e65fffe9b1f1033be500f307bd7e6f463e7b810345bda55008c0599637e",
    ("gpt2", "F32"): "f7987a45efa73bb4a6f78530f9c892c4b53cf17b610f93b80ac6446fef24d499",
    ("gemma3", "F32"): "7dd61df43cf6365e08e8128247281cd2879d8c26fdf463f55ee5f09c36c498ad",
    ("gemma3", "BF16"): "a1981caee913927119162372f4a1e1e4622068ad0130509edbe85c7daf5302e4",
    ("gpt2", "F16"): "07e4de8f3e4a3ef2b245695519334191d6852110fe2c081d66922c42ade8f41c",
}
OTHERS = tuple(name for name in ARCHITECTURES if name != "llama")


@pytest.fixture(scope="module", params=OTHERS)
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("acid") / f"{arch}.gguf"
    write_acid(path, arch)
    return path


def every_test(*archs: str) -> list[Measurement]:
    return [test for arch in archs for test in report_for(arch, "F32").tests]


def named(test: Measurement) -> str:
    return type(test).__name__


# --- the file -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("arch", "quant"), HASHES)
def test_files_have_the_same_bytes_everywhere(arch: str, quant: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_acid(path, arch, quant)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == HASHES[arch, quant]


def test_a_file_has_at_most_a_megabyte(model: Path) -> None:
    assert model.stat().st_size < 1_000_000


def test_options_name_the_written_architectures() -> None:
    assert tuple(acid_cli.ACID_ARCHITECTURES.split()) == tuple(ARCHITECTURES)


def test_unsupported_type_of_an_architecture_is_refused_with_choices(
    tmp_path: Path, lockstep: Lockstep
) -> None:
    ending = lockstep(
        "acid", "write", "-o", tmp_path / "a.gguf", "--arch", "gpt2", "--quant", "Q4_K"
    )
    assert ending.code == 2
    assert "known: F32, F16, BF16" in ending.err


def test_prompt_matches_the_architecture(arch: str, lockstep: Lockstep) -> None:
    prompt = ARCHITECTURES[arch].vocabulary.prompt
    assert lockstep("acid", "list", "--arch", arch, "--prompt").out == prompt + "\n"


def test_prompt_has_the_token_count_that_tests_assume(arch: str, model: Path) -> None:
    vocabulary = ARCHITECTURES[arch].vocabulary
    engine = Model(model, Mirror(1, 512, ()), n_ctx=512)
    ids = engine.tokenizer().encode(
        vocabulary.prompt.encode(), add_special=True, parse_special=False
    )
    engine.close()
    assert len(ids) == 1 + vocabulary.n_prompt


# --- margins ------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", {named(t): t for t in every_test(*OTHERS)}.values(), ids=named)
def test_honest_engine_is_far_from_every_threshold(test: Measurement) -> None:
    assert room(test) >= 2
    assert honest_lead(test) >= LEAD / 3


@pytest.mark.parametrize("test", {named(t): t for t in every_test(*OTHERS)}.values(), ids=named)
def test_known_mistakes_get_their_own_answers(test: Measurement) -> None:
    answers = answers_of(test, 1.0)
    for number, (_, values) in enumerate(test.wrong, 1):
        leads = [answer.lead(np.array(values)) for answer in answers]
        assert int(np.argmin(leads)) == number


def test_complete_report_is_right_at_temperature_one(arch: str, model: Path) -> None:
    report = report_for(arch, "F32")
    engine = Model(model, Mirror(1, 512, ()), n_ctx=448)
    ids = engine.tokenizer().encode(report.prompt.encode(), add_special=True, parse_special=False)
    doubt, text = 0.0, []
    for token, logits in engine.choices(ids, len(report.tests) + 3):
        p = np.exp(logits.astype(np.float64) - logits.max())
        doubt += 1 - 1 / float(p.sum())
        text.append(token)
    engine.close()
    assert doubt < 1e-9
    # no token occurs twice, so repetition penalties change nothing
    assert len(set(text)) == len(text)


# --- engines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [SHORT, "", "thank", "x", " 12", "~ abc"])
def test_any_prompt_gives_a_complete_report(model: Path, prompt: str) -> None:
    reading = read_report(text_of("fast", model, EXACT, prompt))
    assert (reading.code, reading.complete, reading.prompted) == (0, True, False)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_our_engines_say_ok(arch: str, model: Path, engine: str, preset: str) -> None:
    prompt = ARCHITECTURES[arch].vocabulary.prompt
    reading = read_report(text_of(engine, model, PRESETS[preset], prompt))
    assert (reading.code, reading.complete, reading.prompted) == (0, True, True)


# acid models of gemma3 have weights beyond F16, and none leaves room for caches in eight bits
BEYOND_F16 = {("gemma3", "honest:f16"), ("gemma3", "honest:weights-f16")}
TOO_COARSE = {f"honest:{name}" for name in ("cache-e4m3", "cache-e5m2", "attention-int8")}
FINE = [cls for cls in honest_engines() if cls.name not in TOO_COARSE]


@pytest.mark.parametrize("cls", FINE, ids=lambda cls: cls.name)
def test_no_honest_engine_says_no(arch: str, model: Path, cls: type[HonestEngine]) -> None:
    if (arch, cls.name) in BEYOND_F16:
        assert not try_engine(cls.name, model, report_for(arch, "F32")).complete
        return
    seen = try_engine(cls.name, model, report_for(arch, "F32"))
    assert seen.said_no == ()
    assert seen.complete


@pytest.mark.parametrize(
    ("arch", "quant"), [(arch, quant) for arch in OTHERS for quant in ARCHITECTURES[arch].types]
)
def test_every_type_is_ok_in_our_engine(arch: str, quant: str, tmp_path: Path) -> None:
    write_acid(tmp_path / "a.gguf", arch, quant)
    prompt = ARCHITECTURES[arch].vocabulary.prompt
    reading = read_report(text_of("fast", tmp_path / "a.gguf", EXACT, prompt))
    assert (reading.code, reading.arch, reading.quant) == (0, arch, quant)


@pytest.mark.parametrize(
    ("arch", "engine", "test", "says"),
    [
        ("qwen3", "rope-half-split", "rope-pairing", "pairs of the other kind"),
        ("qwen3", "query-norm-missing", "query-norm", "queries are not normed"),
        ("qwen3", "heads-normed-together", "key-norm", "heads are normed together"),
        (
            "qwen3",
            "head-norms-exchanged",
            "head-norm-weights",
            "weights of queries and keys exchanged",
        ),
        (
            "qwen3",
            "head-norm-after-rope",
            "head-norm-weights",
            "turned before they are multiplied, or no weights",
        ),
        ("qwen3", "merges-from-left", "bpe-merges", "from left to right, or by length"),
        ("qwen3", "bos-doubled", "bos", "BOS twice"),
        (
            "llama-moe",
            "experts-not-normalised-llama",
            "experts-choice",
            "weights do not sum to one",
        ),
        ("llama-moe", "experts-weights-by-id", "experts-choice", "weights in the order of ids"),
        (
            "llama-moe",
            "experts-down-of-the-first",
            "experts-matrices",
            "the way back of the first for all",
        ),
        ("gemma3", "window-one-less", "window-inside", "the window ends earlier"),
        (
            "gemma3",
            "window-one-more",
            "window-beyond",
            "the window reaches further, or there is none",
        ),
        (
            "gemma3",
            "embedding-scale-by-width",
            "embedding-scale",
            "multiplied by the width",
        ),
        ("gemma3", "silu-for-gelu", "gelu", "SiLU"),
        ("gemma3", "key-norm-missing-gemma3", "key-norm", "keys are not normed"),
        ("gpt2", "gelu-quick", "gelu", "the quick GELU"),
        ("gpt2", "layer-norm-uncentred", "norm-mean", "the mean is not subtracted"),
        ("gpt2", "layer-norm-without-bias", "norm-bias", "no biases"),
        ("gpt2", "learned-positions-from-two", "first-position", "no token has row 0"),
        ("gpt2", "qkv-bias-missing", "qkv-bias", "no bias"),
    ],
)
def test_wrong_engine_names_its_mistake(
    arch: str, engine: str, test: str, says: str, tmp_path: Path
) -> None:
    wrong_engines()
    write_acid(tmp_path / "a.gguf", arch)
    needs_prompt = any(t.name == test and t.needs_prompt for t in every_test(arch))
    prompt = ARCHITECTURES[arch].vocabulary.prompt if needs_prompt else SHORT
    reading = read_report(text_of(f"mutant:{engine}", tmp_path / "a.gguf", EXACT, prompt))
    (answer,) = (each for each in reading.answers if each.test == test)
    assert (answer.ok, answer.says) == (False, says)


def test_every_mistake_that_a_test_catches_is_in_the_catalogue() -> None:
    known = {cls.name.partition(":")[2] for cls in wrong_engines()}
    assert {name for test in every_test(*OTHERS) for name in test.catches} <= known


def test_every_prerequisite_test_exists_in_some_architecture() -> None:
    names = {test.name for test in every_test(*ARCHITECTURES)}
    assert {name for test in every_test(*ARCHITECTURES) for name in test.rests_on} <= names
