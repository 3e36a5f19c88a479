"""Compares the metadata keys of a GGUF file with config.json.

A row of KEYS has the key's value from config.json, and the default that engines use if the key is
absent. A key may be absent if this default equals the value from config.json.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.harness.originals.architectures import OriginalArchitecture
from lockstep.harness.originals.checkpoint import OriginalCheckpoint
from lockstep.harness.originals.config import OriginalConfig, window_flags
from lockstep.harness.originals.findings import (
    DifferenceKind,
    OriginalPart,
    PartResult,
    SkipReason,
)

Read = Callable[[OriginalConfig], Any]
REQUIRED = object()  # a file without the key does not load
Metadata = Mapping[str, Any]


@dataclass(frozen=True)
class KeyRule:
    """A row: the key after `ARCH.`, its value from the config, and the meaning of its absence.

    A value of None means that the config has no such value. absent: the default, or a function that
    reads it from the config. only: the architectures that have the key; all if empty.
    """

    key: str
    read: Read
    absent: Any = REQUIRED
    only: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def applies(self, architecture: str) -> bool:
        return (not self.only or architecture in self.only) and architecture not in self.but


def read_names(*names: str) -> Read:
    return lambda config: config.get(*names)


def yarn_or_linear(config: OriginalConfig) -> Any:
    """Return the factor by which positions are scaled; None if they are not scaled by a factor."""
    return config.rope.get("factor") if config.rope_type in ("linear", "yarn") else None


def scaling_type(config: OriginalConfig) -> str:
    """Return rope.scaling.type. For llama3 scaling this is "none", because the GGUF file stores its
    factors as a tensor."""
    kind = config.rope_type
    return kind if kind in ("linear", "yarn", "longrope") else "none"


def of_yarn(name: str) -> Read:
    return lambda config: config.rope.get(name) if config.rope_type == "yarn" else None


def attention_factor(config: OriginalConfig) -> Any:
    """Return LongRoPE's attention factor, which depends on how much longer the context has
    become."""
    if config.rope_type != "longrope":
        return None
    before = config.n_ctx_original
    scale = config.size("max_position_embeddings") / before
    return math.sqrt(1 + math.log(scale) / math.log(before)) if scale > 1 else 1.0


def original_context(config: OriginalConfig) -> Any:
    return config.n_ctx_original if config.rope_type in ("yarn", "longrope") else None


def n_ff(config: OriginalConfig) -> Any:
    return config.get("intermediate_size", "n_inner") or 4 * config.n_embd


def head_dim(config: OriginalConfig) -> int:
    return config.head_dim


def usual_head_dim(config: OriginalConfig) -> int:
    return config.n_embd // config.n_head


def relative_positions(config: OriginalConfig) -> bool:
    return config.get("position_embedding_type") not in (None, "absolute")


def other_scale(config: OriginalConfig) -> bool:
    """Return True if the config's scale of queries differs from every scale that engines use."""
    usual = (None, config.head_dim, config.n_embd / config.n_head)
    return config.get("query_pre_attn_scalar") not in usual


