"""Messages that a diagnosis prints before its end, and messages about unknown faults.

Before its end, a diagnosis prints how long it will take, what differs, and the result of each
aspect.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.catalogue.views import LOGITS, TEXT
from lockstep.harness.check.check import Plan
from lockstep.harness.cli.diagnosing import Remarks
from lockstep.harness.cli.diagnosis import diagnosis_lines
from lockstep.harness.diagnosis.diagnosis import Diagnosed, Diagnosis
from lockstep.harness.diagnosis.differences import Difference, around_difference
from lockstep.harness.diagnosis.pace import Estimate, Pace
from lockstep.harness.records import EXACT
from tests.harness.check.test_check import plan_for
from tests.harness.diagnosis.test_diagnosis import HALVES, Hot, diagnosed, runs
from tests.models import builtin, written


class NoLineBreaks(Reference):
    """An engine that loses an id in some texts, unlike any known mistake."""

    def tokenize(self, texts: Sequence[bytes], **flags: bool) -> list[list[int]]:
        rows = super().tokenize(texts, **flags)
        return [ids[:-1] if b"\n" in text else ids for text, ids in zip(texts, rows, strict=True)]


def lines_of(found: Diagnosed, folder: Path) -> str:
    return "\n".join(diagnosis_lines(plan_for(builtin("f32", folder)), found))


def test_diagnosis_reports_each_aspect_before_it_asks_about_the_next(tmp_path: Path) -> None:
    told: list[Any] = []
    found = diagnosed(HALVES, tmp_path, tell=told.append)
    assert [one for one in told if isinstance(one, Diagnosis)] == list(found.of)
    kinds = [type(one) for one in told]
    first = kinds.index(Difference)
    assert Diagnosis in kinds[:first]  # about the file and its tokens
    assert Estimate in kinds[first:]  # further questions follow the first difference


def test_diagnosis_reports_no_difference_for_an_engine_without_rounding(tmp_path: Path) -> None:
    told: list[Any] = []
    diagnosed("honest:float64", tmp_path, model="q8_0", noise=2e-2, tell=told.append)
    assert not any(isinstance(one, Difference) for one in told)


def test_diagnosis_shows_the_texts_that_differ(tmp_path: Path) -> None:
    found = diagnosed(NoLineBreaks, tmp_path)
    (of_tokens,) = (each for each in found.of if each.aspect == "tokens")
    assert of_tokens.status == "none"
    assert of_tokens.differences
    assert len({one.asked for one in of_tokens.differences}) == len(of_tokens.differences)
    assert all("\\n" in one.asked for one in of_tokens.differences)
    assert all(one.got != one.expected for one in of_tokens.differences)
    first = of_tokens.differences[0]
    said = f"differs: {first.asked}: got {first.got}, expected {first.expected}"
    assert said in lines_of(found, tmp_path)


def test_diagnosis_shows_one_row_of_logits_and_the_tokens(tmp_path: Path) -> None:
    shown = runs(diagnosed(HALVES, tmp_path, view=LOGITS)).differences
    assert sum(one.asked.startswith("row ") for one in shown) == 1
    shown = runs(diagnosed(HALVES, tmp_path, view=TEXT)).differences
    assert all(one.got.isdigit() and one.expected.isdigit() for one in shown)


def test_diagnosis_names_the_family_with_the_nearest_effect(tmp_path: Path) -> None:
    found = diagnosed(Hot, tmp_path, view=LOGITS)
    family = runs(found).family
    assert family is not None
    assert (family.name, family.nearest.engine) == ("attention", "mutant:missing-scale")
    assert 0 < family.alike <= 1
    assert "attention, missing 1/sqrt(d)" in lines_of(found, tmp_path)


def test_named_mistake_needs_no_family(tmp_path: Path) -> None:
    assert runs(diagnosed(HALVES, tmp_path)).family is None


def test_pace_counts_only_answer_times() -> None:
    pace = Pace(left=100)
    assert (str(pace), pace.seconds_left) == ("", 0.0)
    pace.add(25, 50.0)
    assert pace.seconds_left == 150.0
    assert str(pace) == ", about 2 minutes left"


def test_ids_are_shown_around_the_first_difference() -> None:
    own, right = [*range(20), 7], [*range(20), 8, 9]
    assert around_difference(own, right) == ("[..., 18, 19, 7]", "[..., 18, 19, 8, 9]")


@pytest.mark.parametrize(
    ("n_layer", "says"),
    [
        (4, "lockstep slice {model} -o first.gguf; lockstep diagnose first.gguf --engine ./slow"),
        (2, "lockstep diagnose builtin:f32 --engine ./slow"),
    ],
)
def test_remark_proposes_a_smaller_model_once(n_layer: int, says: str, tmp_path: Path) -> None:
    model = written(tmp_path, n_layer=n_layer)
    command = f"{model} --engine ./slow"
    plan = Plan(
        case="made",
        model=model,
        subject_model=model,
        settings=EXACT,
        engine="./slow",
        command=command,
    )
    said: list[str] = []
    remarks = Remarks(plan=plan, say=said.append)
    for seconds in (3.0, 300.0, 400.0):
        remarks(Estimate(seconds=seconds))
    (text,) = said
    assert text.startswith("./slow needs about 5 minutes more to answer; ")
    assert text.endswith(says.format(model=model))
