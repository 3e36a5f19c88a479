"""Watches a graph of llama.cpp during its computation, records sites, and replaces values.

llama.cpp asks about each node before it computes it. If we request the node, llama.cpp shows it
right after its computation. Nodes that are not requested are computed together with the next
requested one, so fused ops stay fused. Values are copied at once, because buffers are reused and
ops run in place.
"""

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.choices import choices
from lockstep.engine.errors import EngineError, Unsupported
from lockstep.harness.adapters.llama_cpp.graph import LiveNode
from lockstep.harness.adapters.llama_cpp.sites import (
    caches_read_by,
    cells_stored_by,
    place_of,
    stores_keys,
)
from lockstep.harness.records import Site, TensorRecord
from lockstep.harness.sites import SITES

CACHES = ("k_cache", "v_cache")
PLAIN_ATTENTION = ("kq", "kq_soft_max", "kqv_out")
FLASH_ATTENTION = ("fattn",)
ENDS = ("embd", "result_norm", "result_output")


class AttentionKind:
    """Counts the attention nodes of either kind, and finds logits, in a graph of any architecture.

    A softmax of attention has a mask, and a softmax that chooses experts has no mask.

    Not every architecture names its logits, but their rows are as long as the vocabulary. Rows of
    embeddings can have that length too, but they have a name.
    """

    def __init__(self, ggml: ctypes.CDLL, n_vocab: int) -> None:
        self.ggml, self.n_vocab = ggml, n_vocab
        self.flash = 0
        self.plain = 0
        self.as_long = 0  # number of nodes with rows as long as the vocabulary
        self.named = False
        self.last = ""

    @property
    def logits(self) -> bool:
        embeds = self.last.startswith(("result_embd", "result_norm"))
        return self.named or (self.as_long > 0 and not embeds)

    def wants(self, address: int) -> bool:
        node = LiveNode.at(self.ggml, address)
        self.flash += node.op == "FLASH_ATTN_EXT"
        self.plain += node.op == "SOFT_MAX" and bool(node.tensor.src[1])
        self.as_long += node.tensor.ne[0] == self.n_vocab
        self.last = node.name
        self.named |= node.name.startswith("result_output")
        return False

    def sees(self, address: int) -> None:
        """Do nothing, because no tensor was requested."""


