"""An engine that converts activations differently, and shows one product besides whole layers.

Whole layers agree with either format, because a single rounding in the other direction changes a
layer more than the format does. Lockstep once accused only the head.
"""

from pathlib import Path

import pytest

from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.differential.test_own_outputs import bisected

ENGINE = """
import numpy as np
from dataclasses import replace
from lockstep.engine.ops.mirror import Mirror
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.honest.conversions import InInt8Blocks
from lockstep.harness.records import Trace

SHOWS = {shows!r}


class Truncated(Mirror):
    def activations(self, x, weight):
        blocks = x.reshape(*x.shape[:-1], -1, 256).astype(np.float64)
        steps = np.abs(blocks).max(axis=-1, keepdims=True) / 127
        return (np.trunc(blocks / steps) * steps.astype(np.float16)).reshape(x.shape)

    def sums(self, x, weight):
        return None


class InHead(Mirror):
    def linear(self, x, weight):
        head = weight.name == "output.weight" and len(x)
        return {head}().linear(x, weight) if head else super().linear(x, weight)


class Mine(Reference):
    ops = {ops}

    def describe(self):
        return replace(super().describe(), shows=SHOWS, computes_nodes=False, shows_nodes=False)

    def evaluate(self, request):
        run = super().evaluate(request)
        if run.trace is None:
            return run
        kept = tuple(r for r in run.trace.records if r.site.name in SHOWS)
        return replace(run, trace=Trace(engine="mine", records=kept))
"""
FEW = ("l_out", "result_norm")
MORE = (*FEW, "attn_norm", "Qcur", "Kcur", "Vcur", "ffn_norm", "ffn_gate", "ffn_up")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama.gguf"
    write_llama(LlamaRecipe(quant="Q4_K", n_embd=256, n_ff=256), path)
    return path


@pytest.mark.parametrize(
    ("shows", "ops", "head", "guilty"),
    [
        (FEW, "InInt8Blocks", "Mirror", ()),
        # the only converted value that is shown
        (MORE, "InHead", "InInt8Blocks", ("result_output",)),
        (FEW, "InHead", "Truncated", ("result_output",)),
    ],
)
def test_one_shown_product_accuses_no_format_that_layers_confirm(
    shows: tuple[str, ...],
    ops: str,
    head: str,
    guilty: tuple[str, ...],
    model: Path,
    tmp_path: Path,
) -> None:
    script = tmp_path / "mine.py"
    script.write_text(ENGINE.format(shows=shows, ops=ops, head=head))
    found = bisected(model, f"adapter:{script}")
    assert found.exit_code == (1 if guilty else 0)
    assert tuple(each.site.name for each in found.culprits) == guilty
