"""GGUF files from other projects' reader tests: our verdict compared with llama.cpp's.

The files lie in the optional sibling folder `shared`. Both readers agree on all 25 files, but not
always on the reason. engine/gguf/file.py lists their intended differences, and
tests/engine/gguf/test_gguf_file.py has the bytes for them.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from lockstep.engine.errors import MalformedFile
from lockstep.engine.gguf.file import KINDS, GgufFile

CORPORA = Path(__file__).resolve().parents[3].parent / "shared" / "corpora" / "gguf"


class Expected(NamedTuple):
    kind: str | None  # None: accepted
    offset: int = 0  # offset of a refusal
    n_values: int = 0
    n_tensors: int = 0
    data_offset: int = 0


def accepted(n_values: int, n_tensors: int, data_offset: int) -> Expected:
    return Expected(None, 0, n_values, n_tensors, data_offset)


EXPECTED = {
    # --- gridcore: a corpus against its own parser -------------------------------------------
    # Version 1 and two counts of 0. Version 1 had 32-bit counts and is long gone.
    "gridcore/malformed/bad-version.bin": Expected("version", 4),
    # The first 8192 bytes of a two-layer llama with 20 tensors. Its suppress_tokens name all tokens
    # but </s>, which is legal GGUF; that array makes the cut fall into the tensor table, where the
    # name of tensor 12 lacks 8 bytes.
    "gridcore/malformed/hdr-suppress-eos.gguf": Expected("length", 8173),
    # The same llama without the array, so that the table is whole and the data is cut off. Here
    # token_embd.weight is at offset 2^64 - 16, and start + offset wraps around in a reader that
    # only adds. We say misaligned, because 2^64 - 16 is no multiple of 32.
    "gridcore/malformed/hdr-wrap-first-offset.gguf": Expected("misaligned", 6446),
    # The same llama with ne[0] = 0 for token_embd.weight. An empty tensor is legal to us and to
    # llama.cpp, but the next one must then start at 0 too, and starts at 66304.
    "gridcore/malformed/hdr-zero-first-dim.gguf": Expected("gap", 6496),
    # Both counts are 2^64 - 1.
    "gridcore/malformed/huge-counts.bin": Expected("count", 8),
    # An array of 2^32 - 1 strings with no byte behind it.
    "gridcore/malformed/kv-arr-huge-n.bin": Expected("count", 41),
    # A key of 2^48 - 1 bytes, to which llama.cpp objects. We refuse the count before: the remaining
    # eight bytes cannot hold the single claimed pair.
    "gridcore/malformed/kv-huge-strlen.bin": Expected("count", 16),
    "gridcore/malformed/magic-only.bin": Expected("truncated", 4),
    # Four dimensions of 2^48 - 1: the product of the first two is over int64.
    "gridcore/malformed/tensor-huge-dims.bin": Expected("overflow", 45),
    # "GGU".
    "gridcore/malformed/trunc-magic.bin": Expected("truncated", 0),
    # A header that claims nothing and contains nothing. It is not malformed, whatever the folder
    # says. Readers of general.architecture must report that no engine can run it.
    "gridcore/malformed/v3-empty.bin": accepted(0, 0, 24),
    # The control of that folder: the same bytes as vocab-bpe-llama3.gguf.
    "gridcore/malformed/valid-small.gguf": accepted(9, 0, 4859),
    # Small made-up BPE vocabularies (287 tokens, 31 merges) that differ in tokenizer.ggml.pre; no
    # tensors, and up to 31 bytes of padding at the end, which we and llama.cpp leave unread.
    "gridcore/vocab/vocab-bpe-gpt4o.gguf": accepted(9, 0, 4856),
    "gridcore/vocab/vocab-bpe-llama3.gguf": accepted(9, 0, 4859),
    "gridcore/vocab/vocab-bpe-qwen2.gguf": accepted(9, 0, 4855),
    "gridcore/vocab/vocab-bpe-qwen35.gguf": accepted(9, 0, 4856),
    "gridcore/vocab/vocab-bpe-smollm.gguf": accepted(9, 0, 4856),
    # The same idea with tokenizer.ggml.model = gemma4: BPE with byte tokens, 277 of them.
    "gridcore/vocab/vocab-bpe-spm-gemma4.gguf": accepted(9, 0, 5488),
    # The 32000 SentencePiece tokens of Llama with scores; and with every score 0, and 61249 merges.
    "gridcore/vocab/vocab-spm.gguf": accepted(9, 0, 723346),
    "gridcore/vocab/vocab-spm-zeroscores.gguf": accepted(10, 0, 1696561),
    # --- tensorhawk: an author and a name; no architecture, no tensors ------------------------
    "tensorhawk/model.gguf": accepted(2, 0, 129),
    # --- weightinspect: one with an architecture alone, one with a tensor that has no data ----
    "weightinspect/weightinspect-empty.gguf": accepted(1, 0, 69),
    # 64 x 128 F32 at offset 0, and the file ends with the tensor table: not even the padding of the
    # header is there, which is where llama.cpp stops too. Enough for a tool that lists names.
    "weightinspect/weightinspect-tiny.gguf": Expected("data", 122),
    # --- zackshen: the same three tensors in both byte orders ---------------------------------
    # Big-endian. (It also has general.architecture twice, so a reader that swaps bytes would have
    # to refuse it for that.)
    "zackshen/zackshen-test-be-v3.gguf": Expected("endianness", 4),
    # Alignment 64, three F32 vectors.
    "zackshen/zackshen-test-le-v3.gguf": accepted(6, 3, 448),
}

ASK_LLAMA_CPP = """
import ctypes, sys
class Params(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]
ggml = ctypes.CDLL(sys.argv[1])
ggml.gguf_init_from_file.restype = ctypes.c_void_p
ggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, Params]
file = ggml.gguf_init_from_file(sys.argv[2].encode(), Params(True, None))
if not file:
    print("refused")
    sys.exit()