class SiteRecorder:
    """Records every site if `capture`, and writes the values of `replace`. There is one object for
    each request."""

    def __init__(
        self, ggml: ctypes.CDLL, *, capture: bool, replace: Mapping[Site, NDArray[Any]]
    ) -> None:
        self.ggml = ggml
        self.capture = capture
        self.replace = replace
        self.replaced: set[Site] = set()
        self.records: list[TensorRecord] = []
        self.step = 0
        self.cells = 0  # number of cells in use; each of them has been written
        self.seen: dict[Site, int] = {}  # site -> index in `records`

    def wants(self, address: int) -> bool:
        node = LiveNode.at(self.ggml, address)
        if stores_keys(node) or (self.capture and caches_read_by(node)):
            return True
        place = place_of(node)
        return place is not None and (
            self.capture or Site(step=self.step, layer=place.layer, name=place.name) in self.replace
        )

    def sees(self, address: int) -> None:
        node = LiveNode.at(self.ggml, address)
        if stores_keys(node):
            self.cells = max(self.cells, int(cells_stored_by(node).max(initial=-1)) + 1)
        if self.capture:
            for held in caches_read_by(node):
                site = Site(step=self.step, layer=held.layer, name=held.name)
                self._record(site, held.view(node.source(held.source), self.cells))
        place = place_of(node)
        if place is None:
            return
        site = Site(step=self.step, layer=place.layer, name=place.name)
        value = place.view(node, self.cells)
        if site.name == "kq_soft_max" and reach_beyond(node.values(), self.cells):
            raise RuntimeError(f"llama.cpp attends to empty cells in {site}")
        if self.capture:
            self._record(site, value, again=place.is_adapted)
        if site in self.replace:
            self._put(site, value)

    def finish_step(self, *, tokens: int, layers: int, flash: bool) -> None:
        """Check that the graph of this step is the one that its trace assumes.

        tokens: the number of tokens decoded since the cache was empty. A site that this version
        does not show is missing in the trace, and the comparison reports it. A value that could not
        be replaced is an error, because later values were computed from the old value. Raises
        Unsupported, RuntimeError, EngineError.
        """
        if not self.cells:
            raise Unsupported("llama.cpp's graph does not show in which cells it stores keys")
        if self.cells != tokens:
            raise RuntimeError(f"{tokens} tokens are in {self.cells} cells: they have gaps")
        if self.capture and not any(site.step == self.step for site in self.seen):
            raise Unsupported(f"llama.cpp's graph shows no known site in step {self.step}")
        left = [s for s in self.replace if s.step == self.step and s not in self.replaced]
        if left:
            names = ", ".join(map(str, left[:5]))
            if all(self._possible(site, layers, flash) for site in left):
                raise Unsupported(
                    f"llama.cpp's graph does not show {names} in step {self.step}, so no "
                    "value can be put in there"
                )
            raise EngineError(f"llama.cpp computed no {names} in step {self.step} to replace")
        self.step += 1

    def _possible(self, site: Site, layers: int, flash: bool) -> bool:
        """Return True if a model with this many layers computes the site, whether or not llama.cpp
        shows it."""
        if site.layer is None:
            return site.name in ENDS
        within = 0 <= site.layer < layers
        return within and site.name not in (*ENDS, *(PLAIN_ATTENTION if flash else FLASH_ATTENTION))

    def _record(self, site: Site, value: NDArray[Any], *, again: bool = False) -> None:
        """Record a node's values. Values of V are read late but were stored together with K, so
        their record is placed after the record of K. again: replace the earlier record."""
        if site in self.seen and not again:
            raise RuntimeError(f"llama.cpp computed {site} twice in step {site.step}")
        dtype = np.int32 if value.dtype == np.int32 else np.float32
        record = TensorRecord(site=site, value=np.array(value, dtype, order="C"))
        if site in self.seen:
            self.records[self.seen[site]] = record
            return
        at = len(self.records)
        keys = Site(step=site.step, layer=site.layer, name="k_cache")
        if site.name == "v_cache" and keys in self.seen:
            at = self.seen[keys] + 1
        self.records.insert(at, record)
        self.seen[site] = at

    def _put(self, site: Site, value: NDArray[Any]) -> None:
        new = self.replace[site]
        if (new.shape, new.dtype) != (value.shape, value.dtype):
            raise EngineError(
                f"{site} in step {site.step} is {value.dtype} {value.shape}, "
                f"not {new.dtype} {new.shape}"
            )
        value[...] = new
        self.replaced.add(site)


def reach_beyond(weights: NDArray[Any], cells: int) -> bool:
    """Return True if attention gives weight to a cell after the last cell in use.

    weights: (..., tokens, cells). Scores that are NaN make their whole row NaN, including the
    masked cells. Such a row does not count.
    """
    used, beyond = weights[..., :cells], weights[..., cells:]
    lost = np.isnan(used).all(axis=-1, keepdims=True)
    return bool((beyond.astype(bool) & ~(lost & np.isnan(beyond))).any())


def check_replaceable(replace: Mapping[Site, NDArray[Any]], steps: int) -> None:
    """Check that each site can be replaced. Raises EngineError if not."""
    for site in replace:
        if site.name not in SITES:
            raise EngineError(f"no site named {site.name!r} {choices(site.name, SITES)}")
        if site.name in CACHES:
            raise EngineError(f"{site} is storage, not a result; replace what is stored there")
        if not 0 <= site.step < steps:
            raise EngineError(f"{site} is in step {site.step} of a request of {steps} batches")
