"""Prompts of more than a thousand tokens, longer than in any run of a whole model."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.architectures.phi3 import Phi3
from lockstep.engine.batch import Batch
from lockstep.engine.errors import Unsupported
from lockstep.engine.ops.mirror import Mirror
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox import long_prompt
from lockstep.harness.blackbox.asking import SliceAsker
from lockstep.harness.catalogue.models import model_for, with_long_factors
from lockstep.harness.check.check import Opened, Plan, open_plan, run_suites
from lockstep.harness.context.suite import Context, no_answer
from lockstep.harness.records import Evaluation, Request, TimedOut, Verdict
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.differential.conftest import OpenPlan

ROWS = 700  # rows of the table of positions
SUITE = long_prompt.SUITE


class Table(Mirror):
    def rope(self, x: Any, at: Any, params: Any) -> Any:
        return super().rope(x, np.minimum(at, ROWS - 1), params)


class TableTooShort(Reference, name="long prompt: positions beyond a table are its last"):
    ops = Table


class LeftOver(Mirror):
    """An engine that splits rows equally among its threads and skips the remaining rows."""

    def linear(self, x: Any, weight: Any) -> Any:
        out = super().linear(x, weight)
        rest = out.shape[-1] % self.flash.n_threads
        out[..., out.shape[-1] - rest :] = 0
        return out


class RowsLeftOver(Reference, name="long prompt: rows left over among threads"):
    ops = LeftOver


class FewAtOnce(Reference, name="long prompt: takes no such prompt"):
    def evaluate(self, request: Request) -> Evaluation:
        if max(map(len, request.batches)) > ROWS:
            raise Unsupported(f"no more than {ROWS} tokens at once")
        return super().evaluate(request)


class KeepsTooFew(Reference, name="long prompt: a cache that lost its first cells"):
    """An engine in which a long prompt sees all of its tokens, but later tokens see only the last
    cells."""

    def evaluate(self, request: Request) -> Evaluation:
        whole = super().evaluate(request)
        first, *steps = request.batches
        n = len(first) - ROWS
        if n <= 0 or not steps:
            return whole
        kept = Batch.of(first.tokens[n:].tolist(), start=n)
        cut = super().evaluate(replace(request, batches=(kept, *steps)))
        return replace(whole, logits=(*whole.logits[:1], *cut.logits[1:]))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "model.gguf"
    write_llama(LlamaRecipe(seed=5, n_ctx_train=4096), path)
    return path


@pytest.fixture(scope="module")
def says(plan_for: Callable[..., Plan], open_for: OpenPlan) -> Callable[..., list[Verdict]]:
    def verdicts(path: Path, *suites: str, **plan: str) -> list[Verdict]:
        asked = plan_for(path, suites=suites, by_name=True, **plan)
        with open_for(asked) as opened:
            opened.context.on_made_models = {SUITE: partial(long_prompt.check_long_prompt, asked)}
            return list(run_suites(opened.context, suites))

    return verdicts


@pytest.mark.parametrize("engine", ["reference", "fast", "honest:float64"])
def test_right_engines_agree(engine: str, model: Path, says: Callable[..., list[Verdict]]) -> None:
    found = says(model, SUITE, engine=engine)
    assert [v.status for v in found] == ["agreed"]
    words = "with a prompt of 1101 tokens at once and 3 after it, 3 threads, its first 2 of 2"
    assert found[0].summary.startswith(f"{words} layers: 4 positions")


def test_missing_positions_are_found_with_the_longest_right_prompt(
    model: Path, says: Callable[..., list[Verdict]]
) -> None:
    others = says(model, "logits", "decode", "trace", engine=TableTooShort.name)
    found = says(model, SUITE, engine=TableTooShort.name)
    assert {v.status for v in others} == {"agreed"}
    assert [v.status for v in found] == ["diverged"]
    words = f"a prompt of {ROWS} tokens is right, and one of {ROWS + 1} tokens is not"
    assert found[0].summary.endswith(words)


def test_right_prompt_is_not_called_wrong_for_later_tokens(
    model: Path, says: Callable[..., list[Verdict]]
) -> None:
    found = says(model, SUITE, engine=KeepsTooFew.name)
    assert [v.status for v in found] == ["diverged"]
    assert found[0].summary.endswith(
        "; the logits of the prompt are right, and those of 3 tokens after it are not; "
        f"a prompt of {ROWS} tokens does not show this error, and one of {ROWS + 1} tokens does"
    )


class FailsBehind(Reference, name="long prompt: an index beyond a table raises"):
    LAST = ROWS

    def evaluate(self, request: Request) -> Evaluation:
        if (last := max(int(batch.positions.max()) for batch in request.batches)) >= self.LAST:
            raise IndexError(f"index {last} is out of bounds for axis 0 with size {self.LAST}")
        return super().evaluate(request)


class FailsInSteps(FailsBehind, name="long prompt: the first token after 1101 tokens raises"):
    LAST = long_prompt.PROMPT


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            FailsBehind.name,
            f"(a prompt of {ROWS} tokens is answered, a prompt of {ROWS + 1} tokens is not)",
        ),
        (
            FailsInSteps.name,
            "(3 tokens after a prompt of 1098 tokens are answered, "
            "3 tokens after a prompt of 1099 tokens are not)",
        ),
    ],
)
def test_crash_on_a_long_prompt_names_the_error_and_the_longest_answer(
    engine: str, words: str, model: Path, says: Callable[..., list[Verdict]]
) -> None:
    (found,) = says(model, SUITE, engine=engine)
    assert (found.status, found.detail["said"]) == ("crashed", True)
    assert words in found.summary
    last = long_prompt.PROMPT + long_prompt.STEPS - 1
    assert f"failed in logits: IndexError: index {last} is out of bounds" in found.summary


@pytest.mark.parametrize(("foretold", "status"), [(1.0, "timed-out"), (100.0, "not-applicable")])
def test_engine_that_hangs_on_a_long_prompt_is_not_called_slow(
    foretold: float,
    status: str,
    model: Path,
    says: Callable[..., list[Verdict]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A timeout (300 s) is excused if quadratic work, 34 times the estimate, would take longer."""

    def hangs(context: Context, question: str, request: Request) -> Any:
        if len(request.batches[0]) > ROWS:
            raise no_answer(context.subject.name, question, TimedOut(seconds=300.0))
        return ask_both(context, question, request)

    ask_both = Context.ask_both
    monkeypatch.setattr(Context, "ask_both", hangs)
    monkeypatch.setattr(long_prompt, "seconds_of", lambda context, n: foretold)
    (found,) = says(model, SUITE)
    assert found.status == status
    assert ("shorter prompts suggest about 1.0 s" in found.summary) is (foretold == 1.0)


