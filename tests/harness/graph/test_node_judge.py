"""Judgement of two engines, one node at a time, on hand-made nodes without llama.cpp."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node, Operand
from lockstep.engine.ops.build import Build
from lockstep.harness.graph.node_judge import (
    ABSENT,
    OWN_PARAMETERS,
    OWN_WEIGHTS,
    Compute,
    NodeJudge,
    axes_of,
    differing_weights,
)
from lockstep.harness.graph.other_file import first_other_node, other_parameters
from lockstep.harness.graph.program import Graph, PlannedNode, Program, Root, TensorView
from lockstep.harness.graph.ways import Honest
from lockstep.harness.graph.wiring import Wire, ends_of_layers, wires_of
from lockstep.harness.judging.findings import by_layer
from lockstep.harness.records import Mismatch, Site
from lockstep.harness.synth.gguf_writer import write_gguf
from tests.shadow_nodes import node, normal, operand

BUILD = Build(lanes=16)
W, X = normal(1, 5, 32), normal(2, 3, 32)
SITE = Site(step=0, layer=1, name="mul_mat")


def written(path: Path, weights: NDArray[np.float32]) -> GgufFile:
    rows = ("w.weight", (32, 5), "F32", weights)
    write_gguf(path, {"general.architecture": ("STR", "any")}, [rows])
    return GgufFile.open(path)


def product(result: Any = None) -> Node:
    made = node("MUL_MAT", (X @ W.T if result is None else result), W, X)
    first = made.sources[0]
    assert first is not None
    stored = replace(first, value=None, weight="w.weight", nb=(4, 128, 640, 640))
    return replace(made, sources=(stored, made.sources[1]))


def compute(given: Node) -> NDArray[Any]:
    """Compute a node as an engine that replays llama.cpp's graph."""
    return Honest().compute(BUILD, given)


def judge(folder: Path, subject: NDArray[np.float32] = W, engine: Compute = compute) -> NodeJudge:
    files = written(folder / "oracle.gguf", W), written(folder / "subject.gguf", subject)
    wire = Wire(site=SITE, layer=1, inputs=(), weights=("w.weight",))
    return NodeJudge(
        wires={(0, 0, 5): wire},
        build=BUILD,
        oracle=files[0],
        subject=files[1],
        compute=engine,
        changed=differing_weights(*files),
        wanted=(),
    )


def changed(by: float) -> NDArray[np.float32]:
    """Return a copy in which one element is multiplied by 1 + by."""
    other = W.copy()
    other[3, 7] *= 1 + by
    return other


def test_finding_has_as_many_axes_as_its_index() -> None:
    worst = Mismatch(kind="value", index=(23, 43))
    assert axes_of(worst) == "(ne1, ne0)"
    assert axes_of(None) == "(ne3, ne2, ne1, ne0)"


def test_node_with_equal_results_has_no_finding(tmp_path: Path) -> None:
    found = judge(tmp_path)
    found(product())
    (one,) = found.findings
    assert one.mismatch is None
    assert one.compared == 15
    assert one.weight == "w.weight"
    assert found.kept == {}


def test_weight_of_the_subjects_file_is_blamed_with_its_row(tmp_path: Path) -> None:
    found = judge(tmp_path, changed(0.5))
    found(product())
    (one,) = found.findings
    assert (one.at_fault, one.outputs, one.layer) == ("subject", (3,), 1)
    assert one.reason != OWN_WEIGHTS
    assert np.array_equal(found.kept[SITE][0, 0], (X @ W.T))


def test_weight_with_effects_within_the_bound_is_found_by_bits(tmp_path: Path) -> None:
    found = judge(tmp_path, changed(1e-6))
    found(product())
    (one,) = found.findings
    assert (one.at_fault, one.outputs, one.allowed) == ("subject", (3,), 0.0)
    assert one.reason == OWN_WEIGHTS


def test_weight_that_changes_no_bit_is_not_named(tmp_path: Path) -> None:
    found = judge(tmp_path, changed(0.5))
    zeros = replace(product(np.zeros((3, 5), np.float32)))
    sources = (zeros.sources[0], operand(np.zeros_like(X)))
    found(replace(zeros, sources=sources))
    assert [f.mismatch for f in found.findings] == [None]


def test_wrong_oracle_is_distinguished_from_a_wrong_subject(tmp_path: Path) -> None:
    found = judge(tmp_path)
    found(product(np.float32(1.01) * (X @ W.T)))
    assert [f.at_fault for f in found.findings] == ["oracle"]


def test_unknown_op_does_not_count_as_agreed(tmp_path: Path) -> None:
    found = judge(tmp_path)
    found(replace(product(), op="WISH"))
    assert found.findings == []
    assert found.unknown == {"no semantics of WISH": [SITE]}


def test_op_that_the_subject_lacks_is_hidden_if_the_oracle_is_right(tmp_path: Path) -> None:
    found = judge(tmp_path, engine=lambda _: None)
    found(product())
    assert (found.findings, found.hidden) == ([], [SITE])
    found(product(np.float32(1.01) * (X @ W.T)))
    assert [f.at_fault for f in found.findings] == ["oracle"]


