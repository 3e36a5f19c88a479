"""Sites of the nodes in llama.cpp's graph, in every version of llama.cpp whose graph is
recorded."""

import ctypes
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.harness.adapters.llama_cpp.graph import LiveNode
from lockstep.harness.adapters.llama_cpp.lib import GgmlTensor
from lockstep.harness.adapters.llama_cpp.sites import (
    GraphNode,
    caches_read_by,
    cells_stored_by,
    place_of,
    stores_keys,
)
from lockstep.harness.adapters.llama_cpp.trace import SiteRecorder, reach_beyond
from lockstep.harness.records import Site
from lockstep.harness.sites import SITES
from tests.llama_cpp_graphs import GRAPHS, VERSIONS, Recorded, recorded

ENDS = {"embd", "result_norm", "result_output"}
EXPERTS = {name for name in SITES if name.startswith("ffn_moe_")}
DENSE = {"ffn_gate", "ffn_up", "ffn_swiglu", "ffn_out"}
PLAIN = {"kq", "kq_soft_max", "kqv_out"}
ABSENT = {
    "dense": EXPERTS | {"fattn"},
    "flash": EXPERTS | PLAIN,
    "experts": DENSE | {"fattn"},
    "one expert": DENSE | {"fattn"},
}


def sites_of(node: GraphNode) -> list[tuple[str, int | None]]:
    place = place_of(node)
    return [(held.name, held.layer) for held in caches_read_by(node)] + (
        [] if place is None else [(place.name, place.layer)]
    )


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_site_of_a_graph_is_found_once_in_every_version(version: str, kind: str) -> None:
    found = Counter(site for node in recorded(version, kind) for site in sites_of(node))
    expected = {(name, None if name in ENDS else 0) for name in set(SITES) - ABSENT[kind]}
    assert set(found) == expected
    assert set(found.values()) == {1}


@pytest.mark.parametrize("version", VERSIONS)
def test_one_node_stores_keys_before_they_are_read(version: str) -> None:
    graph = recorded(version, "dense")
    stored = [at for at, node in enumerate(graph) if stores_keys(node)]
    read = [at for at, node in enumerate(graph) if caches_read_by(node)]
    assert len(stored) == 1
    assert stored[0] < min(read)


def test_site_computed_in_another_way_is_refused() -> None:
    graph: list[Recorded] = []
    graph += [Recorded(graph, "ADD", "kq-0", (1, 1), -1), Recorded(graph, "NONE", "x", (), -1)]
    with pytest.raises(Unsupported, match="'kq-0' is a ADD, which we cannot place"):
        place_of(graph[0])


# --- cells --------------------------------------------------------------------------------------


class Tensors:
    """Tensors in our own memory, with the two ggml functions that a Node calls."""

    def __init__(self) -> None:
        self.held: list[GgmlTensor] = []
        self.ops: list[bytes] = []
        self.ggml: Any = SimpleNamespace(ggml_op_name=self.ops.__getitem__, ggml_nbytes=self.nbytes)

    def nbytes(self, address: int) -> int:
        return 4 * int(np.prod(GgmlTensor.from_address(address).ne[:]))

    def make(self, op: str, ne: tuple[int, ...], name: str = "", offset: int = 0) -> GgmlTensor:
        tensor = GgmlTensor(op=len(self.ops), name=name.encode(), view_offs=offset)
        tensor.ne[:] = (*ne, *(1 for _ in range(4 - len(ne))))
        self.ops.append(op.encode())
        self.held.append(tensor)
        return tensor


@pytest.mark.parametrize(
    ("op", "ne"), [("ROPE", (4, 2, 3)), ("RESHAPE", (8, 3))], ids=["by heads", "reshaped"]
)
def test_copied_keys_start_at_the_cell_of_the_view(op: str, ne: tuple[int, ...]) -> None:
    tensors = Tensors()
    cache = tensors.make("NONE", (800,), "cache_k_l1")
    keys = tensors.make(op, ne, "Kcur-1")
    copy = tensors.make("CPY", (24,), "k_cache_view-1 (copy of Kcur-1)", offset=5 * 8 * 4)
    copy.view_src, copy.src[0] = ctypes.addressof(cache), ctypes.addressof(keys)
    node = LiveNode.at(tensors.ggml, ctypes.addressof(copy))
    assert stores_keys(node)
    assert cells_stored_by(node).tolist() == [5, 6, 7]


HALF, LOST = [0.5, 0.5], [np.nan, np.nan]


@pytest.mark.parametrize(
    ("row", "does"),
    [
        ([*HALF, 0.0, 0.0], False),
        ([*HALF, 0.0, 1e-30], True),
        ([*HALF, np.inf, 0.0], True),
        ([*HALF, 0.0, np.nan], True),
        ([*LOST, 0.0, 0.0], False),
        ([*LOST, np.nan, np.nan], False),
        ([*LOST, np.nan, 0.5], True),
    ],
)
def test_weight_after_the_last_cell_is_noticed_unless_all_are_nan(
    row: list[float], does: bool
) -> None:
    weights = np.array([[[*HALF, 0.0, 0.0], row]], np.float32)
    assert reach_beyond(weights, 2) is does


# --- values that a version does not show --------------------------------------------------------


def recorder(*replaced: Site, cells: int = 3) -> SiteRecorder:
    made = SiteRecorder(Tensors().ggml, capture=True, replace={s: np.zeros(1) for s in replaced})
    made.cells = cells
    return made


def site(name: str, layer: int | None = 0) -> Site:
    return Site(step=0, layer=layer, name=name)


def test_trace_continues_without_a_hidden_site() -> None:
    partial = recorder()
    partial._record(site("l_out"), np.zeros((3, 4), np.float32))
    partial._record(site("v_cache"), np.zeros((3, 1, 4), np.float32))  # without the keys
    partial.finish_step(tokens=3, layers=1, flash=False)
    assert [record.site.name for record in partial.records] == ["l_out", "v_cache"]


def test_graph_without_any_site_is_unknown() -> None:
    with pytest.raises(Unsupported, match="shows no known site in step 0"):
        recorder().finish_step(tokens=3, layers=1, flash=False)
    with pytest.raises(Unsupported, match="does not show in which cells it stores keys"):
        recorder(cells=0).finish_step(tokens=3, layers=1, flash=False)


@pytest.mark.parametrize(
    ("name", "layer", "error", "text"),
    [
        ("l_out", 0, Unsupported, "does not show l_out-0 in step 0, so no value can be put"),
        ("embd", None, Unsupported, "does not show embd in step 0"),
        ("l_out", 1, EngineError, "computed no l_out-1 in step 0 to replace"),
        ("l_out", None, EngineError, "computed no l_out in step 0"),
        ("fattn", 0, EngineError, "computed no fattn-0 in step 0"),
    ],
)
def test_trace_refuses_a_run_without_its_replacement(
    name: str, layer: int | None, error: type[EngineError], text: str
) -> None:
    asked = recorder(site(name, layer))
    asked.capture = False
    with pytest.raises(EngineError, match=text) as raised:
        asked.finish_step(tokens=3, layers=1, flash=False)
    assert raised.type is error
