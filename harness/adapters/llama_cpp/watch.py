"""Callbacks of llama.cpp before and after each node of a graph, compiled because Python is too
slow.

llama.cpp asks about a node when everything before it has been computed. At this time its sources
are copied, because an op may run in place and overwrite them. When llama.cpp shows the node, its
result is copied. A weight is not copied: only its name and place are kept. Rows and bytes collect
in the buffers of a state. A Python hook empties full buffers, and injects faults.

An empty Python function takes longer than a node of a small model (`lockstep bench shadow`).
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# `struct ggml_tensor`, as in GgmlTensor; the compiled code is cached until this file changes
TENSOR = np.dtype(
    [
        ("type", np.int32),
        ("buffer", np.int64),
        ("ne", np.int64, 4),
        ("nb", np.int64, 4),
        ("op", np.int32),
        ("op_params", np.int32, 16),
        ("flags", np.int32),
        ("src", np.int64, 10),
        ("view_src", np.int64),
        ("view_offs", np.int64),
        ("data", np.int64),
        ("name", np.uint8, 64),
        ("extra", np.int64),
        ("padding", np.uint8, 8),
    ],
    align=True,
)
ROW = np.dtype(  # a row describes a node, or one of its sources
    [
        ("tensor", TENSOR),
        ("step", np.int64),
        ("ubatch", np.int64),
        ("index", np.int64),  # index of the node in its graph
        ("place", np.int64),  # number of the source; NODE: the node itself
        ("producer", np.int64),  # index of the node that computed the source; -1: a leaf
        ("offset", np.int64),  # offset in the tensor of which it is a view
        # offset of its bytes in the data; -1: it has none, LEFT: they were left out
        ("at", np.int64),
        ("weight", np.uint8, 64),  # name of the weight of which it is a view
        ("address", np.int64),
        ("root", np.int64),  # address of the tensor whose memory it uses
        ("root_size", np.int64),  # bytes
        ("root_home", np.int64),  # purpose of the buffer of that memory
        ("root_name", np.uint8, 64),
    ]
)
SLOT = np.dtype([("address", np.int64), ("generation", np.int64), ("index", np.int64)])
STATE = np.dtype(
    [
        ("rows", np.int64),  # address of the buffer of rows, and its size in rows
        ("room", np.int64),
        ("n_rows", np.int64),
        ("n_whole", np.int64),  # number of rows of completed nodes
        ("data", np.int64),
        ("size", np.int64),
        ("used", np.int64),
        ("slots", np.int64),
        ("generation", np.int64),  # number of graphs so far; a slot of an earlier graph is free
        ("step", np.int64),
        ("ubatch", np.int64),
        ("index", np.int64),
        ("views", np.int64),
        ("due_ubatch", np.int64),  # the node that gets the fault
        ("due_index", np.int64),
        ("lean", np.int64),  # 1: no computed value is copied, except results
        ("idle", np.int64),  # 1: the graph is not computed
        ("stop", np.int64),
        ("hook", np.int64),  # int64 (int64 what, int64 argument)
        ("usage", np.int64),  # address of ggml_backend_buffer_get_usage
        ("nbytes", np.int64),  # address of ggml_nbytes
        ("is_view", np.int64, 128),  # by op
        ("block", np.int64, 64),  # by type: number of weights in a block, and its bytes
        ("bytes", np.int64, 64),
    ]
)
TENSOR_BYTES, ROW_BYTES = TENSOR.itemsize, ROW.itemsize
NODE, LEFT = -1, -2  # NODE: a value of `place`; LEFT: a value of `at`
N_SLOTS = 1 << 17
MOST_NODES = N_SLOTS // 2
MOST_ROWS = 12  # rows of a node: itself, ten sources, and the tensor into which it writes
ALIGNED = 64
FULL, BEFORE, STRIKE = 0, 1, 2  # reasons of a call of the hook
WEIGHTS, COMPUTE = 1, 2  # GGML_BACKEND_BUFFER_USAGE_*; 0 is that of caches
RESULT = tuple(b"result_")  # prefix of the names of results
COMPUTED = 16  # GGML_TENSOR_FLAG_COMPUTE: ggml skips a node without this flag
# our own flag: COMPUTED was removed here, and is restored because the graph may be reused
HELD_BACK = 1 << 30
I64 = ir.IntType(64)


@intrinsic
def pointer(_: Any, address: Any) -> Any:
    """Return an address as the type that `carray` takes."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), code


