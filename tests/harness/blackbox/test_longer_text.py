"""Lengths of generated texts: few tokens from a large model, many tokens from its first layer."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch, steps_of
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.rotation import I32, RopeParams
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking import facts
from lockstep.harness.blackbox import own_prompts
from lockstep.harness.blackbox.own_prompts import WHERE
from lockstep.harness.check.check import open_plan
from lockstep.harness.context import further_runs
from lockstep.harness.records import Verdict
from lockstep.harness.suites import decode
from lockstep.harness.suites.decode import (
    LEAST,
    LONGER,
    STEPS,
    fewer_reads,
    of_the_whole,
    seeded_behind,
)
from tests.black_boxes import with_made_models
from tests.harness.check.test_check import plan_for
from tests.models import builtin, opened

FEW = 18


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every model as large."""
    monkeypatch.setattr(facts, "SMALL", 0)
    monkeypatch.setattr(decode, "LEAST", FEW)
    monkeypatch.setattr(decode, "READ", 0)


class WrongLater(Reference, name="longer text: wrong from token 30 on"):
    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        right = super().greedy(prompt, n)
        return [*right[:30], *((token + 1) % 320 for token in right[30:])]


class OneModelAlone(Reference, name="longer text: takes no other model"):
    """An engine that reads only the model q4_0, which has two layers."""

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        if self.file.metadata["llama.block_count"].data != 2:
            raise Unsupported("a model of so many layers")
        return super().greedy(prompt, n)


class OneModelWrongLater(OneModelAlone, name="longer text: takes no other, wrong later"):
    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        right = super().greedy(prompt, n)
        return [*right[:30], *((token + 1) % 320 for token in right[30:])]


class OnePositionOn(Mirror):
    """An engine whose positions are one too large for generated tokens, but right for the
    prompt."""

    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        return super().rope(x, positions + np.int32(len(positions) == 1), params)


class LoopOfItsOwn(Reference, name="longer text: a loop with other positions"):
    """An engine with right logits whose greedy loop chooses tokens by other logits."""

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        assert self.model is not None
        model = opened(self.model, ops=OnePositionOn())
        found = model.greedy(prompt, n)
        model.release()
        return found


class LastOfEqualOnes(Reference, name="longer text: of equal logits it takes the last"):
    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        memory, batch, found = self.loaded.new_memory(), Batch.of(prompt), list[int]()
        for at in range(len(prompt), len(prompt) + n):
            row = self.loaded.decode(batch, memory)[-1]
            found.append(len(row) - 1 - int(row[::-1].argmax()))
            batch = Batch.of(found[-1:], start=at)
        self.loaded.release()
        return found


def with_each_token_twice(model: Path) -> Path:
    """Return a model whose second half of the vocabulary repeats the rows of the first."""
    raw = bytearray(model.read_bytes())
    with closing(GgufFile.open(model)) as file:
        for name in {"token_embd.weight", "output.weight"} & file.tensors.keys():
            tensor = file.tensors[name]
            at, half = file.data_offset + tensor.offset, tensor.n_bytes // 2
            raw[at + half : at + 2 * half] = raw[at : at + half]
    twice = model.with_name("twice.gguf")
    twice.write_bytes(raw)
    return twice


def asked(model: Path, engine: str, n_steps: int = STEPS) -> list[Verdict]:
    suites = ("decode",)
    plan = plan_for(model, engine=engine, oracle="llama.cpp", suites=suites, n_steps=n_steps)
    return list(with_made_models(plan))


def text(found: list[Verdict]) -> str:
    return "\n".join(verdict.summary for verdict in found)


def wrong(found: list[Verdict]) -> set[str]:
    return {verdict.key for verdict in found if verdict.status == "diverged"}


def test_greedy_loop_with_wrong_positions_is_found(tmp_path: Path) -> None:
    """The text diverges from the oracle's at a tie, and contradicts the engine's own logits."""
    found = asked(builtin("q8_0", tmp_path), LoopOfItsOwn.name)
    assert wrong(found) == {"decode/own text"}, text(found)


@pytest.mark.parametrize(
    ("engine", "keys"), [(LoopOfItsOwn.name, {LONGER}), ("honest:float64", set())]
)
def test_first_layer_in_f32_shows_a_loop_hidden_by_the_models_limit(
    engine: str, keys: set[str], tmp_path: Path
) -> None:
    """The limit of the whole model allows other conversions of activations, so it hides such a
    fault."""
    model = builtin("q8_0", tmp_path)
    plan = plan_for(model, engine=engine, oracle="llama.cpp", n_steps=STEPS)
    with closing(open_plan(plan, lambda _: None)) as whole:
        found = list(own_prompts.text_checked(plan, whole.context))
    assert wrong(found) == keys, text(found)
    assert WHERE in text(found)


