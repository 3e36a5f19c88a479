"""Limits of agreeing segments: their allowed error, and the smallest visible fault."""

import numpy as np
import pytest

from lockstep.harness.graph.segments import SegmentJudge
from lockstep.harness.graph.ways import Honest, Noisy
from lockstep.harness.judging.judge import SiteFinding
from lockstep.harness.suites.trace import closest
from tests.recorded import LAYERS, Recorded

SHOWN = ("attn_norm", "kqv_out", "ffn_out", *LAYERS)
ALONE = "the last op's own bound is enough"


def judged(
    engine: Recorded, way: Honest, *, limits: bool, site: str = "", factor: float = 1.0
) -> dict[str, SiteFinding]:
    """Judge a segment. factor: multiplies the shown value at the site."""
    shown = {p: v for p, v in engine.run(way).items() if engine.wires[p].site.name in SHOWN}
    for place in shown:
        if str(engine.wires[place].site) == site:
            shown[place] = (shown[place] * factor).astype(np.float32)
    judge = SegmentJudge(
        program=engine.program,
        wires=engine.wires,
        file=engine.file,
        build=engine.build,
        shown=shown,
        limits={wire.site for wire in engine.wires.values()} if limits else (),
    )
    return {str(finding.site): finding for finding in judge.findings()}


@pytest.mark.parametrize(
    ("site", "hidden"),
    # after a long sum, the limit of an op is as large as the noise of all ops before it
    [("attn_norm-1", True), ("kqv_out-0", True), ("ffn_out-1", False), ("l_out-0", True)],
)
def test_smallest_visible_scale_error_is_found(site: str, hidden: bool, qwen3: Recorded) -> None:
    """Judged by the last op's bound alone, an error of a hundredth had to show, but an engine with
    that error agreed."""
    sees = [judged(qwen3, Honest(), limits=limits)[site].sees for limits in (True, False)]
    found = [
        judged(qwen3, Honest(), limits=False, site=site, factor=1 + 1.01 * each)[site].mismatch
        for each in sees
    ]
    assert found[0] is not None
    assert (found[1] is None) == hidden


def test_unmeasured_limit_is_not_called_close(qwen3: Recorded) -> None:
    exact = judged(qwen3, Honest(), limits=False).values()
    assert all(f.measured == (ALONE not in f.reason) for f in exact)
    unmeasured = [f for f in exact if not f.measured]
    assert unmeasured
    assert all(" ops" in f.op and f.mismatch is None for f in unmeasured)
    assert closest([f for f in exact if f.measured and " ops" in f.op]).startswith("all are within")


@pytest.mark.parametrize("limits", [False, True])
def test_requested_limits_accuse_neither_engine(limits: bool, qwen3: Recorded) -> None:
    found = judged(qwen3, Noisy(seed=3), limits=limits).values()
    assert [f for f in found if f.mismatch] == []
    measured = [f for f in found if f.measured and " ops" in f.op]
    assert measured
    assert all("twice the worst error" in f.reason and ALONE not in f.reason for f in measured)
    assert closest(measured).startswith("none exceeds its limit")
    assert all(f.measured for f in found) or not limits
