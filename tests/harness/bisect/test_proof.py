"""The proof of a bisection. The oracle's tensors replace the wrong results, and the rest of the run
must then agree with the oracle, or with an honest engine of another design."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.engine.ops.reference import I32, ReferenceOps, RopeParams
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.bisect.bisection import bisect
from lockstep.harness.cli.bisection import confirmation
from lockstep.harness.locate.proof import Patched
from lockstep.harness.records import EngineInfo
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import variant_named
from tests.contexts import context_of
from tests.models import written


class OneRopeBase(ReferenceOps):
    """An engine in float64 without ggml's GELU table, with the rope base 500 in each layer."""

    def rope(self, x: F32, positions: I32, params: RopeParams) -> F32:
        return super().rope(x, positions, replace(params, base=500.0))


class AlsoAWrongGelu(OneRopeBase):
    def geglu(self, gate: F32, up: F32) -> F32:
        return super().geglu(gate * 1.01, up)


class Float64AndOneBase(Reference, name="test:float64-and-one-base"):
    def make_ops(self) -> ReferenceOps:
        return OneRopeBase()


class Float64AndTwoFaults(Reference, name="test:float64-and-two-faults"):
    """An engine in float64 with two faults. Values cannot be replaced at the place of the second
    fault."""

    def describe(self) -> EngineInfo:
        return replace(super().describe(), fixed=("ffn_geglu",))

    def make_ops(self) -> ReferenceOps:
        return AlsoAWrongGelu()


@pytest.fixture(scope="module")
def gemma2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "gemma2.gguf"
    with open_for_variants() as namer:
        make_variant(variant_named("gemma2"), path, session=namer)
    return path


def proof_of(model: Path, engine: str, *, site: str = "Qcur_rope", lucky: bool = False) -> Patched:
    """Return the proof. If `lucky` is True, the first honest runs differ less than the oracle's
    GELU table differs from the formula."""
    with context_of(model, engine=engine, oracle="llama.cpp", n_tokens=12) as context:
        if lucky:
            small = context.noise.relative / 100
            context.__dict__["noise"] = replace(context.noise, relative=small)
            context.noise_measured = (context.batches, small)
        found = bisect(context)
    assert found.first is not None
    assert found.first.site.name == site
    assert found.patched is not None
    return found.patched


def test_fault_of_an_engine_with_unconverted_activations_is_confirmed(tmp_path: Path) -> None:
    model = written(tmp_path, seed=6, n_layer=1, quant="Q4_0")
    proof = proof_of(model, Float64AndOneBase.name, lucky=True)
    assert proof.confirms
    assert proof.otherwise
    assert proof.worst < proof.before / 100


class SlightlyOtherEps(ReferenceOps):
    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return super().rms_norm(x, weight, 3 * eps)


class Float64AndOtherEps(Reference, name="test:float64-and-other-eps"):
    def make_ops(self) -> ReferenceOps:
        return SlightlyOtherEps()


def test_fault_smaller_than_conversion_noise_is_confirmed(tmp_path: Path) -> None:
    """The oracle converts activations. An engine that does not convert them differs from the oracle
    equally with and without the fault."""
    model = written(tmp_path, seed=6, n_layer=1, quant="Q4_0")
    proof = proof_of(model, Float64AndOtherEps.name, site="attn_norm")
    assert proof.confirms
    assert not proof.differed
    assert "from an honest run of another design" in confirmation(proof)


def test_rest_is_compared_with_honest_runs_of_the_engines_design(gemma2: Path) -> None:
    """The oracle computes GELU from a half-precision table. So the rest of the subject's run
    differs from the oracle's by more than the limit. An honest run without the table agrees with
    the subject if the same values are replaced."""
    proof = proof_of(gemma2, Float64AndOneBase.name, lucky=True)
    assert proof.confirms
    assert proof.otherwise
    assert "the rest agrees with an honest run of another design" in confirmation(proof)


def test_unpatched_second_fault_is_not_mistaken_for_another_design(gemma2: Path) -> None:
    proof = proof_of(gemma2, Float64AndTwoFaults.name)
    assert not proof.agrees
    assert not proof.otherwise
    assert "THE REST STILL DIFFERS" in confirmation(proof)
    # values cannot be put into a batch that llama.cpp splits, so the rest is no second fault
    said = confirmation(proof, left=3)
    assert said.endswith("; 3 more wrong ops cannot be patched")


OF_THE_ORACLE = "are the oracle's own, so errors before them do not show"


@pytest.mark.parametrize(
    ("engine", "site", "said"),
    [
        ("mutant:head-always-tied", "result_output", True),
        ("mutant:rope-half-split", "Qcur_rope", False),
    ],
)
def test_replaced_logits_prove_nothing_about_earlier_ops(
    engine: str, site: str, said: bool, tmp_path: Path
) -> None:
    """An earlier version replaced the logits themselves. They then agreed exactly with the
    oracle's, and this confirmed a kernel that loses rows."""
    proof = proof_of(written(tmp_path, seed=6, n_layer=1), engine, site=site)
    assert proof.confirms
    assert (OF_THE_ORACLE in confirmation(proof)) is said
