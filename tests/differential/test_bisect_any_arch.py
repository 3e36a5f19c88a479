"""Bisection of models without our own graph: a wrong op or one changed weight is found at its
node."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.harness.bisect.bisection import Bisection, bisect
from lockstep.harness.check.check import Plan, run_suites
from lockstep.harness.context.runner import Session
from lockstep.harness.damage.changes import Damage, write_damaged
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.graph.engine import ReplayEngine
from lockstep.harness.graph.ways import Honest
from lockstep.harness.records import Verdict
from lockstep.harness.shadow.models import make_variant
from lockstep.harness.synth.any_arch import variant_named
from tests.plans import open_both, plan_of, verdicts_of

Models = Callable[[str], Path]
EPS, MODE, KIND = 0, 2, 0  # numbers of parameters of RMS_NORM and NORM, and of ROPE
NORMAL, NEOX = 0, 2


@dataclass(frozen=True)
class Wrong(Honest):
    """An engine in which one op has wrong parameters, or is replaced by another op."""

    op: str
    change: Callable[[Node], Node]

    def compute(self, build: Build, node: Node):  # type: ignore[no-untyped-def]
        return super().compute(build, self.change(node) if node.op == self.op else node)


def larger_eps(node: Node) -> Node:
    held = node.params.copy()
    held.view("f4")[EPS] *= 10
    return replace(node, params=held)


def other_pairs(node: Node) -> Node:
    held = node.params.copy()
    held[MODE] = NORMAL if held[MODE] == NEOX else NEOX
    return replace(node, params=held)


class WrongNorm(ReplayEngine, name="test:replay-eps"):
    way = Wrong("RMS_NORM", larger_eps)


class WrongLayerNorm(ReplayEngine, name="test:replay-eps-of-norm"):
    way = Wrong("NORM", larger_eps)


class WrongPairs(ReplayEngine, name="test:replay-pairs"):
    way = Wrong("ROPE", other_pairs)


class WrongScan(ReplayEngine, name="test:replay-no-silu"):
    way = Wrong("SILU", lambda node: replace(node, op="RELU"))


@pytest.fixture(scope="module")
def variant(namer: Session, tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("variants")

    def make(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            make_variant(variant_named(name), path, session=namer, seed=1)
        return path

    return make


def plan_for(model: Path, engine: str = "replay", subject: Path | None = None) -> Plan:
    suites = ("trace", "products")
    return plan_of(model, engine, subject_model=subject or model, suites=suites, n_tokens=6)


def asked(plan: Plan) -> tuple[Bisection, list[Verdict]]:
    with open_both(plan) as both:
        return bisect(both.context), list(run_suites(both.context, plan.suites))


def statuses(verdicts: list[Verdict], suite: str) -> set[str]:
    return {v.status for v in verdicts if v.suite == suite}


@pytest.mark.parametrize("name", ["qwen3", "mamba"])
def test_honest_engine_agrees_in_every_op_and_product(name: str, variant: Models) -> None:
    result, verdicts = asked(plan_for(variant(name)))
    assert (result.culprits, result.exit_code, result.not_compared) == ((), 0, ())
    assert len(result.found.all) > 100
    assert exit_code(verdicts) == 0
    trace, products = verdicts
    assert trace.detail["agreed"] == trace.detail["sites"] == len(result.found.all)
    with GgufFile.open(variant(name)) as file:
        matrices = [t for t in file.tensors.values() if len(t.ne) == 2 and "conv" not in t.name]
    multiplied = len(matrices) - 1  # embeddings are only looked up
    # ssm_a is used by the scan
    assert products.detail["agreed"] == multiplied - (name == "mamba") * 2


@pytest.mark.parametrize(
    ("name", "engine", "op", "first"),
    [
        ("qwen3", "test:replay-eps", "RMS_NORM", "norm RMS_NORM"),
        ("qwen3", "test:replay-pairs", "ROPE", "Qcur ROPE"),
        ("gpt2", "test:replay-eps-of-norm", "NORM", "norm NORM"),
        ("mamba", "test:replay-eps", "RMS_NORM", "norm"),
        ("mamba", "test:replay-no-silu", "SILU", "node_27"),
        ("bert", "test:replay-eps-of-norm", "NORM", "norm NORM"),
    ],
)
def test_wrong_op_is_found_only_at_its_nodes_and_confirmed(
    name: str, engine: str, op: str, first: str, variant: Models
) -> None:
    result, verdicts = asked(plan_for(variant(name), engine))
    assert result.first is not None
    assert (result.first.layer, result.first.site.name) == (0, first)
    assert {c.op for c in result.culprits} == {op}
    assert {c.at_fault for c in result.culprits} == {"subject"}
    assert result.patched is not None
    assert result.patched.confirms
    assert statuses(verdicts, "trace") == {"diverged", "agreed"}
    assert statuses(verdicts, "products") == {"agreed"}


@pytest.mark.parametrize("factor", [-1.0, 1 + 2.0**-22])
def test_one_changed_weight_is_found_down_to_its_row(
    factor: float, variant: Models, tmp_path: Path
) -> None:
    """One case changes a weight so little that its product moves by less than the allowed
    roundings."""
    model, name = variant("qwen3"), "blk.1.ffn_up.weight"
    with GgufFile.open(model) as file:
        element = file.tensors[name].ne[0] * 10 + 7
        at = file.data_offset + file.tensors[name].offset + 4 * element
        before = file.raw(name).view("f4")[element]
    change = Damage(
        tensor=name,
        kind="scale",
        element=0,
        before=float(before),
        after=float(before * factor),
        at=at,
        raw=(before * factor).astype("f4").tobytes(),
    )
    write_damaged(model, tmp_path / "damaged.gguf", change)
    result, verdicts = asked(plan_for(model, subject=tmp_path / "damaged.gguf"))
    (culprit,) = result.culprits
    assert (culprit.op, culprit.weight, culprit.outputs) == ("MUL_MAT", name, (10,))
    assert (culprit.layer, str(culprit.site), culprit.at_fault) == (1, "ffn_up-1", "subject")
    assert result.patched is not None
    if factor < 0:
        assert result.patched.confirms
    assert statuses(verdicts, "trace") == {"diverged", "agreed"}
    if factor < 0:  # a sum of eight terms loses the last bit of a term
        assert statuses(verdicts, "products") == {"diverged", "agreed"}


def with_key(model: Path, key: str, raw: bytes, to: Path) -> Path:
    """Return a copy in which a key has another value of four bytes."""
    held = bytearray(model.read_bytes())
    at = held.index(key.encode()) + len(key) + 4  # after the type of the value
    held[at : at + 4] = raw
    to.write_bytes(held)
    return to


def test_other_epsilon_in_the_subjects_file_is_found_at_the_norms(
    variant: Models, tmp_path: Path
) -> None:
    """All weights agree, and with the oracle's parameters every op would agree as well."""
    key = "qwen3.attention.layer_norm_rms_epsilon"
    raw = np.float32(1e-3).tobytes()
    other = with_key(variant("qwen3"), key, raw, tmp_path / "other.gguf")
    result, verdicts = asked(plan_for(variant("qwen3"), subject=other))
    assert {c.op for c in result.culprits} == {"RMS_NORM"}
    assert {c.at_fault for c in result.culprits} == {"subject"}
    assert result.culprits[0].parameters.endswith("expected 9.99999975e-06")
    assert (result.found.other_graph, result.found.other_keys) == ("", (key,))
    assert result.patched is not None
    assert result.patched.confirms
    assert statuses(verdicts, "trace") == {"diverged", "agreed"}


