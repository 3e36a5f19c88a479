"""Shows every node of llama.cpp's graphs with what it read: copied, because buffers are reused.

llama.cpp asks about a node when everything before it has been computed, so that is when its sources
are copied: an op may run in place, and write over them. The result is copied when the node is
shown. A weight is not copied: it is named, with its place in the file's tensor.
"""

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch
from engine.ops.ggml.base import PLAIN, Node, Operand
from harness.adapters._llama_cpp_faults import Injector
from harness.adapters._llama_cpp_lib import MAX_SRC, GgmlTensor, Library, P
from harness.adapters._llama_cpp_model import Context
from harness.records import Captured, Fault

VIEWS = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")  # compute nothing
WEIGHTS = 1  # GGML_BACKEND_BUFFER_USAGE_WEIGHTS
LAYER = re.compile(r"-(\d+)(?: \(|$)|blk\.(\d+)\.|_l(\d+)\b")


class Capture:
    """An observer that hands each computed node on; views are counted."""

    def __init__(self, lib: Library, emit: Callable[[Node], None], injector: Injector) -> None:
        self.ggml = lib.ggml
        self.ggml.ggml_backend_buffer_get_usage.restype = ctypes.c_int
        self.ggml.ggml_backend_buffer_get_usage.argtypes = [P]
        self.emit = emit
        self.injector = injector
        self.step = self.ubatch = self.index = 0
        self.views = 0
        self.producers: dict[int, int] = {}  # address of a tensor -> index of its node
        self.sources: tuple[Operand | None, ...] = ()
        self.types: dict[int, tuple[str, int, int]] = {}

    def wants(self, address: int) -> bool:
        if address in self.producers:  # the next graph, in the memory of the last one
            self.begin(self.ubatch + 1)
        self.producers[address] = self.index
        self.index += 1
        if self.op_of(address) in VIEWS:
            self.views += 1
            return False
        tensor = GgmlTensor.from_address(address)
        self.sources = self.read(tensor)
        self.injector.before(tensor, self.memory(address))
        return True

    def sees(self, address: int) -> None:
        tensor = GgmlTensor.from_address(address)
        name = tensor.name.decode(errors="replace")
        index = self.producers[address]
        if self.injector.due(self.step, self.ubatch, index):
            self.injector.strike(self.strided(address, tensor), self.memory(address))
        kind, _, _ = self.type_of(tensor.type)
        names = [name, *(source.name for source in self.sources if source)]
        self.emit(
            Node(
                step=self.step,
                ubatch=self.ubatch,
                index=index,
                op=self.op_of(address),
                name=name,
                layer=next(filter(lambda n: n is not None, map(layer_of, names)), None),
                type=kind,
                ne=tuple(tensor.ne),
                params=np.array(tensor.op_params, np.int32),
                sources=self.sources,
                value=np.array(self.strided(address, tensor), order="C"),
            )
        )

    def begin(self, ubatch: int) -> None:
        self.ubatch, self.index = ubatch, 0
        self.producers.clear()

    def begin_step(self, step: int) -> None:
        self.step = step
        self.begin(0)

    # --- memory -------------------------------------------------------------------------------

    def read(self, tensor: GgmlTensor) -> tuple[Operand | None, ...]:
        """All ten places; most of them are empty, and so are those behind the last source."""
        found = [self.operand(at) if at else None for at in (tensor.src[i] for i in range(MAX_SRC))]
        while found and found[-1] is None:
            found.pop()
        return tuple(found)

    def operand(self, address: int) -> Operand:
        tensor = GgmlTensor.from_address(address)
        root = address
        while (up := GgmlTensor.from_address(root)).view_src:
            root = up.view_src
        weight = self.is_weight(up)
        return Operand(
            name=tensor.name.decode(errors="replace"),
            type=self.type_of(tensor.type)[0],
            ne=tuple(tensor.ne),
            value=None if weight else np.array(self.strided(address, tensor), order="C"),
            weight=up.name.decode(errors="replace") if weight else "",
            offset=(tensor.data or 0) - (up.data or 0),
            nb=tuple(tensor.nb),
            producer=self.producers.get(address, self.producers.get(root, -1)),
        )

    def is_weight(self, root: GgmlTensor) -> bool:
        if not root.buffer:
            return False
        usage: int = self.ggml.ggml_backend_buffer_get_usage(root.buffer)
        return usage == WEIGHTS

    def strided(self, address: int, tensor: GgmlTensor) -> NDArray[Any]:
        """A view of the tensor's memory: of its values, or of the bytes of its rows."""
        kind, per_block, block_bytes = self.type_of(tensor.type)
        ne, nb = list(tensor.ne), list(tensor.nb)
        dtype: np.dtype[Any] = np.dtype(PLAIN.get(kind, np.uint8))
        if kind not in PLAIN:
            ne[0], nb[0] = ne[0] // per_block * block_bytes, 1
        shape, strides = tuple(reversed(ne)), tuple(reversed(nb))
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, buffer=self.memory(address), strides=strides)

    def memory(self, address: int) -> Any:
        size = self.ggml.ggml_nbytes(address)
        return (ctypes.c_ubyte * size).from_address(GgmlTensor.from_address(address).data)

    def op_of(self, address: int) -> str:
        return str(self.ggml.ggml_op_desc(address).decode())

    def type_of(self, number: int) -> tuple[str, int, int]:
        if number not in self.types:
            traits = self.ggml.ggml_get_type_traits(number).contents
            name = traits.type_name.decode().upper()
            self.types[number] = (name, traits.block_weights, traits.block_bytes)
        return self.types[number]


def layer_of(name: str) -> int | None:
    found = LAYER.search(name)
    return int(next(filter(None, found.groups()))) if found else None


def capture_batches(
    context: Context,
    batches: Sequence[Batch],
    fault: Fault | None,
    emit: Callable[[Node], None],
) -> Captured:
    """Decode the batches one after the other, and emit what every node read and computed."""
    emitted = 0

    def counted(node: Node) -> None:
        nonlocal emitted
        emitted += 1
        emit(node)

    watcher = Capture(context.lib, counted, Injector(fault))
    context.observer = watcher
    try:
        for step, batch in enumerate(batches):
            watcher.begin_step(step)
            context.run(batch)
    finally:
        context.observer = None
    return Captured(nodes=emitted, views=watcher.views, honest=watcher.injector.honest)
