"""config.json as transformers reads it, with several names for one value, default values, and rope
parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lockstep.engine.errors import InvalidModel

MAX_LAYERS = 1 << 16
MAX_SIZE = (1 << 32) - 1  # GGUF files store sizes as U32


@dataclass(frozen=True)
class OriginalConfig:
    """The values of a config.json. `defaults` are transformers' values for keys that the file
    lacks."""

    values: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def get(self, *names: str) -> Any:
        """Return the value of the first of these names that has a value; None if no name has a
        value."""
        for table in (self.values, self.defaults):
            for name in names:
                if table.get(name) is not None:
                    return table[name]
        return None

    def is_null(self, name: str) -> bool:
        """Return True if config.json sets the value to null, which turns a default off."""
        return name in self.values and self.values[name] is None

    def size(self, *names: str) -> int:
        """Return a positive integer. Raises InvalidModel for any other value."""
        found = self.get(*names)
        if type(found) is not int or not 0 < found <= MAX_SIZE:
            raise InvalidModel(
                f"config.json: {names[0]} is {found!r:.80}; expected an int from 1 to {MAX_SIZE}"
            )
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """Return all values, including derived values."""
        made = {name: getattr(self, name) for name in ("rope_type", "head_dim", "n_ctx_original")}
        return {**self.defaults, **self.values, **made}

    @property
    def n_layer(self) -> int:
        found = self.size("num_hidden_layers", "n_layer")
        if found > MAX_LAYERS:
            raise InvalidModel(f"config.json: {found} layers; expected at most {MAX_LAYERS}")
        return found

    @property
    def n_embd(self) -> int:
        return self.size("hidden_size", "n_embd")

    @property
    def n_head(self) -> int:
        return self.size("num_attention_heads", "n_head")

    @property
    def n_head_kv(self) -> int:
        return self.size("num_key_value_heads", "num_attention_heads", "n_head")

    @property
    def head_dim(self) -> int:
        return self.get("head_dim") or self.n_embd // self.n_head

    @property
    def n_rot(self) -> int:
        """Return the number of elements of each head that are rotated."""
        share = self.rope.get("partial_rotary_factor") or self.get("partial_rotary_factor") or 1.0
        return int(share * self.n_embd) // self.n_head if share != 1.0 else self.head_dim

    @property
    def tied(self) -> bool:
        return bool(self.get("tie_word_embeddings"))

    @cached_property
    def rope(self) -> Mapping[str, Any]:
        """Return the rope parameters. If layers with windows have other parameters, return those of
        layers without windows."""
        found = self.get("rope_parameters", "rope_scaling") or {}
        if not isinstance(found, Mapping):
            raise InvalidModel(
                f"config.json: rope parameters are {found!r:.80}; expected an object"
            )
        full = found.get("full_attention")
        return full if isinstance(full, Mapping) else found

    @property
    def rope_type(self) -> str | None:
        """Return the kind of scaling; None if positions are not scaled."""
        found = self.rope.get("rope_type") or self.rope.get("type")
        return None if found in (None, "default") else str(found).replace("su", "longrope")

    @property
    def rope_base(self) -> Any:
        return self.rope.get("rope_theta") or self.get("rope_theta")

    @property
    def rope_base_in_windows(self) -> Any:
        both = self.get("rope_parameters")
        own = both.get("sliding_attention") if isinstance(both, Mapping) else None
        found = own.get("rope_theta") if isinstance(own, Mapping) else None
        return found or self.get("rope_local_base_freq")

    @property
    def n_ctx_original(self) -> Any:
        """Return the number of tokens in the context before the positions were scaled."""
        name = "original_max_position_embeddings"
        found = self.rope.get(name) or self.get(name)
        if found is not None and (type(found) is not int or found < 2):
            raise InvalidModel(f"config.json: {name} is {found!r:.80}; expected an int above 1")
        return found

    def windows(self, every: int) -> list[bool]:
        """Return, for each layer, True if its attention has a window. If config.json does not list
        the layers, all layers have a window except every `every`-th layer."""
        kinds = self.get("layer_types")
        if isinstance(kinds, list):
            return [kind == "sliding_attention" for kind in kinds]
        found = self.get("sliding_window_pattern", "_sliding_window_pattern")
        return window_flags(found if type(found) is int else every, self.n_layer)


def window_flags(every: int, n_layer: int) -> list[bool]:
    """Return, for each layer, True if its attention has a window. Every `every`-th layer has no
    window. If `every` is 0, all layers have a window."""
    return [not every or layer % every < every - 1 for layer in range(n_layer)]
