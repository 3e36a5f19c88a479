"""Lists whose values are all multiplied: by what is said, and of which logarithm or temperature."""

from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from tests.contexts import check_engine
from tests.models import builtin
from tests.quiet_engines import changed, made, moved


def by(factor: float) -> dict[str, Any]:
    return changed(lambda _, row: [(token, value * factor) for token, value in row])


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (made("lists: to base 10", **by(1 / log(10))), "0.4343, as of logarithms to base 10"),
        (made("lists: to base 2", **by(1 / log(2))), "1.443, as of logarithms to base 2"),
        (made("lists: at 0.8", **by(1 / 0.8)), "1.25, as of a temperature of 0.8"),
        (made("lists: at 0.7", **by(1 / 0.7)), "as of a temperature of 0.7"),
    ],
)
def test_a_factor_of_all_values_is_named(engine: str, says: str, tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    found = check_engine(model, engine, "logprobs")
    assert found[0].status == "diverged", found
    assert says in found[0].summary


def test_probabilities_are_called_so(tmp_path: Path) -> None:
    shares = changed(lambda _, row: [(token, exp(value)) for token, value in row])
    engine = made("lists: probabilities", **shares)
    for model in ("f32", "q8_0"):
        found = check_engine(builtin(model, tmp_path), engine, "logprobs")
        assert found[0].status == "diverged", found
        assert found[0].summary.endswith("these are probabilities, and their logarithms are right")


def test_lists_without_control_tokens_are_said_to_lack_these_alone(tmp_path: Path) -> None:
    def lacks(*tokens: int) -> dict[str, Any]:
        return changed(lambda _, row: [each for each in row if each[0] not in tokens])

    engines = {
        made("lists: no control tokens", **lacks(0, 1, 2)): True,
        made("lists: nor 3", **lacks(0, 1, 2, 3)): False,
    }
    for engine, alone in engines.items():
        found = check_engine(builtin("f32", tmp_path), engine, "logprobs")
        assert (found[0].status, found[0].detail["kind"]) == ("diverged", "missing")
        assert ("all that are missing are tokens of control" in found[0].summary) is alone


def test_one_value_that_is_off_has_no_factor(tmp_path: Path) -> None:
    engine = made("lists: one moved, and no factor", **changed(moved(0.01)))
    found = check_engine(builtin("f32", tmp_path), engine, "logprobs")
    assert found[0].status == "diverged", found
    assert "factor" not in found[0].summary
