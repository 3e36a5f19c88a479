"""Write the code books of the IQ formats into engine/quants/codebooks, as decoded by llama.cpp.

    python tests/scripts/make_codebooks.py          # writes the files and SHA256SUMS
    python tests/scripts/make_codebooks.py --check  # writes nothing, fails if they would differ

No table is copied. To get an entry, the library's own `to_float` decodes a block that has only this
entry's index and scale 1. The layouts below repeat a little of engine/quants on purpose: the
decoders there need these files before they can be imported.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.adapters.llama_cpp.lib import library

HERE = Path(__file__).resolve().parents[2] / "engine" / "quants" / "codebooks"
Floats = NDArray[np.float32]

IDS = {
    "IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19, "IQ4_NL": 20, "IQ3_S": 21,
    "IQ2_S": 22, "IQ1_M": 29,
}  # fmt: skip
LAYOUTS = {
    "IQ2_XXS": np.dtype([("d", "<f2"), ("qs", "<u2", 32)]),
    "IQ2_XS": np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)]),
    "IQ2_S": np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("scales", "u1", 8)]),
    "IQ3_XXS": np.dtype([("d", "<f2"), ("qs", "u1", 96)]),
    "IQ3_S": np.dtype(
        [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
    ),
    "IQ1_S": np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)]),
    "IQ1_M": np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)]),
    "IQ4_NL": np.dtype([("d", "<f2"), ("qs", "u1", 16)]),
}


def decoded(type_name: str, blocks: NDArray[np.void]) -> Floats:
    """Return the weights of n blocks as floats, (n, weights), by the library."""
    traits = library().ggml.ggml_get_type_traits(IDS[type_name]).contents
    if traits.block_bytes != blocks.itemsize:
        raise ValueError(
            f"{type_name}: this library's blocks have {traits.block_bytes} bytes,"
            f" ours {blocks.itemsize}"
        )
    found = np.empty((blocks.size, traits.block_weights), np.float32)
    traits.to_float(blocks.ctypes.data, found.ctypes.data, found.size)
    return found


def entries(type_name: str, count: int, length: int, scale: float, high: str = "") -> Floats:
    """Return the entries 0 .. count - 1, (count, length), decoded from blocks whose first index is
    the entry's number. The low 8 bits of an index go to `qs`, the other bits to the lowest bits of
    the field `high`."""
    blocks = np.zeros(count, LAYOUTS[type_name])
    blocks["d"] = scale
    index = np.arange(count)
    blocks["qs"][:, 0] = index & 0xFF if high else index
    if high:
        blocks[high][:, 0] = index >> 8
    return decoded(type_name, blocks)[:, :length]


def whole(values: NDArray[Any]) -> NDArray[np.int8]:
    """Return the values as integers. Raises ValueError for other numbers, because then the scale
    was not 1."""
    found = values.astype(np.int8)
    if not np.array_equal(found, values):
        raise ValueError(f"not all of {np.unique(values)} are integers of 8 bits")
    return found


def iq1() -> NDArray[np.int8]:
    """Return the entries of IQ1, whose weights are d * (entry + 1 / 8); IQ1_M must have the same
    entries."""
    found = whole((entries("IQ1_S", 2048, 8, scale=8, high="qh") - 1) / 8)
    blocks = np.zeros(2048, LAYOUTS["IQ1_M"])
    blocks["qs"][:, 0] = np.arange(2048) & 0xFF
    blocks["qh"][:, 0] = np.arange(2048) >> 8
    d = int(np.float16(8).view(np.uint16))  # the top nibbles of the four scales
    blocks["scales"] = [(d >> 4 * i & 15) << 12 for i in range(4)]
    if not np.array_equal(found, (decoded("IQ1_M", blocks)[:, :8] - 1) / 8):
        raise ValueError("IQ1_S and IQ1_M have different code books in this library")
    return found


def signs() -> NDArray[np.int8]:
    """Return, for each 7-bit number, the mask of negative weights among 8, lowest bit first: (128,
    1)."""
    blocks = np.zeros(128, LAYOUTS["IQ2_XXS"])
    blocks["d"] = 8
    blocks["qs"][:, 2] = np.arange(128)  # the third of four words that 32 weights share
    negative = decoded("IQ2_XXS", blocks)[:, :8] < 0
    return np.packbits(negative, axis=1, bitorder="little").view(np.int8)


BOOKS: dict[str, Callable[[], NDArray[np.int8]]] = {
    "iq1": iq1,
    "iq2_xxs": lambda: whole(entries("IQ2_XXS", 256, 8, scale=8)),  # weights: d / 8 * entry
    "iq2_xs": lambda: whole(entries("IQ2_XS", 512, 8, scale=8)),
    "iq2_s": lambda: whole(entries("IQ2_S", 1024, 8, scale=8, high="qh")),
    "iq3_xxs": lambda: whole(entries("IQ3_XXS", 256, 4, scale=4)),  # d / 4 * entry
    "iq3_s": lambda: whole(entries("IQ3_S", 512, 4, scale=1, high="qh")),
    "iq4_nl": lambda: whole(entries("IQ4_NL", 16, 1, scale=1)),
    "signs": signs,
}


def files() -> dict[str, str]:
    """Return the text of each file by name: an entry per line, two hexadecimal digits per value."""
    found = {
        f"{name}.hex": "".join(f"{row.tobytes().hex()}\n" for row in book())
        for name, book in sorted(BOOKS.items())
    }
    sums = [f"{hashlib.sha256(text.encode()).hexdigest()}  {name}" for name, text in found.items()]
    return found | {"SHA256SUMS": "\n".join(sums) + "\n"}


def main() -> str | None:
    """Write or check the books; return an error message, or None."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args().check
    changed = []
    for name, text in files().items():
        path = HERE / name
        if not path.exists() or path.read_bytes() != text.encode():
            changed.append(name)
            if not check:
                path.write_bytes(text.encode())
    if check and changed:
        return f"{library().version} says something else than {', '.join(changed)}"
    return None


if __name__ == "__main__":
    sys.exit(main())
