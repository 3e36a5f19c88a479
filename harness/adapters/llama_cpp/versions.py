"""Names of llama.cpp in other versions, for an adapter written for 0.3.36.

A name that a version lacks raises `Unsupported` when it is used. So questions that need it are
reported as not compared. The structs are always those of the version's own llama_cpp module.
"""

import ctypes
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from lockstep.engine.errors import Unsupported

# up to 0.3.9, functions took the context instead of its memory: llama_kv_self_X, earlier
# llama_kv_cache_X
MEMORY = {
    f"llama_memory_{what}": (f"llama_kv_self_{what}", f"llama_kv_cache_{what}")
    for what in ("seq_rm", "seq_cp", "seq_keep", "seq_add", "seq_div")
}

OLDER_NAMES = MEMORY | {"llama_model_n_embd_out": ("llama_model_n_embd",)}

TYPES_BEFORE_BF16 = 30  # number of types that the bindings still state, at least up to 0.3.16


class Binding:
    """llama-cpp-python's low-level module, with the names of 0.3.36."""

    def __init__(self, module: ModuleType, version: str) -> None:
        self._module, self._version = module, version

    def __getattr__(self, name: str) -> Any:
        for known in (name, *OLDER_NAMES.get(name, ())):
            if hasattr(self._module, known):
                return getattr(self._module, known)
        if name == "llama_memory_seq_pos_max":
            return self._pos_max()
        if name == "llama_get_memory":
            return lambda context: context
        if name == "llama_memory_clear":
            return self._clear
        raise Unsupported(f"{self._version} has no {name}")

    def _pos_max(self) -> Any:
        """Return a function that the library has but the module lacks."""
        for known in ("llama_kv_self_seq_pos_max", "llama_kv_cache_seq_pos_max"):
            if hasattr(self._module._lib, known):
                function = getattr(self._module._lib, known)
                function.restype = ctypes.c_int32
                function.argtypes = [ctypes.c_void_p, ctypes.c_int32]
                return function
        raise Unsupported(f"{self._version} does not report positions")

    def _clear(self, memory: Any, data: bool) -> None:
        """Clear the memory. These versions always clear the cells too, so `data` has no effect."""
        old = ("llama_kv_self_clear", "llama_kv_cache_clear")
        found = next(name for name in old if hasattr(self._module, name))
        getattr(self._module, found)(memory)


def type_count(llama: Any, ggml: Any) -> int:
    """Return the number of types that ggml knows. A request for the traits of a later type would
    abort.

    If the module's own count is out of date, types are counted up to the first type that ggml names
    NONE. This count would fail in newer versions of ggml, which read beyond their table.
    """
    count: int = llama.GGML_TYPE_COUNT
    if count == TYPES_BEFORE_BF16:
        while ggml.ggml_type_name(count) != b"NONE":
            count += 1
    return count


def declare(library: ctypes.CDLL, prototypes: Mapping[str, tuple[Any, ...]], version: str) -> None:
    """Declare the types of functions: name -> (result, *arguments). A missing function raises an
    error when it is called."""
    for name, (result, *arguments) in prototypes.items():
        if not hasattr(library, name):
            setattr(library, name, absent(name, version))
            continue
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def absent(name: str, version: str) -> Any:
    def refuse(*_: object) -> None:
        raise Unsupported(f"{version} has no {name}")

    return refuse


def has_field(struct: type[ctypes.Structure], name: str) -> bool:
    return any(field[0] == name for field in struct._fields_)


def put(params: ctypes.Structure, **values: Any) -> None:
    """Set the fields that this version has, and ignore the others."""
    for name, value in values.items():
        if has_field(type(params), name):
            setattr(params, name, value)