ABSOLUTE = ("gpt2", "bert")  # positions are learned instead of rotated
CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx")
KEYS = (
    KeyRule("block_count", lambda c: c.n_layer),
    KeyRule("context_length", read_names(*CONTEXT)),
    KeyRule("embedding_length", lambda c: c.n_embd),
    KeyRule("feed_forward_length", n_ff),
    KeyRule("attention.head_count", lambda c: c.n_head),
    KeyRule("attention.head_count_kv", lambda c: c.n_head_kv, lambda c: c.n_head),
    KeyRule("attention.key_length", head_dim, usual_head_dim, but=ABSOLUTE),
    KeyRule("attention.value_length", head_dim, usual_head_dim, but=ABSOLUTE),
    KeyRule("attention.layer_norm_rms_epsilon", read_names("rms_norm_eps"), but=ABSOLUTE),
    KeyRule(
        "attention.layer_norm_epsilon",
        read_names("layer_norm_eps", "layer_norm_epsilon"),
        only=ABSOLUTE,
    ),
    KeyRule("attention.causal", lambda c: False, True, only=("bert",)),
    KeyRule("attention.causal", lambda c: True, True, but=("bert",)),
    KeyRule("rope.dimension_count", lambda c: c.n_rot, head_dim, but=ABSOLUTE),
    KeyRule("rope.freq_base", lambda c: c.rope_base, 10000.0, but=ABSOLUTE),
    KeyRule("rope.freq_base_swa", lambda c: c.rope_base_in_windows, 10000.0, only=("gemma3",)),
    KeyRule("rope.scaling.type", scaling_type, "none", but=(*ABSOLUTE, "phi3")),
    # phi3's factors are tensors, so the type may be missing
    KeyRule("rope.scaling.type", scaling_type, scaling_type, only=("phi3",)),
    KeyRule("rope.scaling.factor", yarn_or_linear, 1.0, but=ABSOLUTE),
    KeyRule("rope.scaling.original_context_length", original_context, None, but=ABSOLUTE),
    KeyRule("rope.scaling.attn_factor", attention_factor, 1.0, but=ABSOLUTE),
    KeyRule("rope.scaling.yarn_beta_fast", of_yarn("beta_fast"), 32.0, but=ABSOLUTE),
    KeyRule("rope.scaling.yarn_beta_slow", of_yarn("beta_slow"), 1.0, but=ABSOLUTE),
    KeyRule("attention.sliding_window", lambda c: c.get("sliding_window"), 0, only=("phi3",)),
    KeyRule("attention.sliding_window", lambda c: c.get("sliding_window"), 4096, only=("gemma2",)),
    KeyRule("attention.sliding_window", lambda c: c.get("sliding_window"), 0, only=("gemma3",)),
    KeyRule("attn_logit_softcapping", read_names("attn_logit_softcapping"), 50.0, ("gemma2",)),
    KeyRule("final_logit_softcapping", read_names("final_logit_softcapping"), 30.0, ("gemma2",)),
    KeyRule("final_logit_softcapping", read_names("final_logit_softcapping"), 0.0, ("gemma3",)),
    KeyRule(
        "expert_count", read_names("num_local_experts", "num_experts"), 0, ("llama", "qwen3moe")
    ),
    KeyRule("expert_used_count", read_names("num_experts_per_tok"), 0, ("llama", "qwen3moe")),
    KeyRule("expert_feed_forward_length", read_names("moe_intermediate_size"), only=("qwen3moe",)),
)
# properties of the config for which these architectures have no key
WITHOUT_KEY: tuple[tuple[str, tuple[str, ...], Read], ...] = (
    ("sliding_window", ("llama",), read_names("sliding_window")),
    ("use_sliding_window", ("qwen2", "qwen3", "qwen3moe"), read_names("use_sliding_window")),
    ("position_embedding_type", ("bert",), relative_positions),
    ("query_pre_attn_scalar", ("gemma2", "gemma3"), other_scale),
    ("attn_logit_softcapping", ("gemma2",), lambda c: c.is_null("attn_logit_softcapping")),
    ("final_logit_softcapping", ("gemma2",), lambda c: c.is_null("final_logit_softcapping")),
    ("norm_topk_prob", ("qwen3moe",), lambda c: c.get("norm_topk_prob") is False),
)
# keys that are compared elsewhere, or that do not change results
KNOWN_KEYS = (
    "vocab_size",
    "pooling_type",
    "attention.sliding_window_pattern",
    "rope.scaling.finetuned",
)
POOLINGS = {"mean": 1, "cls": 2, "lasttoken": 3}
NO_FACTOR = (0, 0.0, None)  # values that mean a factor of 1


def compare_hyperparameters(
    checkpoint: OriginalCheckpoint,
    architecture: OriginalArchitecture,
    config: OriginalConfig,
    metadata: Metadata,
) -> PartResult:
    """Return the keys whose value differs from config.json. `metadata` holds plain values."""
    result = PartResult(part=OriginalPart.hyperparameters)
    prefix = architecture.name
    for rule in KEYS:
        if rule.applies(prefix):
            compare_key(result, config, rule, f"{prefix}.{rule.key}", metadata)
    if architecture.window_every:
        compare_windows(result, architecture, config, metadata)
    if prefix == "bert":
        types = config.get("type_vocab_size")
        note(result, "tokenizer.ggml.token_type_count", types, metadata, REQUIRED)
    pooling = pooling_of(checkpoint)
    if pooling is not None:
        note(result, f"{prefix}.pooling_type", pooling, metadata, 0)
    compare_vocabulary(result, prefix, config, metadata)
    skip_unknown_keys(result, prefix, metadata)
    for name, only, read in WITHOUT_KEY:
        if prefix in only and read(config):
            result.skip(SkipReason.no_meaning, name)
    return result


