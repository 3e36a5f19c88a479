"""Engines that answer one question differently each time. The report states the rate and the first
difference."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import run_suites
from lockstep.harness.context.repeats import MORE, first_difference, unsteady
from lockstep.harness.context.runner import LocalSession
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import (
    EXACT,
    Answered,
    Evaluation,
    Request,
    Site,
    TensorRecord,
    Trace,
    Verdict,
)
from tests.contexts import context_of
from tests.models import some_batches, written
from tests.quiet_engines import made


class Racing(Reference):
    """An engine with one wrong logit in the first batch of every n-th run."""

    every: int
    by: float
    runs = 0

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        self.runs += 1
        if self.runs % self.every:
            return found
        logits = found.logits[0].copy()
        logits[0, 7] += np.float32(self.by) * np.abs(logits).max()
        return replace(found, logits=(logits, *found.logits[1:]))


OFTEN = made("repeats: a race", Racing, every=2, by=1e-2)
HARDLY = made("repeats: sums in any order", Racing, every=2, by=1e-7)
# Only the first of ten runs is wrong.
SELDOM = made("repeats: once wrong", Racing, every=10, by=1e-2, runs=9)


class Kept(Mirror):
    """An engine in which every run continues the state of the last run."""

    left = np.float32(0)

    def swiglu(self, gate: F32, up: F32) -> F32:
        before, self.left = self.left, np.float32(0.5)
        return super().swiglu(gate, up + before)


class Fading(Kept):
    """An engine whose leftover state changes less from run to run."""

    def swiglu(self, gate: F32, up: F32) -> F32:
        before, self.left = self.left, np.float32(0.5) - self.left / np.float32(4096)
        return Mirror.swiglu(self, gate, up + before)


class Lasting(Kept):
    """An engine whose leftover state grows with each run, each time differently."""

    def swiglu(self, gate: F32, up: F32) -> F32:
        before, self.left = self.left, self.left * np.float32(0.75) + np.float32(0.5)
        return Mirror.swiglu(self, gate, up + before)


class Halves(Mirror):
    """An engine that reads a buffer before it is written, in every second run."""

    calls = 0

    def swiglu(self, gate: F32, up: F32) -> F32:
        self.calls += 1
        return super().swiglu(gate, up * np.float32(1 + self.calls % 2))


UNCLEARED = made("repeats: what is left", Reference, ops=Kept)
NEARLY_UNCLEARED = made("repeats: what is left fades", Reference, ops=Fading)
LONG_UNCLEARED = made("repeats: what is left lasts", Reference, ops=Lasting)


class Always(Racing, name="repeats: a race in every run"):
    """An engine with a race between threads, which a restart does not remove."""

    every = 1

    def evaluate(self, request: Request) -> Evaluation:
        Always.runs += 1
        self.by = 1e-2 * (Always.runs * 7 % 13 + 1)
        return super().evaluate(request)


class Dice(Reference, name="repeats: dice"):
    """An engine with right logits that samples its tokens."""

    asked = 0

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        self.asked += 1
        return [(token + self.asked) % 312 for token in super().greedy(prompt, n)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("model"), n_layer=1, n_vocab=312, n_ctx_train=40)


def verdicts_of(model: Path, engine: str, suite: str) -> list[Verdict]:
    asked = {"n_tokens": 8, "prompt": b"a"}
    with context_of(model, engine=engine, **asked) as context:
        return list(run_suites(context, (suite,)))


def test_race_is_a_verdict_with_its_rate_and_place(model: Path) -> None:
    first, shaky, rest = verdicts_of(model, OFTEN, "logits")
    assert (rest.status, "the engine's own runs differ by more" in rest.summary) == (
        "not-compared",
        True,
    )
    assert (shaky.status, shaky.key) == ("diverged", "logits/not-deterministic")
    rate = {"differ": 4, "runs": MORE, "place": "output 0 of batch 0, token 7"}
    assert {key: shaky.detail[key] for key in rate} == rate
    assert first.status == "agreed"  # about the first run only
    assert exit_code([shaky, first]) == 1


@pytest.mark.parametrize("engine", [UNCLEARED, NEARLY_UNCLEARED])
def test_state_left_by_an_earlier_run_is_distinguished_from_a_race(
    engine: str, model: Path
) -> None:
    _, shaky, _ = verdicts_of(model, engine, "logits")
    assert shaky.detail["first_alone"]
    _, race, _ = verdicts_of(model, OFTEN, "logits")
    assert not race.detail["first_alone"]


def test_restart_distinguishes_lasting_state_from_a_race(model: Path) -> None:
    _, shaky, _ = verdicts_of(model, LONG_UNCLEARED, "logits")
    assert (shaky.detail["first_alone"], shaky.detail["by_history"]) == (False, True)
    _, race, _ = verdicts_of(model, Always.name, "logits")
    assert race.detail["differ"] == race.detail["runs"]
    assert not race.detail["by_history"]


def test_unordered_sums_are_reported_and_the_rest_is_compared(model: Path) -> None:
    first, shaky = verdicts_of(model, HARDLY, "logits")
    assert shaky.key == "logits/not-deterministic"
    assert "with tensors shown" in first.detail["same"]


def test_difference_without_a_repeat_has_no_place(model: Path) -> None:
    first, shaky, _ = verdicts_of(model, SELDOM, "logits")
    assert shaky.detail["differ"] == MORE
    assert first.status == "diverged"


def test_sampled_tokens_are_distinguished_from_wrong_tokens(model: Path) -> None:
    _, wrong, shaky = verdicts_of(model, Dice.name, "decode")
    assert wrong.key == "decode/token"
    assert shaky.key == "decode/not-deterministic"


class Halved(Reference, name="repeats: halves"):
    ops = Halves


@pytest.mark.parametrize(("adapter", "site"), [(Reference, None), (Halved, "ffn_swiglu-0")])
def test_first_differing_tensor_is_named(
    adapter: type[Reference], site: str | None, model: Path
) -> None:
    with LocalSession(adapter, model, EXACT) as session:
        request = Request(batches=some_batches(312), capture=True)
        first = session.ask("evaluate", request).value  # type: ignore[union-attr]
        # one more batch, so that the number of calls is odd
        session.ask("evaluate", replace(request, batches=request.batches[:1]))
        found = unsteady(session, request, first)
    assert (found and found.place) == (site and f"{site} of batch 0")


@pytest.mark.parametrize("shape", [(2, 6), (1, 5), (3, 5)])
def test_outputs_of_another_shape_are_a_difference_and_the_run_continues(
    shape: tuple[int, int],
) -> None:
    """One case has a single row. Its numbers equal the first row of the first answer."""
    steady = np.zeros((1, 5), np.float32)
    first = Evaluation(logits=(steady, np.zeros((2, 5), np.float32)), trace=None)
    again = Evaluation(logits=(steady, np.zeros(shape, np.float32)), trace=None)
    assert first_difference(first, again) == (1, "the shape of batch 1's outputs", None)
    assert first_difference(first, first) is None


def test_nan_with_another_sign_is_the_same_answer() -> None:
    """Compiled code of a JVM gives NaN another sign than its interpreter does. This is not a race.
    If any other number of the answer changes too, the difference is a race."""
    nan = np.array([[0.5, np.nan, 1.0]], np.float32)
    signed = np.array([[0.5, np.nan, 1.0]], np.float32)
    signed.view(np.uint32)[0, 1] |= 1 << 31
    site = Site(step=0, layer=0, name="norm")

    def answer(value: NDArray[np.float32], last: float) -> Evaluation:
        trace = Trace(engine="", records=(TensorRecord(site=site, value=value),))
        return Evaluation(logits=(value * np.float32([1, 1, last]),), trace=trace)

    assert answer(nan, 1).logits[0].tobytes() != answer(signed, 1).logits[0].tobytes()
    assert first_difference(answer(nan, 1), answer(signed, 1)) is None
    apart = (1, "output 0 of batch 0, token 2", None)
    assert first_difference(answer(nan, 1), answer(signed, 2)) == apart


def test_runs_with_tensors_are_compared_with_each_other_too() -> None:
    """A dump is such an engine, because it may lack logits."""
    site = Site(step=0, layer=0, name="norm")

    def shown(value: float) -> Evaluation:
        record = TensorRecord(site=site, value=np.full(2, value, np.float32))
        return Evaluation(logits=(), trace=Trace(engine="same", records=(record,)))

    class Same:
        name = "same"

        def ask(self, question: str, request: Request) -> Answered:
            return Answered(value=shown(1), seconds=0.0)

    session: Any = Same()
    request = Request(batches=some_batches())
    assert unsteady(session, request, shown(1)) is None
    found = unsteady(session, request, shown(2))
    assert found is not None
    assert (found.differ, found.runs, found.site) == (MORE, MORE, site)
