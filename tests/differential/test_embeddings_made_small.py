"""Engines that give embeddings alone are asked on models made of the user's as well: a quantised
one's honest runs hide a wrong GELU, and those of any a wrong eps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.in_check import checked
from lockstep.harness.blackbox.whole import SMALL, TWIN
from lockstep.harness.check.check import Plan, open_plan
from lockstep.harness.records import EXACT, Verdict
from lockstep.harness.shadow.models import make_variant, opened
from lockstep.harness.synth.any_arch import variant_named


class Quick(Mirror):
    def gelu(self, x: F32) -> F32:
        return (x / (1 + np.exp(np.float32(-1.702) * x))).astype(np.float32)


class OtherEps(Mirror):
    def layer_norm(self, x: F32, weight: F32, bias: F32, eps: float) -> F32:
        return super().layer_norm(x, weight, bias, eps / 10)


class QuickGelu(Reference, name="test: gelu by a sigmoid"):
    ops = Quick


class WrongEps(Reference, name="test: a tenth of the eps of layer norms"):
    ops = OtherEps


def asked(model: Path, engine: str) -> dict[str, str]:
    """The status of each model that was asked about, by its words."""
    plan = Plan(case="m", model=model, subject_model=model, engine=engine, settings=EXACT)
    both = open_plan(plan, lambda _: None)
    try:
        info = replace(both.context.subject_info, levels=("embed",))
        info = replace(info, computes_nodes=False, shows_nodes=False)
        found: list[Verdict] = list(checked(plan, replace(both.context, subject_info=info)))
    finally:
        both.close()
    return {verdict.summary.partition(":")[0]: verdict.status for verdict in found}


@pytest.mark.parametrize(
    ("quant", "engine", "found"),
    [
        ("Q8_0", "reference", {TWIN: "agreed", SMALL: "agreed"}),
        ("Q8_0", QuickGelu.name, {TWIN: "diverged"}),
        ("F32", WrongEps.name, {SMALL: "diverged"}),
    ],
)
def test_a_wrong_graph_behind_embeddings_is_seen_in_f32_and_where_activations_are_small(
    quant: str, engine: str, found: dict[str, str], tmp_path: Path
) -> None:
    model = tmp_path / "m.gguf"
    with opened() as namer:
        make_variant(variant_named("bert"), model, quant=quant, session=namer)
    assert asked(model, engine) == found