def skip_unknown_keys(result: PartResult, prefix: str, metadata: Metadata) -> None:
    """Note the keys of this architecture that no row covers, because they may change the
    computation."""
    known = {f"{prefix}.{rule.key}" for rule in KEYS if rule.applies(prefix)}
    known |= {f"{prefix}.{name}" for name in KNOWN_KEYS}
    for key in metadata:
        if key.startswith(f"{prefix}.") and key not in known:
            result.skip(SkipReason.no_row, key)


def compare_key(
    result: PartResult, config: OriginalConfig, rule: KeyRule, key: str, metadata: Metadata
) -> None:
    wanted = rule.read(config)
    absent = rule.absent(config) if callable(rule.absent) else rule.absent
    if wanted is None:
        if absent is REQUIRED:
            if key in metadata:
                result.skip(SkipReason.no_file, key)
            return
        wanted = absent
    note(result, key, wanted, metadata, absent)


def note(result: PartResult, key: str, wanted: Any, metadata: Metadata, absent: Any) -> None:
    """Compare one key with the expected value, and note a difference."""
    result.compared += 1
    if key not in metadata:
        if absent is REQUIRED or not is_equal(wanted, absent):
            result.add(DifferenceKind.missing, key, wanted, None)
        return
    got = metadata[key]
    got = got.tolist() if isinstance(got, np.ndarray) else got
    if isinstance(got, list) and got and not isinstance(wanted, list):
        got = got[0] if all(each == got[0] for each in got) else got  # one value for all layers
    if key.endswith("rope.scaling.factor") and got in NO_FACTOR:
        got = 1.0
    if wanted is None and key.endswith("original_context_length"):
        return  # without scaling, no engine reads this key
    if not is_equal(wanted, got):
        result.add(DifferenceKind.value, key, wanted, got)


def is_equal(wanted: Any, got: Any) -> bool:
    """Return True for equal values. Floats are compared in single precision, because the file
    stores them so."""
    if isinstance(wanted, bool) or isinstance(got, bool):
        return wanted is got
    if isinstance(wanted, float) or isinstance(got, float):
        with contextlib.suppress(TypeError, ValueError, OverflowError), np.errstate(over="ignore"):
            return bool(np.float32(wanted) == np.float32(got))
    return bool(wanted == got)


def compare_windows(
    result: PartResult,
    architecture: OriginalArchitecture,
    config: OriginalConfig,
    metadata: Metadata,
) -> None:
    key = f"{architecture.name}.attention.sliding_window_pattern"
    got = metadata.get(key, architecture.window_every)
    got = got.tolist() if isinstance(got, np.ndarray) else got
    flags = [bool(each) for each in got] if isinstance(got, list) else None
    if flags is None and type(got) is int:
        flags = window_flags(got, config.n_layer)
    wanted = config.windows(architecture.window_every)
    result.compared += 1
    if flags is None or flags[: len(wanted)] != wanted:
        result.add(DifferenceKind.value, key, wanted, got)


def compare_vocabulary(
    result: PartResult, prefix: str, config: OriginalConfig, metadata: Metadata
) -> None:
    """Compare the number of tokens. It may differ from the config's only by padding."""
    key, tokens = f"{prefix}.vocab_size", metadata.get("tokenizer.ggml.tokens")
    if key not in metadata or tokens is None:
        return
    result.compared += 1
    if metadata[key] not in (len(tokens), config.get("vocab_size")):
        result.add(DifferenceKind.value, key, config.get("vocab_size"), metadata[key])


def pooling_of(checkpoint: OriginalCheckpoint) -> int | None:
    """Return the kind of pooling in sentence-transformers; None if the checkpoint does not name a
    kind."""
    modules = checkpoint.read_json("modules.json")
    if not isinstance(modules, list):
        return None
    for row in modules:
        if isinstance(row, dict) and str(row.get("type", "")).endswith("Pooling"):
            folder = str(row.get("path", ""))
            if "/" in folder or folder in ("", ".", ".."):
                return None
            said = checkpoint.read_object(f"{folder}/config.json")
            for name, value in POOLINGS.items():
                modes = [f"pooling_mode_{name}{end}" for end in ("", "_token", "_tokens")]
                if any(said.get(mode) for mode in modes) or said.get("pooling_mode") == name:
                    return value
    return None
