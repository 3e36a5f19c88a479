"""llama.cpp's parsers of GGUF files: from memory, from a file, with data, and as a model.

The first error in llama.cpp's log gives the reason. The patterns match messages of
ggml/src/gguf.cpp of llama-cpp-python 0.3.36. An error that matches no pattern means that the file
is too short for a field.
"""

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.llama_cpp.gguf import C_TYPES
from lockstep.harness.adapters.llama_cpp.lib import ERROR, GgufInitParams, Library
from lockstep.harness.adapters.parts.file_summary import VALUE_TYPES
from lockstep.harness.adapters.parts.forked import MemoryFile, Read, in_memory_file, parse_forked
from lockstep.harness.adapters.parts.parsing import ACCEPTED, digest, extents, scalar

WAYS = ("buffer", "file", "data", "vocab", "load")
STRING, ARRAY = VALUE_TYPES.index("STR"), VALUE_TYPES.index("ARR")
TYPES = [C_TYPES.get(name) for name in VALUE_TYPES]
SIZES = [ctypes.sizeof(kind) if kind else 0 for kind in TYPES]

WORDS = (  # pattern of the first error -> reason; the first pattern that matches counts
    (r"invalid magic", "magic"),
    (r"mismatch between the host", "endianness"),
    (r"bad GGUF version|GGUFv1|only supports up to version", "version"),
    (r"number of (?:tensors|key value pairs) is", "count"),
    (r"string length", "length"),
    (r"key \S+ is empty", "key-empty"),
    (r"duplicate", "duplicate"),
    (r"invalid GGUF type", "value"),
    (r"must be of type|not a power of 2", "alignment"),
    (r"tensor name .* is too long", "name-long"),
    (r"number of dimensions|number of elements", "dims"),
    (r"may cause overflow|has a size in bytes|overflows after padding|size overflow", "overflow"),
    (r"invalid ggml type|block size \(0\)", "type"),
    (r"multiple of block size", "block"),
    (r"data section|data binary blob", "data"),
    (r"_error|bad_alloc|memory size|initialize ggml context", "memory"),
    (r"failed to read (?:magic|header|key-value|tensor info)", "truncated"),
)
OFFSET = re.compile(r"has offset (\d+), expected (\d+)")
REASONS = [(re.compile(pattern), kind) for pattern, kind in WORDS]


def parse(lib: Library, files: Sequence[bytes], way: str) -> dict[str, Any]:
    if way not in WAYS:
        raise Unsupported(
            f"llama.cpp cannot parse files by way of {way!r} (known: {', '.join(WAYS)})"
        )
    with in_memory_file() as file, quiet(lib) as said:
        return parse_forked(reader(lib, way, file, said), files)


@contextmanager
def quiet(lib: Library) -> Iterator[list[str]]:
    """Collect llama.cpp's errors in a list, without printing them."""
    said: list[str] = []

    def log(level: int, raw: bytes, _: object) -> None:
        if level == ERROR:
            said.append(raw.decode(errors="replace"))

    callback = lib.llama.llama_log_callback(log)
    lib.llama.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        yield said
    finally:
        lib.listen()


def reader(lib: Library, way: str, file: MemoryFile, said: list[str]) -> Read:
    ggml, openers = lib.ggml, {"buffer": open_file, "file": opened_file, "data": opened_data}
    if way not in openers:
        return lambda raw: load_model(lib, way == "vocab", file.holding(raw), said)
    open_way: Callable[[Any, bytes, MemoryFile], Any] = openers[way]

    def read(raw: bytes) -> tuple[str, int, str]:
        said.clear()
        gguf = open_way(ggml, raw, file)
        if not gguf:
            return reason_of(said), 0, said[0].strip() if said else ""
        try:
            return ACCEPTED, digest_of(ggml, gguf), ""
        finally:
            ggml.gguf_free(gguf)

    return read


def open_file(ggml: ctypes.CDLL, raw: bytes, file: MemoryFile) -> Any:
    return ggml.gguf_init_from_buffer(raw, len(raw), GgufInitParams(True, None))


def opened_file(ggml: ctypes.CDLL, raw: bytes, file: MemoryFile) -> Any:
    """Open a file as loaders do, with a context for the tensors but without their data."""
    tensors = ctypes.c_void_p()
    params = GgufInitParams(True, ctypes.pointer(tensors))
    gguf = ggml.gguf_init_from_file(file.holding(raw), params)
    ggml.ggml_free(tensors)
    return gguf


def opened_data(ggml: ctypes.CDLL, raw: bytes, file: MemoryFile) -> Any:
    """Open a file from memory, with the tensors' data in the context."""
    tensors = ctypes.c_void_p()
    gguf = ggml.gguf_init_from_buffer(raw, len(raw), GgufInitParams(False, ctypes.pointer(tensors)))
    ggml.ggml_free(tensors)
    return gguf


def load_model(
    lib: Library, vocab_only: bool, path: bytes, said: list[str]
) -> tuple[str, int, str]:
    """Load a file as a model, and return the ending with its reason. An accepted file has no
    digest."""
    said.clear()
    llama = lib.llama
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    params.vocab_only = vocab_only
    model = llama.llama_model_load_from_file(path, params)
    if not model:
        return reason_of(said), 0, " ".join("".join(said[-2:]).split())
    llama.llama_model_free(model)
    return ACCEPTED, 0, ""


def reason_of(said: Sequence[str]) -> str:
    if not said:
        return "magic"  # llama.cpp logs nothing only for an empty file
    if found := OFFSET.search(said[0]):
        return "gap" if int(found[1]) > int(found[2]) else "overlap"
    return next((kind for pattern, kind in REASONS if pattern.search(said[0])), "other")


# --- contents ---------------------------------------------------------------------------------


def digest_of(ggml: ctypes.CDLL, gguf: int) -> int:
    head = (
        ggml.gguf_get_version(gguf),
        ggml.gguf_get_alignment(gguf),
        ggml.gguf_get_data_offset(gguf),
    )
    pairs = [pair_of(ggml, gguf, i) for i in range(ggml.gguf_get_n_kv(gguf))]
    rows = [row_of(ggml, gguf, i) for i in range(ggml.gguf_get_n_tensors(gguf))]
    return digest(head, pairs, rows)


def pair_of(ggml: ctypes.CDLL, gguf: int, i: int) -> tuple[bytes, int, int, Any]:
    key, kind = ggml.gguf_get_key(gguf, i), ggml.gguf_get_kv_type(gguf, i)
    if kind == STRING:
        return key, kind, -1, ggml.gguf_get_val_str(gguf, i)
    if kind != ARRAY:
        found = TYPES[kind].from_address(ggml.gguf_get_val_data(gguf, i)).value
        return key, kind, -1, scalar(found)
    element, n = ggml.gguf_get_arr_type(gguf, i), ggml.gguf_get_arr_n(gguf, i)
    if element == STRING:
        return key, kind, element, tuple(ggml.gguf_get_arr_str(gguf, i, j) for j in range(n))
    raw = ctypes.string_at(ggml.gguf_get_arr_data(gguf, i), n * SIZES[element]) if n else b""
    return key, kind, element, raw


def row_of(ggml: ctypes.CDLL, gguf: int, i: int) -> tuple[bytes, tuple[int, ...], int, int, int]:
    return (
        ggml.gguf_get_tensor_name(gguf, i),
        extents(ggml.gguf_get_tensor_ne(gguf, i)[:4]),
        ggml.gguf_get_tensor_type(gguf, i),
        ggml.gguf_get_tensor_offset(gguf, i),
        ggml.gguf_get_tensor_size(gguf, i),
    )
