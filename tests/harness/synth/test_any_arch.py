"""Models of any architecture: the table of variants, and files with the tensors that llama.cpp
names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.records import TensorSummary
from lockstep.harness.synth.any_arch import (
    IMPOSSIBLE,
    metadata,
    type_of,
    variant_named,
    variants,
    write_variant,
)
from lockstep.harness.synth.variant_extras import BOTH, DENSE_ONLY, EXTRAS, MOE_ONLY, SIZES


def tensor(name: str, *ne: int, kind: str = "F32") -> TensorSummary:
    return TensorSummary(name=name, ne=ne, type=kind, offset=0, n_bytes=0)


TENSORS = (
    tensor("token_embd.weight", 64, 128),
    tensor("blk.0.attn_norm.weight", 64),
    tensor("blk.0.ssm_a", 16, 128),
    tensor("blk.0.ssm_in.weight", 64, 32),
    tensor("blk.0.ffn_up.weight", 64, 96),
    tensor("blk.0.ffn_down.weight", 48, 64),
)


def values(path: Path, name: str) -> NDArray[Any]:
    with GgufFile.open(path) as file:
        return np.array(file.raw(name).view("<f4"))


def test_every_architecture_has_one_form_or_both() -> None:
    forms = [*DENSE_ONLY, *MOE_ONLY, *BOTH]
    assert len(set(forms)) == len(forms) == 153
    assert (EXTRAS.keys() | SIZES.keys() | IMPOSSIBLE.keys()) <= set(forms)
    assert not IMPOSSIBLE.keys() & set(BOTH)
    assert len(variants()) == len(forms) + len(BOTH) - len(IMPOSSIBLE) >= 120


@pytest.mark.parametrize("name", variants())
def test_variant_exceeds_positions_of_a_byte_and_a_bfloat16(name: str) -> None:
    variant = variant_named(name)
    _, n_ctx = metadata(variant)[f"{variant.arch}.context_length"]
    assert n_ctx >= 256 + 64


@pytest.mark.parametrize("name", ["mamba2", "falcon-h1", "granitehybrid", "nemotron_h"])
def test_each_group_of_states_has_several_heads(name: str) -> None:
    keys = metadata(variant_named(name))
    heads, groups = (keys[f"{name}.ssm.{k}"][1] for k in ("time_step_rank", "group_count"))
    assert heads >= 2 * groups >= 4


@pytest.mark.parametrize("name", variants())
def test_variant_has_only_the_keys_of_its_architecture(name: str) -> None:
    variant = variant_named(name)
    keys = metadata(variant)
    assert next(iter(keys)) == "general.architecture"
    assert keys["general.architecture"] == ("STR", variant.arch)
    assert not any(key.startswith(".") for key in keys)
    assert (f"{variant.arch}.expert_count" in keys) == variant.moe


@pytest.mark.parametrize(("name", "says"), [("nope", "near: "), ("gptj", "no graph")])
def test_impossible_variant_is_refused_with_the_reason(name: str, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        variant_named(name)


def test_seed_decides_the_bytes(tmp_path: Path) -> None:
    written = []
    for i, seed in enumerate((1, 1, 2)):
        path = tmp_path / f"{i}.gguf"
        write_variant(variant_named("mamba"), TENSORS, path, seed=seed)
        written.append(path.read_bytes())
    assert written[0] == written[1] != written[2]


def test_additional_tensor_changes_no_other_weight(tmp_path: Path) -> None:
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    write_variant(variant_named("mamba"), TENSORS, one)
    write_variant(variant_named("mamba"), TENSORS[2:], two)
    name = "blk.0.ffn_up.weight"
    assert np.array_equal(values(one, name), values(two, name))


def test_state_decays_and_norms_are_around_one(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_variant(variant_named("mamba"), TENSORS, path)
    decay, norm = values(path, "blk.0.ssm_a"), values(path, "blk.0.attn_norm.weight")
    spread = 0.1 * 3**0.5 + 1e-6  # half the width of a uniform distribution with this deviation
    assert np.allclose(decay.reshape(128, 16), -np.arange(1, 17), rtol=spread)
    assert (np.abs(norm - 1) < 0.2).all()
    assert norm.std() > 0


@pytest.mark.parametrize(("arch", "size"), [("plm", 0.24), ("gemma2", 0.03), ("bert", 1)])
def test_tied_embeddings_are_smaller_than_layer_outputs(
    arch: str, size: float, tmp_path: Path
) -> None:
    embeddings = drawn(tmp_path, "token_embd.weight", 64, 128, arch=arch)
    assert embeddings.std() == pytest.approx(size, rel=0.05)


def test_untied_embeddings_are_as_large_as_layer_outputs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.gguf"
    write_variant(variant_named("mamba"), (*TENSORS, tensor("output.weight", 64, 128)), path)
    assert values(path, "token_embd.weight").std() == pytest.approx(1, rel=0.05)


def test_large_scan_matrices_have_the_requested_type(tmp_path: Path) -> None:
    """Published files have such types. In an earlier version these matrices stayed F32, so engines
    never multiplied by other types."""
    path = tmp_path / "m.gguf"
    names = ("ssm_in.weight", "ssm_out.weight", "ssm_x.weight", "ssm_conv1d.weight", "ssm_a")
    rows = [tensor(f"blk.0.{name}", 64, 32) for name in names]
    write_variant(variant_named("mamba"), rows, path, quant="Q8_0")
    with GgufFile.open(path) as file:
        types = [info.type.name for info in file.tensors.values()]
    assert types == ["Q8_0", "Q8_0", "F32", "F32", "F32"]


def drawn(tmp_path: Path, name: str, *ne: int, arch: str = "mamba2") -> NDArray[Any]:
    path = tmp_path / "m.gguf"
    write_variant(variant_named(arch), (tensor(name, *ne),), path)
    return values(path, name)


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_q.scale",
        "blk.0.ffn_down_exps.scale",
        "blk.0.ssm_in.input_scale",
        "blk.0.ssm_d",
        "blk.0.ffn.act.scales",
        "blk.0.post_attention_norm",
        "blk.0.post_attention_norm.weight",
    ],
)
def test_factors_are_around_one(name: str, tmp_path: Path) -> None:
    assert (np.abs(drawn(tmp_path, name, 400) - 1) < 0.2).all()


@pytest.mark.parametrize(
    "name", ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"]
)
def test_frequency_divisor_makes_no_angle_larger(name: str, tmp_path: Path) -> None:
    assert drawn(tmp_path, name, 400).min() >= 1


def test_recurrent_layer_starts_as_published(tmp_path: Path) -> None:
    """Each head of Mamba 2 has a decay from -16 to -1. Time steps are from 0.001 to 0.1."""
    heads = drawn(tmp_path, "blk.0.ssm_a", 1, 400)
    assert heads.min() >= -16
    assert heads.max() <= -1
    assert heads.std() > 4
    steps = np.log1p(np.exp(drawn(tmp_path, "blk.0.ssm_dt.bias", 400)))
    assert 0.0009 < steps.min() < 0.002
    assert 0.05 < steps.max() < 0.11


def test_decay_gate_is_open(tmp_path: Path) -> None:
    """A closed gate would hide every earlier fault."""
    factor = drawn(tmp_path, "blk.0.ssm_a", 1, 400, arch="bailingmoe3")
    bias = drawn(tmp_path, "blk.0.ssm_dt.bias", 400, arch="bailingmoe3")
    assert (np.abs(factor * bias) < 1).all()
    assert factor.min() > 0


@pytest.mark.parametrize(
    ("name", "ne", "expected"),
    [
        ("blk.0.ffn_up.weight", (64, 96), "Q8_0"),
        ("blk.0.ffn_up.weight", (48, 96), "F32"),
        ("blk.0.ffn_up_exps.weight", (64, 96, 4), "Q8_0"),
        ("blk.0.ffn_gate_inp.weight", (64, 4), "F32"),
        ("blk.0.attn_norm.weight", (64,), "F32"),
        ("blk.0.ssm_a", (64, 4), "F32"),
    ],
)
def test_only_matrices_of_whole_blocks_get_the_type(
    name: str, ne: tuple[int, ...], expected: str
) -> None:
    assert type_of(tensor(name, *ne), "Q8_0") == expected
