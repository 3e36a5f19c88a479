"""Faults outside the layers, in models with capped logits and tied embeddings.

Gemma 2 has both. llama.cpp refuses a Gemma 2 model with a separate head, so it answers no question
about such a model. An earlier version counted this refusal as agreement, and therefore named the
embedding.
"""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.naming import BOTH_ENDS, FEW_ROWS, OF_LOGITS, ONE_ROW, SOME, TIED
from tests.black_boxes import bisected, faults, one_layer_of
from tests.models import builtin

OF_LOGITS_ALONE = 3  # synth's gemma2 caps logits at this value, and scores at 50


class NoFifthLogit(Mirror):
    def soft_cap(self, x: F32, cap: float) -> F32:
        out = super().soft_cap(x, cap)
        wrong = cap == OF_LOGITS_ALONE and np.arange(out.shape[-1]) == 5
        return np.where(wrong, np.float32(0), out)


class WithNoFifthLogit(Reference, name="test:one-token-has-no-logit"):
    ops = NoFifthLogit


@pytest.mark.parametrize(
    ("engine", "part"),
    [
        ("mutant:logit-cap-missing", OF_LOGITS),
        ("mutant:logit-cap-clips", OF_LOGITS),
        ("test:one-token-has-no-logit", BOTH_ENDS),
    ],
)
def test_model_that_llama_cpp_refuses_does_not_count_as_agreement(
    engine: str, part: str, tmp_path: Path
) -> None:
    path = one_layer_of("gemma2", tmp_path)
    found = bisected(path, tmp_path / "made", engine=engine, oracle="llama.cpp")
    assert faults(found) == {None: [part]}


class WrongForOneRow(Mirror):
    """An engine with a wrong kernel for single rows. Prompts never use this kernel."""

    def linear(self, x: F32, weight: Weight) -> F32:
        out = super().linear(x, weight)
        if len(x) == 1:
            out[..., -1] = 0
        return out


class WrongForEightRows(Mirror):
    """An engine that is wrong for batches of eight rows, such as the first batch of this run."""

    def linear(self, x: F32, weight: Weight) -> F32:
        out = super().linear(x, weight)
        if len(x) == 8:
            out[..., -1] = 0
        return out


class WithWrongForEightRows(Reference, name="test:wrong-for-eight-rows"):
    ops = WrongForEightRows


def test_wrong_kernel_for_few_rows_is_named_as_a_possible_cause(tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    found = bisected(path, tmp_path / "made", engine="test:wrong-for-eight-rows")
    assert faults(found) == {None: [SOME + FEW_ROWS]}


class WithWrongForOneRow(Reference, name="test:wrong-for-one-row"):
    ops = WrongForOneRow


def test_kernel_for_single_rows_is_not_mistaken_for_the_output_matrix(tmp_path: Path) -> None:
    found = bisected(builtin("f32", tmp_path), tmp_path / "made", engine="test:wrong-for-one-row")
    assert faults(found) == {None: [ONE_ROW]}
    assert "all tokens in one batch" in found.guilty[0].parts[0].words


OFF = {"eps": 0.0}  # added to the model's eps by the engine below


class EpsOff(Mirror):
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return super().rms_norm(x, weight, eps + OFF["eps"])


class WithEpsOff(Reference, name="test:eps-that-is-just-seen"):
    ops = EpsOff


def test_barely_visible_eps_is_not_blamed_on_rows_of_some_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine used 1e-6 instead of 1e-5 on a qwen3. An earlier version said that the engine had
    wrong embeddings of some tokens. The engines agree on a single token, because there the effect
    of eps is within the limit."""
    path = builtin("f32", tmp_path)
    monkeypatch.setitem(OFF, "eps", 1e-3)
    first = bisected(path, tmp_path / "much", engine="test:eps-that-is-just-seen").rows[0].answer
    # the effect on logits is proportional to eps while eps is small relative to the squares; the
    # limit is three units in the last place of the largest logit, so half as much again is the next
    # step
    monkeypatch.setitem(OFF, "eps", 1e-3 * 1.5 * first.allowed / first.worst)
    found = bisected(path, tmp_path / "made", engine="test:eps-that-is-just-seen")
    assert 1 < found.rows[0].answer.worst / found.rows[0].answer.allowed < 2
    assert faults(found) == {None: ["eps"]}


class LosesLastIdOfTheTable(Mirror):
    """An engine that loses the last id of the table of embeddings. It reads a separate head with
    other code."""

    def linear(self, x: F32, weight: Weight) -> F32:
        out = super().linear(x, weight)
        if weight.name == "token_embd.weight":
            out[..., -1] = 0
        return out


class WithLastIdLost(Reference, name="test:the-table-loses-its-last-id"):
    ops = LosesLastIdOfTheTable


def test_head_fault_is_not_blamed_on_the_embedding_table(
    tmp_path: Path,
) -> None:
    """The engine agrees on models with a separate output matrix. This agreement does not prove that
    the embedding table is wrong."""
    path = builtin("f16", tmp_path)
    found = bisected(path, tmp_path / "made", engine="test:the-table-loses-its-last-id")
    assert faults(found) == {None: [TIED]}
