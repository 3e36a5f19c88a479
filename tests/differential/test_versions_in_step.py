"""Other versions of llama.cpp, op by op: all ops of their graphs are compared, in either role.

Building a version takes minutes, so these tests use only versions that are already built.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.engine.errors import EngineError
from lockstep.harness.asking.environments import python_of
from lockstep.harness.check.check import Plan
from lockstep.harness.records import DEFAULT, EXACT, Settings, Verdict
from lockstep.harness.sites import SITES
from tests.differential.conftest import Checked

PlanFor = Callable[..., Plan]
OP_BY_OP = ("trace", "products", "shadow")
ENDS = ("embd", "result_norm", "result_output")
LAYERS, STEPS = 2, 3  # number of layers, and of steps in a request
PRODUCTS = {"f32": 7 * LAYERS + 1, "bf16": 7 * LAYERS + 1, "moe": 8 * LAYERS + 1}


@pytest.fixture(params=["llama.cpp@0.3.8", "llama.cpp@0.3.16"], scope="module")
def version(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        python_of(name)
    except EngineError as error:
        pytest.skip(f"nothing was compared with {name}: {error}")
    return name


def sites_of(model: str, settings: Settings) -> int:
    experts = model == "moe"
    absent = {"kq", "kq_soft_max", "kqv_out"} if settings.flash_attn else {"fattn"}
    absent |= {n for n in SITES if n.startswith("ffn_moe_") and not experts}
    absent |= {n for n in ("ffn_gate", "ffn_up", "ffn_swiglu", "ffn_out") if experts}
    return STEPS * (len(ENDS) + LAYERS * (len(SITES) - len(ENDS) - len(absent)))


def only(found: list[Verdict], suite: str) -> Verdict:
    (verdict,) = (v for v in found if v.suite == suite)
    return verdict


@pytest.mark.parametrize("role", ["oracle", "engine"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("f32", EXACT), ("bf16", EXACT), ("moe", EXACT), ("f32", DEFAULT)],
    ids=["f32", "bf16", "moe", "default"],
)
def test_every_op_of_another_version_is_compared_and_agrees(
    version: str,
    role: str,
    name: str,
    settings: Settings,
    models: Callable[[str], Path],
    plan_for: PlanFor,
    checked: Checked,
) -> None:
    engines = {"oracle": version} if role == "oracle" else {"oracle": "llama.cpp"}
    engines["engine"] = "reference" if role == "oracle" else version
    plan = plan_for(models(name), settings=settings, suites=OP_BY_OP, **engines)
    found = checked(plan)
    assert [v.summary for v in found if v.status != "agreed"] == []
    assert {v.suite for v in found} == set(OP_BY_OP)
    assert only(found, "trace").detail["agreed"] == sites_of(name, settings)
    assert only(found, "products").detail["agreed"] == PRODUCTS[name]


def test_a_wrong_rotation_is_located_on_the_tensors_of_another_version(
    version: str, models: Callable[[str], Path], plan_for: PlanFor, checked: Checked
) -> None:
    engine = "mutant:rope-half-split"
    found = checked(plan_for(models("f32"), oracle=version, engine=engine, suites=("trace",)))
    wrong = [v.detail for v in found if v.status == "diverged"]
    assert {(d["site"], d["at_fault"]) for d in wrong} == {
        ("Qcur_rope", "subject"),
        ("Kcur_rope", "subject"),
    }
