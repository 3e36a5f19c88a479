"""Metadata -> frozen hyperparameters. An unknown or missing value is an error, never a guess."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lockstep.engine.errors import InvalidModel, Unsupported


class HasData(Protocol):
    @property
    def data(self) -> Any: ...


Metadata = Mapping[str, HasData]
YARN_KEYS = {
    "yarn_ext_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
}


@dataclass(frozen=True, kw_only=True)
class Hparams:
    """Numbers that a llama-like graph needs, in ggml's names."""

    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_embd_head: int  # elements of one head
    f_norm_rms_eps: float = 0.0
    rope_freq_base: float = 0.0  # 0: no rotation
    rope_freq_scale: float = 1.0  # 1 / the scaling factor
    rope_attn_factor: float = 1.0  # factor on rotated values
    n_ctx_orig_yarn: int = 0  # trained context in tokens before YaRN; 0: no YaRN
    n_expert: int = 0
    n_expert_used: int = 0

    @property
    def n_embd_q(self) -> int:
        return self.n_head * self.n_embd_head

    @property
    def n_embd_kv(self) -> int:
        return self.n_head_kv * self.n_embd_head

    @property
    def n_embd_qkv(self) -> int:
        """Return the number of rows of a joint matrix for queries, keys and values."""
        return self.n_embd_q + 2 * self.n_embd_kv

    @property
    def n_gate_up(self) -> int:
        """Return the number of rows of a joint matrix for gate and up."""
        return 2 * self.n_ff

    @property
    def n_pairs(self) -> int:
        """Return the number of rotated pairs in a head."""
        return self.n_embd_head // 2

    def check(self, arch: str) -> None:
        """Refuse hyperparameters that no graph can compute."""
        if self.n_head % self.n_head_kv:
            raise InvalidModel(
                f"{arch}.attention.head_count ({self.n_head}) is not a multiple of head_count_kv "
                f"({self.n_head_kv})"
            )
        if self.rope_freq_base and self.n_embd_head % 2:
            raise InvalidModel(f"a head of {self.n_embd_head} elements cannot be rotated in pairs")
        if not self.f_norm_rms_eps >= 0:
            raise InvalidModel(
                f"{arch}.attention.layer_norm_rms_epsilon is {self.f_norm_rms_eps}; "
                f"expected 0 or more"
            )
        used, of = self.n_expert_used, self.n_expert
        if not 0 <= used <= of or bool(of) != bool(used):
            raise InvalidModel(f"{arch}.expert_used_count is {used} of {arch}.expert_count {of}")


