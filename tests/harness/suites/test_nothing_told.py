"""Models on which an engine that computes nothing gives the right answers: no such agreement
conforms."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EngineInfo, Evaluation, Request, Verdict
from tests.contexts import context_of, statuses
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.harness.suites.test_whole_runs import scaled
from tests.models import builtin, written


class Constant(Reference, name="nothing told: one number"):
    """It computes nothing."""

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


class NoNumber(Constant, name="nothing told: NaN"):
    number = float("nan")


class Levels(Constant, name="nothing told: levels"):
    levels: tuple[str, ...] = ()

    def describe(self) -> EngineInfo:
        return replace(super().describe(), levels=self.levels)


class ListsAlone(Levels, name="nothing told: lists"):
    levels = ("logprobs", "tokenize")


class GreedyAlone(Levels, name="nothing told: greedy"):
    levels = ("greedy", "tokenize")


class TextAlone(Levels, name="nothing told: text"):
    levels = ("generate", "tokenize")


def zero_output(folder: Path) -> Path:
    return scaled(builtin("f32", folder), folder / "zero.gguf", "output.weight", 0.0)


def with_nan_blocks(folder: Path) -> Path:
    """A Q4_K model whose scales are NaN in one matrix of the first layer."""
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
    """Return a copy of a model of two layers with this tensor of each times a factor."""
    for layer in range(2):
        path = scaled(path, copy, f"blk.{layer}.{tensor}.weight", factor)
    return path


def said(path: Path, engine: str, *suites: str) -> list[Verdict]:
    return verdicts_of(plan_for(path, engine=engine, suites=suites, n_tokens=6))


@pytest.mark.parametrize(
    ("engine", "suite"),
    [
        (Constant.name, "logits"),
        (Constant.name, "decode"),
        (ListsAlone.name, "logprobs"),
        (GreedyAlone.name, "decode"),
        (TextAlone.name, "text"),
    ],
)
def test_zero_logits_conform_in_no_suite(engine: str, suite: str, tmp_path: Path) -> None:
    found = said(zero_output(tmp_path), engine, suite)
    assert exit_code(found) == 3, [(v.status, v.summary) for v in found]
    assert not {"agreed", "diverged"} & statuses(found)


def test_zero_logits_conform_in_no_bisection(tmp_path: Path) -> None:
    with context_of(zero_output(tmp_path), engine="reference", n_tokens=6) as context:
        assert bisect(context).exit_code == 3


@pytest.mark.parametrize("suite", ["logits", "decode"])
def test_nan_of_blocks_conforms_in_no_suite(suite: str, tmp_path: Path) -> None:
    found = said(with_nan_blocks(tmp_path), NoNumber.name, suite)
    assert exit_code(found) == 3, [(v.status, v.summary) for v in found]
    assert "agreed" not in statuses(found)


class HalfGreedy(Levels, name="nothing told: greedy of halves"):
    """The right logits, of which it shows the likeliest token alone."""

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
def test_half_that_moves_nothing_is_not_compared(
    half: str, tensor: str, engine: type[Levels], suite: str, tmp_path: Path
) -> None:
    """The engine reads a file in which this half gives zeros: it is wrong of every other model."""
    path = scaled(builtin("f32", tmp_path), tmp_path / "m.gguf", "token_embd.weight", 1e7)
    path = scale_in_layers(path, tmp_path / "quiet.gguf", tensor, 1e-9)
    without = scale_in_layers(path, tmp_path / "without.gguf", tensor, 0.0)
    plan = plan_for(path, engine=engine.name, suites=(suite,), n_tokens=6, subject_model=without)
    found = verdicts_of(plan)
    assert exit_code(found) == 3, [(v.status, v.summary) for v in found]
    assert "diverged" not in {v.status for v in found}
    assert half in {v.detail.get("half") for v in found}
