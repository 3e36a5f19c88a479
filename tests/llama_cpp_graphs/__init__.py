"""Recorded graphs of llama.cpp's versions, so that tests need no build of them.

Record a version again, with its own interpreter (`lockstep oracle list`), from the checkout:
PYTHONPATH=. INTERPRETER -m tests.llama_cpp_graphs VERSION
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VERSIONS = ("0.3.8", "0.3.16", "0.3.36")
# graphs of one layer, for a prompt of two tokens
GRAPHS = ("dense", "flash", "experts", "one expert")


@dataclass(frozen=True)
class Recorded:
    """A node of a recorded graph, or a leaf with op NONE."""

    graph: "list[Recorded]"
    op: str
    name: str
    sources: tuple[int, ...]
    view_of: int  # -1: no view

    def source(self, i: int) -> "Recorded":
        return self.graph[self.sources[i]]

    @property
    def root(self) -> "Recorded":
        return self if self.view_of < 0 else self.graph[self.view_of]


def recorded(version: str, kind: str) -> list[Recorded]:
    """Return the nodes in the order of computation; leaves come before their first reader."""
    rows = json.loads((HERE / f"{version}.json").read_text())[kind]
    graph: list[Recorded] = []
    graph += [Recorded(graph, op, name, tuple(sources), at) for op, name, sources, at in rows]
    return graph


def rows_of(addresses: list[int], ggml: Any) -> Iterator[list[Any]]:
    """Yield a row for each tensor: op, name, sources, viewed tensor; leaves before their nodes."""
    from lockstep.harness.adapters.llama_cpp.graph import LiveNode

    index: dict[int, int] = {}

    def row(address: int) -> Iterator[list[Any]]:
        node = LiveNode.at(ggml, address)
        read = [a for a in node.tensor.src if a and a != address]  # a cast is its own source
        for other in (*read, node.tensor.view_src):
            if other and other not in index:
                yield from row(other)
        view_of = node.tensor.view_src
        index[address] = len(index)
        yield [node.op, node.name, [index[a] for a in read], index[view_of] if view_of else -1]

    for address in addresses:
        if address not in index:
            yield from row(address)
