"""Engines that read a weight format wrong or round activations wrong are caught and named.

The oracle runs once for each type, with the suites of `lockstep check`. A wrongly decoded weight is
wrong in every step, so such an engine computes only the prompt.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import ReferenceOps as Ops
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import Opened, Plan, open_plan, run_suites
from lockstep.harness.context.runner import Runner
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EXACT, Verdict
from lockstep.harness.sites import SITES
from tests.all_types import model_of
from tests.wrong_formats import ACTIVATION_CASES, ACTIVATION_FAULTS, DECODER_CASES, wrong_format

SUITES = ("dequant", "trace")
PRODUCTS = {"Qcur", "Kcur", "Vcur", "attn_out", "ffn_gate", "ffn_up", "ffn_out", "result_output"}
# one entry of up to 2048, which need not occur in every tensor
RARE = "one code-book entry changed"


class Wrong(Reference, name="test: wrong weights"):
    """The reference with the fault that `case` names, as a type and a mistake."""

    case: ClassVar[tuple[str, str]] = ("", "")

    def make_ops(self) -> Ops:
        make, _ = ACTIVATION_FAULTS.get(self.case[1], (Mirror, None))
        return make(self.settings.n_threads, self.settings.n_ctx)

    def make_model(self) -> Model:
        model = super().make_model()
        if self.case in DECODER_CASES:
            formats = model.graph.tensors.weights.formats
            for name, kind in formats.items():
                if kind.name == self.case[0]:
                    formats[name] = wrong_format(*self.case)
        return model

    def dequantize(self, type_name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        if self.case in DECODER_CASES and type_name == self.case[0]:
            return wrong_format(*self.case).dequantize(raw)
        return super().dequantize(type_name, raw)


@pytest.fixture(scope="module")
def against(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Verdict]]]:
    """Provide a function that returns the verdicts on a wrong engine. The oracle of the last type
    stays open."""
    folder = tmp_path_factory.mktemp("types")
    held: dict[str, Opened] = {}

    def check(type_name: str, fault: str, *, prompt_alone: bool = False) -> list[Verdict]:
        if type_name not in held:
            while held:
                held.popitem()[1].close()
            path = model_of(type_name, folder)
            plan = Plan(case=type_name, model=path, subject_model=path, settings=EXACT, n_tokens=12)
            held[type_name] = open_plan(plan, lambda _: None)
        context = held[type_name].context
        context.subject.close()
        Wrong.case = (type_name, fault)
        context.subject = Runner().open(Wrong.name, context.subject_model, EXACT)
        given = (context.batches[0],) if prompt_alone else ()
        return list(run_suites(replace(context, given=given), SUITES))

    yield check
    for opened in held.values():
        opened.close()


def found_by(suite: str, verdicts: list[Verdict]) -> list[Verdict]:
    return [v for v in verdicts if v.suite == suite and v.status == "diverged"]


def values_of(verdicts: list[Verdict], key: str) -> set[Any]:
    return {v.detail[key] for v in verdicts}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a wrong scale can be 2^127
@pytest.mark.parametrize(("type_name", "fault"), DECODER_CASES, ids=lambda value: value)
def test_wrong_decoder_is_caught_and_its_tensors_and_products_named(
    type_name: str, fault: str, against: Callable[..., list[Verdict]]
) -> None:
    verdicts = against(type_name, fault, prompt_alone=True)
    assert exit_code(verdicts) == 1
    decoded, ops = found_by("dequant", verdicts), found_by("trace", verdicts)
    assert values_of(decoded, "type") == {type_name}
    assert values_of(ops, "at_fault") == {"subject"}
    tensors, weights = values_of(decoded, "tensor"), values_of(ops, "weight")
    if fault == RARE:
        # no token need use the row of the embeddings that contains it
        assert tensors - {"token_embd.weight"} <= weights <= tensors
        assert weights
    else:
        assert weights == tensors
        assert values_of(ops, "site") == {"embd", *PRODUCTS}


@pytest.mark.parametrize(("type_name", "fault"), ACTIVATION_CASES, ids=lambda value: value)
def test_wrong_activations_are_caught_only_at_products(
    type_name: str, fault: str, against: Callable[..., list[Verdict]]
) -> None:
    verdicts = against(type_name, fault)
    assert exit_code(verdicts) == 1
    assert found_by("dequant", verdicts) == []
    ops = found_by("trace", verdicts)
    assert values_of(ops, "at_fault") == {"subject"}
    assert values_of(ops, "site") == PRODUCTS
    assert values_of(ops, "step") == {0, 1, 2}


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_K", "IQ2_XS"])
def test_engine_without_a_fault_agrees(
    type_name: str, against: Callable[..., list[Verdict]]
) -> None:
    assert exit_code(against(type_name, "none")) == 0
    assert all(SITES[site].op.startswith("MUL_MAT") for site in PRODUCTS)
