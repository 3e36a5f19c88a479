"""What an engine answers is what the graph comes to, whether or not it shows that by name: so the
stretch behind the last tensor that it shows (the head, a last norm, pooling) is judged as well.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.graph.program import Place, Program


def outputs_of_graphs(
    program: Program, outputs: Sequence[NDArray[np.float32]]
) -> dict[Place, NDArray[Any]]:
    """The rows of each batch as the value of its graph's result, where these are the same rows in
    the same order: of a batch that llama.cpp takes apart, or leaves rows in, they are not."""
    found: dict[Place, NDArray[Any]] = {}
    for step, (rows, order) in enumerate(zip(outputs, program.orders, strict=False)):
        graphs = [graph for graph in program.graphs if graph.step == step]
        if len(graphs) != 1 or not rows.size or step in program.encoding:
            continue
        result = graphs[0].output
        shape = tuple(reversed(result.result.ne))
        in_order = order is None or list(order) == list(range(len(order)))
        if in_order and shape == (1, 1, *rows.shape):
            found[graphs[0].place(result)] = rows
    return found
