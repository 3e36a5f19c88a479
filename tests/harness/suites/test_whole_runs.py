"""`logits` and `decode` find a wrong oracle as well as a wrong subject. Without a comparison,
nothing counts as agreeing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.errors import NotInModel
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import ReferenceOps as Plain
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import NO_OP, bisect
from lockstep.harness.check.check import Opened, open_plan, run_suites, settings_for
from lockstep.harness.context.runner import LocalSession
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EngineInfo, Evaluation, Request, Verdict
from lockstep.harness.synth.small import write_recurrent
from tests.contexts import context_of, diverged, statuses
from tests.harness.check.test_check import plan_for
from tests.models import builtin, with_values
from tests.quiet_engines import HalfSplit, made

WRONG = "mutant:rope-half-split"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return builtin("f32", tmp_path)


def verdicts_of(path: Path, *suites: str, **changes: Any) -> list[Verdict]:
    with context_of(path, **changes) as context:
        return list(run_suites(context, suites))


@pytest.fixture
def pair(model: Path) -> Iterator[Opened]:
    opened = open_plan(plan_for(model), lambda _: None)
    yield opened
    opened.close()


@pytest.mark.parametrize("suite", ["logits", "decode"])
@pytest.mark.parametrize("name", ["f32", "q8_0"])
def test_wrong_oracle_is_a_divergence_and_at_fault(name: str, suite: str, tmp_path: Path) -> None:
    found = verdicts_of(builtin(name, tmp_path), suite, oracle=WRONG)
    assert exit_code(found) == 1
    assert found[0].status == "diverged"
    assert found[0].detail["at_fault"] == "oracle"


@pytest.mark.parametrize(
    ("engine", "agrees"),
    [
        ("mutant:rope-later-batches-late", True),
        # the fault shows wherever a batch begins
        ("mutant:cache-ubatch-misses-the-one-before", False),
        (WRONG, False),
    ],
)
def test_report_says_if_a_wrong_second_batch_is_right_in_one_batch(
    engine: str, agrees: bool, model: Path
) -> None:
    wrong = diverged(verdicts_of(model, "logits", engine=engine))
    (found,) = (v for v in wrong if "different logits" not in v.summary)
    assert found.detail["at_fault"] == "subject"
    assert found.detail.get("in_one_batch") == ("agreed" if agrees else None)


def test_fault_in_second_recurrent_batch_is_not_called_a_mask(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_recurrent(path)
    first, *_ = verdicts_of(path, "logits", engine="mutant:state-not-carried")
    assert "each sequence carries on" in first.summary
    assert "mask" not in first.summary


class WrongInRowsOf(Reference, name="test:wrong in so many rows"):
    """An engine that omits the last row of a matrix if the number of activation rows has this
    value."""

    n_rows = 1

    def make_ops(self) -> Mirror:
        class Ops(Mirror):
            def linear(self, x: F32, weight: Weight) -> F32:
                out = super().linear(x, weight)
                if len(x) == WrongInRowsOf.n_rows:
                    out[..., -1] = 0
                return out

        return Ops()


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (1, "and a first batch of size 1 differs: look at the kernels for a single row"),
        (5, "and a first batch of size 5 differs: look at the kernels for this many rows"),
        (8, "so look at a batch of 8 tokens: the kernels for this many rows"),
    ],
)
def test_wrong_kernel_for_few_rows_is_not_blamed_on_the_prefix(
    n: int, said: str, model: Path
) -> None:
    """The number of rows is larger in a single batch, and there the engine is right too."""
    WrongInRowsOf.n_rows = n
    found = verdicts_of(model, "logits", engine=WrongInRowsOf.name, n_tokens=8)
    texts = [v.summary for v in found if v.detail.get("in_one_batch")]
    assert len(texts) == 1
    assert said in texts[0]
    assert "positions, mask, cache" not in texts[0]


def test_fault_only_in_the_first_run_is_not_blamed_on_batches(model: Path) -> None:
    class OnceWrong(Reference, name="test:once wrong"):
        asked = 0

        def evaluate(self, request: Request) -> Evaluation:
            run = super().evaluate(request)
            OnceWrong.asked += 1
            factor = np.float32(1.1 if OnceWrong.asked == 1 else 1.0)
            return replace(run, logits=tuple(rows * factor for rows in run.logits))

    first, again, *_ = verdicts_of(model, "logits", engine="test:once wrong")
    assert (first.status, again.status) == ("diverged", "diverged")
    assert "in_one_batch" not in first.detail
    assert again.key == "logits/not-deterministic"


def test_report_names_batch_size_as_a_cause_beside_a_sequence(
    model: Path,
) -> None:
    found = verdicts_of(model, "logits", engine="mutant:rope-second-prompt-late")
    (beside,) = (v for v in found if "beside another sequence" in v.summary)
    assert "twice as many tokens, which may be the cause" in beside.summary
    assert any(v.detail.get("in_one_batch") == "agreed" for v in found)


@pytest.mark.parametrize("suite", ["logits", "decode"])
def test_equally_wrong_engines_are_both_at_fault(suite: str, model: Path) -> None:
    found = verdicts_of(model, suite, oracle=WRONG, engine=WRONG)
    assert (found[0].status, found[0].detail["at_fault"]) == ("diverged", "both")
    assert "agreed" not in statuses(found)


class Unconverted(Reference, name="test:unconverted"):
    """An honest engine that multiplies unconverted activations."""

    def make_ops(self) -> Plain:
        return Plain()


@pytest.mark.parametrize("roles", [{"engine": Unconverted.name}, {"oracle": Unconverted.name}])
def test_engine_with_unconverted_activations_is_honest_in_either_role(
    roles: dict[str, str], tmp_path: Path
) -> None:
    found = verdicts_of(builtin("q8_0", tmp_path), "logits", "decode", **roles)
    assert exit_code(found) == 0


def scaled(path: Path, copy: Path, tensor: str, factor: float) -> Path:
    """Write a copy of an F32 model with one tensor scaled, possibly by NaN."""
    return with_values(path, copy, tensor, lambda values: values * np.float64(factor))


def test_overflowing_honest_runs_give_no_limit(model: Path, tmp_path: Path) -> None:
    with GgufFile.open(model) as file:
        raw = file.raw("output.weight").view("<f4")
        factor = 3.3e38 / float(np.abs(raw).max())
    huge = scaled(model, tmp_path / "huge.gguf", "output.weight", factor)
    assert exit_code(verdicts_of(huge, "logits", oracle=WRONG)) != 0
    found = verdicts_of(huge, "logits")
    assert all("allowed inf" not in v.summary for v in found)
    assert exit_code(found) == 3


class OnlyLogits(Reference, name="test:only-logits"):
    """An engine with wrong rotations that shows only embeddings."""

    ops = HalfSplit

    def describe(self) -> EngineInfo:
        return replace(super().describe(), shows=("embd",))

    def evaluate(self, request: Request) -> Evaluation:
        run = super().evaluate(request)
        if run.trace is None:
            return run
        records = tuple(r for r in run.trace.records if r.site.name == "embd")
        return replace(run, trace=replace(run.trace, records=records))


class Fickle(LocalSession):
    """An engine that chooses a wrong token at one step, and is otherwise right."""

    def _ask(self, question: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outcome = super()._ask(question, args, kwargs)
        if question != "greedy":
            return outcome
        ids: Sequence[int] = outcome.value  # type: ignore[union-attr]
        return replace(outcome, value=[*ids[:2], (ids[2] + 1) % 384, *ids[3:]])


@pytest.mark.parametrize("roles", [["oracle"], ["subject"], ["oracle", "subject"]], ids=str)
def test_greedy_choice_below_the_largest_logit_is_found_in_either_role(
    roles: list[str], pair: Opened, model: Path
) -> None:
    with Fickle(Reference, model, settings_for(plan_for(model))) as session:
        context = replace(pair.context, **dict.fromkeys(roles, session))  # type: ignore[arg-type]
        found = [v for v in run_suites(context, ["decode"]) if v.key == "decode/token"]
    assert [(v.status, v.detail["step"]) for v in found] == [("diverged", 2)]
    assert found[0].detail["at_fault"] == ("both" if len(roles) == 2 else roles[0])


class NoNumbers(Reference, name="test:no-numbers"):
    """An engine whose every logit is NaN."""

    def evaluate(self, request: Request) -> Evaluation:
        run = super().evaluate(request)
        return replace(run, logits=tuple(np.full_like(each, np.nan) for each in run.logits))


def test_honest_engine_is_not_accused_if_the_oracle_shows_only_nan(model: Path) -> None:
    """The limit was a share of the oracle's largest logit in an earlier version. Here this logit is
    NaN."""
    found = verdicts_of(model, "logits", "decode", oracle=NoNumbers.name, engine="fast")
    wrong = [v.detail["at_fault"] for v in found if v.status == "diverged"]
    assert wrong == ["oracle", "oracle"]


def test_greedy_tokens_are_not_compared_after_wrong_logits(model: Path) -> None:
    found = verdicts_of(model, "decode", oracle=WRONG)
    assert [v.status for v in found] == ["diverged", "not-compared"]


class SaysThatThereAreNone(Reference, name="test:says-that-there-are-none"):
    def evaluate(self, request: Request) -> Evaluation:
        raise NotInModel("the model has no logits")


@pytest.mark.parametrize("role", ["oracle", "engine"])
def test_engine_that_declares_missing_parts_does_not_pass(role: str, model: Path) -> None:
    """An earlier version let the engine pass, because logits, decode, trace and products were not
    applicable."""
    found = verdicts_of(model, **{role: SaysThatThereAreNone.name})
    asked = {"logits", "decode"} | ({"trace", "products"} if role == "engine" else set())
    assert {v.suite for v in found if v.status == "not-compared"} == asked
    assert exit_code(found) == 3


def test_bisect_does_not_conform_if_both_are_wrong_in_hidden_tensors(model: Path) -> None:
    with context_of(model, oracle=OnlyLogits.name, engine=OnlyLogits.name) as context:
        found = bisect(context)
    assert found.exit_code == 1
    assert found.first is not None
    assert found.first.site.name == "result_output"  # an engine's outputs are judged too


class KeepsPrompts(Reference):
    """An engine that caches prompts. `read` returns the tokens that the engine uses for the first
    batch. Its argument `known` holds the tokens of earlier calls."""

    read: Callable[[dict[Any, Any], Request], NDArray[np.int32]]

    def evaluate(self, request: Request) -> Evaluation:
        known: dict[Any, Any] = self.__dict__.setdefault("known", {})
        first, *rest = request.batches
        first = replace(first, tokens=type(self).read(known, request))
        return super().evaluate(replace(request, batches=(first, *rest)))


def by_its_beginning(known: dict[Any, Any], request: Request) -> NDArray[np.int32]:
    """Find cached prompts by their beginnings and ends."""
    tokens = request.batches[0].tokens
    ids = tokens.tolist()
    found: NDArray[np.int32] = known.setdefault((len(ids), *ids[:3], ids[-1]), tokens)
    return found


def by_its_first_token(known: dict[Any, Any], request: Request) -> NDArray[np.int32]:
    """Cache only the last prompt, and find it by its length and first token."""
    tokens = request.batches[0].tokens
    key = (len(tokens), int(tokens[0]))
    if key not in known:
        known.clear()
    found: NDArray[np.int32] = known.setdefault(key, tokens)
    return found


def by_its_sizes(known: dict[Any, Any], request: Request) -> NDArray[np.int32]:
    """Reuse the first four tokens of the previous call if its batches had the same sizes."""
    tokens, sizes = request.batches[0].tokens.copy(), tuple(map(len, request.batches))
    tokens[:4] = known.get(sizes, tokens[:4])
    known.clear()
    known[sizes] = request.batches[0].tokens[:4]
    return tokens


BY_ITS_BEGINNING, BY_ITS_FIRST_TOKEN, BY_ITS_SIZES = (
    made(f"whole runs: {read.__name__}", KeepsPrompts, read=staticmethod(read))
    for read in (by_its_beginning, by_its_first_token, by_its_sizes)
)


def test_answer_for_earlier_tokens_is_recognised(model: Path) -> None:
    found = verdicts_of(model, "logits", engine=BY_ITS_BEGINNING)
    (wrong,) = diverged(found)
    assert wrong.summary.startswith("with another middle token: ")
    assert wrong.detail["answered_before"]
    others = verdicts_of(model, "logits", engine="mutant:cache-cells-beyond-64", n_tokens=32)
    assert not any("answered_before" in v.detail for v in others)


def test_answer_for_other_tokens_than_usual_is_recognised(model: Path) -> None:
    """The engine caches only the last prompt, which differs from the present prompt in one
    token."""
    found = verdicts_of(model, "logits", engine=BY_ITS_FIRST_TOKEN)
    (wrong,) = diverged(found)
    assert wrong.summary.startswith("with another last token: ")
    assert "the answer is bit for bit the answer with another middle token" in wrong.summary


@pytest.mark.parametrize(("name", "more"), [("f32", False), ("moe-q8_0", True)])
def test_state_of_earlier_calls_is_not_blamed_on_token_counts(
    name: str, more: bool, tmp_path: Path
) -> None:
    """A single batch with all tokens has a new length, so the engine reads its tokens from the
    request."""
    found = verdicts_of(builtin(name, tmp_path), "logits", engine=BY_ITS_SIZES)
    wrong = [v for v in found if v.detail.get("in_one_batch")]
    assert wrong
    assert not any("kernels" in v.summary for v in wrong)
    assert all("look at state kept from earlier calls" in v.summary for v in wrong)
    assert all(("or at experts" in v.summary) is more for v in wrong)


def test_bisect_blames_no_op_for_an_answer_for_earlier_tokens(model: Path) -> None:
    """The first op that differs is the look-up of embeddings. It is not at fault, because the
    engine answers for earlier tokens."""
    with context_of(model, engine=BY_ITS_BEGINNING) as context:
        found = bisect(context)
    assert not found.culprits
    assert any("answered_before" in verdict.detail for verdict in found.others)
    assert found.exit_code == NO_OP
