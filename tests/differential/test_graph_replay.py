"""llama.cpp's graphs are recorded and run as a whole with our ops; wrong replays are caught."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml import base
from lockstep.harness.check.check import lanes_of
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.graph.floor import replay_floor
from lockstep.harness.graph.program import Graph, Place, PlannedNode, Program
from lockstep.harness.graph.record import record
from lockstep.harness.graph.replay import Replayed, ReplayRun, replay
from lockstep.harness.graph.ways import Honest, Noisy, Wide
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.judging.noise import noise_floor
from lockstep.harness.records import DEFAULT, EXACT, Answered, Request, Settings
from lockstep.harness.runs.shadow import settings_for
from lockstep.harness.shadow.batches import Work, batches_of
from lockstep.harness.shadow.models import make_variant
from lockstep.harness.synth.any_arch import variant_named
from tests.models import opened as our_model
from tests.models import written

# models with bidirectional attention need all tokens in one ubatch
ENCODERS = ("bert", "t5")
SLICE = ("gemma3", "mamba", "deepseek2", "qwen3moe", "rwkv7", *ENCODERS)


@dataclass(kw_only=True, eq=False)
class Recorded:
    """A recorded program with the values of llama.cpp's own run."""

    program: Program
    shown: dict[Place, NDArray[Any]]
    path: Path
    build: Build
    settings: Settings
    batches: tuple[Batch, ...]
    logits: tuple[NDArray[Any], ...] = ()

    def run(
        self, way: Honest | None = None, program: Program | None = None, **more: Any
    ) -> Replayed:
        with GgufFile.open(self.path) as file:
            return replay(program or self.program, file, self.build, way, **more)

    @property
    def floor(self) -> float:
        with GgufFile.open(self.path) as file:
            return replay_floor(self.program, file, self.build, seed=0).relative

    def theirs(self) -> list[NDArray[Any]]:
        """Return llama.cpp's outputs: logits, or the results of its graphs."""
        if self.program.has_result and self.logits:
            return list(self.logits)
        return [value for value in self.program.in_order(self.shown) if value is not None]


Record = Callable[..., Recorded]


