"""Lists that are right but for the base of their logarithms: an output norm was said to be wrong,
as the engines agreed on a model whose logits are all alike."""

from collections.abc import Callable
from math import exp, log
from pathlib import Path

import pytest

from lockstep.harness.blackbox.naming import OF_LOGARITHMS
from tests.black_boxes import bisected, faults
from tests.models import builtin
from tests.quiet_engines import changed, made


def lists(name: str, change: Callable[[float], float]) -> str:
    shown = changed(lambda _, row: [(token, change(value)) for token, value in row])
    return made(f"other logarithms: {name}", **shown)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (lists("base 10", lambda value: value / log(10)), "logarithms to base 10"),
        (lists("base 2", lambda value: value / log(2)), "logarithms to base 2"),
        (lists("probabilities", exp), "their logarithms are right"),
    ],
)
def test_another_base_is_no_part_of_the_model(engine: str, says: str, tmp_path: Path) -> None:
    found = bisected(builtin("f32", tmp_path), tmp_path / "made", engine=engine)
    assert faults(found) == {None: [OF_LOGARITHMS]}
    assert says in found.guilty[0].parts[0].words


def test_a_temperature_may_be_a_scale_of_the_model(tmp_path: Path) -> None:
    engine = lists("temperature", lambda value: value / 0.8)
    found = bisected(builtin("f32", tmp_path), tmp_path / "made", engine=engine)
    assert found.exit_code == 1
    assert OF_LOGARITHMS not in faults(found)[None]


def test_natural_logarithms_are_right(tmp_path: Path) -> None:
    engine = lists("natural", lambda value: value + 0.5)  # one constant for all is no fault
    assert not bisected(builtin("f32", tmp_path), tmp_path / "made", engine=engine).guilty
