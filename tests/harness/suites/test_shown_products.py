"""`products` of an engine that shows some tensors, but of no product both ends."""

from dataclasses import replace
from pathlib import Path

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EngineInfo, Evaluation, Request
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin
from tests.quiet_engines import showing

SHOWN = (
    *("embd", "Qcur", "Kcur", "Vcur", "Qcur_rope", "Kcur_rope", "kqv_out", "ffn_inp"),
    *("ffn_gate", "ffn_up", "ffn_swiglu", "l_out", "result_output"),
)


class Folded(Reference, name="products: no norm is shown"):
    """As one whose norms are multiplied into the matrices behind them."""

    def describe(self) -> EngineInfo:
        return replace(super().describe(), shows=SHOWN)

    def evaluate(self, request: Request) -> Evaluation:
        return showing(super().evaluate(request), SHOWN)


def test_where_no_product_stands_alone_nothing_is_said_to_be_zero(tmp_path: Path) -> None:
    plan = plan_for(builtin("f32", tmp_path), engine=Folded.name, suites=("logits", "products"))
    first, *found = verdicts_of(plan)
    assert (first.suite, first.status) == ("logits", "agreed")
    assert {v.status for v in found} == {"not-applicable"}, [v.summary for v in found]
    assert not any("zero throughout" in v.summary for v in found)
    assert exit_code([first, *found]) == 0


def test_a_product_that_is_not_shown_is_not_said_to_lack_an_input(tmp_path: Path) -> None:
    """The engine shows `kqv_out` and takes it, but not `attn_out`: that is what to show."""
    plan = plan_for(builtin("f32", tmp_path), engine=Folded.name, suites=("products",))
    hidden, not_given = (
        next(v.summary for v in verdicts_of(plan) if words in v.summary)
        for words in ("does not show", "nothing can be put in before")
    )
    assert "attn_out" in hidden
    assert "ffn_out" in hidden
    assert "Qcur" in not_given
    assert "attn_out" not in not_given
