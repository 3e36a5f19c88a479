"""An endless series of GGUF files: valid, unusual, broken in one or several named ways, and
mutated.

The seed, the family and n determine case n. Cases of the family `corpus` also depend on its files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import pack_into

import numpy as np
from numpy.random import Philox

from lockstep.engine.gguf.fields import SCALARS, ValueType
from lockstep.engine.gguf.types import TYPES
from lockstep.harness.fuzzers.gguf import table_faults as _gguf_table_faults  # noqa: F401  fills the table of faults
from lockstep.harness.fuzzers.gguf.draft import FileDraft, array, string
from lockstep.harness.fuzzers.gguf.faults import FAULTS, FileFault
from lockstep.harness.synth.draws import stream

FAMILIES = ("valid", "broken", "several", "mutated", "corpus")
NUMBERS = 96  # random numbers drawn in advance for each case; few cases need more
# bytes of a file of the corpus; larger files are not mutated, because that costs too much
LARGEST = 1 << 16

VALID = [f for f in FAULTS.values() if not f.kinds]
BROKEN = [f for f in FAULTS.values() if f.kinds]
# values that often make counts, lengths, offsets and types wrong
EDGES = [0, 1, 2, 3, 7, 8, 9, 13, 31, 32, 33, 63, 64, 127, 128, 255, 256, 65535, 65536, 2**24]
EDGES += [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**60, 2**61, 2**62, 2**63 - 1, 2**63]
EDGES += [2**64 - 64, 2**64 - 32, 2**64 - 8, 2**64 - 1]


class DrawnNumbers:
    """The random numbers of one case. Numbers that were drawn ahead come first, and then a separate
    stream."""

    __slots__ = ("left", "more")

    def __init__(self, left: list[int], more: Callable[[], list[int]]) -> None:
        self.left = left
        self.more = more

    def below(self, n: int) -> int:
        if not self.left:
            self.left = self.more()
        return self.left.pop() * n >> 64


def numbers_of(seed: int, family: str, first: int, count: int) -> list[DrawnNumbers]:
    """Return the numbers of the cases from `first` on. Philox makes four numbers for each step of
    its counter."""
    name = f"fuzz.gguf.{family}"
    key = stream(seed, name).state["state"]["key"]
    bits = Philox(key=key, counter=first * (NUMBERS // 4))
    drawn = bits.random_raw(NUMBERS * count).reshape(count, NUMBERS).tolist()

    def more(at: int) -> Callable[[], list[int]]:
        bits: list[Philox] = []

        def draw() -> list[int]:
            if not bits:
                bits.append(stream(seed, f"{name}.{at}"))
            found: list[int] = bits[0].random_raw(1024).tolist()
            return found

        return draw

    return [DrawnNumbers(row, more(first + i)) for i, row in enumerate(drawn)]


@dataclass(frozen=True, slots=True)
class FileCase:
    """A file with its number, its bytes, and its faults.

    again: the option that names a user's file; empty for a numbered case.
    """

    number: int
    raw: bytes
    faults: tuple[str, ...] = ()
    again: tuple[str, str] | tuple[()] = ()

    @property
    def name(self) -> str:
        """Return the name of a user's file, or the first digits of bytes that the user gave as
        hex."""
        kind, name = self.again or ("", "")
        return name[:80] if kind == "--hex" else name


def cases(
    seed: int, family: str, first: int, count: int, corpus: Sequence[bytes] = ()
) -> list[FileCase]:
    """Return the cases from `first` on. corpus: the files that the family mutates."""
    make = MAKERS[family]
    usable = [raw for raw in corpus if len(raw) <= LARGEST]
    drawn = numbers_of(seed, family, first, count)
    return [make(first + i, draw, usable) for i, draw in enumerate(drawn)]


class Least:
    """A source of draws that always takes the first choice."""

    def below(self, n: int) -> int:
        return 0


def alone(name: str) -> bytes:
    """Return the bytes of a file with only this fault."""
    draft = FileDraft()
    FAULTS[name].apply(draft, Least())
    return draft.raw()


# --- valid files ------------------------------------------------------------------------------

KEYS = [
    *(b"general.architecture", b"general.name", b"general.file_type", b"llama.block_count"),
    *(b"tokenizer.ggml.tokens", b"k", b"a.b.c", b"general.quantization_version", b"x_1"),
]
NAMES = [b"token_embd.weight", b"blk.0.attn_q.weight", b"output_norm.weight", b"t", b"rope_freqs"]
TEXTS = [b"", b"a", b"llama", b"\xe2\x96\x81the", b"\xf0\x9f\xa6\x99", b"<0x0A>", b"x" * 40, b" "]
LAYOUTS = [(kind.id, kind.block, kind.bytes) for kind in TYPES.values()]
LAYOUTS += [(0, 1, 4)] * 20  # F32, the most frequent type
SIZES = {int(kind): scalar.size for kind, scalar in SCALARS.items()}
STR, ARR, BOOL = int(ValueType.STR), int(ValueType.ARR), int(ValueType.BOOL)


def items(draw: DrawnNumbers, kind: int, n: int) -> bytes:
    if kind == STR:
        return b"".join(string(TEXTS[draw.below(len(TEXTS))]) for _ in range(n))
    if kind == BOOL:
        return bytes(draw.below(2) for _ in range(n))
    size = n * SIZES[kind]
    word = draw.below(1 << 64).to_bytes(8, "little")
    return (word * (size // 8 + 1))[:size]


def add_pair(draft: FileDraft, draw: DrawnNumbers, at: int) -> None:
    key = KEYS[at] if at < len(KEYS) else b"more.%d" % at
    kind = draw.below(13)
    if kind != ARR:
        draft.put(key, kind, items(draw, kind, 1))
        return
    element, n = draw.below(12), draw.below(5)
    element += element >= ARR  # an array of arrays is a separate fault
    draft.put(key, ARR, array(element, n, items(draw, element, n)))


def add_row(draft: FileDraft, draw: DrawnNumbers, at: int) -> None:
    kind, block, size = LAYOUTS[draw.below(len(LAYOUTS))]
    shape = draw.below(64)
    ne = [block * (1 + shape % 3), *(1 + (shape >> i) % 2 for i in range(2, 2 + draw.below(4)))]
    count = int(np.prod(ne)) // block if len(ne) > 2 else ne[0] // block * (ne[1:] or [1])[0]
    draft.add(NAMES[at % len(NAMES)] + (b"" if at < len(NAMES) else b"%d" % at), tuple(ne), kind,
              count * size)  # fmt: skip


def plain_draft(draw: DrawnNumbers) -> FileDraft:
    """Return a valid file without anything unusual."""
    draft = FileDraft()
    shape = draw.below(1 << 32)
    start = shape >> 8 & 7  # selects the keys that are written
    for at in range(shape % 5):
        add_pair(draft, draw, start + at)
    for at in range((shape >> 16) % 4):
        add_row(draft, draw, at)
    return draft


def choose_fault(draw: DrawnNumbers, table: Sequence[FileFault]) -> FileFault:
    return table[draw.below(len(table))]


def of_valid(number: int, draw: DrawnNumbers, corpus: Sequence[bytes]) -> FileCase:
    """Draw a valid file. Half of these files have something unusual."""
    draft = plain_draft(draw)
    if number % 2:
        return FileCase(number, draft.raw())
    fault = choose_fault(draw, VALID)
    fault.apply(draft, draw)
    return FileCase(number, draft.raw(), (fault.name,))


def of_broken(number: int, draw: DrawnNumbers, corpus: Sequence[bytes]) -> FileCase:
    """Draw a file with one fault. All faults are used equally often."""
    draft, fault = plain_draft(draw), BROKEN[number % len(BROKEN)]
    fault.apply(draft, draw)
    return FileCase(number, draft.raw(), (fault.name,))


def of_several(number: int, draw: DrawnNumbers, corpus: Sequence[bytes]) -> FileCase:
    draft = plain_draft(draw)
    faults = [choose_fault(draw, EVERY) for _ in range(2 + draw.below(3))]
    for fault in faults:
        fault.apply(draft, draw)
    return FileCase(number, draft.raw(), tuple(fault.name for fault in faults))


EVERY = list(FAULTS.values())

# --- mutated files ----------------------------------------------------------------------------


def of_mutated(number: int, draw: DrawnNumbers, corpus: Sequence[bytes]) -> FileCase:
    draft = plain_draft(draw)
    if draw.below(4) == 0:
        choose_fault(draw, VALID).apply(draft, draw)
    return FileCase(number, mutate_file(draw, draft.raw(), corpus))


def of_corpus(number: int, draw: DrawnNumbers, corpus: Sequence[bytes]) -> FileCase:
    raw = corpus[number % len(corpus)]
    return FileCase(number, raw if number < len(corpus) else mutate_file(draw, raw, corpus))


def mutate_file(draw: DrawnNumbers, raw: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return the file after one to four changes. Most are in the first kilobyte, where small files
    have their tables."""
    made = bytearray(raw)
    for _ in range(1 + draw.below(4)):
        change(made, draw)
    return bytes(made)


