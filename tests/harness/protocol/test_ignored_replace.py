"""A program that offers `replace` but ignores the values is not accused of wrong results."""

import sys
from pathlib import Path

import pytest

from lockstep.harness.records import Verdict
from tests.harness.check.test_check import plan_for
from tests.models import builtin
from tests.places import EXAMPLES
from tests.plans import verdicts_of

EXAMPLE = EXAMPLES / "engine.py"
HEEDS = "return given.get(node, value)"
WRONG = 'x = show(f"ffn_inp-{i}", h + x)'


def verdicts(folder: Path, *changes: tuple[str, str]) -> dict[str, Verdict]:
    """Return the first verdict of each suite, for the example with some code replaced."""
    code = EXAMPLE.read_text()
    for old, new in changes:
        assert code.count(old) == 1
        code = code.replace(old, new)
    program = folder / "made.py"
    program.write_text(code)
    plan = plan_for(
        builtin("f32", folder),
        engine=f"{sys.executable} {program}",
        oracle="llama.cpp",
        suites=("logits", "trace", "products"),
    )
    found: dict[str, Verdict] = {}
    for verdict in verdicts_of(plan):
        found.setdefault(verdict.suite, verdict)
    return found


def test_engine_that_ignores_replace_is_reported_and_not_accused(tmp_path: Path) -> None:
    found = verdicts(tmp_path, (HEEDS, "return value"))
    assert {name: v.status for name, v in found.items()} == {
        "logits": "agreed",
        "trace": "agreed",
        "products": "not-compared",  # the user named this suite
    }
    assert (
        found["products"].summary
        == "made.py offers replace, but ignores the values that are put in"
    )


def test_engine_that_honours_replace_is_asked(tmp_path: Path) -> None:
    assert {v.status for v in verdicts(tmp_path).values()} == {"agreed"}


@pytest.mark.parametrize("also", [(), ((HEEDS, "return value"),)])
def test_fault_is_found_despite_ignored_replacement(
    also: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    found = verdicts(tmp_path, (WRONG, WRONG.replace("h + x", "h + x * (1.01 if i else 1)")), *also)
    assert found["trace"].status == "diverged"
    assert "ffn_inp-1" in found["trace"].summary
