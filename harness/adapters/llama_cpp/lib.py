"""llama.cpp's libraries through ctypes: their functions, log and tensor layout.

Nothing is loaded before `library()` is called. llama-cpp-python's wheel holds each library three
times, as copies with different names. Opening libggml-base.so by its path would load it a second
time, with a separate log and separate type tables. So every symbol is looked up from the handle of
libllama, which also finds the symbols of the libraries that it needs.
"""

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.harness.adapters.llama_cpp.identity import VERSION, check_loaded
from lockstep.harness.adapters.llama_cpp.versions import Binding, declare, has_field, type_count
from lockstep.harness.processes.variables import ENVIRONMENT

MAX_DIMS, MAX_SRC, MAX_NAME, MAX_OP_PARAMS = 4, 10, 64, 64  # ggml/include/ggml.h, 0.3.36
OBJECT_BYTES = 32  # sizeof(struct ggml_object), part of ggml_tensor_overhead()
DEBUG, WARN, ERROR, CONTINUED = 1, 3, 4, 5  # values of ggml_log_level
P, I64, SIZE, TEXT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_char_p


class GgmlTensor(ctypes.Structure):
    """`struct ggml_tensor`; `check_layout` compares it with the library's values."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", P),
        ("ne", I64 * MAX_DIMS),
        ("nb", SIZE * MAX_DIMS),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * (MAX_OP_PARAMS // 4)),
        ("flags", ctypes.c_int32),
        ("src", P * MAX_SRC),
        ("view_src", P),
        ("view_offs", SIZE),
        ("data", P),
        ("name", ctypes.c_char * MAX_NAME),
        ("extra", P),
        ("padding", ctypes.c_char * 8),
    )


class InitParams(ctypes.Structure):
    """`struct ggml_init_params`."""

    _fields_ = (("mem_size", SIZE), ("mem_buffer", P), ("no_alloc", ctypes.c_bool))


class GgufInitParams(ctypes.Structure):
    """`struct gguf_init_params`; `ctx` receives a ggml_context with the tensors."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.POINTER(P)))


class TypeTraits(ctypes.Structure):
    """The beginning of `struct ggml_type_traits`, as far as we read it."""

    _fields_ = (
        ("type_name", TEXT),
        ("block_weights", I64),
        ("block_weights_interleaved", I64),
        ("block_bytes", SIZE),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, P, P, I64)),
    )


PROTOTYPES: dict[str, tuple[Any, ...]] = {  # name: (result, *arguments)
    "ggml_init": (P, InitParams),
    "ggml_free": (None, P),
    "ggml_new_tensor_3d": (P, P, ctypes.c_int, I64, I64, I64),
    "ggml_view_1d": (P, P, P, I64, SIZE),
    "ggml_set_name": (P, P, TEXT),
    "ggml_get_name": (TEXT, P),
    "ggml_get_data": (P, P),
    "ggml_get_tensor": (P, P, TEXT),
    "ggml_get_type_traits": (ctypes.POINTER(TypeTraits), ctypes.c_int),
    "ggml_nbytes": (SIZE, P),
    "ggml_nelements": (I64, P),
    "ggml_op_desc": (TEXT, P),
    "ggml_op_name": (TEXT, ctypes.c_int),
    "ggml_type_name": (TEXT, ctypes.c_int),
    "ggml_commit": (TEXT,),
    "ggml_set_abort_callback": (P, P),
    "ggml_tensor_overhead": (SIZE,),
    "gguf_free": (None, P),
    "gguf_init_from_buffer": (P, TEXT, SIZE, GgufInitParams),
    "gguf_init_from_file": (P, TEXT, GgufInitParams),
    "gguf_get_version": (ctypes.c_uint32, P),
    "gguf_get_alignment": (SIZE, P),
    "gguf_get_data_offset": (SIZE, P),
    "gguf_get_n_kv": (I64, P),
    "gguf_get_key": (TEXT, P, I64),
    "gguf_get_kv_type": (ctypes.c_int, P, I64),
    "gguf_get_arr_type": (ctypes.c_int, P, I64),
    "gguf_get_arr_n": (SIZE, P, I64),
    "gguf_get_arr_data": (P, P, I64),
    "gguf_get_arr_str": (TEXT, P, I64, SIZE),
    "gguf_get_val_data": (P, P, I64),
    "gguf_get_val_str": (TEXT, P, I64),
    "gguf_get_n_tensors": (I64, P),
    "gguf_get_tensor_name": (TEXT, P, I64),
    "gguf_get_tensor_ne": (ctypes.POINTER(I64), P, I64),
    "gguf_get_tensor_type": (ctypes.c_int, P, I64),
    "gguf_get_tensor_offset": (SIZE, P, I64),
    "gguf_get_tensor_size": (SIZE, P, I64),
}


NO_ROOM = "failed to allocate"  # part of the log line of ggml and llama.cpp for any buffer
NOT_INSTALLED = (
    "llama.cpp is not installed: `pip install gguf-lockstep` builds it with a C++ "
    "compiler. Golden vectors do not need it: lockstep golden verify --engine ENGINE"
)