@intrinsic
def copy_bytes(_: Any, to: Any, start: Any, n: Any) -> Any:
    """Copy n bytes, like memcpy."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, start = (builder.inttoptr(a, cgutils.voidptr_t) for a in arguments[:2])
        cgutils.raw_memcpy(builder, to, start, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), code


@intrinsic
def call(_: Any, function: Any, a: Any, b: Any) -> Any:
    """Call the C function at an address with two numbers, and return its result. A function with
    fewer parameters ignores the other numbers."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(I64, (I64, I64))
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(types.int64, types.int64, types.int64), code


@njit
def slot_of(s: Any, address: int) -> Any:
    """Return the slot for the index of a node, which may be empty."""
    slots = carray(pointer(s.slots), N_SLOTS, SLOT)
    at = (address >> 4) * 0x9E3779B1 & (N_SLOTS - 1)
    while slots[at].generation == s.generation and slots[at].address != address:
        at = (at + 1) & (N_SLOTS - 1)
    return slots[at]


@njit
def index_of(s: Any, address: int) -> Any:
    """Return the node's index in this graph; -1 if it is not in the graph."""
    slot = slot_of(s, address)
    return slot.index if slot.generation == s.generation else -1


@njit
def tensor_at(address: int) -> Any:
    return carray(pointer(address), 1, TENSOR)[0]


@njit
def row_bytes(s: Any, t: Any) -> Any:
    return t.ne[0] // s.block[t.type] * s.bytes[t.type]


@njit
def n_bytes(s: Any, t: Any) -> Any:
    """Return the size of a contiguous copy in bytes."""
    return row_bytes(s, t) * t.ne[1] * t.ne[2] * t.ne[3]