def test_weight_of_another_type_is_multiplied_unchanged(tmp_path: Path) -> None:
    found = judge(tmp_path)
    halves = tmp_path / "halves.gguf"
    rows = ("w.weight", (32, 5), "F16", W.astype(np.float16))
    write_gguf(halves, {"general.architecture": ("STR", "any")}, [rows])
    with GgufFile.open(halves) as file:
        found.subject = file
        found(product())
        assert differing_weights(found.oracle, file) == {"w.weight"}
    assert [f.at_fault for f in found.findings] == ["subject"]


def normed(eps: float) -> Node:
    made = node("RMS_NORM", X / np.sqrt((X**2).mean(-1, keepdims=True) + np.float32(1e-5)), X)
    return replace(made, params=parameters(eps))


def parameters(eps: float) -> NDArray[np.int32]:
    return np.array([eps] + [0.0] * 15, np.float32).view(np.int32)


def test_parameters_come_from_the_subjects_file(tmp_path: Path) -> None:
    """Every engine that replays a graph would agree if the parameters came from the oracle."""
    found = judge(tmp_path)
    found(normed(1e-5))
    found.parameters = {(0, 0, 5): parameters(1e-2)}
    found(normed(1e-5))
    agreed, other = found.findings
    assert (agreed.mismatch, agreed.parameters) == (None, "")
    assert (other.at_fault, other.mismatch is not None) == ("subject", True)
    assert other.parameters.endswith("number 0 is 0.00999999978, expected 9.99999975e-06")


def test_parameters_with_effects_within_the_bound_are_found_by_bits(
    tmp_path: Path,
) -> None:
    found = judge(tmp_path)
    found.parameters = {(0, 0, 5): parameters(1.02e-5)}
    found(normed(1e-5))
    (one,) = found.findings
    assert (one.at_fault, one.reason, one.allowed) == ("subject", OWN_PARAMETERS, 0.0)


def test_weight_of_another_width_is_reported_as_not_compared(tmp_path: Path) -> None:
    found = judge(tmp_path)
    narrow = tmp_path / "narrow.gguf"
    rows = ("w.weight", (32, 4), "F32", W[:4])
    write_gguf(narrow, {"general.architecture": ("STR", "any")}, [rows])
    with GgufFile.open(narrow) as file:
        found.subject = file
        found(product())
    assert found.findings == []
    assert found.unknown == {
        "w.weight is (32, 4) in the subject's file, (32, 5) in the oracle's": [SITE]
    }


def test_node_missing_in_a_second_run_is_reported_as_not_compared(tmp_path: Path) -> None:
    found = judge(tmp_path)
    later = replace(found.wires[0, 0, 5], site=replace(SITE, layer=2))
    found.wires = {**found.wires, (0, 0, 6): later}
    found(product())
    found.finish()
    assert [f.mismatch for f in found.findings] == [None]
    assert found.unknown == {ABSENT: [later.site]}


def test_fractional_ids_are_wrong_and_the_check_continues(tmp_path: Path) -> None:
    scores = np.array([[3.0, 1.0, 2.0]], np.float32)
    ids = np.array([[0, 2, 1]], np.int32)
    order = replace(node("ARGSORT", ids, scores), params=np.array([1] + [0] * 15, np.int32))
    found = judge(tmp_path, engine=lambda given: given.value.astype(np.float32))
    found(order)
    assert [f.at_fault for f in found.findings] == ["subject"]


def test_wrong_op_without_inputs_is_found(tmp_path: Path) -> None:
    """The op has no known design, because no source has a type that determines the design."""
    found = judge(tmp_path, engine=lambda given: given.value + np.float32(1))
    steps = np.arange(5, dtype=np.float32)
    found(replace(node("ARANGE", steps), params=np.float32([0, 5, 1] + [0] * 13).view(np.int32)))
    assert [f.at_fault for f in found.findings] == ["subject"]


def test_node_without_elements_is_not_compared(tmp_path: Path) -> None:
    found = judge(tmp_path)
    found(node("SCALE", np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)))
    assert (found.findings, found.unknown) == ([], {})


# --- connections of nodes -----------------------------------------------------------------------

ROOTS = (
    Root(kind="input", name="x", type="F32", size=24),
    Root(kind="weight", name="blk.0.w.weight", type="F32", size=24),
    Root(kind="computed", name="Qcur-0", type="F32", size=24),
    Root(kind="computed", name="node_3", type="F32", size=24),
)


def view(root: int) -> TensorView:
    name = ROOTS[root].name
    return TensorView(
        name=name, type="F32", ne=(3, 2, 1, 1), nb=(4, 12, 24, 24), root=root, offset=0
    )


def planned(index: int, name: str, layer: int | None, result: int, *sources: int) -> PlannedNode:
    return PlannedNode(
        index=index,
        op="ADD",
        name=name,
        layer=layer,
        params=bytes(64),
        sources=tuple(map(view, sources)),
        result=replace(view(result), name=name),
    )


