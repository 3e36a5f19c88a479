"""The suite `products`, for engines that show only some tensors or no tensors, and for engines with
a special kernel for one token."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import run_suites
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.honest.conversions import InInt8Blocks
from lockstep.harness.records import EngineInfo, Evaluation, Request
from lockstep.harness.suites.parts.sparse_products import (
    judge_sparse_run,
    sparse_run,
    up_to_one_token,
)
from lockstep.harness.suites.products import keep_run, products_in, visible_in_some_batch
from tests.contexts import check_engine, context_of, diverged, statuses
from tests.models import builtin
from tests.quiet_engines import showing

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


def test_products_find_a_single_token_fault_that_trace_misses(
    tmp_path: Path,
) -> None:
    model = builtin("q8_0", tmp_path)
    wrong = diverged(check_engine(model, OneRowLarger, "trace", "products"))
    assert {v.suite for v in wrong} == {"products"}
    assert {(v.detail["site"], v.detail["step"]) for v in wrong} == {("Kcur", 1)}


@pytest.mark.parametrize("engine", [Reference, OneRowInFloats, OneRowInBlocks])
def test_special_kernel_for_single_tokens_is_honest(
    engine: type[Reference], tmp_path: Path
) -> None:
    assert statuses(check_engine(builtin("q8_0", tmp_path), engine, "trace", "products")) == {
        "agreed"
    }


def test_run_ends_with_the_first_single_token() -> None:
    prompt, one = Batch.of([1, 2, 3]), Batch.of([4], start=3)
    assert up_to_one_token((prompt, one, one)) == (prompt, one)
    assert up_to_one_token((Batch.to_encode(prompt), prompt, one, one))[1:] == (prompt, one)
    assert up_to_one_token((one, one)) == (one,)
    assert up_to_one_token((prompt,)) == (prompt,)


def test_sparse_single_token_makes_no_weight_more_visible(
    tmp_path: Path,
) -> None:
    with context_of(builtin("q8_0", tmp_path)) as context:
        found = products_in(judge_sparse_run(context, sparse_run(context, keep_run)))
    prompt, one = ([f for f in found if f.site.step == step] for step in (0, 1))
    assert len(prompt) == len(one) > 0
    assert max(f.sees for f in one) > max(f.sees for f in prompt)
    best = visible_in_some_batch(found)
    assert len(best) == len(prompt)
    assert max(best) <= max(f.sees for f in prompt)


# --- no product both ends of which are shown

SHOWN = (
    *("embd", "Qcur", "Kcur", "Vcur", "Qcur_rope", "Kcur_rope", "kqv_out", "ffn_inp"),
    *("ffn_gate", "ffn_up", "ffn_swiglu", "l_out", "result_output"),
)


class Folded(Reference, name="products: no norm is shown"):
    """An engine without separate norms. It multiplies the weights of norms into the next
    matrices."""

    def describe(self) -> EngineInfo:
        return replace(super().describe(), shows=SHOWN)

    def evaluate(self, request: Request) -> Evaluation:
        return showing(super().evaluate(request), SHOWN)


def test_engine_without_single_products_is_not_accused_of_zeros(tmp_path: Path) -> None:
    first, *found = check_engine(builtin("f32", tmp_path), Folded, "logits", "products")
    assert (first.suite, first.status) == ("logits", "agreed")
    assert statuses(found) == {"not-applicable"}, [v.summary for v in found]
    assert not any("zero throughout" in v.summary for v in found)
    assert exit_code([first, *found]) == 0


def test_hidden_product_is_not_reported_without_input(tmp_path: Path) -> None:
    """The engine shows and accepts `kqv_out`, but not `attn_out`. The report says that it should
    show `attn_out`."""
    hidden, not_given = (
        next(
            v.summary
            for v in check_engine(builtin("f32", tmp_path), Folded, "products")
            if words in v.summary
        )
        for words in ("does not show", "cannot replace the inputs of")
    )
    assert "attn_out" in hidden
    assert "ffn_out" in hidden
    assert "Qcur" in not_given
    assert "attn_out" not in not_given


# --- products that check does not ask for


class HalfOfEachRow(Reference, name="products: what nobody asks for"):
    """An engine with right weights whose products ignore the second half of each row."""

    levels: tuple[str, ...] = ("dequantize", "multiply")

    def describe(self) -> EngineInfo:
        return EngineInfo(engine=self.name, version="1", levels=self.levels, shows=())

    def multiply(self, type_name: str, raw: Any, x: Any) -> Any:
        return super().multiply(type_name, raw, np.where(np.arange(x.shape[1]) < 128, x, 0))


class WeightsAlone(HalfOfEachRow, name="products: weights alone"):
    levels = ("dequantize",)


@pytest.mark.parametrize(
    ("engine", "offered"), [(HalfOfEachRow.name, [["multiply"]]), (WeightsAlone.name, [])]
)
def test_offered_question_that_is_not_asked_is_reported(
    engine: str, offered: list[list[str]], tmp_path: Path
) -> None:
    """The program has wrong products, so the report must not say that everything agrees."""
    with context_of(builtin("q4_0", tmp_path), engine=engine) as context:
        found = list(run_suites(context, ("dequant", "products")))
    assert exit_code(found) == 0
    assert [v.detail["offered"] for v in found if "offered" in v.detail] == offered
