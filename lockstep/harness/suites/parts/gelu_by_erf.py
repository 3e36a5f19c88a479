"""GELU by erf in the place of GELU by tanh: what logits alone may hide, and is said to be so."""

from lockstep.harness.context.suite import Context
from lockstep.harness.graph.honest_runs import AlongLlamaCpp
from lockstep.harness.locate.segments import shows_tensors

BY_TANH = frozenset({"GELU", "GEGLU"})
# The two are at most 4.7e-4 apart, at -2.7. ggml looks the first one up in a table of halves, which
# is off by up to 2.0e-3 between -4 and 4, and engines without a table are honest: limits of logits
# mostly have room for both.
HIDDEN = "GELU by tanh against GELU by erf: ggml's table is off by four times more; tensors show it"


def hidden_by_the_table(context: Context) -> list[str]:
    """Of a subject that shows no tensors, on a model whose graph has such a node. llama.cpp's graph
    of the usual run is known by now."""
    along = context.honest
    if shows_tensors(context) or not isinstance(along, AlongLlamaCpp):
        return []
    graphs = along.program(context.batches).graphs
    return [HIDDEN] if any(node.op in BY_TANH for graph in graphs for node in graph.nodes) else []
