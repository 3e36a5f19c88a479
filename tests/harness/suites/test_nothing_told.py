"""Models on which agreement proves little, because any computation gives the right answers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import WeightFormat
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.check.check import run_suites
from lockstep.harness.check.halves_told import halves_told, is_within
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EngineInfo, Evaluation, Request, Verdict
from lockstep.harness.suites.parts.hidden import hidden_tokens
from tests.black_boxes import bisected, copy_with, with_made_models
from tests.contexts import check_engine, context_of, statuses
from tests.harness.check.test_check import plan_for
from tests.harness.suites.test_whole_runs import scaled
from tests.models import builtin, with_values, written
from tests.quiet_engines import Quiet, made

LITTLE = "whatever the prompt, so this shows little"
OF_TOKENS = ("logprobs", "decode", "black-box")


class Constant(Reference, name="nothing told: one number"):
    """An engine that computes nothing."""

    number = 0.0

    def describe(self) -> EngineInfo:
        return replace(super().describe(), shows=())

    def evaluate(self, request: Request) -> Evaluation:
        rows = [int(batch.outputs.sum()) for batch in request.batches]
        return Evaluation(
            logits=tuple(np.full((n, 384), self.number, np.float32) for n in rows), trace=None
        )

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        return [0] * n

    def logprobs(self, prefixes: Sequence[Any], k: int) -> list[list[tuple[Any, float]]]:
        return [[(token, -float(np.log(384))) for token in range(k)] for _ in prefixes]

    def generate(self, prompt: bytes, n: int) -> bytes:
        return self.detokenize([[0] * n], remove_special=False, unparse_special=False)[0]


NO_NUMBER = made("nothing told: NaN", Constant, number=float("nan"))


class Levels(Constant, name="nothing told: levels"):
    levels: tuple[str, ...] = ()

    def describe(self) -> EngineInfo:
        return replace(super().describe(), levels=self.levels)


LISTS_ALONE = made("nothing told: lists", Levels, levels=("logprobs", "tokenize"))
GREEDY_ALONE = made("nothing told: greedy", Levels, levels=("greedy", "tokenize"))
TEXT_ALONE = made("nothing told: text", Levels, levels=("generate", "tokenize"))


def zero_output(folder: Path) -> Path:
    return scaled(builtin("f32", folder), folder / "zero.gguf", "output.weight", 0.0)


def with_nan_blocks(folder: Path) -> Path:
    """Write a Q4_K model whose scales are NaN in one matrix of the first layer."""
    path = written(folder, quant="Q4_K", n_embd=256, n_head=4, n_head_kv=2, n_ff=256, n_layer=1)
    with GgufFile.open(path) as file:
        info = file.tensors["blk.0.ffn_down.weight"]
        at = file.data_offset + info.offset
    raw = bytearray(path.read_bytes())
    for start in range(at, at + info.n_bytes, 144):
        raw[start : start + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(raw)
    return path


def scale_in_layers(path: Path, copy: Path, tensor: str, factor: float) -> Path:
    """Write a copy of a two-layer model with this tensor scaled in each layer."""
    for layer in range(2):
        path = scaled(path, copy, f"blk.{layer}.{tensor}.weight", factor)
    return path


def said(path: Path, engine: str, *suites: str) -> list[Verdict]:
    return check_engine(path, engine, *suites, n_tokens=6)


@pytest.mark.parametrize(
    ("engine", "suite"),
    [
        (Constant.name, "logits"),
        (Constant.name, "decode"),
        (LISTS_ALONE, "logprobs"),
        (GREEDY_ALONE, "decode"),
        (TEXT_ALONE, "text"),
    ],
)
def test_model_with_zero_logits_conforms_in_no_suite(
    engine: str, suite: str, tmp_path: Path
) -> None:
    found = said(zero_output(tmp_path), engine, suite)
    assert exit_code(found) == 3, [(v.status, v.summary) for v in found]
    assert not {"agreed", "diverged"} & statuses(found)


def test_model_with_zero_logits_conforms_in_no_bisection(tmp_path: Path) -> None:
    with context_of(zero_output(tmp_path), engine="reference", n_tokens=6) as context:
        assert bisect(context).exit_code == 3


@pytest.mark.parametrize("suite", ["logits", "decode"])
def test_model_with_nan_blocks_conforms_in_no_suite(suite: str, tmp_path: Path) -> None:
    found = said(with_nan_blocks(tmp_path), NO_NUMBER, suite)
    assert exit_code(found) == 3, [(v.status, v.summary) for v in found]
    assert "agreed" not in statuses(found)


class HalfGreedy(Levels, name="nothing told: greedy of halves"):
    """An engine with right logits that shows only the most likely token."""

    levels = ("greedy", "tokenize")
    evaluate, greedy = Reference.evaluate, Reference.greedy


class HalfText(HalfGreedy, name="nothing told: text of halves"):
    levels = ("generate", "tokenize")

    def generate(self, prompt: bytes, n: int) -> bytes:
        (ids,) = self.tokenize([prompt])
        return self.detokenize([self.greedy(ids, n)], remove_special=True, unparse_special=False)[0]


class HalfLogits(HalfGreedy, name="nothing told: logits of a half"):
    levels = ("logits", "tokenize")


@pytest.mark.parametrize(("half", "tensor"), [("attention", "attn_output"), ("ffn", "ffn_down")])
@pytest.mark.parametrize(
    ("engine", "suite"), [(HalfLogits, "logits"), (HalfGreedy, "decode"), (HalfText, "text")]
)
def test_half_without_effect_is_not_compared(
    half: str, tensor: str, engine: type[Levels], suite: str, tmp_path: Path
) -> None:
    """The engine reads a file in which this half gives zeros, so the engine would be wrong on every
    other model."""
    path = scaled(builtin("f32", tmp_path), tmp_path / "m.gguf", "token_embd.weight", 1e7)
    path = scale_in_layers(path, tmp_path / "quiet.gguf", tensor, 1e-9)
    without = scale_in_layers(path, tmp_path / "without.gguf", tensor, 0.0)
    changes = {"engine": engine.name, "n_tokens": 6, "subject_model": without}
    with context_of(path, suites=(suite,), **changes) as context:
        found = list(run_suites(context, (suite,)))
        found += halves_told(context, found)
    assert exit_code(found) == 3, [(v.status, v.summary) for v in found]
    assert "diverged" not in {v.status for v in found}
    assert half in {v.detail.get("half") for v in found}


class ChoosesAlone(Quiet, name="one choice: greedy alone"):
    levels = ("greedy",)


class EveryTokenIsOne(ChoosesAlone, name="one choice: reads each token as token 1"):
    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        return Reference.greedy(self, [1] * len(prompt), n)


def said_of_choices(path: Path, engine: str) -> list[Verdict]:
    return check_engine(path, engine, "decode", n_tokens=8)


def behind_beginnings(path: Path, engine: str) -> Verdict:
    return next(
        verdict for verdict in said_of_choices(path, engine) if "beginnings" in verdict.detail
    )


def all_rows_the_first(raw: NDArray[np.uint8], format: type[WeightFormat]) -> None:
    rows = raw.reshape(384, -1)
    rows[:] = rows[0].copy()


def test_engine_that_ignores_the_prompt_is_found_if_tokens_differ(
    tmp_path: Path,
) -> None:
    path = builtin("f32", tmp_path)
    assert any(
        verdict.status == "diverged" for verdict in said_of_choices(path, EveryTokenIsOne.name)
    )
    one = copy_with(path, tmp_path / "one.gguf", "token_embd.weight", all_rows_the_first)
    for engine in (EveryTokenIsOne.name, ChoosesAlone.name):
        found = behind_beginnings(one, engine)
        assert (found.status, LITTLE in found.summary) == ("agreed", True), found.summary


def test_summary_has_no_remark_if_tokens_differ(tmp_path: Path) -> None:
    assert LITTLE not in behind_beginnings(builtin("f32", tmp_path), ChoosesAlone.name).summary


@pytest.mark.parametrize("level", ["greedy", "logprobs"])
def test_vocabulary_with_a_single_token_gives_no_agreement(level: str, tmp_path: Path) -> None:
    """No engine can choose a wrong token from a vocabulary of one."""
    model = written(tmp_path, n_layer=1, n_vocab=1, vocabulary=False)
    engine = made(f"one token: {level}", levels=(level,))
    found = with_made_models(plan_for(model, engine=engine, suites=OF_TOKENS))
    assert statuses(found) <= {"not-applicable", "not-compared"}
    assert exit_code(found) == 3
    assert any("so there is no choice" in v.summary for v in found)
    assert bisected(model, tmp_path / "made", engine=engine).exit_code == 3


def test_logits_of_one_token_accuse_only_a_wrong_engine(tmp_path: Path) -> None:
    """All rows are equal, so an engine that ignores the tokens gives the same rows as a right
    engine."""
    model = written(tmp_path, n_layer=1, n_vocab=1, vocabulary=False)
    wrong = "mutant:gate-and-up-exchanged"
    for engine, status in {"fast": "not-compared", wrong: "diverged"}.items():
        found = with_made_models(plan_for(model, engine=engine, suites=("logits",)))
        assert status in statuses(found)
        assert not any("with another first token" in verdict.summary for verdict in found)


def test_token_with_a_logit_above_the_limit_is_not_hidden() -> None:
    logits = np.ones((3, 200), np.float32)
    logits[1:] = 1e-9
    assert hidden_tokens(logits, 1e-6) == 0


def test_token_with_all_logits_within_the_limit_is_hidden() -> None:
    logits = np.full((3, 200), 1e-9, np.float32)
    logits[:, 5], logits[0, 6], logits[0, 7] = 1.0, np.nan, np.inf
    assert hidden_tokens(logits, 1e-6) == 197


def test_zeros_are_distinguished_from_few_small_values() -> None:
    logits = np.ones((3, 200), np.float32)
    logits[:, :50], logits[:, 60] = 0.0, 1e-9
    assert hidden_tokens(logits, 1e-6) == 0


@pytest.mark.parametrize("factor", [1.0, 2e9])
def test_agreement_states_the_number_of_uninformative_tokens(factor: float, tmp_path: Path) -> None:
    def first_is_large(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        rows[0] *= np.float32(factor)
        return rows

    model = builtin("f32", tmp_path)
    large = with_values(model, tmp_path / "large.gguf", "output.weight", first_is_large)
    first, *others = check_engine(large, "reference", "logits")
    rest = statuses(others)
    assert (first.status, rest <= {"agreed", "not-compared"}) == ("agreed", True)
    assert ("not-compared" in rest) == (factor > 1)
    assert first.detail.get("hidden_tokens") == (383 if factor > 1 else None)


@pytest.mark.parametrize("allowed", [np.inf, np.nan])
def test_half_is_not_judged_without_a_limit(allowed: float) -> None:
    rows = np.zeros((2, 3), np.float32)
    assert not is_within(rows, rows, allowed)
    assert is_within(rows, rows, 0.0)
    assert not is_within(rows, rows * np.float32(np.nan), 1.0)
