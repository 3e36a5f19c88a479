"""Watches a graph of llama.cpp while it is computed: records sites, and writes values into them.

llama.cpp asks about each node before it computes it, and shows the ones we asked for right after.
Nodes that nobody asked for are computed in one go with the next one that somebody did, so ops that
llama.cpp fuses stay fused. Values are copied at once, because buffers are reused and ops run in
place.
"""

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError, Unsupported
from engine.trace import SITES
from harness.adapters._llama_cpp_graph import Node, caches_read_by, cells_stored_by, place_of
from harness.records import Site, TensorRecord

CACHES = ("k_cache", "v_cache")
ATTENTION = (
    *("attn_norm", "Qcur", "Kcur", "Vcur", "Qcur_rope", "Kcur_rope", "k_cache", "v_cache"),
    *("attn_out", "ffn_inp", "ffn_norm", "l_out"),
)
PLAIN_ATTENTION = ("kq", "kq_soft_max", "kqv_out")
FLASH_ATTENTION = ("fattn",)
DENSE = ("ffn_gate", "ffn_up", "ffn_swiglu", "ffn_out")
EXPERTS = tuple(name for name in SITES if name.startswith("ffn_moe_"))
ENDS = ("embd", "result_norm", "result_output")


class AttentionKind:
    """Counts the attention nodes of either kind, and logits, in a graph of any architecture.

    Not every architecture names its logits, but their rows are as long as the vocabulary.
    """

    def __init__(self, ggml: ctypes.CDLL, n_vocab: int) -> None:
        self.ggml, self.n_vocab = ggml, n_vocab
        self.flash = 0
        self.plain = 0
        self.logits = 0

    def wants(self, address: int) -> bool:
        node = Node.at(self.ggml, address)
        self.flash += node.op == "FLASH_ATTN_EXT"
        self.plain += node.op == "SOFT_MAX" and node.name.startswith("kq_soft_max")
        self.logits += node.tensor.ne[0] == self.n_vocab
        return False

    def sees(self, address: int) -> None:
        """Nothing was asked for."""


class Recorder:
    """Records every site if `capture`, and puts in what `replace` holds; one for a request."""

    def __init__(
        self, ggml: ctypes.CDLL, *, capture: bool, replace: Mapping[Site, NDArray[Any]]
    ) -> None:
        self.ggml = ggml
        self.capture = capture
        self.replace = replace
        self.replaced: set[Site] = set()
        self.records: list[TensorRecord] = []
        self.step = 0
        self.cells = 0  # in use: every cell below has been written
        self.seen: dict[Site, int] = {}  # -> index in records

    def wants(self, address: int) -> bool:
        node = Node.at(self.ggml, address)
        if cells_stored_by(node) is not None:
            return True
        if self.capture and caches_read_by(node, 0):
            return True
        place = place_of(node)
        return place is not None and (
            self.capture or Site(step=self.step, layer=place.layer, name=place.name) in self.replace
        )

    def sees(self, address: int) -> None:
        node = Node.at(self.ggml, address)
        stored = cells_stored_by(node)
        if stored is not None:
            self.cells = max(self.cells, int(stored.max(initial=-1)) + 1)
        if self.capture:
            for name, layer, held in caches_read_by(node, self.cells):
                self._record(Site(step=self.step, layer=layer, name=name), held)
        place = place_of(node)
        if place is None:
            return
        site = Site(step=self.step, layer=place.layer, name=place.name)
        value = place.view(node, self.cells)
        if site.name == "kq_soft_max" and node.values()[..., self.cells :].any():
            raise RuntimeError(f"llama.cpp attends to cells that hold nothing in {site}")
        if self.capture:
            self._record(site, value)
        if site in self.replace:
            self._put(site, value)

    def finish_step(self, *, tokens: int, layers: int, flash: bool) -> None:
        """Raises if the graph of this step was not what a trace of it is taken for.

        `tokens` have been decoded since the cache was empty.
        """
        if self.cells != tokens:
            raise RuntimeError(f"{tokens} tokens are in {self.cells} cells: they have gaps")
        if self.capture:
            missing = [site for site in self._expected(layers, flash) if site not in self.seen]
            if missing:
                names = ", ".join(map(str, missing[:5]))
                raise Unsupported(f"llama.cpp's graph does not show {names} in step {self.step}")
        left = [s for s in self.replace if s.step == self.step and s not in self.replaced]
        if left:
            names = ", ".join(map(str, left[:5]))
            raise EngineError(f"llama.cpp computed no {names} in step {self.step} to replace")
        self.step += 1

    def _expected(self, layers: int, flash: bool) -> list[Site]:
        kind = FLASH_ATTENTION if flash else PLAIN_ATTENTION
        places: list[tuple[int | None, str]] = [(None, name) for name in ENDS]
        for layer in range(layers):
            router = Site(step=self.step, layer=layer, name="ffn_moe_logits")
            network = EXPERTS if router in self.seen else DENSE
            places += [(layer, name) for name in (*ATTENTION, *kind, *network)]
        return [Site(step=self.step, layer=layer, name=name) for layer, name in places]

    def _record(self, site: Site, value: NDArray[Any]) -> None:
        """Values of V are read late but were stored with those of K, and stand behind them."""
        if site in self.seen:
            raise RuntimeError(f"llama.cpp computed {site} twice in step {site.step}")
        dtype = np.int32 if value.dtype == np.int32 else np.float32
        at = len(self.records)
        if site.name == "v_cache":
            at = self.seen[Site(step=site.step, layer=site.layer, name="k_cache")] + 1
        self.records.insert(at, TensorRecord(site=site, value=np.array(value, dtype, order="C")))
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


def check_replaceable(replace: Mapping[Site, NDArray[Any]], steps: int) -> None:
    """Raises EngineError for a site that can never be replaced."""
    for site in replace:
        if site.name not in SITES:
            raise EngineError(f"no site named {site.name!r} (known: {', '.join(SITES)})")
        if site.name in CACHES:
            raise EngineError(f"{site} is storage, not a result; replace what is stored there")
        if not 0 <= site.step < steps:
            raise EngineError(f"{site} is in step {site.step} of a request of {steps} batches")
