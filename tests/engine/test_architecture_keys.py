"""Keys of our architectures: values of real files are read, and absurd values are refused."""

from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.errors import EngineError, InvalidModel, Unsupported
from lockstep.engine.hparams import Hparams
from lockstep.engine.registry import import_members
from lockstep.harness.synth.any_arch import metadata, variant_named

import_members("lockstep.engine.architectures")
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.yarn_log_multiplier": 0.1,
}


@dataclass(frozen=True)
class Value:
    data: Any


def read(arch: str, **changes: Any) -> Hparams:
    """Read the hyperparameters of a `synth --arch` model, with changed keys."""
    keys = {key: value for key, (_, value) in metadata(variant_named(arch)).items()}
    keys |= {f"{arch}.{key}": value for key, value in changes.items()}
    kept = {key: Value(value) for key, value in keys.items() if value is not None}
    return Architecture.member(arch).read_hparams(kept)


# further keys of converters that change nothing
HARMLESS: list[tuple[str, dict[str, Any]]] = [
    ("mamba", {"ssm.dt_b_c_rms": False}),
    ("deepseek2", {"expert_group_count": 1, "expert_group_used_count": 1}),
    ("gemma2", {"attention.sliding_window_pattern": 2}),
]


@pytest.mark.parametrize(("arch", "changes"), HARMLESS)
def test_known_key_of_real_files_changes_nothing(arch: str, changes: dict[str, Any]) -> None:
    assert read(arch, **changes) == read(arch)


WRONG: list[tuple[str, dict[str, Any], type[EngineError], str]] = [
    ("mamba", {"ssm.dt_b_c_rms": True}, Unsupported, "dt_b_c_rms is True"),
    ("deepseek2", {"expert_group_count": 8}, Unsupported, "expert_group_count is 8"),
    # llama.cpp scales scores by the logarithm of the factor, which no published model does
    ("deepseek2", {"rope.scaling.factor": 4.0}, Unsupported, "is not YaRN"),
    ("deepseek2", {**YARN, "rope.scaling.type": "linear"}, Unsupported, "is not YaRN"),
    ("deepseek2", {"expert_count": 0, "expert_used_count": 0}, InvalidModel, "expert_count is 0"),
    *(
        (arch, {**YARN, "rope.scaling.factor": factor}, Unsupported, "known: above 0")
        for arch in ("deepseek2", "gpt-oss", "qwen3", "phi3")
        for factor in (-4.0, inf, -inf, float("nan"))
    ),
    *(
        (arch, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, Unsupported, "factor is")
        for arch in ("gemma2", "gpt-oss")
    ),
    *(
        ("gemma2", {f"{which}_logit_softcapping": cap}, Unsupported, "a cap of logits")
        for which in ("attn", "final")
        for cap in (0.0, -1.0, float("nan"))
    ),
    *(
        (arch, {"attention.layer_norm_epsilon": eps}, InvalidModel, "expected 0 or more")
        for arch in ("bert", "gpt2")
        for eps in (-1.0, float("nan"))
    ),
    ("gemma2", {"attention.sliding_window": 0}, InvalidModel, "must be positive, got 0"),
    *(
        ("gemma2", {"attention.sliding_window_pattern": said}, InvalidModel, "a flag for each")
        for said in (-1, True, 1.5, "x", ["a", "b"], [0.5, 1.0], [-1, 1])
    ),
    ("gemma2", {"attention.sliding_window_pattern": [1]}, InvalidModel, "has 1 values; expected 2"),
]


@pytest.mark.parametrize(
    ("arch", "changes", "kind", "message"), WRONG, ids=[f"{a}-{c}" for a, c, _, _ in WRONG]
)
def test_a_key_that_no_graph_can_follow_is_refused_by_name(
    arch: str, changes: dict[str, Any], kind: type[EngineError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        read(arch, **changes)


def test_deepseek2_states_its_routing_or_is_an_early_file() -> None:
    silent = {"expert_gating_func": None}
    flash = {**silent, "block_count": 47, "vocab_size": 154880}
    gating = [read("deepseek2", **keys).gating for keys in (silent, flash)]  # type: ignore[attr-defined]
    assert gating == [1, 2]


def test_gemma2_file_with_own_head_is_refused() -> None:
    tables = {arch: Architecture.member(arch).table(read(arch)) for arch in ("gemma2", "gemma3")}
    assert {arch: "output.weight?" in table for arch, table in tables.items()} == {
        "gemma2": False,
        "gemma3": True,
    }
