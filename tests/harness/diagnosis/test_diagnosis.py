"""Diagnosis by known mistakes, from logits and text. It names the right mistake. For a right engine
or an unknown fault, it names no mistake."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters import adapter_class
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.catalogue.views import ALL, LOGITS, TEXT, View, seen_through
from lockstep.harness.check.check import describe_engine, open_plan
from lockstep.harness.cli.diagnosis import diagnosis_lines
from lockstep.harness.diagnosis.diagnosis import (
    Diagnosed,
    Diagnosis,
    DiagnosisBench,
    Match,
    Rows,
    diagnose,
)
from lockstep.harness.diagnosis.engines import is_near, may_be
from lockstep.harness.diagnosis.questions import Greedy, Header, Written, is_tie, within
from lockstep.harness.diagnosis.selftest import is_kept, is_named, is_wrong, lines, share
from lockstep.harness.diagnosis.trials import TrialRow
from lockstep.harness.judging.noise import NoiseFloor
from lockstep.harness.parallel.row_files import make_row
from lockstep.harness.records import EXACT, EngineInfo, Evaluation, FileSummary, Request
from tests.harness.check.test_check import plan_for
from tests.models import builtin

HALVES = "mutant:rope-half-split"
CATALOGUE = (
    HALVES,
    "mutant:silu-without-gate",
    "mutant:kv-head-modulo",
    "mutant:missing-scale",
    "mutant:wrong-eps",
    "mutant:greedy-second-best",
    "mutant:cache-keys-f16",
    "mutant:rope-position-off-by-one",
    "mutant:bos-doubled",
    "mutant:floats-of-six-digits",
    "mutant:q8-0-unsigned",
)


@dataclass(frozen=True)
class Noise:
    """A stand-in for llama.cpp's noise in `harness.graph.honest_runs`, which is 8.6e-6 and 1.5e-2
    on these models."""

    relative: float

    def floor(self, batches: Sequence[Batch], *, seed: int, runs: int) -> NoiseFloor:
        return NoiseFloor(logits=(), relative=self.relative)

    def logits(self, batches: Sequence[Batch]) -> tuple[F32, F32]:
        raise AssertionError("nobody is judged here")


def diagnosed(
    engine: str | type[Any],
    folder: Path,
    *,
    view: View = ALL,
    model: str = "f32",
    noise: float = 1e-5,
    known: Sequence[str] = CATALOGUE,
    not_ours: str = "",
    tell: Callable[[Any], None] = lambda said: None,
) -> Diagnosed:
    cls = adapter_class(engine) if isinstance(engine, str) else engine
    path = builtin(model, folder)
    opened = open_plan(plan_for(path, n_steps=24), lambda _: None)
    opened.context.make_honest = lambda _: Noise(noise)
    subject = seen_through(view, LocalSession(cls, path, EXACT))
    context = opened.context.with_subject(subject, path, describe_engine(subject, under_test=True))
    context = replace(context, facts=replace(context.facts, not_ours=not_ours))
    bench = DiagnosisBench.of(context)
    near, far = (
        tuple(cls for cls in classes if cls.name in known) for classes in (bench.near, bench.far)
    )
    try:
        return diagnose(context, replace(bench, near=near, far=far), tell)
    finally:
        bench.close()
        subject.close()
        opened.close()


def runs(found: Diagnosed) -> Diagnosis:
    (of_runs,) = (each for each in found.of if each.aspect == "runs")
    return of_runs


def names(found: Diagnosis) -> list[str]:
    return [match.engine for match in found.named]


def with_product(change: Callable[[F32], F32], *, base: str = "reference") -> type[Any]:
    """Return an engine in which `change` alters the products of one weight."""
    cls: Any = adapter_class(base)

    def make_ops(self: Any) -> Any:
        ops = cls.make_ops(self)
        right = ops.linear

        def linear(x: F32, weight: Weight) -> F32:
            out: F32 = right(x, weight)
            return change(out) if weight.name == "blk.0.ffn_down.weight" else out

        ops.linear = linear
        return ops

    return type("Made", (cls,), {"make_ops": make_ops})


class HotAttention(Mirror):
    def soft_max(self, x: F32, scale: float, *rest: Any) -> F32:
        return super().soft_max(x, 1.03 * scale, *rest)


class Hot(Reference):
    """An engine with softmax scores that are three per cent too large."""

    ops = HotAttention


class Offers(Reference):
    """An engine that offers only the levels given by a test."""

    levels: tuple[str, ...] = ()

    def describe(self) -> EngineInfo:
        return replace(super().describe(), levels=self.levels)


class OffersLogits(Offers, name="test:logits-that-fail"):
    levels = ("logits",)

    def evaluate(self, request: Request) -> Evaluation:
        raise NotImplementedError("later")


# --- named mistakes -----------------------------------------------------------------------------


def test_mistake_is_named_by_its_logits(tmp_path: Path) -> None:
    found = diagnosed(HALVES, tmp_path)
    assert runs(found).status == "named"
    assert names(runs(found)) == [HALVES]
    assert {each.aspect: each.status for each in found.of if each.aspect != "runs"} == {
        "metadata": "right",
        "tokens": "right",
    }
    assert found.exit_code == 1


@pytest.mark.parametrize("mistake", [HALVES, "mutant:greedy-second-best", "mutant:missing-scale"])
def test_mistake_is_named_by_its_text_alone(mistake: str, tmp_path: Path) -> None:
    found = diagnosed(mistake, tmp_path, view=TEXT)
    assert runs(found).status == "named"
    assert names(runs(found)) == [mistake]


@pytest.mark.parametrize(
    ("mistake", "by_text"),
    [
        ("mutant:greedy-second-best", "named"),  # one text contains many choices
        ("mutant:greedy-with-penalty", "few"),  # one or two choices, which a small error may tip
    ],
)
def test_mistake_in_choosing_is_distinguished_from_one_in_logits(
    mistake: str, by_text: str, tmp_path: Path
) -> None:
    """Errors within the noise of the logits do not explain the wrong tokens."""
    known = (mistake, *CATALOGUE)
    found = runs(diagnosed(mistake, tmp_path, known=known))
    rows, tokens = (row for row in found.rows if row.unit != "weights")
    assert rows.compared == rows.right
    assert tokens.right < tokens.compared
    assert (found.status, names(found)) == ("named", [mistake])
    assert runs(diagnosed(mistake, tmp_path, view=TEXT, known=known)).status == by_text


@pytest.mark.parametrize("view", [LOGITS, TEXT], ids=lambda view: view.name)
def test_prompt_with_its_last_token_computed_twice_is_named(view: View, tmp_path: Path) -> None:
    mistake = "mutant:prompt-last-token-twice"
    known = (mistake, "mutant:prompt-bos-added", *CATALOGUE)
    found = runs(diagnosed(mistake, tmp_path, view=view, known=known))
    assert (found.status, names(found)) == ("named", [mistake])


def test_mistakes_of_reader_and_run_are_named_separately(tmp_path: Path) -> None:
    found = diagnosed("mutant:floats-of-six-digits", tmp_path)
    assert [each.status for each in found.of] == ["named", "right", "right"]


@pytest.mark.parametrize(
    ("engine", "model", "noise"),
    [("reference", "f32", 1e-5), ("fast", "f32", 1e-5), ("honest:float64", "q8_0", 2e-2)],
)
def test_an_honest_engine_gets_no_diagnosis(
    engine: str, model: str, noise: float, tmp_path: Path
) -> None:
    found = diagnosed(engine, tmp_path, model=model, noise=noise)
    assert {each.status for each in found.of} == {"right"}
    assert not any(each.named for each in found.of)


UNKNOWN: dict[str, type[Any]] = {
    "hot attention": Hot,
    "a scale that is off": with_product(lambda out: out * np.float32(1.03)),
    "two faults at once": with_product(lambda out: out * np.float32(1.5), base=HALVES),
}


@pytest.mark.parametrize("engine", UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_fault_matches_no_known_mistake(engine: type[Any], tmp_path: Path) -> None:
    found = runs(diagnosed(engine, tmp_path))
    assert found.status == "none"
    # all mistakes, except one for a format that the file lacks
    assert found.tried >= len(CATALOGUE) - 1
    assert not found.named


def test_two_faults_at_once_match_no_single_mistake_by_text(tmp_path: Path) -> None:
    found = runs(diagnosed(UNKNOWN["two faults at once"], tmp_path, view=TEXT))
    assert found.status == "none"


def test_missing_mistake_is_not_replaced_by_another(tmp_path: Path) -> None:
    assert runs(diagnosed(HALVES, tmp_path, known=CATALOGUE[1:])).status == "none"


def test_summary_states_the_comparison_and_its_result(tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    text = "\n".join(diagnosis_lines(plan_for(path, engine=HALVES), diagnosed(HALVES, tmp_path)))
    assert "34 of 34 tokens" in text  # a text of 24 tokens, and ten further prompts
    assert "DIAGNOSIS (" in text
    assert f"rope on half-split pairs ({HALVES}" in text


def test_diagnosis_names_nothing_if_too_few_answers_differ(tmp_path: Path) -> None:
    """One of 144 tokens differs. Any change near a tie could cause this difference."""
    match = Match(engine="mutant:a", mistake="all is a bit off", effect="", source="", left=0.0)
    rows = (Rows(unit="tokens", compared=144, right=143),)
    found = Diagnosis(aspect="runs", status="few", rows=rows, named=(match,), places=1)
    plan = plan_for(builtin("f32", tmp_path))
    text = "\n".join(diagnosis_lines(plan, Diagnosed(of=(found,), missing=())))
    assert "too few answers differ to name one mistake" in text
    assert "mutant:a" in text
    assert "DIAGNOSIS" not in text


# --- equal answers ------------------------------------------------------------------------------


def test_row_is_equal_within_the_limit_or_if_both_are_nan() -> None:
    said = np.array([[1, 2], [1, 2], [np.nan, 1], [np.inf, 1], [np.nan, 1]], np.float32)
    answer = np.array([[1.01, 2], [1.2, 2], [np.nan, 1], [np.inf, 1], [0, 1]], np.float32)
    found = within(said, answer, 0.1)
    assert found.same.tolist() == [True, False, True, True, False]
    assert found.apart[1] == pytest.approx(0.04, rel=1e-3)
    assert np.isinf(found.apart[4])


def test_tokens_after_a_tie_are_not_compared() -> None:
    rows = [np.array([3, 1, 0], np.float32), np.array([1, 1.0001, 0], np.float32)]
    question, session = Greedy(words="", ids=(1,), n=3), cast(LocalSession, None)
    answer = ([0, 1, 2], [*rows, rows[0]])
    assert question.compare([0, 0, 1], answer, session, 1e-3).same.tolist() == [True]
    assert question.compare([0, 0, 1], answer, session, 1e-6).same.tolist() == [True, False, False]
    # the engine itself decides between equal logits
    assert not is_tie(np.array([1, 1], np.float32), 0, 1, 1e-3)


def test_wrong_format_is_tried_only_if_the_file_has_the_format() -> None:
    cls: Any = adapter_class("mutant:q4-0-offset")
    assert may_be(cls, {"F32", "Q4_0"}, vocabulary=False)
    assert not may_be(cls, {"F32"}, vocabulary=False)


def test_wrong_tokenizer_is_tried_only_with_a_vocabulary() -> None:
    cls: Any = adapter_class("mutant:bos-doubled")
    assert may_be(cls, {"F32"}, vocabulary=True)
    assert not may_be(cls, {"F32"}, vocabulary=False)


def test_mistakes_of_the_same_architecture_come_first() -> None:
    cls: Any = adapter_class("mutant:rope-base-of-llama")
    assert is_near(cls, "qwen2")
    assert not is_near(cls, "llama")


# --- counting -----------------------------------------------------------------------------------


def row(engine: str, status: str, *named: str, view: str = "logits") -> TrialRow:
    return TrialRow(
        engine=engine, family="rope", model="f32", view=view, status=status, named=tuple(named)
    )


def test_wrongly_named_mistake_is_not_a_success() -> None:
    rows = [row("a", "named", "a", "b"), row("b", "named", "c"), row("c", "right")]
    assert [is_named(r) for r in rows] == [True, False, False]
    assert [is_wrong(r) for r in rows] == [False, True, False]
    assert share(rows, "logits") == 0.5
    text = list(lines(rows, 3))
    assert text[2].split() == ["logits", "3", "2", "1", "0", "1", "0", "0"]
    assert text[-1] == "b on f32, logits: named c"


def test_promise_counts_only_visible_mistakes() -> None:
    fine = [row("a", "named", "a"), row("b", "right")]
    assert is_kept(fine)
    assert not is_kept([row("a", "right"), row("b", "right", view="text")])
    assert not is_kept([*fine, row("c", "none")])  # half of the mistakes are named
    assert not is_kept([*fine * 9, row("c", "named", "a")])


def test_diagnosis_of_an_engine_without_levels_is_incomplete(tmp_path: Path) -> None:
    found = diagnosed(Offers, tmp_path)
    assert found.exit_code == 3
    _, line = diagnosis_lines(plan_for(tmp_path / "m.gguf"), found)
    assert "not answered: anything: the engine offers no logits" in line


def test_diagnosis_of_a_foreign_model_does_not_blame_the_engine(tmp_path: Path) -> None:
    """An earlier version reported that the engine offers no logits, although it does."""
    found = diagnosed(OffersLogits, tmp_path, not_ours="our engine has no graph of 'olmoe'")
    assert found.exit_code == 3
    (text,) = found.missing
    assert text.startswith("its runs: our engine has no graph of 'olmoe'")


def test_shared_failure_is_reported_once_by_its_last_line(tmp_path: Path) -> None:
    found = diagnosed(OffersLogits, tmp_path)
    assert found.exit_code == 3
    (text,) = found.missing
    assert "\n" not in text
    assert text.endswith("NotImplementedError: later")
    assert "the logits of a prompt and of tokens after it, the logits of the same" in text


def test_diagnosis_accuses_no_engine_if_there_is_no_limit(tmp_path: Path) -> None:
    found = diagnosed(HALVES, tmp_path, noise=inf)
    assert {each.aspect: each.status for each in found.of}["runs"] == "not-compared"
    assert found.exit_code == 3


def test_engine_without_key_types_is_compared_in_values() -> None:
    keys = {"name": ("STR", "caf\udce9"), "n": ("U32", 7), "tokens": ("ARR[STR]", ["a", "inf"])}
    right = FileSummary(version=3, alignment=32, data_offset=0, metadata=keys, tensors=())
    said = {"name": ("", "caf\ufffd"), "n": ("", 7), "tokens": ("", ["a", "inf"])}
    honest = replace(right, metadata=said, unknown=("types", "tensors"))
    wrong = replace(honest, metadata={**said, "n": ("", 8)})
    session = cast(LocalSession, None)
    for utf8_only, other, same in (
        (True, honest, [True, True, True]),
        (True, wrong, [False, True, True]),
        (False, honest, [True, False, True]),  # the engine could have shown the bytes
    ):
        found = Header(utf8_only=utf8_only).compare(other, right, session, 0.0)
        assert found.same.tolist() == same


def test_engine_with_utf8_alone_is_not_asked_for_other_texts() -> None:
    said, right = [b"\xef\xbf\xbd", b"a", b"b"], [b"\xff", b"a", b"c"]
    for utf8_only, same in ((True, [True, True, False]), (False, [False, True, False])):
        question = Written(words="", flags=(), rows=((1,), (2,), (3,)), utf8_only=utf8_only)
        found = question.compare(said, right, cast(LocalSession, None), 0.0)
        assert found.same.tolist() == same


def test_row_survives_json() -> None:
    one = row("a", "named", "a")
    assert make_row(TrialRow)(json.loads(json.dumps(asdict(one)))) == one