answers = []
for name in ("gguf_get_n_kv", "gguf_get_n_tensors", "gguf_get_data_offset"):
    function = getattr(ggml, name)
    function.restype = ctypes.c_int64
    function.argtypes = [ctypes.c_void_p]
    answers.append(function(file))
print("accepted", *answers)
"""


def corpus_file(name: str) -> Path:
    if not CORPORA.is_dir():
        pytest.skip(f"no corpora beside this checkout: our reader was not asked about {name}")
    return CORPORA / name


def test_every_file_of_the_corpora_has_an_expected_verdict() -> None:
    root = corpus_file(".")
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    texts = {name for name in found if name.endswith((".txt", "LICENSE"))}
    assert found - texts == set(EXPECTED)


def test_expected_kinds_exist() -> None:
    assert {row.kind for row in EXPECTED.values() if row.kind is not None} < KINDS


@pytest.mark.parametrize("name", EXPECTED)
def test_our_verdict_on_a_file_matches_the_expected_verdict(name: str) -> None:
    path, expected = corpus_file(name), EXPECTED[name]
    if expected.kind is not None:
        with pytest.raises(MalformedFile) as refusal:
            GgufFile.open(path)
        assert (refusal.value.kind, refusal.value.offset) == (expected.kind, expected.offset)
    else:
        with GgufFile.open(path) as file:
            assert (len(file.metadata), len(file.tensors), file.data_offset) == expected[2:5]


@pytest.mark.parametrize("name", EXPECTED)
def test_llama_cpp_gives_the_same_verdict_on_a_file(name: str) -> None:
    path, expected = corpus_file(name), EXPECTED[name]
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"llama_cpp is not installed: llama.cpp was not asked about {name}")
    library = Path(spec.submodule_search_locations[0]) / "lib" / "libggml-base.so"
    done = subprocess.run(
        [sys.executable, "-c", ASK_LLAMA_CPP, str(library), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.split()
    if expected.kind is not None:
        assert said == ["refused"]
    else:
        assert said == ["accepted", *(str(number) for number in expected[2:5])]
