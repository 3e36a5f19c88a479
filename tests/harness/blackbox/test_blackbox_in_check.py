"""`check` of an engine without tensors: it tests the graph on the F32 twin, and the weights through
lenses."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.blackbox import in_check, whole
from lockstep.harness.blackbox.asking import SliceAnswer, SliceAsker, left_unanswered
from lockstep.harness.blackbox.bisection import NO_LENS
from lockstep.harness.blackbox.in_check import check_black_box
from lockstep.harness.blackbox.whole import SMALL
from lockstep.harness.check.check import Plan, open_plan
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.records import REFUSED, Verdict
from lockstep.harness.report.text import explain
from lockstep.harness.runs.known_failures import (
    KnownFailures,
    extent_of,
    read_known,
    write_known,
)
from tests.black_boxes import copy_with, one_nibble, scaled
from tests.harness.check.test_check import plan_for
from tests.models import builtin, written


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return builtin("q8_0", tmp_path)


@pytest.fixture(autouse=True)
def one_lens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use only one lens of each type."""
    monkeypatch.setattr(in_check, "LENSES", 1)


def verdicts(
    plan: Plan,
    levels: tuple[str, ...] = ("logits",),
    *,
    named: bool = False,
    shows: tuple[str, ...] | None = None,
) -> Iterator[Verdict]:
    """Yield the verdicts on the plan's engine, restricted to these levels."""
    with closing(open_plan(plan, lambda _: None)) as opened:
        info = replace(opened.context.subject_info, levels=levels)
        info = replace(info, computes_nodes=False, shows_nodes=False, shows=shows)
        context = replace(opened.context, subject_info=info, named=named)
        yield from check_black_box(plan, context)


def plan_of(path: Path, **changes: Any) -> Plan:
    return plan_for(path, n_tokens=8, **changes)


def test_right_engine_agrees_on_the_twin_and_through_lenses(model: Path) -> None:
    twin, eps, gates, weights, *left_out = verdicts(plan_of(model))
    assert {v.status for v in (twin, eps, gates, weights)} == {"agreed"}
    assert twin.summary.startswith("the F32 twin: ")
    assert "weights (Q8_0) agree with their bytes" in weights.summary
    more, places = left_out
    assert (places.status, "in their places" in places.summary) == ("agreed", True)
    assert (more.status, "more lenses" in more.summary) == ("not-applicable", True)


def test_misread_weight_is_named_by_its_tensor(model: Path, tmp_path: Path) -> None:
    wrong = copy_with(model, tmp_path / "wrong.gguf", "token_embd.weight", one_nibble)
    found = [v for v in verdicts(plan_of(model, subject_model=wrong)) if v.status == "diverged"]
    (lens,) = [v for v in found if v.key == "black-box/lens/Q8_0"]
    assert lens.detail["tensors"] == ["token_embd.weight"]


def test_wrong_graph_differs_on_the_twin_and_its_weights_agree(model: Path) -> None:
    found = list(verdicts(plan_of(model, engine="mutant:rope-half-split")))
    (twin,) = [v for v in found if v.status == "diverged"]
    assert "allowed because: " in explain(twin)
    assert twin.summary.startswith("the F32 twin: ")
    assert any(v.status == "agreed" and "weights" in v.summary for v in found)


def test_engine_wrong_after_the_layers_is_not_accused_of_its_weights(model: Path) -> None:
    """Lenses show the weights only through the last norm and the head."""
    found = list(verdicts(plan_of(model, engine="mutant:last-norm-missing")))
    (twin,) = [v for v in found if v.status == "diverged"]
    assert twin.summary.startswith("the F32 twin: ")
    assert any(v.status == "not-applicable" and NO_LENS in v.summary for v in found)


def test_large_model_is_tested_in_slices(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "LARGEST_TWIN", 0)
    found = [v for v in verdicts(plan_of(model)) if "slice" in v.summary]
    assert [v.status for v in found] == ["agreed"] * len(found)
    assert len(found) == 5  # two slices without layers, and three layers


