"""Capture of every node of llama.cpp's graphs with its sources, in batches of columns."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.node import layout
from lockstep.harness.adapters.llama_cpp.faults import Injector
from lockstep.harness.adapters.llama_cpp.lib import GgmlTensor, Library, P
from lockstep.harness.adapters.llama_cpp.model import LlamaContext
from lockstep.harness.adapters.llama_cpp.op import PROTOTYPES, SUB_OPS
from lockstep.harness.adapters.llama_cpp.watch import (
    BEFORE,
    FULL,
    MOST_NODES,
    N_SLOTS,
    NODE,
    ROW,
    SLOT,
    STATE,
    TENSOR,
    on_node,
)
from lockstep.harness.records import ANY_KIND, Captured, Fault, Nodes

VIEWS = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")  # ops that compute nothing
ROOM = 1 << 13  # number of rows
SIZE = 4 << 20  # bytes that are collected before they are sent; a single node may have more
USAGE = {"ggml_backend_buffer_get_usage": (ctypes.c_int, P)}
HOOK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class NodeWatch:
    """The buffers of `on_node`. They live as long as a context."""

    def __init__(self, lib: Library) -> None:
        check_layout()
        lib.declare(PROTOTYPES | USAGE)
        self.ggml = lib.ggml
        self.ops: dict[tuple[int, int], str] = {}  # ops that occurred
        ids = range(lib.n_types)
        kinds = [lib.ggml.ggml_get_type_traits(i).contents for i in ids]
        self.types = tuple(kind.type_name.decode().upper() for kind in kinds)
        self.rows = np.zeros(ROOM, ROW)
        self.data = np.empty(SIZE, np.uint8)
        self.slots = np.zeros(N_SLOTS, SLOT)
        self.state = np.zeros(1, STATE)
        self._hook = HOOK(self.hook)  # kept here, because the context holds a pointer to it
        self.emit: Callable[[Nodes], None] = lambda _: None
        self.injector = Injector(None)
        self.error: BaseException | None = None
        self.emitted = 0
        self.set(
            rows=self.rows.ctypes.data,
            room=ROOM,
            data=self.data.ctypes.data,
            size=SIZE,
            slots=self.slots.ctypes.data,
            hook=ctypes.cast(self._hook, P).value,
            usage=ctypes.cast(self.ggml.ggml_backend_buffer_get_usage, P).value,
            nbytes=ctypes.cast(self.ggml.ggml_nbytes, P).value,
        )
        self.state["is_view"][0, view_ops(lib)] = 1
        self.state["block"][0, : len(kinds)] = [kind.block_weights for kind in kinds]
        self.state["bytes"][0, : len(kinds)] = [kind.block_bytes for kind in kinds]

    @property
    def callback(self) -> tuple[int, int]:
        """Return the address of the callback, and of its argument."""
        return on_node.address, self.state.ctypes.data

    def set(self, **values: Any) -> None:
        for name, value in values.items():
            self.state[name] = value

    def get(self, name: str) -> int:
        return int(self.state[name][0])

    def begin(
        self,
        emit: Callable[[Nodes], None],
        injector: Injector,
        *,
        values: bool = True,
        idle: bool = False,
    ) -> None:
        """Begin a capture. Data of an earlier run are dropped."""
        self.emit, self.injector, self.error, self.emitted = emit, injector, None, 0
        self.set(n_rows=0, n_whole=0, used=0, views=0, stop=0, lean=not values, idle=idle)

    def begin_step(self, step: int) -> None:
        fault = self.injector.fault
        due = (-1, -1) if fault is None or fault.step != step else (fault.ubatch, fault.index)
        self.set(step=step, ubatch=0, index=0, generation=self.get("generation") + 1)
        self.set(due_ubatch=due[0], due_index=due[1])

    # --- called from C ------------------------------------------------------------------------

    def hook(self, what: int, argument: int) -> int:
        """Handle a node. Exceptions cannot pass through C code, so one is kept in `error`, and the
        graph stops at once."""
        try:
            if what == FULL:
                self.hand_on()
                self.make_room(argument)
                if self.get("index") > MOST_NODES:
                    raise RuntimeError(
                        f"the graph has more than {MOST_NODES} nodes, too many to capture"
                    )
            elif what == BEFORE:
                self.injector.before(self.memory(argument))
            else:
                self.injector.strike(self.strided_view(argument), self.memory(argument))
        except BaseException as error:
            self.error = error
            self.set(stop=1)
        return 0

    def make_room(self, needed: int) -> None:
        if needed > self.data.size:
            self.data = np.empty(needed, np.uint8)
            self.set(data=self.data.ctypes.data, size=needed)

    def hand_on(self) -> None:
        """Emit the nodes shown so far. Afterwards the buffers are free again."""
        rows, used = self.rows[: self.get("n_whole")], self.get("used")
        self.set(n_rows=0, n_whole=0, used=0)
        if len(rows):
            self.emitted += int((rows["place"] == NODE).sum())
            self.emit(self.columns(rows, used))

    def columns(self, rows: NDArray[Any], used: int) -> Nodes:
        tensor = rows["tensor"]
        nodes = tensor[rows["place"] == NODE]
        first = nodes["op_params"][:, 0].tolist()
        for number, kind in {*zip(nodes["op"].tolist(), first, strict=True)}:
            self.name_op(number, kind)
        return Nodes(
            ops=self.ops,
            types=self.types,
            params=tensor["op_params"],
            data=self.data[:used],
            **{name: rows[name] for name in ("step", "ubatch", "index", "place", "producer")},
            **{name: rows[name] for name in ("offset", "at", "weight")},
            **{name: rows[name] for name in ("address", "root", "root_size")},
            **{name: rows[name] for name in ("root_home", "root_name")},
            **{name: tensor[name] for name in ("op", "type", "ne", "nb", "name")},
        )

    def name_op(self, number: int, first: int) -> None:
        """Keep an op's name, as ggml gives it, because the tensor may be gone later."""
        name = self.ggml.ggml_op_name(number).decode()
        if name in SUB_OPS:
            kind = getattr(self.ggml, SUB_OPS[name][1])(first)
            self.ops[number, first] = kind.decode()
        else:
            self.ops[number, ANY_KIND] = name

    # --- memory -------------------------------------------------------------------------------

    def memory(self, address: int) -> Any:
        size = self.ggml.ggml_nbytes(address)
        return (ctypes.c_ubyte * size).from_address(GgmlTensor.from_address(address).data)

    def strided_view(self, address: int) -> NDArray[Any]:
        """Return a view of a tensor's memory, as values or as the bytes of its rows."""
        tensor = GgmlTensor.from_address(address)
        dtype, shape, strides = layout(self.types[tensor.type], tuple(tensor.ne), tuple(tensor.nb))
        return np.ndarray(shape, dtype, buffer=self.memory(address), strides=strides)


