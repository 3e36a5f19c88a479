"""Hand-made programs, without llama.cpp: memory with strides, caches, and unknown values."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import Expected
from lockstep.harness.asking.session import Session
from lockstep.harness.graph import honest_runs
from lockstep.harness.graph.floor import AT_ONCE, replay_floor
from lockstep.harness.graph.honest_runs import AlongLlamaCpp
from lockstep.harness.graph.memory import GraphMemory
from lockstep.harness.graph.program import LOGITS, Graph, PlannedNode, Program, Root, TensorView
from lockstep.harness.graph.record import ProgramRecorder, order_of
from lockstep.harness.graph.replay import NotComputed, replay
from lockstep.harness.graph.ways import Honest, Noisy, Wide
from lockstep.harness.records import KEPT
from lockstep.harness.synth.gguf_writer import gguf_bytes
from tests.shadow_nodes import node, normal, params, piece

BUILD = Build(lanes=16)
X, CACHE, SUM, TWICE = range(4)  # numbers of roots
ROOTS = (
    Root(kind="input", name="x", type="F32", size=24),
    Root(kind="cache", name="cache_k_l0", type="F32", size=24, cache=0),
    Root(kind="computed", name="sum-0", type="F32", size=24),
    Root(kind="computed", name="result_output", type="F32", size=24),
)
GIVEN = np.arange(6, dtype=np.float32).reshape(2, 3)


def view(root: int, ne: tuple[int, ...] = (3, 2), **changes: Any) -> TensorView:
    ne = (*ne, *[1] * (4 - len(ne)))
    nb = [4]
    for n in ne[:3]:
        nb.append(nb[-1] * n)
    made = TensorView(name=ROOTS[root].name, type="F32", ne=ne, nb=tuple(nb), root=root, offset=0)
    return replace(made, **changes)


def planned(
    index: int, op: str, result: TensorView, *sources: TensorView, held: Any = None
) -> PlannedNode:
    return PlannedNode(
        index=index,
        op=op,
        name=result.name,
        layer=None,
        params=(params() if held is None else held).tobytes(),
        sources=sources,
        result=result,
    )


def graph(step: int, *nodes: PlannedNode, given: Any = GIVEN) -> Graph:
    used = {v.root: n.index for n in nodes for v in (*n.sources, n.result) if v is not None}
    raw = np.frombuffer(np.asarray(given, np.float32).tobytes(), np.uint8)
    return Graph(step=step, ubatch=0, roots=ROOTS, nodes=nodes, inputs={X: raw}, last_use=used)


def program(*graphs: Graph) -> Program:
    return Program(graphs=graphs, caches=(ROOTS[CACHE],), orders=(None,) * len(graphs))


ADDS = (  # adds x to the cache, and then doubles it
    planned(0, "ADD", view(CACHE), view(CACHE), view(X)),
    planned(1, "SCALE", view(TWICE), view(CACHE), held=params(2.0, 0.0)),
)


@pytest.fixture
def file(tmp_path: Path) -> GgufFile:
    path = tmp_path / "empty.gguf"
    path.write_bytes(gguf_bytes({"general.architecture": ("STR", "none")}))
    return GgufFile.open(path)


@pytest.mark.parametrize("way", [Honest(), Wide()])
def test_cache_lasts_across_graphs_and_an_input_does_not(file: GgufFile, way: Honest) -> None:
    found = replay(program(graph(0, *ADDS), graph(1, *ADDS, given=10 * GIVEN)), file, BUILD, way)
    assert [output.tolist() for output in found.outputs if output is not None] == [
        (2 * GIVEN).tolist(),
        (22 * GIVEN).tolist(),
    ]
    again = replay(program(graph(0, *ADDS)), file, BUILD, way)  # each run begins with empty caches
    assert np.array_equal(again.outputs[0], 2 * GIVEN)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", [Honest(), Wide()])
def test_view_is_read_and_written_through_its_strides(file: GgufFile, way: Honest) -> None:
    turned = view(X, (2, 3), nb=(12, 4, 24, 24))  # x transposed
    column = view(CACHE, (1, 2), nb=(4, 12, 24, 24), offset=4)  # the middle column of three
    nodes = (
        planned(0, "CONT", view(SUM, (2, 3)), turned),
        planned(1, "CPY", column, view(X, (1, 2), nb=(4, 12, 24, 24), offset=8), column),
        planned(2, "SCALE", view(TWICE), view(CACHE), held=params(2.0, 0.0)),
    )
    seen: list[Any] = []
    found = replay(
        program(graph(0, *nodes)), file, BUILD, way, trace=lambda g, n, value: seen.append(value)
    )
    assert seen[0][0, 0].tolist() == GIVEN.T.tolist()
    assert found.outputs[0] is not None
    assert found.outputs[0].tolist() == [[0, 4, 0], [0, 10, 0]]


@pytest.mark.parametrize("way", [Honest(), Wide()])
def test_set_op_writes_float32_at_its_byte_offsets(file: GgufFile, way: Honest) -> None:
    part = view(X, (2, 1), offset=4)
    put = planned(0, "SET", view(TWICE), view(X), part, held=params(12, 24, 24, 12))
    found = replay(program(graph(0, put)), file, BUILD, way)
    assert found.outputs[0] is not None
    assert found.outputs[0].tolist() == [[0, 1, 2], [1, 2, 5]]


def test_division_in_float64_is_exact_to_its_last_bit(file: GgufFile) -> None:
    third = planned(0, "SCALE", view(SUM), view(X), held=params(1 / 3, 0.0))
    root = planned(1, "SQRT", view(TWICE), view(SUM))
    run = program(graph(0, third, root))
    narrow, wide = (replay(run, file, BUILD, way).outputs[0] for way in (Honest(), Wide()))
    assert wide is not None
    assert np.array_equal(wide, np.sqrt(GIVEN * np.float64(np.float32(1 / 3))))
    assert narrow is not None
    assert 0 < np.abs(wide - narrow).max() < 1e-7


def test_given_value_replaces_the_nodes_own(file: GgufFile) -> None:
    run, put = program(graph(0, *ADDS), graph(1, *ADDS)), np.ones((2, 3))
    found = replay(run, file, BUILD, values={(0, 0, 0): put})
    assert found.outputs[0] is not None
    assert found.outputs[1] is not None
    assert found.outputs[0].tolist() == [[2.0] * 3] * 2
    assert found.outputs[1].tolist() == (2 * (1 + GIVEN)).tolist()


def test_value_of_another_size_is_refused_with_both_shapes(file: GgufFile) -> None:
    with pytest.raises(EngineError, match=r"cache_k_l0 has shape \(5,\), expected \(1, 1, 2, 3\)"):
        replay(program(graph(0, *ADDS)), file, BUILD, values={(0, 0, 0): np.ones(5)})


def test_reader_of_an_unknown_cache_is_unknown_in_later_graphs_too(file: GgufFile) -> None:
    wrong = replace(ADDS[0], op="WISH")
    found = replay(program(graph(0, wrong, ADDS[1]), graph(1, *ADDS)), file, BUILD)
    assert found.outputs == (None, None)
    assert [str(missing) for missing in found.missing] == [
        "WISH at step 0, ubatch 0, node 0 (cache_k_l0): no semantics of WISH"
    ]
    assert (found.nodes, found.unknown) == (0, 3)


def test_malformed_node_is_named_and_the_run_continues(file: GgufFile) -> None:
    wrong = replace(ADDS[0], sources=(view(X, (2, 2)), view(X)))
    found = replay(program(graph(0, wrong, replace(ADDS[1], sources=(view(X),)))), file, BUILD)
    assert found.missing[0].reason.startswith("malformed node: ")
    assert found.outputs[0] is not None
    assert found.outputs[0].tolist() == (2 * GIVEN).tolist()


def test_noise_floor_is_not_measured_without_all_nodes(file: GgufFile) -> None:
    wrong = replace(ADDS[0], op="WISH")
    with pytest.raises(Unsupported, match="not computed: WISH at step 0"):
        replay_floor(program(graph(0, wrong)), file, BUILD, seed=0)


def test_view_beyond_its_root_is_refused(file: GgufFile) -> None:
    memory = GraphMemory(program(graph(0, *ADDS)), file, wide=False)
    memory.begin(graph(0, *ADDS))
    with pytest.raises(EngineError, match="outside"):
        memory.read(view(CACHE, offset=4))


def test_a_weight_that_the_file_lacks_is_named(file: GgufFile) -> None:
    roots = (replace(ROOTS[X], kind="weight", name="blk.0.x"), *ROOTS[1:])
    found = replay(program(replace(graph(0, *ADDS), roots=roots)), file, BUILD)
    assert found.missing[0].reason == "the weight 'blk.0.x' is not in the file"


def test_random_errors_stay_in_the_bound_and_leave_copies_alone(file: GgufFile) -> None:
    soft = planned(0, "SOFT_MAX", view(SUM), view(X), held=params(1.0, 0.0))
    same = planned(1, "CONT", view(TWICE), view(SUM))
    seen: list[Any] = []
    run = program(graph(0, soft, same))
    right = replay(run, file, BUILD).outputs[0]
    replay(run, file, BUILD, Noisy(seed=7), trace=lambda g, n, value: seen.append(value[0, 0]))
    assert right is not None
    assert 0 < np.abs(seen[0] - right).max() < 3e-6
    assert np.array_equal(seen[0], seen[1])


def test_index_computed_in_floats_is_exact(file: GgufFile) -> None:
    ids = planned(0, "SCALE", view(SUM), view(X), held=params(4.0, 3.0))  # a product and a sum
    seen: list[Any] = []
    for given in (GIVEN, GIVEN + np.float32(0.1)):
        run = program(graph(0, ids, given=given))
        replay(run, file, BUILD, Noisy(seed=7), trace=lambda g, n, value: seen.append(value[0, 0]))
    assert np.array_equal(seen[0], 4 * GIVEN + 3)
    assert not np.array_equal(seen[1], (4 * (GIVEN + np.float32(0.1)) + 3).astype(np.float32))


# --- names ------------------------------------------------------------------------------------


def test_every_node_has_a_name_and_a_wrong_name_gets_the_nearest() -> None:
    named = (
        planned(0, "MUL_MAT", view(SUM, name="Qcur-0")),
        planned(1, "ROPE", view(SUM, name="Qcur-0")),
        planned(2, "ROPE", view(SUM, name="Qcur-0")),
        planned(3, "ADD", view(SUM, name="l_out-0")),
    )
    made = program(graph(0, *named), graph(1, *named))
    names = ["Qcur-0 MUL_MAT", "Qcur-0 ROPE", "Qcur-0 ROPE 2", "l_out-0"]
    assert list(made.names.values()) == names * 2
    assert made.places_of("l_out-0") == [(0, 0, 3), (1, 0, 3)]
    with pytest.raises(Unsupported, match=r"no node named 'l_ou-0' \(known: .*l_out-0"):
        made.places_of("l_ou-0")


# --- recording --------------------------------------------------------------------------------


def recorder() -> ProgramRecorder:
    return ProgramRecorder(watch=None, result=LOGITS)


def test_inputs_are_kept_and_values_are_dropped() -> None:
    x = normal(1, 2, 3)
    made = recorder()
    made.piece(piece(node("SQR", x * x, x)))
    found = made.program((), ()).graphs[0]
    assert [root.kind for root in found.roots] == ["input", "computed"]
    assert found.inputs[0][: x.nbytes].tobytes() == x.tobytes()
    assert list(found.inputs) == [0]


def test_initial_memory_is_copied_and_never_changed() -> None:
    x = normal(1, 2, 3)
    shown = piece(node("SQR", x * x, x))
    shown.root_home[1] = KEPT
    made = recorder()
    made.piece(shown)
    assert [root.kind for root in made.program((), ()).graphs[0].roots] == ["input", "computed"]
    written = piece(node("SQR", x * x, x))
    written.root_home[:] = KEPT
    written.root[0] = shown.root[1]
    with pytest.raises(EngineError):
        made.piece(written)


@pytest.mark.parametrize(
    ("computed", "order"), [([1, 2, 3], (2, 0, 1)), ([1, 2], None), ([3, 3, 1], None)]
)
def test_order_of_rows_is_found_by_their_values(
    computed: list[int], order: tuple[int, ...] | None
) -> None:
    logits = np.array([[3.0], [1.0], [2.0]], np.float32)
    assert order_of([np.array(computed, np.float32)[:, None]], logits) == order


def test_sentence_names_the_uncomputed_node() -> None:
    missing = NotComputed(place=(1, 0, 2), op="WISH", name="w", reason="none")
    assert str(missing) == "WISH at step 1, ubatch 0, node 2 (w): none"


@pytest.mark.parametrize("given", [0.0, np.nan])
def test_outputs_that_are_all_zero_or_nan_have_no_noise(given: float, file: GgufFile) -> None:
    run = program(graph(0, *ADDS, given=np.full((2, 3), given)))
    assert replay_floor(run, file, BUILD, seed=0).relative == 0.0


def test_large_integers_in_floats_are_perturbed_too(file: GgufFile) -> None:
    third = planned(0, "SCALE", view(TWICE), view(X), held=params(1 / 3, 1.0))
    run = program(graph(0, third, given=(GIVEN + 1) * 1e20))
    assert replay_floor(run, file, BUILD, seed=0).relative > 0


@pytest.mark.parametrize("runs", [1, 2, 11])
def test_each_perturbed_run_is_made_only_once(
    runs: int, file: GgufFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = planned(0, "SCALE", view(TWICE), view(X), held=params(1 / 3, 1.0))
    made = program(graph(0, third, given=GIVEN + 1))
    monkeypatch.setattr(AlongLlamaCpp, "program", lambda *_: made)
    along = AlongLlamaCpp(llama_cpp=Session(), file=file, build=BUILD)
    found = [run.tobytes() for run in along.unlucky((), seed=5, runs=runs)]
    each = [replay(made, file, BUILD, Noisy(seed=5 + i)).outputs for i in range(runs)]
    assert sorted(found) == sorted(np.concatenate(run).tobytes() for run in each)
    assert len(set(found)) == runs


def test_perturbed_runs_stay_within_the_memory_limit(
    file: GgufFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred runs of a model of five megabytes with 150,000 tokens needed three gigabytes."""
    third = planned(0, "SCALE", view(TWICE), view(X), held=params(1 / 3, 1.0))
    made = program(graph(0, third, given=GIVEN + 1))
    monkeypatch.setattr(AlongLlamaCpp, "program", lambda *_: made)
    sizes: list[int] = []

    def shares(work: Any, some: range, _: int) -> list[Any]:
        sizes.append(len(some))
        return [(some, work(some))]

    monkeypatch.setattr(honest_runs, "in_shares", shares)
    along = AlongLlamaCpp(llama_cpp=Session(), file=file, build=BUILD)
    one = next(iter(along.unlucky((), seed=5, runs=1))).nbytes
    for room, largest in ((1, AT_ONCE), (9 * one, 9), (1 << 28, 16)):
        sizes.clear()
        monkeypatch.setattr(honest_runs, "HELD", room)
        assert len(list(along.unlucky((), seed=5, runs=32))) == 32
        assert max(sizes) == largest


def test_products_without_sizes_have_the_same_values() -> None:
    made = node("MUL_MAT", np.zeros((3, 5), np.float32), normal(1, 5, 4), normal(2, 3, 4))
    with_sizes, without = (Honest(sizes=sizes).compute(BUILD, made) for sizes in (True, False))
    assert np.array_equal(with_sizes, without)


def test_noise_changes_nothing_in_a_node_without_rows() -> None:
    """The batch has no outputs, and the bound is a single number for all elements."""
    found = Expected(np.zeros((1, 1, 0, 4)), 1e-6, "")
    result = Noisy(seed=1).result(node("SQR", np.zeros((0, 4), np.float32)), found)
    assert result.shape == (1, 1, 0, 4)
