"""The catalogue of wrong engines: what fixed limits pass, what is counted, and what is not run
again."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness.catalogue import run
from harness.catalogue.fixed_limits import COSINE, LIMITS, TOP, nmse, on_logits
from harness.catalogue.run import Part, family_of, parts_of, run_catalogue, wrong_engines
from harness.catalogue.table import lines
from harness.catalogue.trial import HONEST, Seen, Trial, row_of, trial_of


class Lines:
    def line(self, text: str) -> None:
        pass

    def progress(self, case: str, text: str) -> None:
        pass


def trial(name: str, *, family: str = "norms", caught: bool = True, found: str = "embd") -> Trial:
    seen = {view: Seen(caught=caught, suite="logits") for view in ("tensors", "logits", "text")}
    return Trial(
        engine=name,
        family=family,
        mistake="wrong",
        effect="",
        source="",
        model="f32",
        expected="embd",
        found=found,
        views=seen,
        layer_right=True,
        op_right=found == "embd",
        passes=dict.fromkeys(LIMITS, True),
    )


def test_fixed_limits_pass_what_is_off_by_a_thousandth_everywhere() -> None:
    right = (np.linspace(-3, 5, 40, dtype=np.float32).reshape(4, 10),)
    wrong = (right[0] * np.float32(1.001),)
    assert nmse(right[0], wrong[0]) < 5e-4
    assert all(on_logits(right, wrong).values())


def test_fixed_limits_find_another_token_and_another_direction() -> None:
    right = (np.array([[1, 2, 3], [3, 2, 1]], np.float32),)
    found = on_logits(right, (right[0][::-1].copy(),))
    assert not found[TOP]
    assert not found[COSINE]
    assert not any(on_logits(right, (right[0][:, :2],)).values())
    assert not any(on_logits(right, (right[0] * np.nan,)).values())


def test_engines_of_one_model_are_tried_together() -> None:
    parts = list(parts_of(wrong_engines()))
    assert all(len(part.engines) <= run.AT_ONCE for part in parts)
    names = [name for part in parts for name in part.engines]
    assert len(names) == len(set(names)) == len(wrong_engines())


def test_a_table_counts_what_is_caught_and_says_what_is_not() -> None:
    wrong = [trial("one"), trial("two", caught=False, found="nowhere")]
    text = list(lines([*wrong, trial("fine", family=HONEST, caught=False)]))
    assert text[1].split() == ["norms", "2", "1/2", "1/2", "1/2", "2", "1", "0"]
    assert "honest engines accused: 0 of 1" in text
    assert text[-1].startswith("two on f32: missed by tensors, logits, text; found at nowhere")


def test_what_is_in_the_file_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Part] = []

    def tried(part: Part) -> list[Trial]:
        asked.append(part)
        return [trial(name, family="sampling") for name in part.engines]

    monkeypatch.setattr(run, "try_part", tried)
    file, out = tmp_path / "rows.jsonl", Lines()
    assert run_catalogue(out, only="sampling", file=file, jobs=1) == 0
    n = sum(family_of(cls) == "sampling" for cls in wrong_engines())
    rows = [trial_of(json.loads(row)) for row in file.read_text().splitlines()]
    assert len(rows) == n == sum(len(part.engines) for part in asked)
    assert row_of(rows[0]) == row_of(trial_of(row_of(rows[0])))
    asked.clear()
    assert run_catalogue(out, only="sampling", file=file, jobs=1) == 0
    assert not asked


def test_one_that_is_missed_and_one_that_is_accused_are_no_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for family, caught in (("norms", False), (HONEST, True)):

        def tried(part: Part, family: str = family, caught: bool = caught) -> list[Trial]:
            return [trial(name, family=family, caught=caught) for name in part.engines]

        monkeypatch.setattr(run, "try_part", tried)
        assert run_catalogue(Lines(), only=family, file=None, jobs=1) == 1