def test_some_of_many_equal_layers_are_tested_and_untested_layers_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Testing all 32 layers of a model with 8 billion weights took four minutes."""
    monkeypatch.setattr(whole, "LARGEST_TWIN", 0)
    monkeypatch.setattr(in_check, "SLICES", 2)
    path = written(tmp_path, quant="Q8_0", n_layer=5)
    found = [v for v in verdicts(plan_of(path)) if "slice" in v.summary]
    asked = {v.summary.split(": ")[0].split(", ")[1] for v in found if v.status == "agreed"}
    assert asked == {"outside the layers", "layer 0", "layer 4"}
    (left,) = [v for v in found if v.status != "agreed"]
    words = "3 more layers of the same kind were not sliced: lockstep bisect --black-box"
    assert (left.status, left.summary) == ("not-applicable", words)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 32, 80])
def test_asked_layers_range_from_the_first_to_the_last(n: int) -> None:
    found = in_check.spread(n)
    assert (found[0], found[-1], len(found)) == (0, n - 1, min(n, in_check.SLICES))


@pytest.mark.parametrize(
    ("name", "levels", "why"),
    [
        ("q8_0", ("logits", "trace"), "shows tensors"),
    ],
)
def test_black_box_asks_nothing_if_other_suites_compare_as_much(
    name: str, levels: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    plan = plan_of(builtin(name, tmp_path))
    assert list(verdicts(plan, levels)) == []
    (verdict,) = verdicts(plan, levels, named=True)
    assert verdict.status == "not-applicable"
    assert why in verdict.summary


@pytest.mark.parametrize(("name", "where"), [("f32", SMALL), ("q8_0", "the F32 twin")])
@pytest.mark.parametrize("wrong", ["wrong-eps", "eps-outside-root", "eps-missing"])
def test_wrong_eps_is_found_with_small_activations_or_f32_weights(
    name: str, where: str, wrong: str, tmp_path: Path
) -> None:
    plan = plan_of(builtin(name, tmp_path), engine=f"mutant:{wrong}")
    found = [v for v in verdicts(plan) if v.status == "diverged"]
    assert [v.summary.partition(":")[0] for v in found] == [where]


def test_engine_without_f32_models_is_not_accused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = SliceAnswer(status="not-compared", summary="it takes no F32")
    monkeypatch.setattr(SliceAsker, "answer_to", lambda *_: refused)
    twin, *_ = verdicts(plan_of(model))
    assert (twin.status, twin.summary) == ("not-applicable", "the F32 twin: it takes no F32")


def test_listed_divergence_excuses_no_other_of_the_same_question(tmp_path: Path) -> None:
    """The two wrong graphs differ at different small activations, and by errors of different
    size."""
    path, listed = builtin("f32", tmp_path), tmp_path / "known.json"
    eps, heads, tokens = (
        [v for v in verdicts(plan_of(path, engine=engine), levels) if v.status == "diverged"]
        for engine, levels in (
            ("mutant:wrong-eps", ("logits",)),
            ("mutant:kv-head-modulo", ("logits",)),
            ("mutant:kv-head-modulo", ("greedy",)),
        )
    )
    assert len({v.key for v in (*eps, *heads, *tokens)}) == 1
    assert {extent_of(v).kind for v in (*eps, *heads)} == {"value"}
    assert all(extent_of(v).size for v in (*eps, *heads, *tokens))
    write_known(listed, eps, KnownFailures())
    known = read_known(listed)
    assert [known.excuse(v).status for v in (*eps, *heads)] == ["excused", "diverged"]


def test_listed_weight_excuses_no_other_of_the_same_lens(model: Path, tmp_path: Path) -> None:
    found = []
    for wrong in (one_nibble, scaled):
        copy = copy_with(model, tmp_path / f"{wrong.__name__}.gguf", "token_embd.weight", wrong)
        said = verdicts(plan_of(model, subject_model=copy))
        found += [v for v in said if v.key == "black-box/lens/Q8_0"]
    elsewhere = {**found[0].detail, "asked": "output.weight"}
    write_known(tmp_path / "known.json", found[:1], KnownFailures())
    known = read_known(tmp_path / "known.json")
    tried = (*found, replace(found[0], detail=elsewhere))
    assert [known.excuse(v).status for v in tried] == ["excused", "diverged", "diverged"]


def test_probe_model_that_llama_cpp_refuses_accuses_no_engine() -> None:
    """Gemma2 has no separate head, so llama.cpp refuses a probe model that has one.

    An earlier message blamed the engine, and its user looked for a fault that did not exist.
    """
    said = "llama.cpp refuses what the other engine accepts: wrong number of tensors"
    detail = {
        "engine": "llama.cpp",
        "question": "evaluate",
        "kind": REFUSED,
        "where": "wrong number",
    }
    found = left_unanswered(NoAnswer("diverged", said, detail), "llama.cpp")
    assert found.status == "not-compared"
    assert found.summary == "llama.cpp does not load the probe model: wrong number"