def test_bisection_finds_the_place_in_the_shortest_wrong_prompt(
    model: Path, plan_for: Callable[..., Plan], open_for: OpenPlan
) -> None:
    plan = plan_for(model, engine=TableTooShort.name)
    with open_for(plan) as opened:
        found = long_prompt.bisect_long_prompt(plan, opened.context)
    assert found is not None
    assert found.asked == f"with a prompt of {ROWS + 1} tokens, 3 threads, only the first layers"
    places = {f"{c.site.name}-{c.layer}" for c in found.culprits}
    assert places == {"Qcur_rope-0", "Kcur_rope-0", "Qcur_rope-1", "Kcur_rope-1"}


def test_rows_that_threads_skip_are_found_at_any_length(
    model: Path, plan_for: Callable[..., Plan], says: Callable[..., list[Verdict]]
) -> None:
    """One thread leaves no remaining rows, and the preset `exact` uses one thread in all other
    runs."""
    others = says(model, "logits", "decode", engine=RowsLeftOver.name)
    found = says(model, SUITE, engine=RowsLeftOver.name)
    assert {v.status for v in others} == {"agreed"}
    assert [v.status for v in found] == ["diverged"]
    words = "a prompt of 32 tokens is wrong as well; with n_threads 1 the same run is right"
    assert words in found[0].summary