def test_window_in_the_subjects_file_is_found_at_the_mask(variant: Models, tmp_path: Path) -> None:
    """Every op agrees, because no op computes the mask, and all ops get the oracle's mask."""
    key = "gemma3.attention.sliding_window"
    other = with_key(variant("gemma3"), key, (3).to_bytes(4, "little"), tmp_path / "other.gguf")
    result, verdicts = asked(plan_for(variant("gemma3"), subject=other))
    assert (result.exit_code, result.culprits, result.found.other_keys) == (1, (), (key,))
    assert result.found.other_graph == "its input 'attn_inp_kq_mask' contains other numbers"
    assert statuses(verdicts, "trace") == {"diverged", "agreed"}


def test_layers_with_windows_in_the_subjects_file_are_found_at_their_masks(
    variant: Models, tmp_path: Path
) -> None:
    """Both graphs have both masks, and all their ops are equal."""
    key, window = "olmo2.attention.sliding_window_pattern", "olmo2.attention.sliding_window"
    small = with_key(variant("olmo2"), window, (3).to_bytes(4, "little"), tmp_path / "small.gguf")
    other = with_key(small, key, (3).to_bytes(4, "little"), tmp_path / "other.gguf")
    result, verdicts = asked(plan_for(small, subject=other))
    assert (result.exit_code, result.culprits, result.found.other_keys) == (1, (), (key,))
    assert "cache_k_l1" in result.found.other_graph
    assert statuses(verdicts, "trace") == {"diverged", "agreed"}


