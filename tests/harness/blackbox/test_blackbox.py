"""Engines without tensors: the black box finds the faulty layer and part from logits alone."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.lens import LARGEST_STEP, Lens
from lockstep.harness.blackbox.lenses import lenses_of
from lockstep.harness.blackbox.looking import look, through
from lockstep.harness.blackbox.naming import ROUTER, WEIGHED
from lockstep.harness.blackbox.rewriting import rewrite
from lockstep.harness.blackbox.slices import (
    small,
    what_adds,
)
from lockstep.harness.blackbox.whole import SMALL
from lockstep.harness.cli.blackbox import lines_of
from lockstep.harness.mutants.norms import WrongEps
from lockstep.harness.records import Evaluation, Request
from tests.all_types import ROUNDING, model_of
from tests.black_boxes import (
    asker_of,
    bisected,
    copy_with,
    faults,
    one_layer_of,
    one_nibble,
    scaled,
    wrong_tensors,
)
from tests.harness.check.test_check import plan_for
from tests.models import builtin, with_changed_weight, written
from tests.quiet_engines import made, wrong

# --- parts ----------------------------------------------------------------------------------

PARTS = {
    "rope-half-split": "attention: rotation",
    "missing-scale": "attention: scores: queries, keys as they are kept, rotation or scale",
    "cache-keys-f16": "attention: scores: queries, keys as they are kept, rotation or scale",
    "cache-values-transposed": "attention: values as they are kept, or how heads are put together",
    "tensors-by-order": "attention: matrices of keys or values",
    "softmax-plus-one": "attention: mask, softmax or cache, or heads that are lost",
    "kv-head-modulo": "attention: heads 1, 2",
    "last-kv-head-dropped": "attention: heads 2, 3",
    "cache-keeps-last": "attention: mask, softmax or cache",
    "silu-without-gate": "FFN: activation",
    "gate-and-up-exchanged": "FFN: activation, or gate and up that are exchanged",
    "gate-and-up-by-order": "FFN: activation, or gate and up that are exchanged",
}


@pytest.mark.parametrize(("mutant", "part"), PARTS.items())
def test_wrong_part_is_named_in_every_layer(mutant: str, part: str, tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    found = bisected(path, tmp_path / "made", engine=f"mutant:{mutant}")
    assert faults(found) == {0: [part], 1: [part]}
    assert found.exit_code == 1


PASSED_ON = "rounding of what the output norm gives and the output matrix reads"


@pytest.mark.parametrize(
    ("mutant", "part"),
    [
        ("stale-norm", "output norm"),
        ("wrong-eps", "eps"),
        ("last-norm-of-a-layer", "it fails on a model of one layer"),
        ("last-norm-missing", "output norm"),
        ("norm-by-sum", "output norm"),
        ("norm-of-first-row", "output norm"),
        ("embeddings-column-major", "embedding"),
        ("embeddings-in-half", "embedding"),
        ("embeddings-scaled-for-llama", "eps, or the scale of embeddings"),
        ("head-always-tied", "output matrix"),
        ("logits-in-half", "output matrix, or what is made of logits"),
        ("logits-of-the-row-before", "embedding of some tokens, or logits of others"),
        ("activations-of-f32-in-bf16", PASSED_ON),
        ("column-major", "output matrix, or what is made of logits"),
    ],
)
def test_fault_outside_the_layers_is_named_and_the_layers_are_not_judged(
    mutant: str, part: str, tmp_path: Path
) -> None:
    path = builtin("f32", tmp_path)
    found = bisected(path, tmp_path / "made", engine=f"mutant:{mutant}")
    assert faults(found) == {None: [part]}
    assert "2 layers: " in found.left_out[0]
    assert found.exit_code == 1


def an_eighth(raw: NDArray[np.uint8], _: Any) -> None:
    raw.view(np.float32)[:] /= 8


def test_eps_is_not_mistaken_for_the_embedding_if_embeddings_are_small(tmp_path: Path) -> None:
    """The model Stories260K has such small embeddings. If embeddings are larger powers of two, eps
    has no effect."""
    path, tensor = builtin("f32", tmp_path), "token_embd.weight"
    small_ones = copy_with(path, tmp_path / "small.gguf", tensor, an_eighth)
    found = bisected(small_ones, tmp_path / "made", engine="mutant:wrong-eps")
    assert faults(found) == {None: ["eps"]}
    found = bisected(small_ones, tmp_path / "other", engine="mutant:embeddings-column-major")
    assert faults(found) == {None: ["embedding"]}


class OtherSlope(Mirror):
    def swiglu_oai(self, gate: F32, up: F32) -> F32:
        x = np.minimum(gate, np.float32(7)).astype(np.float64)
        y = np.clip(up, np.float32(-7), np.float32(7)).astype(np.float64)
        return (x / (1 + np.exp(-1.6 * x)) * (y + 1)).astype(np.float32)


class WithOtherSlope(Reference, name="test:swiglu-oai-with-another-slope"):
    ops = OtherSlope


class ScaledSinks(Mirror):
    def soft_max_with_sinks(
        self, x: F32, scale: float, visible: NDArray[np.bool_], sinks: F32
    ) -> F32:
        return super().soft_max_with_sinks(x, scale, visible, sinks * np.float32(scale))


class WithScaledSinks(Reference, name="test:sinks-scaled-as-scores"):
    ops = ScaledSinks


@pytest.mark.parametrize(
    ("engine", "part"),
    [
        ("test:swiglu-oai-with-another-slope", "FFN: activation"),
        ("test:sinks-scaled-as-scores", "attention: sinks"),
    ],
)
def test_fault_of_a_gpt_oss_is_named(engine: str, part: str, tmp_path: Path) -> None:
    """gpt-oss names its norm before the FFN post_attention_norm, so an earlier version enlarged
    this norm. Then all gates were clamped, the engines agreed, and eps was named."""
    path = one_layer_of("gpt-oss", tmp_path)
    found = bisected(path, tmp_path / "made", engine=engine, oracle="llama.cpp")
    assert faults(found) == {0: [part]}


class LargerGate(Mirror):
    def geglu(self, gate: F32, up: F32) -> F32:
        return super().geglu(gate * np.float32(1.02), up)


class WithLargerGate(Reference, name="test:geglu-of-a-larger-gate"):
    ops = LargerGate


@pytest.mark.parametrize(
    ("arch", "engine", "part"),
    [
        # gemma2 caps logits, and with a larger table, which is its head, all logits are at the cap
        ("gemma2", "test:geglu-of-a-larger-gate", "FFN: activation"),
        ("qwen3moe", "mutant:experts-least-liked", f"FFN: {ROUTER}"),
        ("qwen3moe", "mutant:experts-not-normalised", f"FFN: {WEIGHED}"),
    ],
)
def test_part_that_hides_a_fault_is_not_blamed(
    arch: str, engine: str, part: str, tmp_path: Path
) -> None:
    path = one_layer_of(arch, tmp_path)
    found = bisected(path, tmp_path / "made", engine=engine, oracle="llama.cpp")
    assert faults(found) == {0: [part]}


ADDS = {
    "llama": ("attn_norm attn_output ffn_norm ffn_down", "attn_output ffn_down"),
    "gpt-oss": (
        "attn_norm attn_output post_attention_norm ffn_down_exps",
        "attn_output ffn_down_exps",
    ),
    "gemma3": (
        "attn_norm attn_output post_attention_norm ffn_norm ffn_down post_ffw_norm",
        "post_attention_norm post_ffw_norm",
    ),
    "olmo2": (
        "attn_output post_attention_norm ffn_down post_ffw_norm",
        "post_attention_norm post_ffw_norm",
    ),
}


@pytest.mark.parametrize("arch", ADDS)
def test_tensors_that_add_to_the_residual_stream_are_recognised(arch: str) -> None:
    stems, expected = (words.split() for words in ADDS[arch])
    assert what_adds(stems) & set(stems) == set(expected)


@pytest.mark.parametrize("engine", ["reference", "honest:float64", "honest:silu-tanh"])
@pytest.mark.parametrize("name", ["f32", "q4_0"])
def test_an_honest_engine_is_not_accused(engine: str, name: str, tmp_path: Path) -> None:
    found = bisected(builtin(name, tmp_path), tmp_path / "made", engine=engine)
    assert faults(found) == {}
    assert {look.answer.status for look in found.lenses} <= {"agreed"}
    assert bool(found.lenses) == (name == "q4_0")
    assert found.exit_code == 0


def test_two_faults_in_two_layers_are_both_found(tmp_path: Path) -> None:
    path = written(tmp_path, n_layer=3)
    once = with_changed_weight(path, tmp_path / "a.gguf", "blk.0.ffn_down.weight", 3, 5, 0.5)
    twice = with_changed_weight(once, tmp_path / "b.gguf", "blk.2.attn_v.weight", 3, 5, 0.5)
    found = bisected(path, tmp_path / "made", subject_model=twice)
    assert set(faults(found)) == {0, 2}
    assert faults(found)[0] == ["FFN: down matrix"]
    assert faults(found)[2] == ["attention: matrix of values"]


class KnowsNoOtherHead(Reference, name="test:the-head-is-the-table"):
    def make_model(self) -> Model:
        model = super().make_model()
        table = model.graph.tensors["token_embd.weight"]
        model.graph.head = lambda: table  # type: ignore[method-assign]
        return model


def test_black_box_does_not_blame_the_head_of_a_tied_model(tmp_path: Path) -> None:
    """An earlier version changed the embeddings for the engine. This also changed the tied head, so
    the engine differed."""
    path = written(tmp_path, n_layer=1, tied=True)
    off = with_changed_weight(path, tmp_path / "off.gguf", "blk.0.ffn_down.weight", 3, 5, 0.5)
    engine = "test:the-head-is-the-table"
    found = bisected(path, tmp_path / "made", engine=engine, subject_model=off)
    assert faults(found) == {0: ["FFN: down matrix"]}


class OtherEachTime(Reference, name="test:other-each-time"):
    asked = count(1)

    def evaluate(self, request: Request, *args: Any, **more: Any) -> Evaluation:
        right = super().evaluate(request, *args, **more)
        factors = 1 + np.arange(right.logits[0].shape[-1]) % 7 * 2.0**-12 * (next(self.asked) % 3)
        return replace(right, logits=tuple(x * factors.astype(np.float32) for x in right.logits))


def test_black_box_names_no_part_if_runs_of_an_engine_differ(tmp_path: Path) -> None:
    """Each bisection of this engine would name a different part: eps, the output norm, or the
    embedding."""
    path = written(tmp_path, n_layer=1)
    found = bisected(path, tmp_path / "made", engine="test:other-each-time")
    assert faults(found) == {}
    assert "test:other-each-time is not deterministic" in found.whole.summary
    assert found.exit_code == 1
    said = "\n".join(lines_of(plan_for(path, engine="test:other-each-time"), found))
    assert "the whole model: test:other-each-time is not deterministic: " in said
    assert "lockstep diagnose" not in said, "what differs from run to run is no known mistake"


class NoNumbers(Mirror):
    def soft_max(self, x: F32, scale: float, visible: NDArray[np.bool_]) -> F32:
        found = super().soft_max(x, scale, visible)
        return np.where(visible.sum(axis=-1, keepdims=True) > 3, np.float32(np.nan), found)


class WithNoNumbers(Reference, name="test:softmax-of-many-is-no-number"):
    ops = NoNumbers


def test_nan_survives_zeros_and_is_not_blamed_on_the_head(
    tmp_path: Path,
) -> None:
    path = builtin("f32", tmp_path)
    found = bisected(path, tmp_path / "made", engine="test:softmax-of-many-is-no-number")
    part = "attention: mask, softmax or cache"
    assert faults(found) == {0: [part], 1: [part]}
    assert "a muted layer" in found.rows[0].answer.summary


class TurnsOnlyInModelsOfTwo(Mirror):
    """An engine whose fault depends on the number of layers, so no slice shows the fault."""

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        return super().rms_norm(x, weight, eps) * np.float32(self.size)

    size = 1.0


class WrongByNumber(Reference, name="test:wrong-by-number"):
    def make_ops(self) -> Mirror:
        ops = TurnsOnlyInModelsOfTwo(self.settings.n_threads, self.settings.n_ctx)
        ops.size = 1.5 if self.file.metadata["llama.block_count"].data == 2 else 1.0
        return ops


def test_fault_by_layer_number_is_reported(tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    found = bisected(path, tmp_path / "made", engine="test:wrong-by-number")
    assert found.whole.status == "diverged"
    assert faults(found) == {None: ["parts before or after this many layers"]}
    assert found.exit_code == 1


def test_engine_with_lists_is_bisected_by_its_lists(tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    found = bisected(path, tmp_path / "made", engine="lists: no scale")
    assert set(faults(found)) == {0, 1}
    assert all(part[0].startswith("attention: scores") for part in faults(found).values())
    honest = bisected(path, tmp_path / "made", engine="quiet")
    assert (faults(honest), honest.exit_code) == ({}, 0)


def test_untested_weights_are_not_reported_as_agreeing(tmp_path: Path) -> None:
    """An earlier summary claimed that the weights of an engine that shows only tokens agree."""
    path = builtin("f32", tmp_path)
    of_tokens = made("greedy: honest", levels=("greedy",))
    for engine, weights in ((of_tokens, False), ("reference", True)):
        found = bisected(path, tmp_path / str(weights), engine=engine)
        *_, last = lines_of(plan_for(path, engine=engine), found)
        assert last.endswith("agree")
        assert ("every weight" in last) == weights == bool(found.lenses or found.places)


def test_check_locates_a_wrong_eps_that_only_tokens_show(tmp_path: Path) -> None:
    """The choice of a token does not depend on an eps outside the layers, and an ordinary slice
    does not show an eps within the layers."""
    path = builtin("f32", tmp_path)
    found = bisected(path, tmp_path / "made", engine=GREEDY_WITH_OTHER_EPS)
    assert found.whole.status == "agreed"
    assert found.in_f32[SMALL].status == "diverged"
    assert faults(found) in ({0: ["eps"]}, {1: ["eps"]}, {0: ["eps"], 1: ["eps"]})
    assert found.exit_code == 1
    with GgufFile.open(path) as model:
        rewrite(model, small(model, 1), tmp_path / "small.gguf")
        whole, slice = small(model), small(model, 1)
    assert len(whole.changes) == 5
    assert slice.changes.keys() == {name.replace("blk.1", "blk.0") for name in whole.changes}


GREEDY_WITH_OTHER_EPS = wrong("greedy: other eps", WrongEps, levels=("greedy",))


@pytest.mark.parametrize("name", ["f32", "q8_0"])
def test_fault_in_other_suites_prevents_agreement(name: str, tmp_path: Path) -> None:
    engine = "mutant:cache-cells-beyond-64"  # no slice has so many cells
    found = bisected(builtin(name, tmp_path), tmp_path / "made", engine=engine)
    assert (found.whole.status, faults(found)) == ("agreed", {})
    assert {answer.status for answer in found.in_f32.values()} == {"agreed"}
    assert len(found.in_f32) == (3 if name == "q8_0" else 2)
    assert "logits" in {verdict.suite for verdict in found.others}
    assert found.exit_code == 1


# --- lenses ---------------------------------------------------------------------------------


def test_lens_reads_every_weight_once_with_balanced_signs() -> None:
    lens = Lens(type="Q4_0", width=128, vocabulary=64, period=32, stretches=())
    inputs = np.concatenate([met for _, met in lens.batches])
    assert inputs.shape == (32, 128)
    assert np.array_equal(np.abs(inputs).sum(axis=0), np.full(128, LARGEST_STEP))
    assert not inputs.sum(axis=1).any()
    assert len(np.unique(np.sign(inputs[inputs != 0]).reshape(32, 4), axis=0)) > 1


@pytest.mark.parametrize("kind", ROUNDING)
def test_lens_of_any_type_finds_one_wrong_nibble(kind: str, tmp_path: Path) -> None:
    path, tensor = model_of(kind, tmp_path), "blk.0.attn_k.weight"
    other = copy_with(path, tmp_path / "other.gguf", tensor, one_nibble)
    asker = asker_of(path, tmp_path / "made", subject_model=other)
    same = asker_of(path, tmp_path / "made")
    lenses, left_out = lenses_of(asker.file)
    assert not left_out
    its = [lens for lens in lenses if any(s.tensor == tensor for s in lens.stretches)]
    assert [name for lens in its for name in through(asker, lens).tensors] == [tensor]
    assert {through(same, lens).answer.status for lens in its} == {"agreed"}


def test_tensor_off_by_a_thousandth_is_named_with_its_layer(tmp_path: Path) -> None:
    """The logits of the whole model do not show the fault."""
    path, tensor = written(tmp_path, quant="Q4_1", n_layer=3), "blk.1.ffn_up.weight"
    other = copy_with(path, tmp_path / "other.gguf", tensor, scaled)
    found = bisected(path, tmp_path / "made", subject_model=other)
    assert found.whole.status == "agreed"
    assert wrong_tensors(found) == {tensor}
    assert set(faults(found)) == {1}
    assert found.exit_code == 1


def test_misread_type_is_found_in_all_its_tensors(tmp_path: Path) -> None:
    asker = asker_of(builtin("q8_0", tmp_path), tmp_path / "made", engine="mutant:q8-0-unsigned")
    looked, _ = look(asker)
    matrices = [info.name for info in asker.file.tensors.values() if len(info.ne) > 1]
    assert {name for one in looked for name in one.tensors} == set(matrices)
