"""Models whose logits are all equal, zero, NaN or infinite. Each gets a true verdict."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tests.quiet_engines  # noqa: F401  registers engines
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.check.check import open_plan, run_suites
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.mutants.rope import RopeHalfSplit
from lockstep.harness.records import PRESETS, Evaluation, Request, Verdict
from tests.degenerate import scaled as scaled_in
from tests.harness.check.test_check import plan_for

SUITES = ("logits", "logprobs", "decode", "text", "trace", "products")
# one layer, because a second has the same ops, and NaN in embeddings reaches the first
scaled = partial(scaled_in, n_layer=1)
HONEST = {"agreed", "excused", "not-compared", "not-applicable"}


def equal_rows(path: Path) -> None:
    """Write a model whose logits are all equal, and not zero."""
    scaled("output.weight", 0.0, path, add=0.25)


MODELS: dict[str, Callable[[Path], None]] = {
    "zero": partial(scaled, "output_norm.weight", 0.0),
    "equal": equal_rows,
    "nothing at all": partial(scaled, "token_embd.weight", 0.0),
    "NaN": partial(scaled, "output.weight", np.nan),
    "infinite": partial(scaled, "blk.0.attn_norm.weight", np.inf),
    "one token NaN": partial(scaled, "output.weight", np.nan, rows=slice(5, 6)),
    "one token infinite": partial(scaled, "output.weight", np.inf, rows=slice(5, 6)),
    "some inputs NaN": partial(scaled, "token_embd.weight", np.nan, rows=slice(0, 200)),
    "keys beyond F16": partial(scaled, "blk.0.attn_k.weight", 1e6),
    "values beyond F16": partial(scaled, "blk.0.attn_v.weight", 1e7),
    "huge": partial(scaled, "output.weight", 1e38),
}
NOWHERE_FINITE = {"NaN", "infinite"}


class AllNan(Reference, name="degenerate: NaN"):
    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        rows = tuple(np.full_like(rows, np.nan) for rows in found.logits)
        return Evaluation(logits=rows, trace=found.trace)


class Sane(Reference, name="degenerate: sane"):
    """An engine that replaces NaN and infinities by zeros."""

    def evaluate(self, request: Request) -> Evaluation:
        found = super().evaluate(request)
        rows = tuple(np.nan_to_num(rows, nan=0, posinf=0, neginf=0) for rows in found.logits)
        return Evaluation(logits=rows, trace=found.trace)


def model(name: str, folder: Path) -> Path:
    path = folder / "model.gguf"
    MODELS[name](path)
    return path


def verdicts(
    path: Path, engine: str, preset: str = "exact", suites: tuple[str, ...] = SUITES
) -> tuple[list[Verdict], int]:
    """Return the verdicts of check, and the exit code of bisect."""
    opened = open_plan(plan_for(path, engine=engine, settings=PRESETS[preset]), lambda _: None)
    try:
        found = list(run_suites(opened.context, suites))
        shows = opened.context.subject_info.levels is None
        return found, bisect(opened.context).exit_code if shows else 0
    finally:
        opened.close()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", MODELS)
def test_honest_engine_is_not_accused_and_no_agreement_is_claimed(
    name: str, preset: str, tmp_path: Path
) -> None:
    found, code = verdicts(model(name, tmp_path), "reference", preset)
    assert {v.status for v in found} <= HONEST, [v.summary for v in found]
    assert code in (0, 3)
    if name in NOWHERE_FINITE or ("beyond F16" in name and preset == "default"):
        whole = next(v for v in found if v.suite == "logits")
        assert (exit_code(found), code, whole.status) == (3, 3, "not-compared")
    if name in NOWHERE_FINITE:
        assert "is finite in either engine" in whole.summary


@pytest.mark.parametrize("name", MODELS)
def test_engines_without_logits_are_not_accused_either(name: str, tmp_path: Path) -> None:
    found, _ = verdicts(model(name, tmp_path), "quiet", suites=("logprobs", "decode", "text"))
    assert {v.status for v in found} <= HONEST, [v.summary for v in found]
    if name in NOWHERE_FINITE:
        assert exit_code(found) == 3
        assert "agreed" not in {v.status for v in found}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", MODELS)
def test_wrong_engine_gets_a_verdict_too(name: str, preset: str, tmp_path: Path) -> None:
    found, code = verdicts(model(name, tmp_path), RopeHalfSplit.name, preset)
    assert "internal" not in {v.status for v in found}, [v.summary for v in found]
    turned = name not in ("nothing at all", "infinite")  # these two have no values to rotate
    assert {exit_code(found), code} <= ({1} if turned else {0, 3})


@pytest.mark.parametrize("name", ["zero", "equal", "one token NaN"])
def test_engine_with_nan_is_wrong_if_the_truth_is_a_number(name: str, tmp_path: Path) -> None:
    first, *_ = verdicts(model(name, tmp_path), AllNan.name, suites=("logits",))[0]
    assert first.status == "diverged"
    assert first.detail["at_fault"] == "subject"


@pytest.mark.parametrize("name", ["one token NaN", "NaN"])
def test_engine_with_numbers_is_wrong_if_the_truth_is_nan(name: str, tmp_path: Path) -> None:
    first, *_ = verdicts(model(name, tmp_path), Sane.name, suites=("logits",))[0]
    assert first.status == "diverged"
    assert first.detail["at_fault"] == "subject"