def view_ops(lib: Library) -> list[int]:
    """Return the numbers of the view ops. Names of later ops are not requested, because a build may
    lack them."""
    found: list[int] = []
    number = 0
    while len(found) < len(VIEWS):
        if lib.ggml.ggml_op_name(number).decode() in VIEWS:
            found.append(number)
        number += 1
    return found


def check_layout() -> None:
    ours = {name: TENSOR.fields[name][1] for name in TENSOR.names or ()} if TENSOR.fields else {}
    theirs = {name: getattr(GgmlTensor, name).offset for name, _ in GgmlTensor._fields_}
    if ours != theirs or TENSOR.itemsize != ctypes.sizeof(GgmlTensor):
        raise RuntimeError("_llama_cpp_watch.TENSOR and GgmlTensor are laid out differently")


def are_in_order(batches: Sequence[Batch]) -> bool:
    """Return True if the rows of results are in the batch's order, and no graph reads another
    graph's results. This is so for one sequence and no encoder. Then the graphs show the order of
    the rows. Otherwise the values show it."""
    return not any(batch.encoder or len(np.unique(batch.seq_ids)) > 1 for batch in batches)


def capture_batches(
    context: LlamaContext,
    watch: NodeWatch,
    batches: Sequence[Batch],
    fault: Fault | None,
    emit: Callable[[Nodes], None],
    *,
    embeddings: bool,
    values: bool,
) -> Captured:
    """Decode the batches one after the other, and emit every node's sources and result."""
    watch.begin(emit, Injector(fault), values=values, idle=not values and are_in_order(batches))
    outputs: list[NDArray[np.float32] | None] = []
    try:
        for step, batch in enumerate(batches):
            watch.begin_step(step)
            if embeddings:
                outputs.append(context.embed(batch))
            else:
                context.run(batch)
                outputs.append(context.logits_if_any(batch))
    finally:
        if watch.error is not None:
            raise watch.error
        watch.hand_on()  # after a failed step too, because its values are worth judging
    return Captured(
        nodes=watch.emitted,
        views=watch.get("views"),
        honest=watch.injector.honest,
        outputs=tuple(outputs),
    )