class Library:
    """The loaded libraries: llama-cpp-python's module (`llama`), ggml's own functions (`ggml`), and
    the last lines of the log."""

    def __init__(self) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            from llama_cpp import __version__, llama_cpp
        except ModuleNotFoundError as error:
            raise Unsupported(NOT_INSTALLED) from error
        self.number = str(__version__)
        self.version = f"llama-cpp-python {self.number}"
        self.llama = Binding(llama_cpp, self.version)
        self.lines: deque[tuple[int, str]] = deque(maxlen=200)
        self.listener: Callable[[str], None] | None = None  # gets the debug lines
        # kept here, because the library holds a pointer to it
        self._log_callback = llama_cpp.llama_log_callback(self._log)
        self.listen()
        handle = llama_cpp._lib._handle
        self.ggml = ctypes.CDLL("ggml, through libllama", handle=handle)
        self.declare(PROTOTYPES)
        self._abort_callback = ctypes.CFUNCTYPE(None, TEXT)(say_last_words)
        with suppress(Unsupported):  # older versions print the reason themselves
            self.ggml.ggml_set_abort_callback(self._abort_callback)
        check_layout(self.ggml)
        if self.number == VERSION:
            check_loaded(self.ggml.ggml_commit().decode(errors="replace"), self.types())
        llama_cpp.llama_backend_init()

    @property
    def repacking_is_a_choice(self) -> bool:
        return has_field(self.llama.llama_model_params, "use_extra_bufts")

    @property
    def n_types(self) -> int:
        return type_count(self.llama, self.ggml)

    def types(self) -> Iterator[tuple[str, int, int]]:
        """Yield each weight type's name, weights of a block, and bytes of a block."""
        for i in range(self.n_types):
            traits = self.ggml.ggml_get_type_traits(i).contents
            yield traits.type_name.decode(), traits.block_weights, traits.block_bytes

    def declare(self, prototypes: Mapping[str, tuple[Any, ...]]) -> None:
        """Declare the types of ggml's functions: name -> (result, *arguments)."""
        declare(self.ggml, prototypes, self.version)

    def listen(self) -> None:
        """Direct the log to this object, even if another listener was set."""
        self.llama.llama_log_set(self._log_callback, P(0))

    @contextmanager
    def refusals(self, what: str) -> Iterator[None]:
        """Add llama.cpp's log lines to errors raised in this context. what: the beginning of the
        message."""
        self.lines.clear()
        try:
            yield
        except EngineError as error:
            raise type(error)(f"{what}: {error}{self._complaint()}") from error

    def complained_of(self, words: str) -> bool:
        """Return True if llama.cpp has logged these words since `refusals` was entered."""
        return any(words in line for _, line in self.lines)

    def check_room(self) -> None:
        """Raise MemoryError if llama.cpp's last refusal was a lack of memory. Lockstep or the
        machine limits memory, so no engine is at fault."""
        if self.complained_of(NO_ROOM):
            raise MemoryError(f"llama.cpp does not make a context{self._complaint()}")

    def _complaint(self) -> str:
        for level in (ERROR, WARN):
            said = [line for at, line in self.lines if at == level]
            if said:
                return f" ({'; '.join(said[-3:])})"
        return ""

    def _log(self, level: int, raw: bytes, _: object) -> None:
        """Keep a line of the log, except debug lines, which would crowd out all others."""
        if level == CONTINUED:
            level = self.lines[-1][0] if self.lines else DEBUG
        if level != DEBUG:
            os.write(2, raw)
        elif self.listener is not None:
            self.listener(raw.decode(errors="replace"))
            return
        self.lines.append((level, " ".join(raw.decode(errors="replace").split())))


@cache
def library() -> Library:
    """Load the libraries, once per process, and return them."""
    return Library()


def say_last_words(message: bytes) -> None:
    os.write(2, message + b"\n")


def check_layout(ggml: ctypes.CDLL) -> None:
    """Check that this build's tensors have the layout of GgmlTensor. Raises RuntimeError if not."""
    context = ggml.ggml_init(InitParams(1 << 16, None, False))
    if not context:
        raise RuntimeError("ggml_init gave no context, so the layout of a tensor is unknown")
    try:
        address = ggml.ggml_new_tensor_3d(context, 1, 6, 5, 3)  # a tensor of type F16
        ggml.ggml_set_name(address, b"layout")
        view_address = ggml.ggml_view_1d(context, address, 4, 8)
        tensor, view = GgmlTensor.from_address(address), GgmlTensor.from_address(view_address)
        facts = {
            "size": (ctypes.sizeof(GgmlTensor) + OBJECT_BYTES, ggml.ggml_tensor_overhead()),
            "type": (tensor.type, 1),
            "ne": (list(tensor.ne), [6, 5, 3, 1]),
            "nb": (list(tensor.nb), [2, 12, 60, 180]),
            "elements": (ggml.ggml_nelements(address), 90),
            "bytes": (ggml.ggml_nbytes(address), 180),
            "name": (tensor.name, ggml.ggml_get_name(address)),
            "data": (tensor.data, ggml.ggml_get_data(address)),
            "op": (ggml.ggml_op_name(view.op), ggml.ggml_op_desc(view_address)),
            "src": (view.src[0], address),
            "view_src": (view.view_src, address),
            "view_offs": (view.view_offs, 8),
            "view's data": (view.data, tensor.data + 8),
        }
    finally:
        ggml.ggml_free(context)
    wrong = [f"{name}: {a} is not {b}" for name, (a, b) in facts.items() if a != b]
    if wrong:
        raise RuntimeError(f"this build lays out ggml_tensor differently: {'; '.join(wrong)}")