def test_long_prompt_is_not_applicable_if_the_engine_takes_none(
    model: Path, says: Callable[..., list[Verdict]]
) -> None:
    found = says(model, SUITE, engine=FewAtOnce.name)
    assert [v.status for v in found] == ["not-applicable"]
    assert f"no more than {ROWS} tokens at once" in found[0].summary


def test_engine_that_chooses_rope_factors_by_text_length_agrees(
    tmp_path: Path, says: Callable[..., list[Verdict]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original context is longer than the prompt, and shorter than twice the prompt."""

    def by_the_text(self: Phi3, step: Any) -> Any:
        self.n_ctx = int(step.batch.positions.max()) + 1
        return right(self, step)

    right = Phi3.forward
    monkeypatch.setattr(Phi3, "forward", by_the_text)
    with_long_factors(model_for("arch:phi3", tmp_path), tmp_path / "model.gguf", original=1500)
    assert [v.status for v in says(tmp_path / "model.gguf", SUITE)] == ["agreed"]


@pytest.mark.parametrize(
    ("cells", "status", "words"),
    [
        (512, "not-applicable", "has a context of 512 tokens"),
        (1024, "agreed", "with a prompt of 1021 tokens at once and 3 after it, 1 threads"),
    ],
)
def test_engine_gets_no_prompt_beyond_its_declared_context(
    cells: int,
    status: str,
    words: str,
    model: Path,
    says: Callable[..., list[Verdict]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """llama.cpp is run with the same context."""

    def followed(plan: Plan, progress: Any) -> Opened:
        settings = replace(plan.settings, n_ctx=cells, n_threads=1)
        return open_plan(replace(plan, settings=settings), progress)

    monkeypatch.setattr(SliceAsker, "open", lambda self, plan: followed(plan, self.progress))
    (found,) = says(model, SUITE)
    assert found.status == status
    assert words in found.summary


def test_model_with_few_positions_is_not_tested(
    tmp_path: Path, says: Callable[..., list[Verdict]]
) -> None:
    write_llama(LlamaRecipe(n_ctx_train=512), tmp_path / "model.gguf")
    assert says(tmp_path / "model.gguf", SUITE) == []


class DiesInSearch(Reference, name="long prompt: wrong, and dies of shorter ones"):
    ops = Table

    def evaluate(self, request: Request) -> Evaluation:
        (n, *_) = map(len, request.batches)
        if ROWS / 2 < n < long_prompt.PROMPT:
            raise RuntimeError(f"{n} tokens")
        return super().evaluate(request)


def test_difference_stays_if_the_engine_dies_in_the_search(
    model: Path, says: Callable[..., list[Verdict]]
) -> None:
    (found,) = says(model, SUITE, engine=DiesInSearch.name)
    assert found.status == "diverged"
    assert "; the shortest wrong length is unknown: " in found.summary


@pytest.mark.parametrize("engine", ["reference", "llama.cpp"])
def test_long_prompt_is_tested_on_small_models_by_default(
    engine: str, model: Path, plan_for: Callable[..., Plan], open_for: OpenPlan
) -> None:
    """Users often test a small model first. Once, an engine with a table of 1,024 positions passed
    on small models."""
    plan = plan_for(model, engine=engine)
    with open_for(plan) as opened:
        assert not opened.context.named
        found = list(long_prompt.check_long_prompt(plan, opened.context))
    assert [verdict.status for verdict in found] == ["agreed"]


@pytest.mark.parametrize(("named", "status"), [(False, "not-applicable"), (True, "agreed")])
def test_slow_engine_is_tested_only_if_the_suite_is_named(
    named: bool,
    status: str,
    model: Path,
    plan_for: Callable[..., Plan],
    open_for: OpenPlan,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_prompt, "PATIENCE", 0.0)
    plan = plan_for(model)
    with open_for(plan) as opened:
        opened.context.named = named
        (found,) = long_prompt.check_long_prompt(plan, opened.context)
    assert found.status == status
    assert ("reference would take about" in found.summary) is (not named)
