"""The table of tensor types matches the installed ggml."""

import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path
from struct import pack

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.types import REMOVED, TYPE_COUNT, TYPES, type_by_id, type_by_name

# gguf_init_from_buffer in a process of its own, for each tensor type from 0 to 63 and for -1.
ASK_LLAMA_CPP = """
import ctypes, sys
class Params(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]
init = ctypes.CDLL(sys.argv[1]).gguf_init_from_buffer
init.restype = ctypes.c_void_p
init.argtypes = [ctypes.c_char_p, ctypes.c_size_t, Params]
for line in sys.stdin:
    data = bytes.fromhex(line)
    print(int(bool(init(data, len(data), Params(True, None)))))
"""


def _library() -> Path:
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llama_cpp is not installed: the table was not compared with ggml's")
    return Path(spec.submodule_search_locations[0]) / "lib" / "libggml-base.so"


@pytest.mark.parametrize("id", range(TYPE_COUNT))
def test_ggml_has_the_same_name_and_block_for_an_id(id: int) -> None:
    ggml = ctypes.CDLL(str(_library()))
    ggml.ggml_type_name.restype = ctypes.c_char_p
    ggml.ggml_blck_size.restype = ctypes.c_int64
    ggml.ggml_type_size.restype = ctypes.c_size_t
    name, block, size = (
        ggml.ggml_type_name(id).decode(),
        ggml.ggml_blck_size(id),
        ggml.ggml_type_size(id),
    )
    if id in REMOVED:
        assert (block, size) == (0, 0)
        # Q4_2 and Q4_3 are just DEPRECATED there, the others keep their name.
        assert name == "DEPRECATED" or name.startswith(f"TYPE_{REMOVED[id]} REMOVED")
    else:
        kind = TYPES[id]
        assert (name.upper(), block, size) == (kind.name, kind.block, kind.bytes)


def test_ggml_knows_exactly_the_ids_of_the_table() -> None:
    # ggml_type_name(GGML_TYPE_COUNT) reads past ggml's array, so its reader is asked instead.
    ids = [-1, *range(64)]
    files = [
        b"GGUF" + pack("<IQQ", 3, 1, 0) + pack("<Q1sIqiQ", 1, b"t", 1, 256, id, 0) + bytes(7)
        for id in ids
    ]
    assert all(len(data) == 64 for data in files)  # ends where the data section starts
    done = subprocess.run(
        [sys.executable, "-c", ASK_LLAMA_CPP, str(_library())],
        input="\n".join(data.hex() for data in files),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    accepted = [id for id, said in zip(ids, done.stdout.split(), strict=True) if said == "1"]
    assert accepted == list(TYPES)


def test_every_id_below_the_count_is_known_or_removed() -> None:
    assert sorted([*TYPES, *REMOVED]) == list(range(TYPE_COUNT))


@pytest.mark.parametrize("id", TYPES)
def test_a_type_is_found_by_id_and_by_name(id: int) -> None:
    kind = type_by_id(id)
    assert kind.id == id
    assert type_by_name(kind.name) is kind


@pytest.mark.parametrize("id", [-1, TYPE_COUNT, 2**31])
def test_unknown_id_is_refused_with_the_range_of_known_ids(id: int) -> None:
    with pytest.raises(Unsupported, match=rf"has the id {id}; ids go from 0 to {TYPE_COUNT - 1}"):
        type_by_id(id)


@pytest.mark.parametrize(
    ("name", "near"),
    [("q4_K", "Q4_K"), ("Q9_9", "Q8_0"), ("", "none"), ("GGML_TYPE_F32", "F32")],
)
def test_unknown_name_is_refused_with_similar_type_names(name: str, near: str) -> None:
    with pytest.raises(Unsupported, match=rf"is named '{name}' \(near: .*{near}.* in all\)"):
        type_by_name(name)


@pytest.mark.parametrize(("id", "name"), REMOVED.items())
def test_a_removed_type_is_refused_as_removed(id: int, name: str) -> None:
    with pytest.raises(Unsupported, match=rf"{id} \({name}\) was removed"):
        type_by_id(id)
    with pytest.raises(Unsupported, match=rf"{name} \({id}\) was removed"):
        type_by_name(name)