def test_wire_carries_layer_and_sources_of_a_node_through_views() -> None:
    nodes = (
        planned(0, "Qcur-0", 0, 2, 0, 1),
        planned(1, "node_3", None, 3, 2),
        planned(2, "Qcur-0", 0, 2, 2, 3),  # an op that works in place
        planned(3, "out", None, 3, 2, 1),
    )
    graph = Graph(step=0, ubatch=0, roots=ROOTS, nodes=nodes, inputs={}, last_use={})
    wires = wires_of(Program(graphs=(graph,), caches=(), orders=(None,)))
    names = {place[2]: str(wire.site) for place, wire in wires.items()}
    assert names == {0: "Qcur ADD-0", 1: "node_3", 2: "Qcur ADD 2-0", 3: "out"}
    found = list(wires.values())
    assert [wire.layer for wire in found] == [0, 0, 0, None]
    assert [[str(s) for s in wire.inputs] for wire in found] == [
        [],
        ["Qcur ADD-0"],
        ["Qcur ADD-0", "node_3"],
        ["Qcur ADD 2-0"],
    ]
    assert [wire.weights for wire in found] == [("blk.0.w.weight",), (), (), ("blk.0.w.weight",)]
    assert {str(site) for site in ends_of_layers(wires)} == {"Qcur ADD 2-0", "out"}


@pytest.mark.parametrize(
    ("layers", "groups"),
    [
        ([None, 0, 0, 1, None], [[0], [1, 2], [3], [4]]),
        ([0, 1, None, 0, 1], [[0, 3], [1, 4], [2]]),
        ([None, None], [[0, 1]]),
        ([], []),
    ],
)
def test_later_parts_of_a_layer_belong_to_that_layer(
    layers: list[int | None], groups: list[list[int]]
) -> None:
    assert by_layer(layers) == groups


def test_operands_without_weights_come_from_the_oracle() -> None:
    from lockstep.harness.graph.node_judge import with_weights

    made = node("ADD", X, X, X)
    kept: Any = None
    assert with_weights(made, kept).sources == made.sources
    assert isinstance(made.sources[0], Operand)


def chain(folder: Path, *, right: bool, limit: int = 1 << 20) -> NodeJudge:
    """Return the judge of three products in a chain. A right or a wrong engine has computed the
    products."""
    names = [replace(SITE, name=name) for name in ("a", "b", "c")]
    reads: list[tuple[Site, ...]] = [(), (names[0],), (names[1],)]
    made = judge(folder, engine=compute if right else lambda node: compute(node) + 1)
    wires = {
        (0, 0, i): Wire(site=site, layer=1, inputs=inputs, weights=())
        for i, (site, inputs) in enumerate(zip(names, reads, strict=True))
    }
    return replace(made, wires=wires, limit=limit)


def test_value_is_dropped_after_its_last_reader(tmp_path: Path) -> None:
    found = chain(tmp_path, right=True)
    for i, held in enumerate((["a"], ["b"], [])):
        found(replace(product(), index=i))
        assert [site.name for site in found.recent] == held
    assert found.kept == {}


def test_all_wrong_nodes_are_found_although_few_values_are_kept(tmp_path: Path) -> None:
    one = product().value.nbytes
    found = chain(tmp_path, right=False, limit=2 * one)
    for i in range(3):
        found(replace(product(), index=i))
    assert [f.mismatch is not None for f in found.findings] == [True, True, True]
    assert [site.name for site in found.kept] == ["a", "b"]


# --- graphs of two files ------------------------------------------------------------------------


def program(*nodes: PlannedNode) -> Program:
    graph = Graph(step=0, ubatch=0, roots=ROOTS, nodes=nodes, inputs={}, last_use={})
    return Program(graphs=(graph,), caches=(), orders=(None,))


def test_graphs_of_two_files_differ_in_parameters_of_equal_names() -> None:
    before, one = planned(0, "inserted", 0, 3, 0), planned(0, "Qcur-0", 0, 2, 0)
    other = replace(one, index=1, params=parameters(1e-3).tobytes())
    found = other_parameters(program(one), program(before, other))
    assert {place: list(words) for place, words in found.items()} == {
        (0, 0, 0): list(parameters(1e-3))
    }
    assert other_parameters(program(one), program(one)) == {}


def test_graphs_of_two_files_differ_at_a_missing_or_resized_node() -> None:
    one, two = planned(0, "Qcur-0", 0, 2, 0), planned(1, "cap-0", 0, 3, 2)
    wide = replace(one, result=replace(one.result, ne=(4, 2, 1, 1)))
    assert first_other_node(program(one, two), program(one, two)) == ""
    assert first_other_node(program(one, two), program(one)) == "the graph lacks 'cap-0' (ADD)"
    more = first_other_node(program(one), program(one, two))
    assert more == "the oracle's graph lacks 'cap-0' (ADD)"
    assert "F32 [4, 2, 1, 1] (ne0 first), expected" in first_other_node(program(one), program(wide))
