"""Damaged state files: a file that llama.cpp wrote, and edits to it. The JSON form has a base and a
list of edits.

["cut", n] keeps n bytes; ["set", at, hex] overwrites bytes; ["insert", at, hex] inserts bytes;
["remove", at, n] removes n bytes; ["stranger", name] replaces the file by the file of that name in
saved.STRANGERS.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.harness.check.check import BadInput
from lockstep.harness.fuzzers.draw import Draw
from lockstep.harness.fuzzers.states.saved import BASES, STRANGERS, SavedBase, SavedStates

Edit = tuple[Any, ...]
EDGES = (0, 1, 2, 3, 8, 30, 255, 256, 512, 65535, 2**31 - 1, 2**31, 2**32 - 1)
MOST_EDITS = 3
LARGEST = 1 << 20  # limit for bytes that an edit adds, and for its numbers


@dataclass(frozen=True)
class StateCase:
    """A damaged state. base: a name in saved.BASES."""

    number: int
    base: str
    edits: tuple[Edit, ...]

    def text(self) -> str:
        return json.dumps({"base": self.base, "edits": self.edits}, separators=(",", ":"))

    def raw(self, saved: SavedStates) -> bytes:
        raw = bytearray(saved.base(self.base).raw)
        for name, *rest in self.edits:
            if name == "stranger":
                raw = bytearray(saved.base(self.base, rest[0]).raw)
            elif name == "cut":
                del raw[rest[0] :]
            elif name == "remove":
                del raw[rest[0] : sum(rest)]
            else:
                new = bytes.fromhex(rest[1])
                raw[rest[0] : rest[0] + (len(new) if name == "set" else 0)] = new
        return bytes(raw)

    def regions(self, base: SavedBase) -> str:
        """Return the names of the damaged parts, sorted: numbers, `values`, or names of edits."""
        found = (
            rest[0] if name == "stranger" else base.region(rest[0]) if name == "set" else name
            for name, *rest in self.edits
        )
        return "+".join(sorted(set(found)))


def state_case_from(text: bytes) -> StateCase:
    """Read a damaged file's recipe from JSON. Raises BadInput."""
    try:
        found = json.loads(text)
        edits = tuple(map(tuple, found["edits"]))
        case = StateCase(0, found["base"], edits)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadInput(f"--case {text[:80]!r} is not a damaged state file: {error}") from None
    if case.base not in BASES:
        raise BadInput(f"--case: no base {case.base!s:.40} (known: {', '.join(BASES)})")
    for edit in edits:
        check_edit(edit)
    return case


def check_edit(edit: Edit) -> None:
    kinds = {"cut": [int], "set": [int, str], "insert": [int, str], "remove": [int, int]}
    kinds["stranger"] = [str]
    name, *rest = edit or ("",)
    fine = isinstance(name, str) and [type(each) for each in rest] == kinds.get(name)
    fine = fine and all(0 <= each <= LARGEST for each in rest if type(each) is int)
    if fine and name == "stranger":
        fine = rest[0] in STRANGERS
    if fine and name in ("set", "insert"):
        fine = len(rest[1]) <= LARGEST and is_hex(rest[1])
    if not fine:
        raise BadInput(f"--case: no edit {edit!s:.80} (known: {', '.join(kinds)})")


def is_hex(text: str) -> bool:
    try:
        bytes.fromhex(text)
    except ValueError:
        return False
    return True


# --- random choices -------------------------------------------------------------------------------


def state_case(number: int, base: str, draw: Draw, saved: SavedBase) -> StateCase:
    """Return a random case. Most have one edit; about 1 file in 64 is whole, and 1 in 16 comes from
    another model or context."""
    if draw.below(64) == 0:
        return StateCase(number, base, ())
    if draw.below(16) == 0:
        return StateCase(number, base, (("stranger", STRANGERS[draw.below(len(STRANGERS))]),))
    n = 1 if draw.below(4) else 1 + draw.below(MOST_EDITS)
    edits = tuple(MAKERS[draw.below(len(MAKERS))](draw, saved) for _ in range(n))
    return StateCase(number, base, edits)


def make_cut(draw: Draw, saved: SavedBase) -> Edit:
    return "cut", draw.below(len(saved.raw))


def flip_number(draw: Draw, saved: SavedBase) -> Edit:
    place = saved.places[draw.below(len(saved.places))]
    return flip(draw, saved, place.at + draw.below(place.size))


def flip_value(draw: Draw, saved: SavedBase) -> Edit:
    if not saved.values:
        return flip_number(draw, saved)
    some = saved.values[draw.below(len(saved.values))]
    return flip(draw, saved, some.start + draw.below(len(some)))


def flip(draw: Draw, saved: SavedBase, at: int) -> Edit:
    return "set", at, bytes([saved.raw[at] ^ 1 << draw.below(8)]).hex()


def set_number(draw: Draw, saved: SavedBase) -> Edit:
    """Return an edit that sets a number to an extreme integer, to a value close to its own, or to a
    value from another place of the same name."""
    place = saved.places[draw.below(len(saved.places))]
    now = int.from_bytes(saved.raw[place.at : place.at + place.size], "little")
    way = draw.below(3)
    value = EDGES[draw.below(len(EDGES))] if way == 0 else now + draw.below(9) - 4
    if way == 2:
        alike = [each for each in saved.places if each.name == place.name]
        other = alike[draw.below(len(alike))]
        value = int.from_bytes(saved.raw[other.at : other.at + other.size], "little")
    value %= 1 << 8 * place.size
    return "set", place.at, value.to_bytes(place.size, "little").hex()


def insert_bytes(draw: Draw, saved: SavedBase) -> Edit:
    """Return an edit that inserts bytes, half of the time at the end."""
    at = len(saved.raw) if draw.below(2) else draw.below(len(saved.raw))
    return "insert", at, bytes(draw.below(256) for _ in range(1 + draw.below(8))).hex()


def remove_bytes(draw: Draw, saved: SavedBase) -> Edit:
    return "remove", draw.below(len(saved.raw)), 1 + draw.below(8)


MAKERS: Sequence[Callable[[Draw, SavedBase], Edit]] = (
    *(make_cut, make_cut, flip_number, flip_number, set_number, set_number, set_number),
    *(flip_value, insert_bytes, remove_bytes),
)