class Keys:
    """Reader of `<arch>.<key>` values by type. It records the keys that were read."""

    def __init__(self, metadata: Metadata, arch: str) -> None:
        self.metadata = metadata
        self.arch = arch
        self.read: set[str] = set()

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """Return the value under `<arch>.<key>`; without a default the key is required."""
        full = f"{self.arch}.{key}"
        self.read.add(full)
        if full not in self.metadata:
            if default is None:
                raise InvalidModel(f"the key {full!r} is missing")
            return default
        value = self.metadata[full].data
        if isinstance(value, np.ndarray) and kind is int and len(set(value.tolist())) == 1:
            value = value.tolist()[0]  # all layers have the same value
        if isinstance(value, np.ndarray | list):
            raise Unsupported(f"{full!r} differs between layers: this engine does not support that")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            raise InvalidModel(f"{full!r} must be a float, got {value!r}")
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise InvalidModel(f"{full!r} must be of type {kind.__name__}, got {value!r}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        value: int = self.get(key, int, default)
        if value <= 0:
            raise InvalidModel(f"{self.arch}.{key} must be positive, got {value}")
        return value

    def epsilon(self) -> float:
        """Return the epsilon of layer norms; ggml aborts at a negative epsilon."""
        value: float = self.get("attention.layer_norm_epsilon", float)
        if not value >= 0:
            raise InvalidModel(
                f"{self.arch}.attention.layer_norm_epsilon is {value}; expected 0 or more"
            )
        return value

    def same(self, key: str, expected: int, what: str) -> None:
        """Check that an optional key has the expected value."""
        found = self.positive(key, expected)
        if found != expected:
            raise InvalidModel(f"{self.arch}.{key} is {found}; expected {expected}, {what}")

    def without(self, key: str, kind: type, *said: Any) -> None:
        """Check that an optional key has one of the values `said`, which do not change the
        graph."""
        if (found := self.get(key, kind, said[0])) not in said:
            raise Unsupported(f"{self.arch}.{key} is {found}; known: {said[0]}")

    def same_scale_in_windows(self) -> None:
        """Refuse a scaling factor if the scaling type is "none", because llama.cpp still applies
        the factor to layers with a window.
        """
        if self.get("rope.scaling.type", str, "linear") == "none":
            for key in ("rope.scaling.factor", "rope.scale_linear"):
                self.without(key, float, 0.0, 1.0)

    def windows(self, n_layer: int, every: int) -> int | tuple[bool, ...]:
        """Return which layers have a window.

        The result is a flag for each layer, or a number n: every n-th layer has no window (0: all
        layers have a window).
        """
        key = f"{self.arch}.attention.sliding_window_pattern"
        self.read.add(key)
        said = np.asarray(self.metadata[key].data if key in self.metadata else every)
        if said.dtype.kind not in ("iu" if said.ndim == 0 else "iub") or said.min(initial=0) < 0:
            raise InvalidModel(f"{key} must be a number of layers, or a flag for each")
        if said.ndim == 0:
            return int(said)
        found = tuple(bool(each) for each in said)
        if len(found) < n_layer:
            raise InvalidModel(f"{key} has {len(found)} values; expected {n_layer}, one a layer")
        return found[:n_layer]

    def vocabulary_size(self) -> int:
        """Return `<arch>.vocab_size`, or else the number of the tokenizer's tokens."""
        tokens = None
        if f"{self.arch}.vocab_size" not in self.metadata:  # decoding the tokens is slow
            tokens = self.metadata.get("tokenizer.ggml.tokens")
        return self.positive("vocab_size", len(tokens.data) if tokens is not None else None)

    def token_types(self) -> int:
        """Return the number of token types, which llama.cpp requires for bert."""
        key = "tokenizer.ggml.token_type_count"
        value = self.metadata[key].data if key in self.metadata else None
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise InvalidModel(f"{key} must be a positive int, got {value!r}")
        return value

    def rope_scaling(self, n_ctx_train: int) -> dict[str, Any]:
        """Return the hyperparameters of scaled positions. The factor may have an old or a new
        key."""
        kind = self.get("rope.scaling.type", str, "linear")
        if kind not in ("none", "linear", "yarn"):
            raise Unsupported(
                f"{self.arch}.rope.scaling.type is {kind!r}; known: linear, none, yarn"
            )
        old: float = self.get("rope.scale_linear", float, 0.0)
        factor: float = self.get("rope.scaling.factor", float, old)
        if factor == 0.0 or kind == "none":
            factor = 1.0
        if not 0 < factor < math.inf:
            raise Unsupported(f"{self.arch}.rope.scaling.factor is {factor}; known: above 0")
        n_ctx = self.get("rope.scaling.original_context_length", int, 0)
        # llama.cpp reads these keys only for a few architectures, so with unusual values the
        # engines would differ
        for key, usual in YARN_KEYS.items():
            self.without(f"rope.scaling.{key}", float, usual)
        return {
            "rope_freq_scale": 1.0 / factor,
            "rope_attn_factor": self.get("rope.scaling.attn_factor", float, 1.0),
            "n_ctx_orig_yarn": (n_ctx or n_ctx_train) if kind == "yarn" else 0,
        }

    def refuse_unread(self, ignored: frozenset[str]) -> None:
        """Refuse a key under `<arch>.` that would change the graph and that nothing reads."""
        for key in self.metadata:
            rest = key.removeprefix(f"{self.arch}.")
            if rest != key and key not in self.read and rest not in ignored:
                raise Unsupported(f"the key {key!r} is not known to this engine")


def architecture_name(metadata: Metadata) -> str:
    """Return `general.architecture`, which every model file must have."""
    if "general.architecture" not in metadata:
        raise InvalidModel("the key 'general.architecture' is missing: this is not a model file")
    value = metadata["general.architecture"].data
    if not isinstance(value, str):
        raise InvalidModel(f"'general.architecture' must be a string, got {value!r}")
    return value
