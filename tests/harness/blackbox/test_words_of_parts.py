"""Descriptions of a part in addition to its name: the batches in which it is wrong, its bias, and
untested parts."""

from collections.abc import Callable
from math import exp, log
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.naming import BIAS, MASK, OF_LOGARITHMS, ROTATION, ROUTER
from tests.black_boxes import bisected, faults, model_of_arch
from tests.models import builtin, with_changed_weight
from tests.quiet_engines import changed, made

# --- later batches --------------------------------------------------------------------------------
# With wrong later batches only, the place is the same but the mistake is another.

LATER = "with all tokens in one batch: only batches after the first are wrong"


@pytest.mark.parametrize(
    ("mistake", "part", "later"),
    [
        ("rope-later-batches-late", ROTATION, True),
        ("rope-half-split", ROTATION, False),
        ("cache-batch-sees-itself-alone", MASK, True),
    ],
)
def test_report_says_if_only_batches_after_the_first_are_wrong(
    mistake: str, part: str, later: bool, tmp_path: Path
) -> None:
    path = builtin("f32", tmp_path)
    found = bisected(path, tmp_path / "made", engine=f"mutant:{mistake}")
    assert faults(found) == {layer: [f"attention: {part}"] for layer in (0, 1)}
    for row in found.guilty:
        assert (LATER in row.parts[0].words) is later


# --- one mistake in all layers --------------------------------------------------------------------
# A fault in one layer is probably in the next layer too, which one more question shows.

NEXT_EXPERT = "mutant:experts-ids-from-one"
ALL_ALIKE = "experts that are all equal"


def test_router_that_is_wrong_in_every_layer_is_tested_once(
    tmp_path: Path,
) -> None:
    """Each question rewrites all experts of a layer in F32, which takes seconds on a real model."""
    path = model_of_arch("qwen3moe", tmp_path, {})
    found = bisected(path, tmp_path / "made", engine=NEXT_EXPERT)
    wrong = faults(found)
    assert len(wrong) > 1
    assert set(map(tuple, wrong.values())) == {(f"FFN: {ROUTER}",)}
    first, *others = found.guilty
    assert len(first.asked or ()) > 1
    assert all(list(row.asked or ()) == [ALL_ALIKE] for row in others)


def test_fault_in_a_layer_is_not_blamed_on_the_router_of_earlier_layers(
    tmp_path: Path,
) -> None:
    path = model_of_arch("qwen3moe", tmp_path, {})
    theirs = with_changed_weight(path, tmp_path / "b.gguf", "blk.1.attn_v.weight", 3, 5, 0.5)
    found = bisected(path, tmp_path / "made", engine=NEXT_EXPERT, subject_model=theirs)
    assert faults(found)[0] == [f"FFN: {ROUTER}"]
    assert faults(found)[1] == ["attention: matrix of values", f"FFN: {ROUTER}"]


# --- half of the activation -----------------------------------------------------------------------
# A buffer that another buffer overwrites: the end of one factor of the FFN is the other's.

HALF = "only the first half of the activation was compared"


class OneBuffer(Mirror):
    def swiglu(self, gate: F32, up: F32) -> F32:
        up = np.concatenate([up[..., :-4], gate[..., -4:]], axis=-1)
        return super().swiglu(gate, up)


class WithOneBuffer(Reference, name="test:the end of up is the gate's"):
    ops = OneBuffer


def test_report_says_which_part_of_the_activation_was_not_compared(tmp_path: Path) -> None:
    found = bisected(builtin("f32", tmp_path), tmp_path / "made", engine=WithOneBuffer.name)
    assert {row.layer for row in found.guilty} == {0, 1}
    assert all(part.name.startswith("FFN") for row in found.guilty for part in row.parts)
    assert all(HALF in part.words for row in found.guilty for part in row.parts)


def test_report_adds_no_uncompared_half_to_a_named_matrix(tmp_path: Path) -> None:
    engine = "mutant:gate-and-up-exchanged"
    found = bisected(builtin("f32", tmp_path), tmp_path / "made", engine=engine)
    assert found.guilty
    assert not any(HALF in part.words for row in found.guilty for part in row.parts)


# --- names of biases ------------------------------------------------------------------------------
# The text on a wrong bias names the bias, in the first layer with the fault.

ZERO_BIASES = "the engines agree with biases of zero"


def words_of(path: Path, made: Path, engine: str) -> list[str]:
    found = bisected(path, made, engine=engine)
    parts = [part for row in found.guilty for part in row.parts]
    assert {part.name.rpartition(": ")[2] for part in parts} == {BIAS}
    return [part.words for part in parts]


@pytest.mark.parametrize(
    ("arch", "engine", "whose"),
    [
        ("qwen2", "mutant:query-bias-missing", "attn_q.bias"),
        ("qwen2", "mutant:value-bias-missing", "attn_v.bias"),
        ("gpt2", "mutant:qkv-bias-missing", "attn_qkv.bias"),
    ],
)
def test_owner_of_a_wrong_bias_is_named_once(
    arch: str, engine: str, whose: str, tmp_path: Path
) -> None:
    first, *others = words_of(model_of_arch(arch, tmp_path, {}), tmp_path / "made", engine)
    assert first == f"{ZERO_BIASES}, and with only {whose} zero"
    assert set(others) <= {ZERO_BIASES}


def test_several_wrong_biases_are_not_named_alone(tmp_path: Path) -> None:
    path = model_of_arch("qwen2", tmp_path, {})
    words = words_of(path, tmp_path / "made", "mutant:biases-by-order-of-loading")
    assert set(words) == {ZERO_BIASES}


# --- other logarithms -----------------------------------------------------------------------------
# Lists that are right except for the base of their logarithms. An earlier version blamed the output
# norm, because the engines agreed on a model with equal logits.


def lists(name: str, change: Callable[[float], float]) -> str:
    shown = changed(lambda _, row: [(token, change(value)) for token, value in row])
    return made(f"other logarithms: {name}", **shown)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (lists("base 10", lambda value: value / log(10)), "logarithms to base 10"),
        (lists("base 2", lambda value: value / log(2)), "logarithms to base 2"),
        (lists("probabilities", exp), "their logarithms are right"),
    ],
)
def test_other_rope_base_is_not_named_as_a_part(engine: str, says: str, tmp_path: Path) -> None:
    found = bisected(builtin("f32", tmp_path), tmp_path / "made", engine=engine)
    assert faults(found) == {None: [OF_LOGARITHMS]}
    assert says in found.guilty[0].parts[0].words


def test_temperature_is_not_reported_as_a_scale_of_logarithms(tmp_path: Path) -> None:
    engine = lists("temperature", lambda value: value / 0.8)
    found = bisected(builtin("f32", tmp_path), tmp_path / "made", engine=engine)
    assert found.exit_code == 1
    assert OF_LOGARITHMS not in faults(found)[None]


def test_constant_added_to_all_logarithms_is_not_a_fault(tmp_path: Path) -> None:
    # a constant that is added to all values is no fault
    engine = lists("natural", lambda value: value + 0.5)
    assert not bisected(builtin("f32", tmp_path), tmp_path / "made", engine=engine).guilty
