"""Code books, and the formats that use them, compared with the library's decoder."""

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from lockstep.engine.quants import codebooks
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.quants.codebooks import codebook
from lockstep.engine.registry import import_members
from tests.all_types import same

import_members("lockstep.engine.quants")
FOLDER = Path(codebooks.__file__).parent
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_codebooks.py"
IQ = [WeightFormat.member(name) for name in sorted(WeightFormat.family) if name.startswith("IQ")]


def values(name: str, length: int) -> NDArray[np.int8]:
    return codebook(name).view(np.int8).reshape(-1, length)


# --- the files ------------------------------------------------------------------------------------


def unlike_their_sums(folder: Path) -> list[str]:
    """Return the files that are missing in SHA256SUMS or have another hash there."""
    lines = (folder / "SHA256SUMS").read_text("ascii").splitlines()
    expected = {name: digest for digest, name in (line.split("  ") for line in lines)}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.hex")
    }
    return sorted(name for name, _ in expected.items() ^ found.items())


def copied(to: Path) -> Path:
    for path in (*FOLDER.glob("*.hex"), FOLDER / "SHA256SUMS"):
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_files_match_their_checksums() -> None:
    assert unlike_their_sums(FOLDER) == []


def test_a_changed_a_missing_and_an_extra_file_are_noticed(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    text = (folder / "iq3_s.hex").read_text("ascii")
    (folder / "iq3_s.hex").write_text(text.replace("07", "09", 1), "ascii")
    (folder / "signs.hex").unlink()
    (folder / "new.hex").write_text("00\n", "ascii")
    assert sorted(set(unlike_their_sums(folder))) == ["iq3_s.hex", "new.hex", "signs.hex"]


@pytest.mark.parametrize(
    ("name", "count", "length", "allowed"),
    [
        ("iq1", 2048, 8, [-1, 0, 1]),
        ("iq2_xxs", 256, 8, [8, 25, 43]),
        ("iq2_xs", 512, 8, [8, 25, 43]),
        ("iq2_s", 1024, 8, [8, 25, 43]),
        ("iq3_xxs", 256, 4, [4, 12, 20, 28, 36, 44, 52, 62]),
        ("iq3_s", 512, 4, [1, 3, 5, 7, 9, 11, 13, 15]),
        (
            "iq4_nl", 16, 1,
            [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
        ),
    ],
)  # fmt: skip
def test_book_has_its_number_of_distinct_entries(
    name: str, count: int, length: int, allowed: list[int]
) -> None:
    found = values(name, length)
    assert found.shape == (count, length)
    assert np.unique(found).tolist() == allowed
    assert len(np.unique(found, axis=0)) == count


def test_signs_have_seven_stored_bits_and_even_parity() -> None:
    signs = codebook("signs")
    assert (signs & 127).tolist() == list(range(128))
    assert (np.unpackbits(signs[:, None], axis=1).sum(axis=1) % 2 == 0).all()


# --- the script -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library() -> Any:
    pytest.importorskip("llama_cpp", reason="no llama_cpp: code books and decoders not compared")
    from lockstep.harness.adapters.llama_cpp.lib import library

    return library()


@pytest.fixture
def script(library: Any) -> Any:
    if not SCRIPT.is_file():
        pytest.skip("no checkout: tests/scripts/make_codebooks.py was not run")
    spec = importlib.util.spec_from_file_location("make_codebooks", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> Any:
    monkeypatch.setattr(script, "HERE", folder)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    return script.main()


def test_library_still_agrees_with_the_files(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(script, monkeypatch, FOLDER, "--check") is None
    assert run(script, monkeypatch, tmp_path) is None
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {
        p.name: p.read_bytes() for p in (*FOLDER.glob("*.hex"), FOLDER / "SHA256SUMS")
    }


def test_script_names_a_file_that_differs_from_the_library(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = copied(tmp_path)
    wrong = (folder / "iq4_nl.hex").read_bytes().replace(b"59", b"5a")
    (folder / "iq4_nl.hex").write_bytes(wrong)
    said = run(script, monkeypatch, folder, "--check")
    assert said.endswith("says something else than iq4_nl.hex")
    assert (folder / "iq4_nl.hex").read_bytes() == wrong


# --- the decoders that look into them -------------------------------------------------------------


def by_ggml(library: Any, kind: type[WeightFormat], blocks: NDArray[np.void]) -> F32:
    out = np.empty(blocks.size * kind.weights, np.float32)
    traits = library.ggml.ggml_get_type_traits(kind.type_id).contents
    traits.to_float(blocks.ctypes.data, out.ctypes.data, out.size)
    return out


def random_blocks(kind: type[WeightFormat], count: int, seed: int) -> NDArray[np.void]:
    raw = Generator(Philox(seed)).integers(0, 256, count * kind.layout.itemsize, np.uint8)
    return raw.view(kind.layout)


def set_d(blocks: NDArray[np.void], halves: Any) -> NDArray[np.void]:
    """Set each block's scale to this half, given as bits."""
    bits = np.broadcast_to(np.asarray(halves, np.uint16), blocks.shape)
    if "d" in (blocks.dtype.names or ()):
        blocks["d"] = bits.view(np.float16)
    else:  # IQ1_M stores it in the highest nibbles of its four scales
        nibbles = np.stack([bits >> 4 * i & 15 for i in range(4)], axis=1)
        blocks["scales"] = blocks["scales"] & 0x0FFF | nibbles.astype(np.uint16) << 12
    return blocks


def entries_and_signs(kind: type[WeightFormat], count: int) -> NDArray[np.void]:
    """Return blocks with random indices and signs, and with scales for which weights equal entries
    (for IQ1: entries + or - 1/8)."""
    blocks = random_blocks(kind, count, seed=11)
    names = blocks.dtype.names or ()
    for name in (n for n in names if n.startswith("scales")):
        blocks[name] = blocks[name] & 0x0FFFFFFF if name == "scales_and_signs" else 0
    if kind.name == "IQ2_XXS":
        blocks["qs"][:, 3::4] &= 0x0FFF
    if kind.name == "IQ1_S":
        blocks["qh"] &= 0x8FFF
    if kind.name == "IQ4_XS":
        blocks["scales_h"] = 0xAAAA  # scale 32; the next line changes it to 33
        blocks["scales_l"] = 0x11
    one = {"IQ2_XXS": 8, "IQ2_XS": 8, "IQ2_S": 8, "IQ3_XXS": 4}.get(kind.name, 1)
    return set_d(blocks, np.float16(one).view(np.uint16))


BOOK_OF = {
    "IQ1_M": ("iq1", 8), "IQ1_S": ("iq1", 8), "IQ2_S": ("iq2_s", 8), "IQ2_XS": ("iq2_xs", 8),
    "IQ2_XXS": ("iq2_xxs", 8), "IQ3_S": ("iq3_s", 4), "IQ3_XXS": ("iq3_xxs", 4),
    "IQ4_NL": ("iq4_nl", 1), "IQ4_XS": ("iq4_nl", 1),
}  # fmt: skip
SIGN_PATTERNS = {"IQ2_XXS": 128, "IQ2_XS": 128, "IQ3_XXS": 128, "IQ2_S": 256, "IQ3_S": 256}


@pytest.mark.parametrize("kind", IQ, ids=lambda kind: kind.name)
def test_every_entry_and_sign_pattern_decodes_as_in_the_library(
    kind: type[WeightFormat], library: Any
) -> None:
    blocks = entries_and_signs(kind, 4096)
    found = kind.dequantize(blocks.view(np.uint8))
    book, length = BOOK_OF[kind.name]
    entry = np.rint(found) if book.startswith(("iq1", "iq4")) else np.abs(found)
    met = np.unique(entry.reshape(-1, length), axis=0)
    assert np.array_equal(met, np.unique(values(book, length), axis=0)), "not every entry was met"
    if kind.name in SIGN_PATTERNS:
        signs = np.packbits(np.signbit(found.reshape(-1, 8)), axis=1)
        assert len(np.unique(signs)) == SIGN_PATTERNS[kind.name], "not every pattern was met"
    assert same(found, by_ggml(library, kind, blocks))
