"""The code books of the IQ formats: tables of short vectors that the bytes of a block point into.

The tables were measured by tests/scripts/make_codebooks.py from llama.cpp (llama-cpp-python 0.3.36)
and stored here as `<name>.hex`: an entry per line, two hexadecimal digits per value, lowest index
first. `sha256sum -c SHA256SUMS` in this folder checks that the files are unchanged since.

    iq1      2048 x 8  -1, 0 or 1; a weight is d * (value + 1/8) or d * (value - 1/8)
    iq2_xxs   256 x 8  8, 25 or 43: magnitudes in eighths of d; signs are stored separately
    iq2_xs    512 x 8  the same
    iq2_s    1024 x 8  the same
    iq3_xxs   256 x 4  4 to 62: magnitudes in quarters of d
    iq3_s     512 x 4  1, 3 .. 15: magnitudes
    iq4_nl     16 x 1  -127 to 113: values of a nibble
    signs     128 x 1  8 sign bits for the 7 that are stored: the number of ones is always even
"""

from importlib import resources
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from lockstep.engine.kernels.lanes import Lanes, compiled_as, kernel
from lockstep.engine.kernels.vectors import I8, I64, element_pointer, number, pack_vector


def codebook(name: str) -> NDArray[Any]:
    """Return each entry as one unsigned number, its first value in the lowest byte: (entries,)."""
    text = resources.files(__name__).joinpath(f"{name}.hex").read_text("ascii")
    found = [bytes.fromhex(line) for line in text.splitlines()]
    (length,) = {len(entry) for entry in found}
    numbers: NDArray[Any] = np.frombuffer(b"".join(found), f"<u{length}")
    return numbers


SIGNS = codebook("signs")


@compiled_as
def entries(typing: Any, book: Any, indices: Any) -> Any:
    """Return the values of the entries at `indices`, one entry after the other, as int lanes.

    `indices`: int lanes, or a tuple of integers; all must be within the book.
    """
    in_lanes = isinstance(indices, Lanes)
    length, count = book.dtype.bitwidth // 8, indices.count if in_lanes else len(indices)
    lanes = Lanes("int", length * count)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = []
        for i in range(count):
            if in_lanes:
                index = builder.zext(builder.extract_element(args[1], number(i)), I64)
            else:
                index = builder.extract_value(args[1], i)
            entry = element_pointer(context, builder, book, args[0], index)
            found.append(builder.load(entry))
        values = builder.bitcast(pack_vector(builder, found), ir.VectorType(I8, lanes.count))
        return builder.sext(values, lanes.vector)

    exact = indices if in_lanes else types.UniTuple(types.int64, count)
    return lanes(book, exact), codegen


@kernel
def four_signs(word: Any) -> Any:
    """Return 4 x 8 sign bits from 4 x 7 bits, from the lowest up."""
    low = SIGNS[word & 127] | SIGNS[word >> 7 & 127] << 8
    return low | SIGNS[word >> 14 & 127] << 16 | SIGNS[word >> 21 & 127] << 24
