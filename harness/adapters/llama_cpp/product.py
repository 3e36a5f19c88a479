"""ggml's own matrix product of bytes and activations, without a model: a graph of one MUL_MAT."""

import ctypes
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.harness.adapters.llama_cpp.lib import I64, InitParams, Library, P


class ProductPlan(ctypes.Structure):
    """ggml_cplan of ggml-cpu.h: the plan for computing a graph. Its last fields differ by
    version."""

    _fields_: ClassVar = [
        ("work_size", ctypes.c_size_t),
        ("work_data", P),
        ("rest", ctypes.c_ubyte * 64),
    ]


PLANNING = {
    "ggml_new_graph": (P, P),
    "ggml_build_forward_expand": (None, P, P),
    "ggml_graph_plan": (ProductPlan, P, ctypes.c_int, P),
    "ggml_graph_compute": (ctypes.c_int, P, P),
}
PROTOTYPES = {  # name: (result, *arguments), from ggml.h and ggml-cpu.h of 0.3.36
    "ggml_new_tensor_2d": (P, P, ctypes.c_int, I64, I64),
    "ggml_mul_mat": (P, P, P, P),
    **PLANNING,
    "ggml_get_type_traits_cpu": (P, ctypes.c_int),
}
F32 = 0  # a value of ggml_type
ROOM = 1 << 20  # bytes for the graph and its objects, without tensors


def multiply(
    lib: Library,
    kind: tuple[str, int],
    raw: NDArray[np.uint8],
    x: NDArray[np.float32],
    n_threads: int,
) -> NDArray[np.float32]:
    """Multiply x by stored weights. kind: the name and id of the weights' type; x: (tokens,
    columns); result: (tokens, rows)."""
    lib.declare(PROTOTYPES)
    x = np.ascontiguousarray(x, np.float32)
    found = np.empty((len(x), rows_of(lib, kind, raw, x.shape[1])), np.float32)
    room = ROOM + x.nbytes + raw.nbytes + found.nbytes
    context = lib.ggml.ggml_init(InitParams(room, None, False))
    if not context:
        raise MemoryError("ggml_init gave no context")
    try:
        weights = lib.ggml.ggml_new_tensor_2d(context, kind[1], x.shape[1], found.shape[1])
        acts = lib.ggml.ggml_new_tensor_2d(context, F32, *reversed(x.shape))
        out = lib.ggml.ggml_mul_mat(context, weights, acts)
        ctypes.memmove(lib.ggml.ggml_get_data(weights), raw.ctypes.data, raw.nbytes)
        ctypes.memmove(lib.ggml.ggml_get_data(acts), x.ctypes.data, x.nbytes)
        compute(lib, context, out, n_threads)
        ctypes.memmove(found.ctypes.data, lib.ggml.ggml_get_data(out), found.nbytes)
    finally:
        lib.ggml.ggml_free(context)
    return found


def rows_of(lib: Library, kind: tuple[str, int], raw: NDArray[np.uint8], columns: int) -> int:
    """Return the number of rows in the bytes. Raises Unsupported or EngineError for products that
    would make ggml abort."""
    behind_from_float = lib.ggml.ggml_get_type_traits_cpu(kind[1]) + ctypes.sizeof(P)
    if not ctypes.c_void_p.from_address(behind_from_float).value:  # the pointer is vec_dot
        raise Unsupported(f"llama.cpp has no product with {kind[0]}")
    traits = lib.ggml.ggml_get_type_traits(kind[1]).contents
    rows, rest = divmod(raw.size * traits.block_weights, traits.block_bytes * max(columns, 1))
    if rest or columns % traits.block_weights or not rows or not columns:
        raise EngineError(
            f"{raw.size} bytes of {kind[0]} are not a multiple of rows of {columns} "
            f"weights ({traits.block_weights} in {traits.block_bytes} bytes)"
        )
    return int(rows)


def compute(lib: Library, context: int, out: int, n_threads: int) -> None:
    graph = lib.ggml.ggml_new_graph(context)
    lib.ggml.ggml_build_forward_expand(graph, out)
    plan = lib.ggml.ggml_graph_plan(graph, n_threads, None)
    # ggml_graph_compute_with_ctx allocates this memory in the context and ignores a failure. The
    # size depends on the type and the CPU: half a megabyte for each thread if rows form tiles.
    work = np.empty(plan.work_size, np.uint8)
    plan.work_data = work.ctypes.data
    status = lib.ggml.ggml_graph_compute(graph, ctypes.addressof(plan))
    if status != 0:
        raise RuntimeError(f"ggml computed no product: status {status}")