def test_ties_on_the_first_layer_do_not_make_a_small_model_incomplete(
    tmp_path: Path,
) -> None:
    """An incomplete result would tell the user of an honest engine that a comparison is missing."""
    found = asked(with_each_token_twice(builtin("q8_0", tmp_path)), LastOfEqualOnes.name)
    assert {verdict.status for verdict in found} == {"agreed", "excused", "not-applicable"}
    assert f"{WHERE}the 56 tokens after 8 ties were not compared" in text(found)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("engine", ["reference", "fast", "honest:float64"])
def test_honest_engine_continues_like_llama_cpp(engine: str, tmp_path: Path) -> None:
    found = asked(builtin("q4_0", tmp_path), engine)
    assert not wrong(found)
    (longer,) = (verdict for verdict in found if verdict.key == LONGER)
    assert longer.summary.startswith(f"{WHERE}{STEPS} greedy tokens are the same") or (
        "a tie within the noise" in longer.summary
    )


@pytest.mark.usefixtures("large")
def test_fault_after_the_length_of_the_whole_models_run_is_found(tmp_path: Path) -> None:
    found = asked(builtin("q4_0", tmp_path), WrongLater.name)
    assert wrong(found) == {LONGER}
    assert f"{FEW} greedy tokens are the same" in text(found)
    assert f"{WHERE}greedy token 30 is" in text(found)


@pytest.mark.usefixtures("large")
def test_engine_that_runs_one_model_is_asked_for_all_its_tokens(tmp_path: Path) -> None:
    found = asked(builtin("q4_0", tmp_path), OneModelAlone.name)
    assert not wrong(found)
    assert f"{FEW} greedy tokens are the same" in text(found)
    assert f"{STEPS} greedy tokens are the same" in text(found)
    assert LONGER not in {verdict.key for verdict in found}


@pytest.mark.usefixtures("large")
def test_late_fault_of_an_engine_without_other_models_is_found(tmp_path: Path) -> None:
    assert wrong(asked(builtin("q4_0", tmp_path), OneModelWrongLater.name)) == {"decode/token"}


def test_small_model_is_asked_for_all_tokens(tmp_path: Path) -> None:
    found = asked(builtin("q4_0", tmp_path), WrongLater.name)
    assert wrong(found) == {"decode/token"}


@pytest.mark.usefixtures("large")
def test_model_itself_generates_more_tokens_than_usual(tmp_path: Path) -> None:
    found = asked(builtin("q4_0", tmp_path), "reference", STEPS + 1)
    assert f"{STEPS + 1} greedy tokens are the same" in text(found)
    assert LONGER not in {verdict.key for verdict in found}


@pytest.mark.usefixtures("large")
def test_every_layer_gets_batches_of_all_sizes_and_many_cells(tmp_path: Path) -> None:
    sizes = {}
    for on_made_models in ({}, {decode.PROMPTS: lambda _: iter(())}):
        plan = plan_for(builtin("q4_0", tmp_path), engine="reference", n_steps=STEPS)
        opened = open_plan(plan, lambda _: None)
        opened.context.on_made_models = on_made_models
        try:
            n = of_the_whole(opened.context)
            ids = [*range(n), *seeded_behind(opened.context, 5, n)]
            batches = fewer_reads(opened.context, steps_of([1, 2, 3, 4, 5], ids))
        finally:
            opened.close()
        sizes[n] = [len(batch) for batch in batches]
    assert {*sizes[FEW]} >= {1, *further_runs.TOGETHER}
    assert sum(sizes[FEW]) == sum(sizes[STEPS])
    assert sizes[FEW].count(1) == sizes[STEPS].count(1) == further_runs.ALONE


@pytest.mark.parametrize(("reads", "n"), [(1000, STEPS), (40, 40), (20, 20), (3, LEAST)])
def test_number_of_generated_tokens_depends_on_the_bytes_read(
    reads: int, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(builtin("q4_0", tmp_path), engine="reference", n_steps=STEPS)
    opened = open_plan(plan, lambda _: None)
    opened.context.on_made_models = {decode.PROMPTS: lambda _: iter(())}
    try:
        monkeypatch.setattr(decode, "READ", reads * further_runs.size_of(opened.context.file))
        assert of_the_whole(opened.context) == n
    finally:
        opened.close()
