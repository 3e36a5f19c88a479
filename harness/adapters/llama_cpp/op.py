"""Runs a single ggml op, as a graph of one node with the sources and parameters of a Node."""

import ctypes
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.node import PLAIN, Node, Operand
from lockstep.harness.adapters.llama_cpp.lib import I64, GgmlTensor, InitParams, Library, P
from lockstep.harness.adapters.llama_cpp.product import PLANNING
from lockstep.harness.adapters.llama_cpp.product import compute as compute_graph

# version of llama-cpp-python; ops and their parameters change between versions
WRITTEN_FOR = "0.3.36"
ROOM = 1 << 20  # bytes for the graph and its objects, without tensors
IN_PLACE = {"SET_ROWS": 2, "CPY": 1}  # op -> number of the source into which it writes
BYTES = 24  # GGML_TYPE_I8, the type of raw bytes
# names of unary ops and of GLU ops, in the order of their enums in ggml.h
UNARY = (
    *("ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "SIGMOID", "GELU", "GELU_QUICK", "SILU"),
    *("HARDSWISH", "HARDSIGMOID", "EXP", "EXPM1", "SOFTPLUS", "GELU_ERF", "XIELU", "FLOOR", "CEIL"),
    *("ROUND", "TRUNC"),
)
GLU = ("REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP")
SUB_OPS = {"UNARY": (UNARY, "ggml_unary_op_name"), "GLU": (GLU, "ggml_glu_op_name")}

PROTOTYPES = {  # name: (result, *arguments), from ggml.h and ggml-cpu.h of 0.3.36
    "ggml_new_tensor_4d": (P, P, ctypes.c_int, I64, I64, I64, I64),
    **PLANNING,
    **{name: (ctypes.c_char_p, ctypes.c_int) for _, name in SUB_OPS.values()},
}


def compute(lib: Library, node: Node, n_threads: int) -> NDArray[Any]:
    """Return the node's result, (ne3, ne2, ne1, ne0). Raises Unsupported if ggml lacks the op."""
    if node.type not in PLAIN:
        raise Unsupported(f"a result of type {node.type}")
    lib.declare(PROTOTYPES)
    number, first = op_number(lib, node)
    operands = [source for source in node.sources if source is not None]
    laid = [laid_out(source) for source in operands]
    size = sum(raw.nbytes for raw in laid) + prod(node.ne) * 8
    room = ROOM + 8 * size
    context = lib.ggml.ggml_init(InitParams(room, None, False))
    if not context:
        raise MemoryError("ggml_init gave no context")
    try:
        tensors = iter(
            [make_tensor(lib, context, *pair) for pair in zip(operands, laid, strict=True)]
        )
        sources = [None if source is None else next(tensors) for source in node.sources]
        out = sources[IN_PLACE[node.op]] if node.op in IN_PLACE else None
        address = lib.ggml.ggml_new_tensor_4d(context, type_by_name(node.type).id, *node.ne)
        tensor = GgmlTensor.from_address(address)
        if out is not None:
            tensor.data = GgmlTensor.from_address(out).data
        tensor.op = number
        for i, held in enumerate(node.params):
            tensor.op_params[i] = int(held) if i else first
        for i, at in enumerate(sources):
            tensor.src[i] = at
        compute_graph(lib, context, address, n_threads)
        if 0 in node.ne:
            return np.empty(tuple(reversed(node.ne)), PLAIN[node.type])
        memory = (ctypes.c_ubyte * lib.ggml.ggml_nbytes(address)).from_address(tensor.data)
        shape = tuple(reversed(node.ne))
        return np.ndarray(shape, PLAIN[node.type], buffer=memory).copy()
    finally:
        lib.ggml.ggml_free(context)


def op_number(lib: Library, node: Node) -> tuple[int, int]:
    """Return the op's number and its first parameter. For SILU, for example, these are UNARY's
    number and the place of SILU."""
    names = [lib.ggml.ggml_op_name(i).decode() for i in range(op_count(lib))]
    for family, (members, function) in SUB_OPS.items():
        if node.op in members:
            place = members.index(node.op)
            named = getattr(lib.ggml, function)(place).decode()
            if named != node.op:
                raise Unsupported(f"this build calls {family} number {place} {named}")
            return names.index(family), place
    if node.op not in names:
        raise Unsupported(f"ggml has no op {node.op!r}")
    return names.index(node.op), int(node.params[0])


def op_count(lib: Library) -> int:
    """Return the number of ops by counting their names up to the last one, because GGML_OP_COUNT is
    not exported."""
    try:
        lib.ggml.ggml_glu_op_name(0)
        last = b"GLU"
    except Unsupported:  # older versions lack it
        last = b"OPT_STEP_ADAMW"
    count = 0
    while lib.ggml.ggml_op_name(count) != last:
        count += 1
    return count + 1


def make_tensor(lib: Library, context: int, source: Operand, raw: NDArray[np.uint8]) -> int:
    """Return a tensor with these bytes and the strides of the operand."""
    kind = type_by_name(source.type)
    address: int = lib.ggml.ggml_new_tensor_4d(context, kind.id, *source.ne)
    tensor = GgmlTensor.from_address(address)
    if raw.nbytes > lib.ggml.ggml_nbytes(address):  # strides with gaps need more bytes
        wider = lib.ggml.ggml_new_tensor_4d(context, BYTES, raw.nbytes, 1, 1, 1)
        tensor.data = lib.ggml.ggml_get_data(wider)
    for i, step in enumerate(source.nb or contiguous(source)):
        tensor.nb[i] = step
    if raw.nbytes:
        ctypes.memmove(tensor.data, raw.ctypes.data, raw.nbytes)
    return address


def contiguous(source: Operand) -> tuple[int, ...]:
    """Return contiguous strides in bytes: of a block, a row, a matrix, and a stack of matrices."""
    kind = type_by_name(source.type)
    steps = [kind.bytes, source.ne[0] // kind.block * kind.bytes]
    for n in source.ne[1:3]:
        steps.append(steps[-1] * n)
    return tuple(steps)


def laid_out(source: Operand) -> NDArray[np.uint8]:
    """Return the bytes in the layout of the operand's strides. Raises EngineError for a wrong
    shape."""
    if source.value is None:
        raise EngineError(f"the source {source.name!r} has no value")
    kind = type_by_name(source.type)
    whole = (*reversed(source.ne[1:]), source.ne[0] // kind.block * kind.bytes)
    value = np.ascontiguousarray(source.value, PLAIN.get(source.type, np.uint8))
    if value.size * value.itemsize != prod(whole) or value.ndim != len(whole):
        raise EngineError(f"the source {source.name!r} has a value of another shape")
    if not value.size:
        return np.zeros(0, np.uint8)
    blocks = value.view(np.uint8).reshape(*whole[:-1], -1, kind.bytes)
    steps = (*reversed(source.nb or contiguous(source)), 1)
    size = sum((n - 1) * step for n, step in zip(blocks.shape, steps, strict=True)) + 1
    out = np.zeros(size, np.uint8)
    np.ndarray(blocks.shape, np.uint8, out, 0, steps)[...] = blocks
    return out
