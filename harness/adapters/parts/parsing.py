"""Questions to parsers of GGUF files, many files at a time, and the possible answers.

The question is `parse(blob, ends, way)`: file i is `blob[ends[i - 1]:ends[i]]`. Two parsers have
read the same content if their digests are equal. A digest covers the header, every pair, and every
row of the tensor table.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.gguf.fields import KINDS

# our reader's reasons, and two reasons that only others give: out of memory, or any other
OUT_OF_MEMORY = "memory"
REFUSALS = (*sorted(KINDS), OUT_OF_MEMORY, "other")
ACCEPTED, CRASHED, HUNG = "accepted", "crashed", "hung"
ENDINGS = (ACCEPTED, *REFUSALS, CRASHED, HUNG)
NUMBER = {ending: i for i, ending in enumerate(ENDINGS)}

SPARE_MEMORY = 16 << 20  # bytes beyond a multiple of the file's size, which any program may use
# Bytes that a reader may use for each byte of a file. Ours decodes on demand. Other readers keep a
# std::string for each text of an array, which has at least 8 bytes, and tables of texts: less than
# 32 together. gguf-py keeps a numpy view of 0.72 kB for each element of an array, and an element
# may have one byte.
MEMORY_PER_BYTE = {"reference": 2, "gguf-py": 768}
OTHERS_PER_BYTE = 32


@dataclass(frozen=True, kw_only=True)
class CostLimits:
    """The limits for reading one file. Each limit is a constant plus an amount for each byte of the
    file."""

    seconds: float = 2.0  # processor time; a file takes microseconds
    seconds_per_byte: float = 1e-5
    memory: int = 1 << 30
    memory_per_byte: int = OTHERS_PER_BYTE

    def seconds_for(self, size: int) -> float:
        return self.seconds + self.seconds_per_byte * size

    def memory_for(self, size: int) -> int:
        return self.memory + self.memory_per_byte * size


def allowed_memory(engine: str, sizes: Any) -> Any:
    """Return the memory that the engine may use to read files of these sizes. An engine that uses
    more is reported as wasteful."""
    return SPARE_MEMORY + MEMORY_PER_BYTE.get(engine, OTHERS_PER_BYTE) * sizes


Row = tuple[str, int, int]  # ending, digest, peak memory in bytes or -1 if it was not measured


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """The answers about many files. words: the reason or the last words for some files, by
    index."""

    endings: NDArray[np.uint8]  # numbers of ENDINGS
    digests: NDArray[np.uint64]  # 0 for refused files, and for readers that show no contents
    peaks: NDArray[np.int64]  # bytes; -1 if not measured
    words: Mapping[int, str] = field(default_factory=dict)

    def ending(self, i: int) -> str:
        return ENDINGS[int(self.endings[i])]


def pack_files(files: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    ends = np.cumsum([len(raw) for raw in files], dtype=np.int64)
    return np.frombuffer(b"".join(files), np.uint8), ends


def files_of(blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> Iterator[bytes]:
    raw, start = blob.tobytes(), 0
    for end in ends.tolist():
        yield raw[start:end]
        start = end


def answer_of(rows: Iterable[Row], words: Mapping[int, str]) -> dict[str, Any]:
    """Return the answer in the form in which a worker sends it."""
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return {
        "endings": np.array([NUMBER[ending] for ending in columns[0]], np.uint8),
        "digests": np.array(columns[1], np.uint64),
        "peaks": np.array(columns[2], np.int64),
        "words": dict(words),
    }


def parse_answer(answer: Any, n: int) -> Parsed:
    """Return a worker's answer after a check. Raises ValueError if it is malformed."""
    found = Parsed(**answer)
    columns = (found.endings, found.digests, found.peaks)
    if any(not isinstance(c, np.ndarray) or c.shape != (n,) for c in columns):
        raise ValueError(f"the answer is not about {n} files")
    if found.endings.max(initial=0) >= len(ENDINGS):
        raise ValueError("an unknown ending")
    return found


# A digest consists of three digests of 21 bits, so that it also tells which part differs. One
# difference in two million is missed in a file, and found in the next.
PARTS = (("header", 0), ("pairs", 21), ("rows", 42))
PART_MASK = (1 << 21) - 1

# --- one spelling of what a file says ---------------------------------------------------------

Number = int | float | bool


def scalar(value: Number) -> Number | str:
    """Return a number that can be compared: all NaN are equal, a bool is 0 or 1, and -0.0 differs
    from 0."""
    if value != value:
        return "nan"
    return int(value) if isinstance(value, bool) else value


def to_c(raw: bytes) -> bytes:
    """Cut a key or string at its first zero byte, as a C interface does."""
    end = raw.find(0)
    return raw if end < 0 else raw[:end]


def extents(ne: Sequence[int]) -> tuple[int, ...]:
    """Return the extents without trailing extents of one, because ggml always has four
    dimensions."""
    sizes = [int(n) for n in ne]
    while sizes and sizes[-1] == 1:
        sizes.pop()
    return tuple(sizes)


def digest(head: tuple[int, int, int], pairs: Iterable[Any], rows: Sequence[Any]) -> int:
    """Return the digest of a parsed file. head: version, alignment, offset of the data; pairs: key,
    type, element's type or -1, value; rows: name, ne, type, offset, bytes.

    A value is bytes, a number, or a tuple of bytes; an array of numbers is the bytes of the file. A
    file without tensors has no data section, so the offset is ignored.
    """
    version, alignment, offset = head
    parts = (version, alignment, offset if rows else 0), tuple(pairs), tuple(rows)
    return sum(hash_part(part) << at for part, (_, at) in zip(parts, PARTS, strict=True))


def hash_part(part: Any) -> int:
    raw = hashlib.blake2b(repr(part).encode(), digest_size=8).digest()
    return int.from_bytes(raw, "little") & PART_MASK


def parts_that_differ(one: int, other: int) -> list[str]:
    return [name for name, at in PARTS if (one ^ other) >> at & PART_MASK]
