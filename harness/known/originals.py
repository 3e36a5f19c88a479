"""Known differences between transformers and llama.cpp on the same weights: [[original]]."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from lockstep.harness.known import entries
from lockstep.harness.records import Mismatch

LISTS = ("architectures", "within")


@dataclass(frozen=True, kw_only=True)
class KnownOriginal:
    """A known difference: the nodes where the two runs diverge, and the values of config.json that
    cause it."""

    id: str
    component: str
    version: str
    architectures: tuple[str, ...]
    node: str  # pattern of the node's name without the layer
    says: Mapping[str, Any] = field(default_factory=dict)  # values in the config
    # pairs of keys whose values in the config differ
    unlike: Mapping[str, str] = field(default_factory=dict)
    # values in the config that are less than a size of the run (n_ctx or n_tokens)
    below: Mapping[str, str] = field(default_factory=dict)
    # the largest error of an element, and its growth with the element; empty: any error
    within: tuple[float, ...] = ()
    sentence: str
    cause: str
    status: str
    link: str

    def explains(
        self,
        architecture: str,
        config: Mapping[str, Any],
        sizes: Mapping[str, int],
        node: str,
        worst: Mismatch,
    ) -> bool:
        """Return True if this difference explains a node that differs. `config` holds the values of
        config.json, `sizes` those of the run: n_ctx cells of the cache and n_tokens of the text.
        `worst` has the node's worst element."""
        return (
            architecture in self.architectures
            and re.fullmatch(self.node, node) is not None
            and all(config.get(name) == value for name, value in self.says.items())
            and all(config.get(a) != config.get(b) for a, b in self.unlike.items())
            and all(
                type(config.get(name)) is int and config[name] < sizes[size]
                for name, size in self.below.items()
            )
            and self.is_near(worst)
        )

    def is_near(self, worst: Mismatch) -> bool:
        if not self.within:
            return True
        absolute, relative = self.within
        return abs(worst.actual - worst.expected) <= absolute + relative * abs(worst.expected)


@cache
def known_of_originals() -> tuple[KnownOriginal, ...]:
    """Return all known differences."""
    return tuple(
        KnownOriginal(**{**row, **{name: tuple(row.get(name, ())) for name in LISTS}})
        for row in entries("original")
    )
