"""Records a program while llama.cpp runs it: the sources and results of nodes, and the bytes of the
inputs.

A value that a node computes is seen when it arrives, and then forgotten.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError
from lockstep.engine.node import Node, Operand
from lockstep.harness.answers.base import MalformedAnswer
from lockstep.harness.context.runner import Session
from lockstep.harness.graph.program import (
    EMBEDDINGS,
    LOGITS,
    Graph,
    Kind,
    Place,
    PlannedNode,
    Program,
    Root,
    TensorView,
)
from lockstep.harness.records import KEPT, WEIGHTS, Answered, Captured, Nodes, Outcome
from lockstep.harness.shadow.judge import view_of
from lockstep.harness.shadow.nodes import node_of, rows_of, text

# name of the input that llama.cpp copies from the encoder's last node
FROM_THE_ENCODER = "cross_embd"
TOKENS_READ = "inp_tokens"  # name of the input that selects embeddings
NOWHERE = -1  # address of a tensor without memory
# programs that a session keeps: for logits, for text, and for products with few inputs
KEPT_PROGRAMS = 3
Watcher = Callable[[Node, Place], None]


def record(
    session: Session,
    batches: Sequence[Batch],
    *,
    watch: Watcher | None = None,
    embeddings: bool = False,
) -> Program | Outcome:
    """Return the program of these batches in the session's engine, or the outcome if the engine
    gives no program.

    watch: a function that sees every node with llama.cpp's values; embeddings: True to compute
    embeddings even if the model has logits. Without a watcher the session keeps the program, for
    the judge and for replays.
    """
    plain = watch is None
    key = bytes([embeddings]) + b"".join(map(bytes_of, batches))
    if plain and key in session.recorded:
        known: Program = session.recorded[key]
        return known
    more = {"embeddings": True} if embeddings else {}
    lean = plain

    def recorded() -> tuple[ProgramRecorder, Outcome]:
        recorder = ProgramRecorder(
            watch=watch,
            result=EMBEDDINGS if embeddings else LOGITS,
            values=not lean,
        )
        asked = {**more, "values": False} if lean else more
        return recorder, session.stream("capture", recorder.piece, tuple(batches), None, **asked)

    recorder, outcome = recorded()
    if lean and isinstance(outcome, Answered) and not recorder.needs_no_values:
        lean = False
        recorder, outcome = recorded()
    if not isinstance(outcome, Answered):
        return outcome
    captured: Captured = outcome.value
    if captured.nodes != recorder.seen:
        raise MalformedAnswer("the graph", f"{captured.nodes} nodes", recorder.seen)
    program = recorder.program(batches, captured.outputs)
    if plain:
        while len(session.recorded) >= KEPT_PROGRAMS:
            session.recorded.pop(next(iter(session.recorded)))
        session.recorded[key] = program
    return program


def bytes_of(batch: Batch) -> bytes:
    arrays = (batch.tokens, batch.positions, batch.seq_ids, batch.outputs)
    return b"%d %d " % (len(batch), batch.encoder) + b"".join(a.tobytes() for a in arrays)


@dataclass(eq=False)
class ProgramDraft:
    """A graph whose nodes are still arriving."""

    step: int
    ubatch: int
    numbers: dict[int, int] = field(default_factory=dict)  # address -> number of the root
    roots: list[Root] = field(default_factory=list)
    nodes: list[PlannedNode] = field(default_factory=list)
    inputs: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    filled: set[TensorView] = field(default_factory=set)  # inputs whose bytes have been copied
    last_use: dict[int, int] = field(default_factory=dict)
    # the graph's result, or its last node
    output: tuple[Place, PlannedNode, NDArray[Any]] | None = None

    def tokens(self) -> NDArray[np.int32]:
        """Return the tokens that the graph reads, in its own order."""
        found = [raw for i, raw in self.inputs.items() if self.roots[i].name == TOKENS_READ]
        return np.concatenate(found or [np.empty(0, np.uint8)]).view(np.int32)


class ProgramRecorder:
    """Receives the pieces of a captured run, in order."""

    def __init__(
        self,
        *,
        watch: Watcher | None,
        result: str,
        values: bool = True,
    ) -> None:
        self.watch, self.values = watch, values
        self.result = result  # name of the graphs' result
        self.drafts: list[ProgramDraft] = []
        self.caches: dict[int, Root] = {}  # by address
        self.written: set[int] = set()  # numbers of caches to which a node has written
        # tensors of adapters, by address; their memory is of the same kind as caches, but no node
        # writes to it
        self.given: dict[int, NDArray[np.uint8]] = {}
        self.same: dict[Any, Any] = {}  # equal parts of graphs, which are stored once
        self.seen = 0

    @property
    def needs_no_values(self) -> bool:
        """Return True if every graph has a node with the result's name. The values of results are
        always recorded, so no other values are needed."""
        named = (draft.output and draft.output[1].name == self.result for draft in self.drafts)
        return all(named)

    def piece(self, piece: Any) -> None:
        for first, end in rows_of(piece):
            try:
                node = node_of(piece, first, end, values=self.values)
                self.add(piece, node, first, end)
            except (LookupError, TypeError, ValueError) as error:
                where = f"row {first} of {len(piece.place)}"
                raise MalformedAnswer(where, "a node", str(error)) from error

    def add(self, piece: Nodes, node: Node, first: int, end: int) -> None:
        self.seen += 1
        draft = self.draft_of(node)
        planned = self.plan_node(draft, piece, node, first, end)
        draft.nodes.append(planned)
        for used in (*planned.sources, planned.result):
            if used is not None:
                draft.last_use[used.root] = node.index
        written = draft.roots[planned.result.root] if planned.result.root >= 0 else None
        if written is not None and written.kind == "cache":
            self.written.add(written.cache)
        elif self.given and int(piece.root[first]) in self.given:
            raise EngineError(f"{node.name} writes to memory that was not empty at its first read")
        place = node.place
        if draft.output is None or draft.output[1].name != self.result:
            draft.output = place, planned, self.value_of(node)
        if self.watch is not None:
            self.watch(node, place)

    def value_of(self, node: Node) -> NDArray[Any]:
        """Return a copy of the node's value. For a node that is captured without a value, return
        the placeholder."""
        return node.value.copy() if self.values or node.name == self.result else node.value

    def plan_node(
        self, draft: ProgramDraft, piece: Nodes, node: Node, first: int, end: int
    ) -> PlannedNode:
        own = int(piece.address[first])
        sources: list[TensorView | None] = []
        for row in range(first + 1, end):
            sources += [None] * (int(piece.place[row]) - len(sources))
            operand = node.sources[len(sources)]
            assert operand is not None
            view = self.view(draft, piece, row, own)
            self.fill(draft, piece, row, view, operand)
            sources.append(view)
        made = PlannedNode(
            index=node.index,
            op=node.op,
            name=node.name,
            layer=node.layer,
            params=node.params.tobytes(),
            sources=tuple(sources),
            result=self.view(draft, piece, first, own),
        )
        found: PlannedNode = self.share_part(made)
        return found

    def draft_of(self, node: Node) -> ProgramDraft:
        last = self.drafts[-1] if self.drafts else None
        if last is None or (last.step, last.ubatch) != (node.step, node.ubatch):
            last = ProgramDraft(step=node.step, ubatch=node.ubatch)
            self.drafts.append(last)
        return last

    def view(self, draft: ProgramDraft, piece: Nodes, row: int, own: int) -> TensorView:
        """Return a view. own: the address of the node that reads or writes the view."""
        held = piece.at[row] != NOWHERE or text(piece.weight[row])
        number = self.root(draft, piece, row, own) if held else -1
        view = TensorView(
            name=text(piece.name[row]),
            type=piece.types[piece.type[row]],
            ne=tuple(piece.ne[row].tolist()),
            nb=tuple(piece.nb[row].tolist()),
            root=number,
            offset=int(piece.offset[row]),
        )
        found: TensorView = self.share_part(view)
        return found

    def root(self, draft: ProgramDraft, piece: Nodes, row: int, own: int) -> int:
        """Return the root's number in the graph. A root is an input if it is read before any node
        has written it."""
        address = int(piece.root[row])
        if address in draft.numbers:
            return draft.numbers[address]
        home, name = int(piece.root_home[row]), text(piece.root_name[row])
        kind: Kind = "computed" if address == own else "input"
        if home == WEIGHTS:
            kind = "weight"
        elif home == KEPT and address not in self.given:
            kind = "cache"
        root = Root(
            kind=kind,
            name=name,
            type=piece.types[piece.type[row]],
            size=int(piece.root_size[row]),
            cache=self.cache_number(address) if kind == "cache" else -1,
        )
        if kind == "input" and name == FROM_THE_ENCODER:
            root = self.carry_root(root, piece, row)
        if kind == "cache":
            self.caches[address] = root
        draft.numbers[address] = len(draft.roots)
        draft.roots.append(self.share_part(root))
        return draft.numbers[address]

    def cache_number(self, address: int) -> int:
        known = self.caches.get(address)
        return known.cache if known is not None else len(self.caches)

    def carry_root(self, root: Root, piece: Nodes, row: int) -> Root:
        """Return the root that an earlier graph has left. Raises EngineError if there is none."""
        at = int(piece.at[row])
        for draft in reversed(self.drafts[:-1]):
            if draft.output is None:
                continue
            place, _, value = draft.output
            if piece.data[at : at + value.nbytes].tobytes() == value.tobytes():
                return replace(root, kind="carried", carried=place)
        raise EngineError(f"{root.name} is not the encoder's last result")

    def fill(
        self, draft: ProgramDraft, piece: Nodes, row: int, view: TensorView, operand: Operand
    ) -> None:
        """Copy the bytes of an input when a node first reads them."""
        if view.root < 0 or view in draft.filled or operand.value is None:
            return
        root = draft.roots[view.root]
        address = int(piece.root[row])
        if root.kind == "cache" and root.cache not in self.written and operand.value.any():
            root = draft.roots[view.root] = replace(root, kind="input", cache=-1)
            self.given[address] = np.zeros(root.size, np.uint8)
        if root.kind != "input":
            return
        draft.filled.add(view)
        empty = self.given[address] if address in self.given else np.zeros(root.size, np.uint8)
        raw = draft.inputs.setdefault(view.root, empty)
        if operand.value.size:
            view_of(raw, operand)[...] = operand.value

    def share_part(self, part: Any) -> Any:
        return self.same.setdefault(part, part)

    def program(
        self, batches: Sequence[Batch], outputs: Sequence[NDArray[np.float32] | None]
    ) -> Program:
        graphs = [
            Graph(
                step=draft.step,
                ubatch=draft.ubatch,
                roots=tuple(draft.roots),
                nodes=tuple(draft.nodes),
                inputs=draft.inputs,
                last_use=draft.last_use,
                result=self.result,
            )
            for draft in self.drafts
        ]
        orders: list[tuple[int, ...] | None] = []
        for step, batch in enumerate(batches):
            found = [draft.output for draft in self.drafts if draft.step == step and draft.output]
            found = [one for one in found if one[1].name == self.result] or found
            rows = sum(prod(node.result.ne[1:]) for _, node, _ in found)
            read = [draft.tokens() for draft in self.drafts if draft.step == step]
            if self.result == LOGITS and computes_every_token(batch, rows, np.concatenate(read)):
                orders.append(tuple(np.flatnonzero(batch.outputs).tolist()))
            else:
                values = [value for _, _, value in found]
                orders.append(order_of(values, outputs[step] if step < len(outputs) else None))
        return Program(
            graphs=tuple(graphs),
            caches=tuple(self.caches.values()),
            orders=tuple(orders),
            encoding=frozenset(step for step, batch in enumerate(batches) if batch.encoder),
        )


def computes_every_token(batch: Batch, rows: int, read: NDArray[np.int32]) -> bool:
    """Return True if the graph computes all tokens, including those without outputs.

    With several sequences the order of tokens may differ, so the ids that the graph reads are
    compared.
    """
    in_order = len({*batch.seq_ids.tolist()}) == 1 or np.array_equal(read, batch.tokens)
    return in_order and rows == len(batch) > batch.outputs.sum()


def order_of(
    computed: Sequence[NDArray[Any]], outputs: NDArray[np.float32] | None
) -> tuple[int, ...] | None:
    """Return the computed row of each output, found by comparing with llama.cpp's own outputs.
    Return None if the rows do not match. Equal outputs are in the order of their computation."""
    rows = [row.tobytes() for value in computed for row in value.reshape(-1, value.shape[-1])]
    wanted = [] if outputs is None else [row.tobytes() for row in outputs]
    if not wanted or sorted(rows) != sorted(wanted):
        return None
    places: dict[bytes, list[int]] = {}
    for at, row in enumerate(rows):
        places.setdefault(row, []).append(at)
    return tuple(places[row].pop(0) for row in wanted)