@pytest.fixture(scope="module")
def recorded(namer: Session, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Return a function that records each variant once, with two ubatches for a prompt if llama.cpp
    can."""
    folder = tmp_path_factory.mktemp("variants")
    known: dict[Any, Recorded] = {}

    def make(name: str, preset: Settings = EXACT, sequences: int = 1) -> Recorded:
        key = name, preset.name, sequences
        if key not in known:
            path = folder / f"{name}.gguf"
            if not path.exists():
                make_variant(variant_named(name), path, session=namer)
            work = Work(tokens=6, sequences=sequences)
            settings = settings_for(work, preset, ubatch=None if name in ENCODERS else 4)
            known[key] = recorded_of(path, settings, work)
        return known[key]

    return make


def recorded_of(path: Path, settings: Settings, work: Work) -> Recorded:
    shown: dict[Place, NDArray[Any]] = {}
    with GgufFile.open(path) as file, Runner().open("llama.cpp", path, settings) as session:
        info = session.ask("describe")
        assert isinstance(info, Answered)
        build = Build(
            lanes=lanes_of(info.value.build),
            n_threads=settings.n_threads,
            generic=info.value.generic,
        )
        batches = batches_of(work, 0, file)

        def watch(node: Node, place: Place) -> None:
            shown[place] = node.value.copy()

        program = record(session, batches, watch=watch)
        assert isinstance(program, Program), program
        answer = session.ask("evaluate", Request(batches=batches))
    return Recorded(
        program=program,
        shown=shown,
        path=path,
        build=build,
        settings=settings,
        batches=batches,
        logits=answer.value.logits if isinstance(answer, Answered) else (),
    )


def off(made: Recorded, found: Replayed) -> float:
    """Return the largest error of the outputs, relative to the largest output."""
    ours = [output for output in found.outputs if output is not None]
    assert len(ours) == len(found.outputs)
    theirs = made.theirs()
    size = max(map(largest, theirs))
    return max(worst_distance(a, b) for a, b in zip(theirs, ours, strict=True)) / size


@pytest.mark.parametrize("name", SLICE)
def test_replayed_graph_agrees_with_llama_cpp(name: str, recorded: Record) -> None:
    made = recorded(name)
    found = made.run()
    assert found.missing == ()
    assert found.unknown == 0
    assert found.nodes == made.program.nodes > 100
    assert len(made.program.graphs) == (3 if name == "bert" else 4)
    assert off(made, found) <= made.floor < 0.01


@pytest.mark.parametrize("name", SLICE)
def test_graph_recorded_without_values_is_equal(name: str, recorded: Record) -> None:
    """Results of the graph are always recorded. If these results are not enough, all values are
    recorded."""
    made = recorded(name)
    with Runner().open("llama.cpp", made.path, made.settings) as session:
        found = record(session, made.batches)
    assert isinstance(found, Program)
    assert found.orders == made.program.orders
    for ours, other in zip(found.graphs, made.program.graphs, strict=True):
        assert (ours.nodes, ours.roots) == (other.nodes, other.roots)
        assert ours.inputs.keys() == other.inputs.keys()
        assert all(np.array_equal(raw, other.inputs[n]) for n, raw in ours.inputs.items())


@pytest.mark.parametrize("name", SLICE)
def test_nodes_that_a_recording_skips_are_computed_on_demand(name: str, recorded: Record) -> None:
    """A context may reuse a graph."""
    made = recorded(name)
    kept: list[NDArray[Any]] = []
    with Runner().open("llama.cpp", made.path, made.settings) as session:
        for _ in range(2):
            assert isinstance(record(session, made.batches), Program)
            session.recorded.clear()
        record(session, made.batches, watch=lambda node, _: kept.append(node.value.copy()))
    assert len(kept) == len(made.shown)
    pairs = zip(kept, made.shown.values(), strict=True)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


@pytest.mark.parametrize("name", SLICE)
def test_values_without_bounds_have_the_same_bits(name: str, recorded: Record) -> None:
    made = recorded(name)
    pairs = zip(made.run().outputs, made.run(Honest(sizes=False)).outputs, strict=True)
    assert all(a is not None and np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def test_replay_with_flash_attention_and_f16_cache_agrees(recorded: Record) -> None:
    made = recorded("gemma3", DEFAULT)
    assert {root.type for root in made.program.caches} == {"F16"}
    assert off(made, made.run()) <= made.floor


def test_rows_keep_the_order_of_the_batch(recorded: Record) -> None:
    made = recorded("mamba", sequences=3)
    orders = [list(order) for order in made.program.orders]
    assert any(order != sorted(order) for order in orders)
    assert off(made, made.run()) <= made.floor


def test_in_float64_nothing_is_rounded_between_ops(recorded: Record) -> None:
    made = recorded("qwen3moe")
    kinds: set[str] = set()

    def trace(graph: Graph, node: PlannedNode, value: NDArray[Any]) -> None:
        kinds.add(value.dtype.name)

    found = made.run(Wide(), trace=trace)
    assert kinds <= {"float64", "int32"}
    assert off(made, found) <= made.floor
    again = made.run(Wide())
    assert np.array_equal(found.outputs[0], again.outputs[0])  # type: ignore[arg-type]


def test_seed_decides_the_random_errors(recorded: Record) -> None:
    made = recorded("mamba")
    a, b, c = (made.run(Noisy(seed=seed)).outputs[0] for seed in (1, 1, 2))
    assert a is not None
    assert b is not None
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    # errors of sums reach only a part of their limit, so a tipped activation is relatively large
    ("quant", "least", "most"),
    [("F32", 0.05, 0.5), ("Q8_0", 0.5, 2)],
)
def test_noise_floor_equals_that_of_our_own_architecture(
    quant: str, least: float, most: float, tmp_path: Path
) -> None:
    made = recorded_of(written(tmp_path, quant=quant), EXACT, Work(tokens=12))
    settings = replace(made.settings, generic=made.build.generic)
    model = our_model(made.path, settings)
    own = noise_floor(model, made.batches, settings, lanes=made.build.lanes, seed=0)
    model.close()
    assert least < made.floor / own.relative < most
    outputs = made.run().outputs
    size = max(map(largest, own.logits))
    for mine, found in zip(own.logits, outputs, strict=True):
        assert found is not None
        assert worst_distance(mine, found) <= own.relative * size


# --- values put in ----------------------------------------------------------------------------


def test_replaced_value_changes_only_later_nodes(recorded: Record) -> None:
    made = recorded("qwen3moe")
    (place,) = [p for p in made.program.places_of("l_out-0") if p[0] == 1]
    seen: dict[Place, NDArray[Any]] = {}

    def trace(graph: Graph, node: PlannedNode, value: NDArray[Any]) -> None:
        seen[graph.place(node)] = value.copy()

    plain = made.run(trace=trace)
    same = made.run(values={place: seen[place]})
    other = made.run(values={place: 2 * seen[place]})
    for step in range(3):
        assert np.array_equal(plain.outputs[step], same.outputs[step])  # type: ignore[arg-type]
        changed = not np.array_equal(plain.outputs[step], other.outputs[step])  # type: ignore[arg-type]
        assert changed == (step >= 1)


def test_decoder_reads_the_output_of_our_encoder(recorded: Record) -> None:
    made = recorded("t5")
    encoder = made.program.graphs[0]
    place = encoder.place(encoder.output)
    put = made.run(values={place: 0 * made.shown[place]})
    assert off(made, put) > 10 * made.floor


# --- nodes that cannot be computed ------------------------------------------------------------


def test_nodes_after_an_unknown_op_are_unknown_and_name_the_op(
    recorded: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorded("qwen3moe")
    monkeypatch.delitem(base.MEANINGS, "SOFT_MAX")
    found = made.run()
    assert found.outputs == (None, None, None)
    assert found.missing[0].op == "SOFT_MAX"
    assert found.missing[0].reason == "no semantics of SOFT_MAX"
    assert found.unknown > 0
    assert found.nodes + found.unknown + len(found.missing) == made.program.nodes


# --- wrong replays ----------------------------------------------------------------------------


def with_node(program: Program, place: Place, change: Callable[[PlannedNode], Any]) -> Program:
    """Return a program with one changed node."""
    graphs = tuple(
        replace(g, nodes=tuple(change(n) if g.place(n) == place else n for n in g.nodes))
        for g in program.graphs
    )
    return replace(program, graphs=graphs)


def test_wrong_op_is_found(recorded: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorded("qwen3moe")
    floor, right = made.floor, base.meaning_of("RMS_NORM")

    def wrong(node: Node, build: Build) -> base.Expected:
        found = right(node, build)
        return replace(found, value=found.value * (1.001 if node.name == "norm-1" else 1))

    monkeypatch.setitem(base.MEANINGS, "RMS_NORM", wrong)
    assert off(made, made.run()) > 2 * floor


def test_view_that_begins_one_element_late_is_found(recorded: Record) -> None:
    made = recorded("qwen3moe")
    graph = made.program.graphs[0]
    node = next(
        n
        for n in graph.nodes
        if n.op == "MUL_MAT" and n.sources[1] and graph.roots[n.sources[0].root].kind == "cache"  # type: ignore[union-attr]
    )

    def late(node: PlannedNode) -> PlannedNode:
        first = node.sources[0]
        assert first is not None
        moved = replace(first, offset=first.offset + 4)
        return replace(node, sources=(moved, *node.sources[1:]))

    wrong = with_node(made.program, graph.place(node), late)
    assert off(made, made.run(program=wrong)) > 2 * made.floor


def test_cache_that_loses_a_row_is_found(recorded: Record) -> None:
    made = recorded("qwen3moe")
    graph = made.program.graphs[0]
    store = next(n for n in graph.nodes if n.op == "SET_ROWS")
    kept = made.shown[graph.place(store)].copy()
    kept[..., 1, :] = 0
    found = made.run(values={graph.place(store): kept})
    assert off(made, found) > 2 * made.floor


def test_replay_holds_only_values_read_later(recorded: Record) -> None:
    made = recorded("qwen3moe")
    sizes: list[int] = []
    every = 0
    with GgufFile.open(made.path) as file:

        def trace(graph: Graph, node: PlannedNode, value: NDArray[Any]) -> None:
            nonlocal every
            every += value.nbytes
            held = run.memory.held.items()
            sizes.append(sum(raw.nbytes for n, raw in held if graph.roots[n].kind == "computed"))

        run = ReplayRun(made.program, file, made.build, Honest(), trace, {})
        run.run()
        assert run.memory.held == {}
    assert max(sizes) < every / 20


# --- the engine -------------------------------------------------------------------------------


def test_replay_engine_gives_logits_text_and_every_node(recorded: Record) -> None:
    made = recorded("qwen3moe")
    with (
        Runner().open("replay", made.path, made.settings) as ours,
        Runner().open("llama.cpp", made.path, made.settings) as theirs,
    ):
        info, answer = ours.ask("describe"), ours.ask("evaluate", request(made, capture=True))
        assert isinstance(info, Answered)
        assert isinstance(answer, Answered), answer
        assert "it cannot find a wrong graph" in info.value.build
        assert len(answer.value.trace.records) == made.program.nodes
        sites = {str(record.site) for record in answer.value.trace.records}
        assert {"Qcur ROPE-0", "l_out-1", "l_out ubatch 1-1"} <= sites
        for a, b in zip(answer.value.logits, made.logits, strict=True):
            assert worst_distance(a, b) <= made.floor * largest(b)
        texts = [session.ask("greedy", [3, 1, 4], 5) for session in (ours, theirs)]
        assert isinstance(texts[0], Answered), texts[0]
        assert texts[0].value == texts[1].value  # type: ignore[union-attr]


def request(made: Recorded, **more: Any) -> Request:
    return Request(batches=made.batches, **more)