@njit
def gather(s: Any, t: Any, to: int) -> None:
    """Make a contiguous copy of a tensor with any strides."""
    size, row = s.bytes[t.type], row_bytes(s, t)
    packed = t.nb[0] == size and t.nb[1] == row
    if packed and t.nb[2] == row * t.ne[1] and t.nb[3] == t.nb[2] * t.ne[2]:
        copy_bytes(to, t.data, n_bytes(s, t))
        return
    for i3 in range(t.ne[3]):
        for i2 in range(t.ne[2]):
            for i1 in range(t.ne[1]):
                start = t.data + i3 * t.nb[3] + i2 * t.nb[2] + i1 * t.nb[1]
                if t.nb[0] == size:
                    copy_bytes(to, start, row)
                else:
                    for i0 in range(row // size):
                        copy_bytes(to + i0 * size, start + i0 * t.nb[0], size)
                to += row


@njit
def root_of(address: int) -> Any:
    while tensor_at(address).view_src:
        address = tensor_at(address).view_src
    return address


@njit
def home_of(s: Any, root: int) -> Any:
    """Return the usage of the tensor's buffer; COMPUTE if it has no buffer."""
    buffer = tensor_at(root).buffer
    return COMPUTE if buffer == 0 else call(s.usage, buffer, 0) & 0xFFFFFFFF


@njit
def is_weight(s: Any, root: int) -> Any:
    return home_of(s, root) == WEIGHTS


@njit
def add_row(s: Any, address: int, index: int, place: int) -> Any:
    row = carray(pointer(s.rows), s.room, ROW)[s.n_rows]
    start = s.rows + s.n_rows * ROW_BYTES
    copy_bytes(start, address, TENSOR_BYTES)
    s.n_rows += 1
    row.step, row.ubatch, row.index, row.place = s.step, s.ubatch, index, place
    root = root_of(address)
    row.producer, row.at = -1, -1
    row.offset = tensor_at(address).data - tensor_at(root).data
    row.weight[:] = 0
    row.address = address
    row.root, row.root_size, row.root_home = root, call(s.nbytes, root, 0), home_of(s, root)
    put_name(row.root_name, tensor_at(root).name)
    return row


@njit
def put_name(to: Any, name: Any) -> None:
    """Copy a name byte by byte, because numba needs seconds to compile an array copy."""
    for i in range(len(name)):
        to[i] = name[i]


@njit
def add_bytes(s: Any, t: Any, row: Any, wanted: bool) -> None:
    if t.data != 0 and not wanted:
        row.at = LEFT
    elif t.data != 0:
        row.at = s.used
        gather(s, t, s.data + s.used)
        s.used += -(-n_bytes(s, t) // ALIGNED) * ALIGNED


@njit
def is_wanted(s: Any, root: int) -> Any:
    """Return True if the source's memory is to be copied when a node reads it."""
    return s.lean == 0 or index_of(s, root) < 0


@njit
def is_result(t: Any) -> Any:
    """Return True for the names result_output and result_embd_pooled."""
    found = True
    for i in range(len(RESULT)):
        found = found and t.name[i] == RESULT[i]
    return found


@njit
def add_source(s: Any, address: int, index: int, place: int) -> None:
    t, root = tensor_at(address), root_of(address)
    row = add_row(s, address, index, place)
    row.producer = index_of(s, address)
    if row.producer < 0:
        row.producer = index_of(s, root)
    if row.root_home == WEIGHTS:
        put_name(row.weight, tensor_at(root).name)
    else:
        add_bytes(s, t, row, is_wanted(s, root))


@njit
def writes_into_no_source(t: Any) -> Any:
    """Return True for a node that writes into a tensor that is none of its sources: SET_ROWS of
    versions up to 0.3.16. In newer versions the destination is a source."""
    if t.view_src == 0:
        return False
    found, root = False, root_of(t.view_src)
    for i in range(10):
        found = found or (t.src[i] != 0 and root_of(t.src[i]) == root)
    return not found


@njit
def add_destination(s: Any, address: int, index: int, place: int) -> None:
    """Add the node's destination, as it is before the write, as one more source."""
    t, root = tensor_at(address), root_of(address)
    row = add_row(s, address, index, place)
    row.offset = t.data - tensor_at(root).data
    row.producer = index_of(s, root)
    add_bytes(s, t, row, is_wanted(s, root))


@njit
def needed_bytes(s: Any, t: Any) -> Any:
    """Return the number of bytes of the node, its sources and its destination."""
    total = 2 * (n_bytes(s, t) + ALIGNED)
    for i in range(10):
        if t.src[i] and not is_weight(s, root_of(t.src[i])):
            total += n_bytes(s, tensor_at(t.src[i])) + ALIGNED
    return total


@njit
def have_computed(t: Any, idle: bool) -> None:
    """Set whether the node is computed or skipped. Versions without this flag compute every
    node."""
    if (idle and t.flags & COMPUTED) or (not idle and t.flags & HELD_BACK):
        t.flags ^= COMPUTED | HELD_BACK


@njit
def note_sources(s: Any, address: int) -> Any:
    """Record the sources. Return True if the node is to be shown once it is computed."""
    if index_of(s, address) >= 0:  # a new graph at the same address
        s.ubatch, s.index, s.generation = s.ubatch + 1, 0, s.generation + 1
    index = s.index
    slot = slot_of(s, address)
    slot.address, slot.generation, slot.index = address, s.generation, index
    s.index += 1
    t = tensor_at(address)
    have_computed(t, s.idle != 0)
    if s.is_view[t.op]:
        s.views += 1
        return False
    more = needed_bytes(s, t)
    if s.n_rows + MOST_ROWS > s.room or s.used + more > s.size or index >= MOST_NODES:
        call(s.hook, FULL, more)
        if s.stop:
            return True
    add_row(s, address, index, NODE)
    after = 0
    for i in range(10):
        if t.src[i]:
            add_source(s, t.src[i], index, i)
            after = i + 1
    if writes_into_no_source(t):
        add_destination(s, address, index, after)
    if s.due_ubatch == s.ubatch and s.due_index == index:
        call(s.hook, BEFORE, address)
    return True


@njit
def show_node(s: Any, address: int) -> Any:
    at = s.n_whole
    row = carray(pointer(s.rows), s.room, ROW)[at]
    if s.due_ubatch == row.ubatch and s.due_index == row.index:
        call(s.hook, STRIKE, address)
    t = tensor_at(address)
    add_bytes(s, t, row, s.lean == 0 or is_result(t))
    s.n_whole = s.n_rows
    return s.stop == 0


@cfunc(types.uint8(types.int64, types.uint8, types.int64), cache=True)
def on_node(address: int, asking: int, user: int) -> Any:
    """Observe a node: a ggml_backend_sched_eval_callback."""
    s = carray(pointer(user), 1, STATE)[0]
    if s.stop:
        return asking  # asks for this node, because llama.cpp can stop only after a requested node
    return note_sources(s, address) if asking else show_node(s, address)
