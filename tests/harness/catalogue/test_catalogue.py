"""The catalogue of wrong engines: fixed limits, counts, and cached results."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32
from lockstep.harness.catalogue import run
from lockstep.harness.catalogue.fixed_limits import COSINE, LIMITS, TOP, WIDE, nmse, on_short
from lockstep.harness.catalogue.memory import once
from lockstep.harness.catalogue.models import model_for
from lockstep.harness.catalogue.rates import BEGIN, END, read, with_tables, write_rates
from lockstep.harness.catalogue.run import (
    CataloguePart,
    honest_engines,
    honest_parts,
    parts_of,
    run_catalogue,
    run_honest,
    wrong_engines,
)
from lockstep.harness.catalogue.table import lines, not_found
from lockstep.harness.catalogue.trial import HONEST, SeenInView, Trial, trial_of
from lockstep.harness.catalogue.views import VIEWS


class Lines:
    def line(self, text: str) -> None:
        pass

    def progress(self, case: str, text: str) -> None:
        pass


def trial(
    name: str,
    *,
    family: str = "norms",
    model: str = "f32",
    caught: bool = True,
    found: str = "embd",
) -> Trial:
    seen = {
        view.name: SeenInView(caught=caught, suite="logits" if caught else "") for view in VIEWS
    }
    return Trial(
        engine=name,
        family=family,
        mistake="wrong",
        effect="",
        source="",
        model=model,
        expected="embd",
        found=found,
        views=seen,
        layer_right=True,
        op_right=found == "embd",
        passes=dict.fromkeys(LIMITS, True),
    )


def logits(*rows: list[float]) -> F32:
    return np.array(rows, np.float32)


def test_fixed_limits_pass_errors_of_a_thousandth() -> None:
    right = np.linspace(-3, 5, 40, dtype=np.float32).reshape(4, 10)
    wrong = right * np.float32(1.001)
    assert nmse(right, wrong) < 5e-4
    assert all(on_short(right, wrong).values())


def test_fixed_limits_find_another_token_and_another_direction() -> None:
    right = logits([1, 2, 3], [3, 2, 1])
    found = on_short(right, right[::-1].copy())
    assert not any(found.values())
    assert not any(on_short(right, right[:, :2]).values())
    assert not any(on_short(right, right * np.float32(np.nan)).values())


def test_check_nmse_divides_by_the_variance_and_uses_the_last_token() -> None:
    """Limits of this kind are common. Division by the variance prevents a constant offset of logits
    from shrinking a difference."""
    right = logits([1, 2, 3], [101, 102, 103])
    found = on_short(right, right + logits([9, 0, 0], [0, 0.3, 0]))
    assert not found[WIDE]
    assert not found[TOP]
    assert on_short(right, right + logits([0.5, 0, 0], [0, 0, 0])) == {
        WIDE: True,
        TOP: True,
        COSINE: False,
    }


def test_engines_of_one_model_are_tried_together() -> None:
    parts = list(parts_of(wrong_engines()))
    assert all(len(part.engines) <= run.AT_ONCE for part in parts)
    names = [name for part in parts for name in part.engines]
    assert len(names) == len(set(names)) == len(wrong_engines())


def test_table_counts_caught_mistakes_and_lists_missed_mistakes() -> None:
    wrong = [trial("one"), trial("two", caught=False, found="nowhere")]
    fine = trial("fine", family=HONEST, caught=False, found="nowhere")
    text = list(lines([*wrong, fine]))
    assert text[2] == "| norms | 2 | 1/2 | 1/2 | 1/2 | 1/2 | 1/2 | 2 | 1 |"
    assert text[3].startswith("| all | 2 | 50.0 % |")
    assert "| fine | 1 | 1 | 0 |" in text
    assert list(not_found([*wrong, fine])) == [
        "two on f32: missed by tensors, layers, logits, top-k, text; found at nowhere, expected at "
        "embd"
    ]


def test_stored_catalogue_gives_the_same_tables() -> None:
    found = [trial("one"), trial("two", caught=False, found="nowhere")]
    found.append(trial("fine", family=HONEST, found="nowhere"))
    assert list(lines(read(write_rates(found)))) == list(lines(found))


def test_new_tables_replace_old_tables() -> None:
    page = f"before\n{BEGIN}| old |\n{END}after\n"
    made = with_tables("reports/TRUST.md", page, [trial("one")])
    assert made.startswith(f"before\n{BEGIN}| wrong engines |")
    assert made.endswith(f" |\n{END}after\n")
    assert with_tables("reports/TRUST.md", made, [trial("one")]) == made


def test_result_in_the_file_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[CataloguePart] = []

    def tried(part: CataloguePart) -> list[Trial]:
        asked.append(part)
        return [trial(name, family="sampling", model=part.model) for name in part.engines]

    monkeypatch.setattr(run, "try_part", tried)
    file, out = tmp_path / "rows.jsonl", Lines()
    assert run_catalogue(out, only="sampling", file=file, executor=None) == 0
    n = sum(cls.group == "sampling" for cls in wrong_engines())
    rows = [trial_of(json.loads(row)) for row in file.read_text().splitlines()]
    assert len(rows) == n == sum(len(part.engines) for part in asked)
    assert trial_of(asdict(rows[0])) == rows[0]
    asked.clear()
    assert run_catalogue(out, only="sampling", file=file, executor=None) == 0
    assert not asked


def test_missed_and_falsely_accused_engines_are_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for family, caught in (("norms", False), (HONEST, True)):

        def tried(part: CataloguePart, family: str = family, caught: bool = caught) -> list[Trial]:
            return [trial(name, family=family, caught=caught) for name in part.engines]

        monkeypatch.setattr(run, "try_part", tried)
        assert run_catalogue(Lines(), only=family, file=None, executor=None) == 1


def test_honest_engines_run_on_models_that_exercise_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each engine runs on ten models in both presets, and again with other tokens."""
    parts = list(honest_parts(40))
    runs = [(name, part) for part in parts for name in part.engines]
    for engine in honest_engines():
        its = [part for name, part in runs if name == engine.name]
        assert len(its) == len(set(its)) == 40
        assert {(part.preset, part.seed) for part in its} == {
            *product(("exact", "default"), (0, 1))
        }
        assert len({part.model for part in its}) == 10
    for model in {part.model for name, part in runs if "experts" in name}:
        with GgufFile.open(model_for(model, tmp_path)) as file:
            assert any("_exps." in name for name in file.tensors), model

    def tried(part: CataloguePart) -> list[Trial]:
        return [
            replace(
                trial(name, family=HONEST, caught=False, found="nowhere"),
                model=part.model,
                preset=part.preset,
                seed=part.seed,
            )
            for name in part.engines
        ]

    monkeypatch.setattr(run, "try_part", tried)
    assert run_honest(Lines(), 1, file=None, executor=None) == 0


def test_each_run_is_made_once_and_only_when_needed() -> None:
    made: list[int] = []

    def runs(batches: object) -> Iterator[int]:
        for number in range(3):
            made.append(number)
            yield number

    ask = once(runs)
    assert next(iter(ask((1,)))) == 0
    assert made == [0]
    assert [*ask((1,))] == [*ask((1,))] == [0, 1, 2]
    assert made == [0, 1, 2]
