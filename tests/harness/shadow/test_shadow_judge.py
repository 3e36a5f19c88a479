"""The judge of nodes: its comparisons, counts, gaps and findings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node, Operand
from lockstep.engine.ops.near import Expected
from lockstep.harness.records import Verdict
from lockstep.harness.shadow.judge import ShadowJudge
from lockstep.harness.shadow.verdicts import verdicts_of
from lockstep.harness.synth.gguf_writer import write_gguf
from tests.shadow_nodes import BUILD, node, normal, params

W = normal(1, 6, 32)
X = normal(2, 3, 32)


@pytest.fixture
def judge(tmp_path: Path) -> ShadowJudge:
    path = tmp_path / "w.gguf"
    write_gguf(path, {"general.architecture": ("STR", "llama")}, [("w", (32, 6), "F32", W)])
    return ShadowJudge(GgufFile.open(path), BUILD)


def by_weight(value: Any, **changes: Any) -> Node:
    """Return a product with rows 2 to 5 of the weight in the file."""
    weight = Operand(
        name="w (view)", type="F32", ne=(32, 4, 1, 1), value=None, weight="w",
        offset=2 * 128, nb=(4, 128, 768, 768),
    )  # fmt: skip
    made = node("MUL_MAT", value, W, X)
    return replace(made, sources=(replace(weight, **changes), made.source(1)))


def verdicts(judge: ShadowJudge) -> list[Verdict]:
    def make(status: Any, summary: str, detail: Any, key: tuple[str, ...]) -> Verdict:
        return Verdict(
            suite="shadow", case="c", status=status, summary=summary, detail=detail,
            key="/".join(key),
        )  # fmt: skip

    return list(verdicts_of(judge, make))


def test_weight_is_read_from_its_place_in_the_file(judge: ShadowJudge) -> None:
    judge(by_weight(X @ W[2:].T))
    assert judge.findings == []
    judge(by_weight(X @ W[:4].T))
    assert [f.op for f in judge.findings] == ["MUL_MAT"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weight": "v"}, "'v' is not in the file"),
        ({"offset": 3 * 128}, "lies outside"),
        ({"offset": -128}, "lies outside"),
        ({"nb": (4, 256, 768, 768)}, "lies outside"),
        ({"nb": (4, -128, 768, 768)}, "lies outside"),
    ],
)
def test_an_operand_outside_the_file_is_not_compared(
    changes: dict[str, Any], says: str, judge: ShadowJudge
) -> None:
    judge(by_weight(X @ W[2:].T, **changes))
    ((op, tally),) = judge.by_op()
    assert (op, tally.nodes, tally.compared) == ("MUL_MAT", 1, 0)
    assert says in next(iter(tally.not_compared))


def test_malformed_node_is_not_compared(judge: ShadowJudge) -> None:
    judge(node("CONCAT", X, X))
    judge(node("ADD", X, X, normal(3, 2, 31)))
    assert sum(t.compared for _, t in judge.by_op()) == 0


def test_unknown_op_is_reported_by_name_and_count(judge: ShadowJudge) -> None:
    for _ in range(3):
        judge(node("OPT_STEP_SGD", X, X))
    judge(node("ADD", X + X, X, X))
    found = {(v.status, v.detail["op"]): v.summary for v in verdicts(judge)}
    assert found.keys() == {("not-compared", "OPT_STEP_SGD"), ("agreed", "ADD")}
    assert "3 nodes not compared" in found["not-compared", "OPT_STEP_SGD"]


def test_wrong_element_is_a_divergence_with_its_place(judge: ShadowJudge) -> None:
    wrong = X + X
    wrong[2, 7] += 1
    judge(node("ADD", X + X, X, X))
    judge(node("ADD", wrong, X, X))
    (verdict,) = verdicts(judge)
    assert (verdict.status, verdict.key) == ("diverged", "shadow/value/ADD/F32")
    assert verdict.detail["index"] == [0, 0, 2, 7]
    assert verdict.detail["places"] == ["step 0, ubatch 0, node 5 (add-1)"]
    assert (verdict.detail["nodes"], verdict.detail["exact"]) == (2, 1)
    assert verdict.detail["layers"]["1"][0] == 2


def test_a_result_of_another_shape_is_wrong(judge: ShadowJudge) -> None:
    judge(node("ADD", (X + X)[:2], X, X))
    assert judge.findings[0].mismatch.kind == "shape"


def test_nan_is_wrong_unless_the_truth_is_nan(judge: ShadowJudge) -> None:
    bad = X.copy()
    bad[0, 0] = np.nan
    judge(node("ADD", bad + X, bad, X))
    assert judge.findings == []
    judge(node("ADD", bad + X, X, X))
    assert len(judge.findings) == 1


# --- elements that say nothing ------------------------------------------------------------------

NOTHING = np.full_like(X, np.nan)
HUGE = np.full_like(X, np.inf)


def test_nodes_of_only_nan_are_not_compared(judge: ShadowJudge) -> None:
    for _ in range(2):
        judge(node("SILU", NOTHING, NOTHING))
    (verdict,) = verdicts(judge)
    assert (verdict.status, verdict.detail["elements"]) == ("not-compared", 0)
    assert verdict.summary == "SILU: 2 nodes not compared: every element is NaN in both"


def test_infinities_are_compared_only_with_a_bound(judge: ShadowJudge) -> None:
    judge(node("SILU", HUGE, HUGE))
    judge(node("ADD", -HUGE, X, -HUGE))  # adds a mask
    judge(node("SCALE", -HUGE, X, held=params(0.0, -np.inf)))  # llama.cpp makes masks so
    found = {v.detail["op"]: v.status for v in verdicts(judge)}
    assert found == {"SILU": "not-compared", "ADD": "agreed", "SCALE": "agreed"}


def test_infinite_bound_compares_nothing(judge: ShadowJudge) -> None:
    def unbounded(asked: Node) -> tuple[Expected, Any]:
        return Expected(asked.value, np.full(asked.value.shape, np.inf), "nothing"), asked.value

    judge.expect = unbounded  # type: ignore[method-assign]
    judge(node("ADD", X + X, X, X))
    (verdict,) = verdicts(judge)
    assert "every element is without a finite bound" in verdict.summary


def test_elements_that_are_nan_in_both_are_counted_separately(judge: ShadowJudge) -> None:
    bad = X.copy()
    bad[0, :5] = np.nan
    judge(node("ADD", bad + X, bad, X))
    (verdict,) = verdicts(judge)
    assert (verdict.status, verdict.detail["nan"]) == ("agreed", 5)
    assert verdict.detail["elements"] == X.size - 5


def test_nan_in_one_engine_is_wrong_though_other_nans_are_in_both(judge: ShadowJudge) -> None:
    wrong = NOTHING.copy()
    wrong[1, 1] = 0.0
    judge(node("SILU", wrong, NOTHING))
    (verdict,) = verdicts(judge)
    assert (verdict.status, verdict.detail["mismatched"]) == ("diverged", 1)


def test_nodes_without_elements_do_not_count_as_agreed(judge: ShadowJudge) -> None:
    judge(node("SILU", X[:0], X[:0]))
    (verdict,) = verdicts(judge)
    assert (verdict.status, verdict.detail["elements"]) == ("excused", 0)


@pytest.mark.parametrize("shown", [np.nan, np.inf, 0.0])
def test_sum_that_may_overflow_in_another_order_is_not_compared(
    shown: float, judge: ShadowJudge
) -> None:
    """ggml's partial sums overflow where ours, in float64, cancel. An earlier version blamed
    ggml."""
    huge = np.full((1, 32), 1e38, np.float32) * np.where(np.arange(32) % 2, 1, -1)
    large = huge.astype(np.float32)
    judge(node("MUL_MAT", np.full((1, 1), shown, np.float32), large, np.ones_like(large)))
    (verdict,) = verdicts(judge)
    assert verdict.status == "not-compared"
    assert "without a finite bound" in verdict.summary


@pytest.mark.parametrize(
    ("shown", "status"),
    [(np.inf, "not-compared"), (np.nan, "not-compared"), (1.0, "diverged")],
)
def test_infinite_sum_may_be_nan_but_no_finite_number(
    shown: float, status: str, judge: ShadowJudge
) -> None:
    """Finite terms may overflow to infinity, with the sign opposite to that of the infinite term.
    Their sum, inf - inf, is NaN."""
    row = np.array([[np.inf, -3e38, -3e38, 1.0]], np.float32)
    judge(node("MUL_MAT", np.full((1, 1), shown, np.float32), row, np.ones_like(row)))
    assert status in {verdict.status for verdict in verdicts(judge)}


@pytest.mark.parametrize("op", ["RMS_NORM", "NORM", "L2_NORM"])
def test_norm_of_squares_beyond_float32_is_not_compared(op: str, judge: ShadowJudge) -> None:
    """ggml squares in float32, so its norm of such a row is zero. With clamping, or in double
    precision, the norm is not zero."""
    x = normal(5, 1, 32) * np.float32(1e22)
    judge(node(op, np.zeros((1, 32), np.float32), x, held=params(1e-5)))
    (verdict,) = verdicts(judge)
    assert verdict.status == "not-compared"
