"""Functions of llama.cpp in other versions: a missing function makes a question unanswerable, but
never causes a crash."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.llama_cpp.versions import (
    Binding,
    declare,
    has_field,
    put,
    type_count,
)

OLD = "llama-cpp-python 0.3.8"


class Params(ctypes.Structure):
    _fields_ = (("n_ctx", ctypes.c_uint32), ("flash_attn", ctypes.c_bool))


def module(**names: Any) -> Any:
    return SimpleNamespace(_lib=SimpleNamespace(), **names)


def test_newer_name_finds_the_older_function() -> None:
    for prefix in ("llama_kv_self", "llama_kv_cache", "llama_memory"):
        binding = Binding(module(**{f"{prefix}_seq_rm": lambda *args: args}), OLD)
        assert binding.llama_memory_seq_rm("memory", 0, 1, 2) == ("memory", 0, 1, 2)


def test_older_versions_use_the_context_as_memory() -> None:
    cleared: list[str] = []
    binding = Binding(module(llama_kv_cache_clear=cleared.append), OLD)
    binding.llama_memory_clear(binding.llama_get_memory("context"), True)
    assert cleared == ["context"]
    newer = Binding(module(llama_get_memory=lambda context: "memory"), OLD)
    assert newer.llama_get_memory("context") == "memory"


@pytest.mark.parametrize("name", ["llama_model_init_from_user", "llama_memory_seq_pos_max"])
def test_function_that_a_version_lacks_is_unsupported_by_name(name: str) -> None:
    with pytest.raises(
        Unsupported, match=rf"^llama-cpp-python 0\.3\.8 .*(has no {name}|positions)"
    ):
        getattr(Binding(module(), OLD), name)


def test_missing_function_raises_an_error_when_called() -> None:
    library = ctypes.CDLL(None)
    declare(library, {"abs": (ctypes.c_int, ctypes.c_int), "ggml_none": (None,)}, OLD)
    assert library.abs(-3) == 3
    with pytest.raises(Unsupported, match=r"0\.3\.8 has no ggml_none"):
        library.ggml_none(1, 2)


def test_only_fields_that_a_struct_has_are_set() -> None:
    params = Params()
    put(params, n_ctx=7, flash_attn=True, kv_unified=True)
    assert (params.n_ctx, params.flash_attn) == (7, True)
    assert not hasattr(params, "kv_unified")
    assert has_field(Params, "n_ctx")
    assert not has_field(Params, "kv_unified")


@pytest.mark.parametrize(
    ("counted", "known", "count"),
    [(30, 39, 39), (30, 30, 30), (43, 43, 43)],
    ids=["0.3.8", "before BF16", "0.3.36"],
)
def test_ggml_counts_types_that_the_binding_omits(counted: int, known: int, count: int) -> None:
    def name(i: int) -> bytes:
        assert counted == 30, "a newer ggml reads behind its table"
        return b"bf16" if i < known else b"NONE"

    ggml = SimpleNamespace(ggml_type_name=name)
    assert type_count(SimpleNamespace(GGML_TYPE_COUNT=counted), ggml) == count
