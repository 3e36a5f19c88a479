"""`products` of engines whose kernel for a single token is another than that for a prompt."""

from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import open_plan
from lockstep.harness.honest.int8_blocks import InInt8Blocks
from lockstep.harness.suites.parts.shown_products import (
    judge_sparse_run,
    sparse_run,
    up_to_one_token,
)
from lockstep.harness.suites.products import kept, products_in, visible_in_some_batch
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin

FAULT = np.float32(1e-3)  # less than a step of one of 64 activations comes to


class OneRowLarger(Reference, name="products: keys of one token are larger"):
    class ops(Mirror):
        def linear(self, x: F32, weight: Weight) -> F32:
            found = super().linear(x, weight)
            return found * (1 + FAULT) if len(x) == 1 and "attn_k." in weight.name else found


class OneRowInFloats(Reference, name="products: one token is not converted"):
    class ops(Mirror):
        def linear(self, x: F32, weight: Weight) -> F32:
            if len(x) > 1:
                return super().linear(x, weight)
            wide: F32 = (x.astype(np.float64) @ weight.values().astype(np.float64).T).astype("f4")
            return wide


class OneRowInBlocks(Reference, name="products: one token is converted in other blocks"):
    class ops(InInt8Blocks):
        def linear(self, x: F32, weight: Weight) -> F32:
            return super().linear(x, weight) if len(x) == 1 else Mirror().linear(x, weight)


def test_a_fault_of_single_tokens_shows_though_trace_takes_it_for_a_step_of_an_activation(
    tmp_path: Path,
) -> None:
    model = builtin("q8_0", tmp_path)
    plan = plan_for(model, engine=OneRowLarger.name, suites=("trace", "products"))
    wrong = [v for v in verdicts_of(plan) if v.status == "diverged"]
    assert {v.suite for v in wrong} == {"products"}
    assert {(v.detail["site"], v.detail["step"]) for v in wrong} == {("Kcur", 1)}


@pytest.mark.parametrize("engine", [Reference, OneRowInFloats, OneRowInBlocks])
def test_a_kernel_of_another_design_for_them_is_honest(
    engine: type[Reference], tmp_path: Path
) -> None:
    plan = plan_for(builtin("q8_0", tmp_path), engine=engine.name, suites=("trace", "products"))
    assert {v.status for v in verdicts_of(plan)} == {"agreed"}


def test_the_run_ends_with_the_first_token_that_stands_alone() -> None:
    prompt, one = Batch.of([1, 2, 3]), Batch.of([4], start=3)
    assert up_to_one_token((prompt, one, one)) == (prompt, one)
    assert up_to_one_token((Batch.to_encode(prompt), prompt, one, one))[1:] == (prompt, one)
    assert up_to_one_token((one, one)) == (one,)
    assert up_to_one_token((prompt,)) == (prompt,)


def test_what_shows_of_a_weight_is_no_more_for_a_token_of_which_less_is_left(
    tmp_path: Path,
) -> None:
    opened = open_plan(plan_for(builtin("q8_0", tmp_path)), lambda _: None)
    try:
        found = products_in(judge_sparse_run(opened.context, sparse_run(opened.context, kept)))
    finally:
        opened.close()
    prompt, one = ([f for f in found if f.site.step == step] for step in (0, 1))
    assert len(prompt) == len(one) > 0
    assert max(f.sees for f in one) > max(f.sees for f in prompt)
    best = visible_in_some_batch(found)
    assert len(best) == len(prompt)
    assert max(best) <= max(f.sees for f in prompt)
