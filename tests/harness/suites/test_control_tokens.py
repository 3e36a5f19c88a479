"""Control tokens that are the most likely next token. An engine may wrongly omit a single control
token."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError, InvalidBatch, Unsupported
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.records import Evaluation, Request
from lockstep.harness.suites.parts import control_tokens
from lockstep.harness.suites.parts.control_tokens import (
    MOST,
    firsts_of,
    lengths_asked,
    other_prompts,
)
from lockstep.harness.suites.parts.oracles_logits import in_one
from tests.contexts import check_engine, diverged, statuses
from tests.models import builtin, written
from tests.quiet_engines import made, never_choosing


def test_every_token_that_is_likeliest_somewhere_is_asked_for(tmp_path: Path) -> None:
    """Token 2 comes first and token 0 second with this seed. The last id is 311."""
    model = written(tmp_path, n_layer=1, n_vocab=312, seed=6)
    found: list[int] = []
    for never in (0, 2, 311):
        engine = made(f"control tokens: never {never}", Reference, greedy=never_choosing(never))
        wrong = diverged(check_engine(model, engine, "decode", n_tokens=32))
        found += [int(v.detail["expected"]) for v in wrong]
    assert found == [0, 2, 311]


def test_first_clear_place_is_found_for_each_control_token() -> None:
    rows = {3: [0, 0, 1.0], 4: [1.0, 0, 0], 5: [1.0, 0, 0.99], 7: [0, 1.0, 0], 8: [1.0, 0, 0]}
    logits = np.tile(np.array([0, 1.0, 0], np.float32), (9, 1))
    for at, row in rows.items():
        logits[at] = row
    assert firsts_of(logits, np.array([0, 2]), 0.1) == [3, 4]
    assert firsts_of(logits, np.array([2]), 1.5) == []
    assert MOST >= 2


# --- other prompts --------------------------------------------------------------------------------


class TakesFew(Reference, name="control tokens: takes 40 positions"):
    """An honest engine that shows logits, and has room for few tokens."""

    refusal: EngineError = Unsupported("40 positions")

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        if len(prompt) + n > 40:
            raise self.refusal
        return super().greedy(prompt, n)

    def evaluate(self, request: Request) -> Evaluation:
        if sum(map(len, request.batches)) > 40:
            raise self.refusal
        return super().evaluate(request)


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(Unsupported("40 positions"), "agreed"), (InvalidBatch("40 positions"), "not-compared")],
)
def test_engine_with_fewer_positions_gets_shorter_prompts(
    refusal: EngineError, status: str, tmp_path: Path
) -> None:
    TakesFew.refusal = refusal
    model = written(tmp_path, n_layer=1, n_vocab=312, seed=6)
    logits, *tokens = check_engine(model, TakesFew, "decode", n_tokens=32, n_steps=6)
    assert logits.status == "agreed"
    assert statuses(tokens) - {"not-applicable"} == {"agreed", status}
    (left,) = (v for v in tokens if "the token after 71 seeded tokens" in v.summary)
    assert left.summary.endswith("40 positions")


@pytest.mark.parametrize("engine", ["prompt-keeps-last-32", "prompt-of-the-same-length"])
def test_vocabulary_with_room_for_few_logits_gets_long_prompts_too(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit allows 12 rows of logits, and none of the first 12 prompts had 67 tokens."""
    monkeypatch.setattr(control_tokens, "ROWS", 12 * 312)
    model = written(tmp_path, n_layer=1, n_vocab=312, seed=6)
    found = check_engine(model, f"mutant:{engine}", "decode", n_tokens=32, n_steps=6)
    assert found[-1].status == "diverged", found
    assert found[-1].key == "decode/other prompt"


def test_summary_says_other_prompts_are_unknown_without_a_clear_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_tokens, "clear_places", lambda *_: np.zeros(0, np.intp))
    model = written(tmp_path, n_layer=1, n_vocab=312, seed=6)
    (_, tokens, *_) = check_engine(model, "reference", "decode", n_tokens=32, n_steps=6)
    assert tokens.status == "agreed"
    assert "reading of other prompts and the choice of control tokens were not compared" in (
        tokens.summary
    )


def test_prompt_lengths_cover_the_first_and_those_from_67_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(n_vocab: int, cells: int = 128) -> list[int]:
        monkeypatch.setattr(control_tokens, "n_cells", lambda _: cells)
        context: Any = SimpleNamespace(facts=SimpleNamespace(n_vocab=n_vocab))
        return lengths_asked(context, 5)

    assert asked(312) == [*range(1, 128)]
    assert asked(49_152) == [*range(1, 15), *range(67, 74)]
    assert asked(262_144) == [5, 6, 67, 68]
    assert asked(1 << 21) == []  # not even one row fits
    assert asked(262_144, cells=5) == [1, 2, 3, 4]


def test_long_prompt_is_asked_if_its_beginning_matters() -> None:
    clear, lengths = np.arange(4), [1, 4, 67, 68]
    never, last = np.zeros(4, np.bool_), np.arange(4) == 3
    assert other_prompts(clear, never, lengths, 4) == [1, 2]
    assert other_prompts(clear, last, lengths, 4) == [1, 3]
    # the longest prompt with a clear choice
    assert other_prompts(clear[:2], last, lengths, 5) == [1]
    assert other_prompts(clear[:0], last, lengths, 4) == []


def test_truncated_prompt_is_found_if_the_token_depends_on_its_beginning(
    tmp_path: Path,
) -> None:
    """After 67 tokens, the next token is the same without the first 35 tokens. After 68 tokens, it
    differs without the first tokens."""
    model, engine = builtin("f32", tmp_path), "mutant:prompt-keeps-last-32"
    *_, found = check_engine(model, engine, "decode", n_tokens=32, n_steps=16)
    assert found.status == "diverged"
    assert found.key == "decode/other prompt"


def test_honest_runs_have_the_requested_outputs() -> None:
    batch = Batch.for_next([1, 2, 3])
    context: Any = SimpleNamespace(facts=SimpleNamespace(architecture="llama"))
    (one,) = in_one(context, (batch,))
    assert one.outputs.tolist() == [False, False, True]
