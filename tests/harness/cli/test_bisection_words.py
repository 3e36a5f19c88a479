"""Messages of `bisect` about the same fault in several layers, and about tokens in later
batches."""

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.harness.judging.findings import Findings
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.records import Mismatch, Site

WEIGHTS = ("attn_norm.weight", "attn_q.weight", "ffn_down.weight")


def culprit(layer: int, *, step: int = 0, op: str = "one of 22 ops (ROPE ... ADD)") -> SiteFinding:
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


def test_tensor_with_rows_only_for_outputs_gets_their_positions() -> None:
    batch = Batch.of([1, 2, 3, 4, 5], start=10)
    batch.outputs[:] = np.array([False, True, True, True, True])
    found = Findings(
        all=(), not_shown=(), hidden=(), not_given=(), free={}, values={}, batches=(batch,)
    )
    assert found.positions(culprit(0)) == [11, 12, 13, 14]
