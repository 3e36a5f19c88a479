"""The report names an undeclared F16 cache, but not for a program with an equally small error
elsewhere."""

import shlex
import sys
from pathlib import Path

import pytest

from lockstep.harness.bisect.bisection import Bisection
from lockstep.harness.check.check import Plan
from lockstep.harness.parallel.works import Forks
from lockstep.harness.runs.run import Listener, builtin_model, run_plans
from tests.places import EXAMPLES
from tests.plans import bisection_of, plan_of

EXAMPLE = EXAMPLES / "engine.py"
SAY = '"settings":{"type_k":"F16","type_v":"F16"}'
CACHE = ("new = (k, v, positions", "new = (halves(k), halves(v), positions")
SAID = ('"can": can,', '"can": can, "settings": {"type_k": "F16", "type_v": "F16"},')
HALVES = "halves = lambda a: np.float16(a).astype(np.float32)\n\n\nclass File"


def wrong_in(folder: Path, *changes: tuple[str, str]) -> str:
    text = EXAMPLE.read_text()
    for right, wrong in (("class File", HALVES), *changes):
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    script = folder / "wrong.py"
    script.write_text(text)
    return shlex.join([sys.executable, str(script)])


def plan_for(folder: Path, engine: str) -> Plan:
    model = builtin_model("f32", folder)
    return plan_of(model, engine, suites=("logits",), n_tokens=12, n_steps=6)


def said(folder: Path, *changes: tuple[str, str]) -> tuple[int, str]:
    plan = plan_for(folder, wrong_in(folder, *changes))
    result = run_plans([plan], folder / "report", ["lockstep"], Forks(1), Listener())
    return result.code, " ".join(verdict.summary for verdict in result.verdicts)


def test_f16_cache_is_named_if_the_engine_declares_f32(tmp_path: Path) -> None:
    code, text = said(tmp_path, CACHE)
    assert code == 0
    assert "keys and values in F16" in text


def test_engine_that_declares_its_f16_cache_conforms(tmp_path: Path) -> None:
    assert said(tmp_path, CACHE, SAID)[0] == 0


@pytest.mark.parametrize(
    "change",
    [
        ('self.norm(x, "output_norm.weight")', 'halves(self.norm(x, "output_norm.weight"))'),
        (
            "sin, cos, a, b = np.sin(angle), np.cos",
            "sin, cos, a, b = halves(np.sin(angle)), np.cos",
        ),
        ("gate / (1 + np.exp(-gate)) * up", "halves(gate / (1 + np.exp(-gate))) * up"),
    ],
    ids=["the last norm", "the sine", "the gate"],
)
def test_other_rounding_is_not_taken_for_an_f16_cache(
    change: tuple[str, str], tmp_path: Path
) -> None:
    code, text = said(tmp_path, change)
    assert code == 1
    assert SAY not in text


def bisected(folder: Path, *changes: tuple[str, str]) -> Bisection:
    return bisection_of(plan_for(folder, wrong_in(folder, *changes)))


def test_bisection_of_a_cache_in_f16_finds_nothing(tmp_path: Path) -> None:
    assert bisected(tmp_path, CACHE).exit_code == 0


def test_bisection_reports_no_f16_cache_for_another_scale(tmp_path: Path) -> None:
    change = ("/ np.sqrt(q.shape[-1])", "/ np.sqrt(q.shape[-1]) * np.float32(1.0005)")
    found = bisected(tmp_path, change)
    assert {culprit.site.name for culprit in found.culprits} == {"kqv_out"}
    assert found.in_f16 == ""


def test_nan_logits_get_no_note_on_caches(tmp_path: Path) -> None:
    """NaN logits fit no kind of cache."""
    change = ("/ np.sqrt(q.shape[-1])", "/ np.sqrt(q.shape[-1]) * np.float32(np.nan)")
    found = bisected(tmp_path, change)
    assert "kqv_out" in {culprit.site.name for culprit in found.culprits}
    assert found.in_f16 == ""
