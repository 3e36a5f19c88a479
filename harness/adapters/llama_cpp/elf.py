"""Platform, exported names and needed libraries of a shared library, read from its ELF file.

The library is not loaded. So libraries that cannot or should not be loaded here can be read too.
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

MAGIC = b"\x7fELF"
SECTION, SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
ENTRY = struct.Struct("<qQ")  # entry of the dynamic section
DYNAMIC, DYNSYM = 6, 11  # types of sections
NEEDED = 1  # tag of a dynamic entry
STRONG = 1  # STB_GLOBAL: functions that are neither templates nor inline
MACHINES = {3: "x86", 40: "ARM", 62: "x86-64", 183: "AArch64", 243: "RISC-V"}


class NotElf(Exception):
    """Raised if a file is not an ELF library, or is broken. The message completes a sentence that
    begins with the path."""


@dataclass(frozen=True)
class Target:
    """Word size, byte order and processor of an ELF file."""

    word: int  # 1: 32 bits, 2: 64 bits
    order: int  # 1: little-endian
    machine: int

    @classmethod
    def of(cls, header: bytes) -> "Target":
        if len(header) < 20 or not header.startswith(MAGIC):
            raise NotElf(f"is not an ELF library: it begins with {header[:8]!r}")
        return cls(header[4], header[5], int.from_bytes(header[18:20], "little"))

    def __str__(self) -> str:
        return MACHINES.get(self.machine, f"ELF machine {self.machine}")


def own_target() -> Target:
    """Return the platform that this Python is built for."""
    with open(sys.executable, "rb") as file:
        return Target.of(file.read(20))


class Elf:
    """A library of 64-bit little-endian code. Raises NotElf, or OSError if the file cannot be
    read."""

    def __init__(self, path: Path) -> None:
        self.raw = path.read_bytes()
        self.target = Target.of(self.raw)

    @cached_property
    def exported(self) -> frozenset[bytes]:
        """Return the exported names that the library defines. Inline functions and templates are
        excluded, because they vary with the compiler."""
        return frozenset(
            name
            for at, info, visible, section, _, _ in self._entries(DYNSYM, SYMBOL)
            if info >> 4 == STRONG and section and not visible
            for name in [self._name(DYNSYM, at)]
        )

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """Return the file names of the libraries that this library needs."""
        entries = self._entries(DYNAMIC, ENTRY)
        return tuple(self._name(DYNAMIC, at).decode() for tag, at in entries if tag == NEEDED)

    @cached_property
    def _sections(self) -> dict[int, tuple[int, int, int]]:
        """Return offset, size in bytes, and offset of the names, for each kind of section."""
        try:
            start, (size, count) = int.from_bytes(self.raw[40:48], "little"), self._sizes()
            every = [SECTION.unpack_from(self.raw, start + i * size) for i in range(count)]
            return {s[1]: (s[4], s[5], every[s[6]][4]) for s in every if s[1] in (DYNAMIC, DYNSYM)}
        except (struct.error, IndexError) as error:
            raise NotElf("is truncated or broken") from error

    def _sizes(self) -> tuple[int, int]:
        size, count = struct.unpack_from("<HH", self.raw, 58)
        return size, count

    def _entries(self, kind: int, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
        if kind not in self._sections:
            raise NotElf("has no table of exported names")
        start, size, _ = self._sections[kind]
        raw = self.raw[start : start + size]
        return layout.iter_unpack(raw[: len(raw) - len(raw) % layout.size])

    def _name(self, kind: int, at: int) -> bytes:
        start = self._sections[kind][2] + at
        return self.raw[start : self.raw.find(b"\0", start)]
