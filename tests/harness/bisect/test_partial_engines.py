"""Engines that show and replace only some tensors. Hidden tensors are not compared, and no engine
is accused because of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import Bisection, bisect
from lockstep.harness.check.check import run_suites
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EngineInfo, Evaluation, Request, TensorRecord, Trace, Verdict
from tests.contexts import context_of, diverged, statuses
from tests.models import builtin
from tests.quiet_engines import HalfSplit, made

LAYERS = ("embd", "l_out", "result_norm", "result_output")
HOOKS = (*LAYERS, "attn_norm", "Qcur", "Kcur", "Vcur", "attn_out", "ffn_norm", "ffn_out")
FUSED = ("Qcur_rope", "Kcur_rope", "kq", "kq_soft_max", "kqv_out", "attn_out", "l_out")


class Partial(Reference):
    """An engine that shows and replaces only some tensors."""

    shown: ClassVar[tuple[str, ...]]
    withheld: ClassVar[tuple[str, ...]] = ()

    def describe(self) -> EngineInfo:
        return replace(super().describe(), shows=self.shown)

    def evaluate(self, request: Request) -> Evaluation:
        known = [s for s in request.replace if s.name in self.shown]
        assert len(known) == len(request.replace), "it is asked for what it does not offer"
        run = super().evaluate(request)
        if run.trace is None:
            return run
        kept = (r for r in run.trace.records if str(r.site) not in self.withheld)
        records = tuple(r for r in kept if r.site.name in self.shown)
        return replace(run, trace=Trace(engine=self.name, records=records))


SHOWS_LAYERS = made("test:shows-layers", Partial, shown=LAYERS)
SHOWS_HOOKS = made("test:shows-hooks", Partial, shown=HOOKS)
SHOWS_FUSED = made("test:shows-fused", Partial, shown=FUSED)
SHOWS_NOTHING = made("test:shows-nothing", Partial, shown=())
# not in the catalogue, although it makes the same mistake
WRONG_ROPE = made("test:wrong-rope-fused", Partial, ops=HalfSplit, shown=("Qcur", "Kcur", *FUSED))
WITHHOLDS = made("test:withholds", Partial, shown=HOOKS, withheld=("Qcur-1",))


def verdicts_of(
    path: Path, engine: str, suites: Sequence[str] = ("trace", "products")
) -> list[Verdict]:
    with context_of(path, engine=engine) as context:
        return list(run_suites(context, suites))


@pytest.mark.parametrize("engine", [SHOWS_LAYERS, SHOWS_HOOKS, SHOWS_FUSED, SHOWS_NOTHING])
@pytest.mark.parametrize("name", ["f32", "q8_0", "moe"])
def test_honest_engine_with_few_tensors_is_not_accused(
    name: str, engine: str, tmp_path: Path
) -> None:
    found = verdicts_of(builtin(name, tmp_path), engine)
    assert statuses(found) <= {"agreed", "not-applicable", "not-compared"}
    left_out = {v.suite: v.summary for v in found if v.status == "not-applicable"}
    if engine == SHOWS_NOTHING:
        assert set(left_out) == {"trace", "products"}
        assert all("does not show tensors" in summary for summary in left_out.values())
    # hidden tensors are between shown ones, and the inputs of some products cannot be replaced
    else:
        assert set(left_out) == {"products"}
        assert [v.status for v in found if v.suite == "trace"] == ["agreed"]


def test_engine_that_shows_no_tensor_does_not_conform(tmp_path: Path) -> None:
    found = verdicts_of(builtin("f32", tmp_path), SHOWS_NOTHING)
    assert statuses(found) == {"not-applicable"}
    assert exit_code(found) == 3


def test_wrong_op_that_is_shown_is_still_found(tmp_path: Path) -> None:
    found = verdicts_of(builtin("f32", tmp_path), WRONG_ROPE, ("trace",))
    wrong = {v.detail["site"] for v in found if v.status == "diverged"}
    assert wrong == {"Qcur_rope", "Kcur_rope"}


def test_tensor_that_an_engine_declares_must_be_shown(tmp_path: Path) -> None:
    found = verdicts_of(builtin("f32", tmp_path), WITHHOLDS, ("trace",))
    wrong: list[Any] = diverged(found)
    assert {(v.detail["site"], v.detail["layer"], v.detail["kind"]) for v in wrong} == {
        ("Qcur", 1, "missing")
    }
    assert exit_code(found) == 1


# its hooks have other names than it declares
OTHERS = tuple(f"{name}-{layer}" for name in HOOKS[4:] for layer in range(2))
RENAMED = made("test:renamed", Partial, shown=HOOKS, withheld=OTHERS)


def test_engine_with_other_tensor_names_does_not_conform(tmp_path: Path) -> None:
    found = verdicts_of(builtin("f32", tmp_path), RENAMED, ("trace",))
    (gap,) = (v for v in found if v.status == "not-compared")
    assert "offers these nodes and does not show them" in gap.summary
    assert all(name in gap.summary for name in HOOKS[4:])
    assert exit_code(found) == 3


WRONG_WHERE_IT_IS_HIDDEN = made(
    "test:wrong-where-it-is-hidden", Partial, shown=LAYERS, ops=HalfSplit
)


class ShowsItWrong(Reference, name="test:shows-it-wrong"):
    """An engine with right results that shows one tensor wrongly."""

    def evaluate(self, request: Request) -> Evaluation:
        run = super().evaluate(request)
        if run.trace is None:
            return run
        records = tuple(
            TensorRecord(site=r.site, value=2 * r.value) if r.site.name == "ffn_norm" else r
            for r in run.trace.records
        )
        return replace(run, trace=Trace(engine=self.name, records=records))


def bisection_of(path: Path, engine: str) -> Bisection:
    with context_of(path, engine=engine) as context:
        return bisect(context)


def test_bisect_finds_the_layer_of_a_hidden_fault(tmp_path: Path) -> None:
    found = bisection_of(builtin("f32", tmp_path), WRONG_WHERE_IT_IS_HIDDEN)
    assert found.first is not None
    assert (str(found.first.site), found.exit_code) == ("l_out-0", 1)
    # the text names only some of the ops
    assert "ROPE" in found.first.op or "..." in found.first.op


def test_bisect_of_an_honest_engine_compares_hidden_parts(tmp_path: Path) -> None:
    found = bisection_of(builtin("f32", tmp_path), SHOWS_LAYERS)
    assert (found.not_compared, found.exit_code) == ((), 0)


def test_patch_without_effect_confirms_nothing(tmp_path: Path) -> None:
    found = bisection_of(builtin("f32", tmp_path), ShowsItWrong.name)
    # the engine does not continue with the value that it shows
    assert {c.site.name for c in found.culprits} == {"ffn_norm", "ffn_gate", "ffn_up"}
    assert found.patched is not None
    assert not found.patched.differed
    assert not found.patched.confirms
