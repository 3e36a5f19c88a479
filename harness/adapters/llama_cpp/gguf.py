"""A GGUF file as llama.cpp parses it (gguf_* of libggml-base).

The C interface ends a key or string at its first zero byte, so this summary does too.
"""

import ctypes
from pathlib import Path
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.harness.adapters.llama_cpp.lib import GgmlTensor, GgufInitParams, Library
from lockstep.harness.adapters.parts import file_summary as summary
from lockstep.harness.records import FileSummary, TensorSummary

C_TYPES: dict[str, Any] = {
    "U8": ctypes.c_uint8,
    "I8": ctypes.c_int8,
    "U16": ctypes.c_uint16,
    "I16": ctypes.c_int16,
    "U32": ctypes.c_uint32,
    "I32": ctypes.c_int32,
    "F32": ctypes.c_float,
    "BOOL": ctypes.c_int8,  # arrays and single values use this type
    "U64": ctypes.c_uint64,
    "I64": ctypes.c_int64,
    "F64": ctypes.c_double,
}


def read(lib: Library, path: Path) -> FileSummary:
    ggml = lib.ggml
    tensors = ctypes.c_void_p()
    with lib.refusals(f"llama.cpp does not read {path.name}"):
        gguf = ggml.gguf_init_from_file(bytes(path), GgufInitParams(True, ctypes.pointer(tensors)))
        if not gguf:
            raise EngineError("gguf_init_from_file failed")
    try:
        return FileSummary(
            version=ggml.gguf_get_version(gguf),
            alignment=ggml.gguf_get_alignment(gguf),
            data_offset=ggml.gguf_get_data_offset(gguf),
            metadata={
                summary.text(ggml.gguf_get_key(gguf, i)): value_of(ggml, gguf, i)
                for i in range(ggml.gguf_get_n_kv(gguf))
            },
            tensors=tuple(
                tensor_of(ggml, gguf, tensors, i) for i in range(ggml.gguf_get_n_tensors(gguf))
            ),
        )
    finally:
        ggml.gguf_free(gguf)
        ggml.ggml_free(tensors)


def value_of(ggml: ctypes.CDLL, gguf: int, key: int) -> tuple[str, Any]:
    kind = summary.VALUE_TYPES[ggml.gguf_get_kv_type(gguf, key)]
    if kind == "ARR":
        item = summary.VALUE_TYPES[ggml.gguf_get_arr_type(gguf, key)]
        return summary.array_type(item), items_of(ggml, gguf, key, item)
    if kind == "STR":
        return kind, summary.text(ggml.gguf_get_val_str(gguf, key))
    value = C_TYPES[kind].from_address(ggml.gguf_get_val_data(gguf, key)).value
    return kind, summary.scalar(kind, value)


def items_of(ggml: ctypes.CDLL, gguf: int, key: int, item: str) -> list[summary.Scalar]:
    n = ggml.gguf_get_arr_n(gguf, key)
    if item == "STR":
        return [summary.text(ggml.gguf_get_arr_str(gguf, key, i)) for i in range(n)]
    if n == 0:
        return []
    values = (C_TYPES[item] * n).from_address(ggml.gguf_get_arr_data(gguf, key))
    return [summary.scalar(item, value) for value in values]


def tensor_of(ggml: ctypes.CDLL, gguf: int, tensors: ctypes.c_void_p, i: int) -> TensorSummary:
    """Return a tensor's summary. `tensors` has the shapes, because some versions lack
    gguf_get_tensor_ne."""
    name = ggml.gguf_get_tensor_name(gguf, i)
    traits = ggml.ggml_get_type_traits(ggml.gguf_get_tensor_type(gguf, i)).contents
    return TensorSummary(
        name=summary.text(name),
        ne=summary.shape(GgmlTensor.from_address(ggml.ggml_get_tensor(tensors, name)).ne),
        type=traits.type_name.decode().upper(),
        offset=ggml.gguf_get_tensor_offset(gguf, i),
        n_bytes=ggml.gguf_get_tensor_size(gguf, i),
    )
