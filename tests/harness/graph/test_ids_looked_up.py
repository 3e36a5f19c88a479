"""Expert ids for each token that come from a table instead of a choice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.harness.graph.program import Graph, PlannedNode, Program, Root, TensorView
from lockstep.harness.graph.segments import SegmentJudge
from lockstep.harness.graph.wiring import wires_of
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.models import LANES

TABLE = np.arange(20, dtype=np.int32).reshape(10, 2) % 8  # by token: ids of experts
TOKENS = np.array([3, 7, 1], np.int32)
PROBS = np.linspace(0.1, 1, 24, dtype=np.float32).reshape(3, 8, 1)  # (tokens, experts, 1)
INPUTS = {"table": TABLE, "tokens": TOKENS, "probs": PROBS}
NAMES = (*INPUTS, "ffn_moe_topk-0", "ffn_moe_weights-0")
TYPES = ("I32", "I32", "F32", "I32", "F32")
SIZES = ((2, 10, 1, 1), (3, 1, 1, 1), (1, 8, 3, 1), (2, 3, 1, 1), (1, 2, 3, 1))


def view(number: int) -> TensorView:
    ne = SIZES[number]
    nb = tuple(int(n) for n in 4 * np.cumprod((1, *ne[:-1])))
    return TensorView(name=NAMES[number], type=TYPES[number], ne=ne, nb=nb, root=number, offset=0)


def rows_of(index: int, table: int, ids: int, result: int) -> PlannedNode:
    return PlannedNode(
        index=index,
        op="GET_ROWS",
        name=NAMES[result],
        layer=0,
        params=np.zeros(16, np.int32).tobytes(),
        sources=(view(table), view(ids)),
        result=view(result),
    )


def program() -> Program:
    roots = tuple(
        Root(
            kind="input" if name in INPUTS else "computed",
            name=name,
            type=kind,
            size=4 * int(np.prod(ne)),
        )
        for name, kind, ne in zip(NAMES, TYPES, SIZES, strict=True)
    )
    graph = Graph(
        step=0,
        ubatch=0,
        roots=roots,
        nodes=(rows_of(0, 0, 1, 3), rows_of(1, 2, 3, 4)),
        inputs={i: v.reshape(-1).view(np.uint8) for i, v in enumerate(INPUTS.values())},
        last_use={},
    )
    return Program(graphs=(graph,), caches=(), orders=(None,))


def accused_of(ids: Any, folder: Path) -> list[str]:
    """Return the accused sites if an engine shows these ids, and continues with the nearest valid
    ids."""
    write_llama(LlamaRecipe(n_layer=1), folder / "any.gguf")
    rows = np.nan_to_num(ids, nan=0, posinf=0, neginf=0).clip(0, 7).astype(np.int32)
    shown: dict[Any, Any] = {
        (0, 0, 0): ids.reshape(1, 1, 3, 2),
        (0, 0, 1): np.stack([PROBS[t, row] for t, row in enumerate(rows)])[None],
    }
    with GgufFile.open(folder / "any.gguf") as file:
        judge = SegmentJudge(
            program=program(),
            wires=wires_of(program()),
            file=file,
            build=Build(lanes=LANES),
            shown=shown,
        )
        found = list(judge.findings())
    assert [str(f.site) for f in found] == ["ffn_moe_topk-0", "ffn_moe_weights-0"]
    return [str(f.site) for f in found if f.mismatch is not None]


@pytest.mark.parametrize(("moved", "accused"), [(0, []), (1, ["ffn_moe_topk-0"])])
def test_wrong_ids_from_a_table_are_located(moved: int, accused: list[str], tmp_path: Path) -> None:
    """All later values are right for the wrong ids."""
    assert accused_of(TABLE[(TOKENS + moved) % 10], tmp_path) == accused


@pytest.mark.parametrize("wrong", [8, -1, 2**30, np.nan, np.inf])
def test_invalid_expert_id_is_a_fault_and_later_nodes_are_judged(
    wrong: float, tmp_path: Path
) -> None:
    ids = TABLE[TOKENS].astype(np.int32 if np.isfinite(wrong) else np.float32)
    ids[1, 0] = wrong
    assert accused_of(ids, tmp_path) == ["ffn_moe_topk-0"]


def test_ids_of_a_hidden_choice_are_reported_as_not_judged(tmp_path: Path) -> None:
    """The ids are wrong, and all later shown values are right for these ids."""
    (graph,) = program().graphs
    order = replace(view(0), name="order", root=5)
    sort = replace(graph.nodes[0], op="ARGSORT", name="order", result=order)
    scores = replace(view(0), type="F32")
    nodes = (
        replace(sort, sources=(scores,)),
        replace(graph.nodes[0], index=1, sources=(order, view(1))),
        replace(graph.nodes[1], index=2),
    )
    roots = (replace(graph.roots[0], type="F32"), *graph.roots[1:])
    roots += (replace(roots[0], kind="computed", name="order", type="I32"),)
    inputs = {**graph.inputs, 0: TABLE.astype(np.float32).reshape(-1).view(np.uint8)}
    chosen = replace(program(), graphs=(replace(graph, nodes=nodes, roots=roots, inputs=inputs),))
    write_llama(LlamaRecipe(n_layer=1), tmp_path / "any.gguf")
    with GgufFile.open(tmp_path / "any.gguf") as file:
        judge = SegmentJudge(
            program=chosen,
            wires=wires_of(chosen),
            file=file,
            build=Build(lanes=LANES),
            shown={(0, 0, 1): np.zeros((1, 1, 3, 2), np.int32)},
        )
        assert list(judge.findings()) == []
    assert [str(site) for site in judge.unjudged_ids] == ["ffn_moe_topk-0"]