def test_bisect_asks_both_versions_of_llama_cpp_for_single_ops(
    variant: Models, tmp_path: Path
) -> None:
    key, raw = "qwen3.attention.layer_norm_rms_epsilon", np.float32(1e-3).tobytes()
    other = with_key(variant("qwen3"), key, raw, tmp_path / "other.gguf")
    model = variant("qwen3")
    assert asked(plan_for(model, engine="llama.cpp"))[0].exit_code == 0
    result, verdicts = asked(plan_for(model, engine="llama.cpp", subject=other))
    assert {c.op for c in result.culprits} == {"RMS_NORM"}
    assert statuses(verdicts, "trace") == {"diverged", "agreed"}


def test_one_more_used_expert_changes_the_graph(variant: Models, tmp_path: Path) -> None:
    key, raw = "qwen3moe.expert_used_count", (3).to_bytes(4, "little")
    other = with_key(variant("qwen3moe"), key, raw, tmp_path / "other.gguf")
    result, verdicts = asked(plan_for(variant("qwen3moe"), subject=other))
    assert (result.culprits, result.exit_code) == ((), 1)
    assert "'ffn_moe_weights-0' is GET_ROWS of F32 [1, 3, 6, 1]" in result.found.other_graph
    assert result.found.other_keys == (key,)
    assert statuses(verdicts, "trace") == {"diverged", "agreed"}


def test_engine_with_its_own_graph_needs_no_single_ops(variant: Models) -> None:
    trace, products = verdicts_of(plan_for(variant("qwen3"), "fast"))
    assert (trace.status, products.status) == ("agreed", "agreed")  # its own runs are judged
    # seven products of each layer, and the head; in two batches
    assert products.detail["sites"] == 2 * 15


def test_other_number_of_experts_in_the_subjects_file_shows_as_a_shape(
    variant: Models, tmp_path: Path
) -> None:
    """The graph of the subject's own file shows the other number."""
    key, raw = "qwen3moe.expert_used_count", (3).to_bytes(4, "little")
    other = with_key(variant("qwen3moe"), key, raw, tmp_path / "other.gguf")
    result, verdicts = asked(plan_for(variant("qwen3moe"), "reference", other))
    assert result.exit_code == 1
    assert result.first is not None
    assert (result.first.site.name, result.first.layer) == ("ffn_moe_weights", 0)
    assert "shape" in str(result.first.mismatch)
    assert ("trace", "diverged") in {(v.suite, v.status) for v in verdicts}
