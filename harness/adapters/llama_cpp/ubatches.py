"""Ubatches read from the inputs of llama.cpp's graphs, for versions that do not log them.

Each graph is one ubatch. Its tokens are the ids of the embedding lookup. Its positions are the
positions of the first rotation. Its outputs are the rows that remain before the output matrix.
Inputs are identified by the nodes that read them, because only some versions name them. A field
whose input is not found is None. The sequences are always None, because no input names them.
"""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.adapters.llama_cpp.graph import LiveNode

TOKENS, POSITIONS, OUTPUTS = "tokens", "positions", "outputs"


class Ubatches:
    """An observer of one decode call. `begin` must be called before each call."""

    def __init__(self, ggml: ctypes.CDLL) -> None:
        self.ggml = ggml
        self.begin()

    def begin(self) -> None:
        self.graphs: list[dict[str, list[int]]] = []  # name of an input -> its values
        self.n_seqs: list[int | None] = []
        self.computed: list[NDArray[np.float32]] = []  # rows of logits

    def wants(self, address: int) -> bool:
        """Read the input of a node that is about to be computed. Return True if the node is the
        logits, which are then shown."""
        node = LiveNode.at(self.ggml, address)
        what = input_of(node)
        if what == TOKENS:
            self.graphs.append({})
            self.n_seqs.append(None)
        # before the first graph, llama.cpp rotates keys whose position changed
        if what and self.graphs:
            self.graphs[-1].setdefault(what, node.source(1).values().reshape(-1).tolist())
        # sources (states, x, ...), where x is (sequences, tokens of each, inner)
        if node.op == "SSM_SCAN":
            self.n_seqs[-1] = int(node.source(1).tensor.ne[2])
        return node.name == "result_output"

    def sees(self, address: int) -> None:
        values = LiveNode.at(self.ggml, address).values()[0, 0]
        self.computed += list(values.astype(np.float32))

    def as_answer(self) -> list[list[Any]]:
        """Return the ubatches in the form of an answer of `Adapter.schedule`."""
        return [self.one(*graph) for graph in zip(self.graphs, self.n_seqs, strict=True)]

    def one(self, graph: dict[str, list[int]], n_seqs: int | None) -> list[Any]:
        tokens = graph[TOKENS]
        positions = graph.get(POSITIONS, [None] * len(tokens))
        kept = graph.get(OUTPUTS)
        rows = [
            [token, pos, None, None if kept is None else at in kept]
            for at, (token, pos) in enumerate(zip(tokens, positions, strict=True))
        ]
        return [None, n_seqs, rows]

    def order(self, logits: dict[int, NDArray[np.float32]]) -> list[int] | None:
        """Return the batch's tokens in the order in which their logits were computed; None if two
        tokens have the same logits. logits: llama.cpp's logits for each output token."""
        places = {row.tobytes(): at for at, row in logits.items()}
        if len(places) < len(logits) or len(logits) != len(self.computed):
            return None
        return [places.get(row.tobytes(), -1) for row in self.computed]


def input_of(node: LiveNode) -> str | None:
    """Return the name of the graph input that a node reads as its second source; None if the node
    reads no known input."""
    if node.op == "ROPE":
        return POSITIONS
    if node.op != "GET_ROWS" or node.source(1).op != "NONE":  # the graph itself selects these rows
        return None
    rows_of = node.source(0).name
    if rows_of == "token_embd.weight":
        return TOKENS
    return None if rows_of.startswith("cache_") else OUTPUTS