def change(made: bytearray, draw: DrawnNumbers) -> None:
    reach = len(made) + 1 if draw.below(4) == 0 else min(len(made) + 1, 1024)
    at = draw.below(reach)
    CHANGES[draw.below(len(CHANGES))](made, at, draw)


def flip(made: bytearray, at: int, draw: DrawnNumbers) -> None:
    if at < len(made):
        made[at] ^= 1 << draw.below(8)


def edge(made: bytearray, at: int, draw: DrawnNumbers) -> None:
    """Overwrite one, four or eight bytes with an extreme integer, or change their value a
    little."""
    size = (1, 4, 8, 8)[draw.below(4)]
    at = max(0, min(at, len(made) - size))
    if len(made) < size:
        return
    word = EDGES[draw.below(len(EDGES))]
    if draw.below(3) == 0:
        word = int.from_bytes(made[at : at + size], "little") + draw.below(9) - 4
    made[at : at + size] = (word % (1 << 8 * size)).to_bytes(size, "little")


def at_a_length(made: bytearray, at: int, draw: DrawnNumbers) -> None:
    """Change an eight-byte field that looks like a length, because it is a small number followed by
    seven zeros."""
    found = made.find(bytes(7), at)
    if found > 0 and len(made) >= found + 7:
        pack_into("<Q", made, found - 1, EDGES[draw.below(len(EDGES))])


def drop(made: bytearray, at: int, draw: DrawnNumbers) -> None:
    del made[at : at + 1 + draw.below((1, 8, 32)[draw.below(3)])]


def repeat(made: bytearray, at: int, draw: DrawnNumbers) -> None:
    made[at:at] = made[at : at + 1 + draw.below((4, 16, 64)[draw.below(3)])]


def insert(made: bytearray, at: int, draw: DrawnNumbers) -> None:
    made[at:at] = bytes([draw.below(256)]) * (1 + draw.below(8))


def move(made: bytearray, at: int, draw: DrawnNumbers) -> None:
    """Copy some bytes of the file over others."""
    n, start = 1 + draw.below(32), draw.below(len(made) + 1)
    made[at : at + n] = made[start : start + n]


def cut(made: bytearray, at: int, draw: DrawnNumbers) -> None:
    del made[at:]


CHANGES = (flip, flip, edge, edge, edge, at_a_length, at_a_length, drop, repeat, insert, move, cut)
MAKERS: dict[str, Callable[[int, DrawnNumbers, Sequence[bytes]], FileCase]] = {
    "valid": of_valid,
    "broken": of_broken,
    "several": of_several,
    "mutated": of_mutated,
    "corpus": of_corpus,
}
