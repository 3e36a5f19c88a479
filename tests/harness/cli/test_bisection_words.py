"""What `bisect` says of the same fault in several layers, and of tokens in later batches."""

from pathlib import Path

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.harness.bisect.bisection import Bisection, Layer
from lockstep.harness.check.check import Plan
from lockstep.harness.cli.bisection import bisection_lines
from lockstep.harness.judging.findings import Findings
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.records import EXACT, Mismatch, Site

WEIGHTS = ("attn_norm.weight", "attn_q.weight", "ffn_down.weight")


def culprit(layer: int, *, step: int = 0, op: str = "22 ops: RMS_NORM ... ADD") -> SiteFinding:
    names = [f"blk.{layer}.{name}" for name in WEIGHTS]
    return SiteFinding(
        site=Site(step=step, layer=layer, name="l_out"),
        op=op,
        err_local=0.1 * (layer + 1),
        err_oracle=0.0,
        allowed=1e-5,
        reason="as in the test",
        size=1.0,
        mismatch=Mismatch(kind="value", index=(2, 0), actual=1.0, expected=2.0, allowed=1e-5),
        at_fault="subject",
        alone={-2: (2, 3)},
        layer=layer,
        axes="(tokens, width)",
        shape=(4, 8),
        weight=", ".join(names if layer else ["token_embd.weight", *names]),
    )


def lines_of(*culprits: SiteFinding, n_layers: int = 3, start: int = 0) -> list[str]:
    batches = [Batch.of([1, 2, 3, 4], start=start + 4 * step) for step in range(4)]
    found = Findings(
        all=culprits,
        not_shown=(),
        hidden=(),
        not_given=(),
        free={},
        values={},
        own_inputs=True,
        batches=tuple(batches),
    )
    layers = tuple(
        Layer(layer=layer, last="l_out", error=0.1, guilty=("l_out",)) for layer in range(n_layers)
    )
    result = Bisection(found=found, layers=layers, culprits=culprits, patched=None, logits=None)
    path = Path("model.gguf")
    return bisection_lines(
        Plan(case="model", model=path, subject_model=path, settings=EXACT), result
    )


def test_bisect_tells_the_same_ops_of_every_layer_once() -> None:
    first = culprit(0, op="23 ops: GET_ROWS RMS_NORM ... ADD")
    lines = lines_of(first, culprit(1), culprit(2))
    assert sum("blk.0.attn_q.weight" in line for line in lines) == 1
    assert not any("blk.1." in line for line in lines)
    assert "    the same ops are wrong in every layer, at most 0.3 off" in lines


def test_bisect_names_the_layers_that_have_the_same_fault() -> None:
    lines = lines_of(culprit(0), culprit(2), n_layers=4)
    assert "    the same ops are wrong in layer 2, at most 0.3 off" in lines


def test_bisect_keeps_other_nodes_apart() -> None:
    other = culprit(1, step=1)
    assert sum(line.startswith("  l_out-") for line in lines_of(culprit(0), other)) == 2


def test_bisect_tells_tokens_of_later_batches_by_their_positions() -> None:
    lines = lines_of(culprit(0, step=3), start=244)
    assert "    only positions 258 to 259: all others agree" in lines


def test_positions_are_those_of_outputs_where_a_tensor_has_only_these() -> None:
    batch = Batch.of([1, 2, 3, 4, 5], start=10)
    batch.outputs[:] = np.array([False, True, True, True, True])
    found = Findings(
        all=(), not_shown=(), hidden=(), not_given=(), free={}, values={}, batches=(batch,)
    )
    assert found.positions(culprit(0)) == [11, 12, 13, 14]
