"""The named entries of a file: the offset of each, and its value when a caller asks for it.

A metadata pair or a row of the tensor table has at least 14 bytes in a file, but some hundred bytes
as a Python object. A file of many such entries must not take several times its size in memory. So
an entry is kept as its offset (8 bytes) and a slot in a hash table (6 to 12 bytes). While the table
grows, an entry takes 26 bytes for a moment; a pair with a distinct name has at least 16 bytes.
"""

import mmap
from array import array
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import Generic, TypeVar

Buffer = bytes | mmap.mmap
Entry = TypeVar("Entry")
LENGTH = Struct("<Q")


class Entries(Mapping[str, Entry], Generic[Entry]):
    """Entries in the order of the file. Each starts with its name: a length and UTF-8 bytes.

    decode(buffer, start): called at each access to an entry; the first `keep` results are cached. A
    model has some hundred tensors, and a run reads all of them at every step.
    """

    def __init__(
        self, buffer: Buffer, decode: Callable[[Buffer, int], Entry], *, keep: int = 0
    ) -> None:
        self.buffer, self.decode, self.keep = buffer, decode, keep
        self.kept: dict[str, Entry] = {}
        self.starts = array("Q")
        self.slots = array("I", bytes(32))  # 1 + the number of an entry; 0: free

    def add(self, name: bytes, start: int) -> bool:
        """Add an entry. Return False if the name is there already."""
        slot = self.slot_of(name)
        if self.slots[slot]:
            return False
        self.starts.append(start)
        self.slots[slot] = len(self.starts)
        if 3 * len(self.starts) > 2 * len(self.slots):
            self.grow()
        return True

    def grow(self) -> None:
        size = 2 * len(self.slots)
        self.slots = array("I" if size < 1 << 32 else "Q", [0]) * size
        for number, start in enumerate(self.starts, 1):
            self.slots[self.slot_of(self.name_at(start))] = number

    def slot_of(self, name: bytes) -> int:
        """Return the slot of a name, or the free slot for it.

        Python salts hashes, so nobody can make a file whose names collide.
        """
        mask = len(self.slots) - 1
        slot = hash(name) & mask
        while (number := self.slots[slot]) and self.name_at(self.starts[number - 1]) != name:
            slot = (slot + 1) & mask
        return slot

    def name_at(self, start: int) -> bytes:
        at = start + LENGTH.size
        return self.buffer[at : at + LENGTH.unpack_from(self.buffer, start)[0]]

    def __getitem__(self, name: str) -> Entry:
        if name in self.kept:
            return self.kept[name]
        number = self.slots[self.slot_of(name.encode("utf-8", "surrogatepass"))]
        if number == 0:
            raise KeyError(name)
        found = self.decode(self.buffer, self.starts[number - 1])
        if len(self.kept) < self.keep:
            self.kept[name] = found
        return found

    def __contains__(self, name: object) -> bool:
        """Look up the name without decoding its value, which may be an array of 100,000 strings or
        more.
        """
        if not isinstance(name, str):
            return False
        return self.slots[self.slot_of(name.encode("utf-8", "surrogatepass"))] != 0

    def __iter__(self) -> Iterator[str]:
        return (self.name_at(start).decode() for start in self.starts)

    def __len__(self) -> int:
        return len(self.starts)
