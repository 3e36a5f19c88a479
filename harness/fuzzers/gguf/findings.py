"""Rules for findings: when an answer about a file is a finding, what its cause is, and whether it
is known."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import MalformedFile
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.adapters.parts.parsing import (
    ACCEPTED,
    CRASHED,
    HUNG,
    NUMBER,
    OUT_OF_MEMORY,
    Parsed,
    allowed_memory,
    parts_that_differ,
)
from lockstep.harness.fuzzers.gguf.faults import FAULTS
from lockstep.harness.fuzzers.gguf.grammar import alone
from lockstep.harness.known import entries

PLACE = re.compile(r"GGML_ASSERT\(.*?\) failed|GGML_ABORT.*|what\(\): .*|^was killed by \w+")
TABLE = "table"
# ways that refuse files that are no models; such refusals are not compared
MODEL_WAYS = ("vocab", "load")


@dataclass(frozen=True, slots=True, order=True)
class FileCause:
    """The cause by which findings are counted. stage: an engine with its way to read, `table`, or
    only the subject."""

    stage: str
    symptom: str  # behaviour of the stage: accepts, refuses, value, crashes, hangs, memory
    kind: str  # reason of the other's refusal, the part that differs, the assertion, or ""

    def __str__(self) -> str:
        return "/".join((self.stage, self.symptom, self.kind))


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """An entry of [[gguf]] of harness/known.

    case: a file as hex, or `fault NAME` for a long file that has only this fault. ways: the
    component's ways to read that have this cause.
    """

    id: str
    component: str
    version: str
    ways: tuple[str, ...]
    symptom: str
    kind: str
    case: str
    sentence: str
    status: str
    link: str

    @property
    def raw(self) -> bytes:
        word, _, name = self.case.partition(" ")
        return alone(name) if word == "fault" else bytes.fromhex(self.case)

    @property
    def causes(self) -> list[FileCause]:
        return [FileCause(f"{self.component} {way}", self.symptom, self.kind) for way in self.ways]


def known_files() -> list[KnownFile]:
    return [KnownFile(**{**row, "ways": tuple(row["ways"])}) for row in entries("gguf")]


def suspects(
    engine: str, way: str, subject: Parsed, other: Parsed, sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the indices of files that may have a finding. `cause_of` decides if they do."""
    mine, theirs = subject.endings, other.endings
    yes, dead = NUMBER[ACCEPTED], NUMBER[CRASHED]
    odd = theirs >= dead
    odd |= other.peaks > allowed_memory(engine, sizes)
    if way in MODEL_WAYS:
        odd |= (theirs == yes) & (mine != yes)
    else:
        odd |= (mine == yes) != (theirs == yes)
        odd |= (mine == yes) & (theirs == yes) & (subject.digests != other.digests)
    found: NDArray[np.int64] = np.flatnonzero(odd)
    return found


def cause_of(
    engine: str, way: str, subject: Parsed, other: Parsed, i: int, raw: bytes
) -> FileCause | None:
    """Return the cause of the worst finding about file i; None if there is no finding. `own_cause`
    covers failures of the subject alone."""
    mine, theirs, stage = subject.ending(i), other.ending(i), f"{engine} {way}"
    wasteful = other.peaks[i] > allowed_memory(engine, len(raw))
    # depending on the processor, a parser that allocates without end reaches the limit of memory or
    # of time
    if theirs == HUNG or (theirs == OUT_OF_MEMORY and wasteful):
        return FileCause(stage, "hangs", "")
    if theirs == CRASHED:
        return FileCause(stage, "crashes", place_of(other, i))
    if wasteful:
        return FileCause(stage, "memory", mine)
    if theirs == ACCEPTED != mine:
        return None if mine in (CRASHED, HUNG) else FileCause(stage, "accepts", mine)
    if way in MODEL_WAYS or mine != ACCEPTED:
        return None
    if theirs != ACCEPTED:
        return FileCause(stage, "refuses", theirs)
    parts = parts_that_differ(int(subject.digests[i]), int(other.digests[i]))
    return FileCause(stage, "value", parts[0]) if parts else None


def place_of(answer: Parsed, i: int) -> str:
    """Return the place where a parser died, without parts that vary from file to file."""
    said = PLACE.findall(answer.words.get(i, ""))
    return str(said[-1]).replace("/", "|") if said else "death"


def own_cause(name: str, subject: Parsed, i: int, raw: bytes) -> FileCause | None:
    """Return the cause if the subject dies, hangs or uses too much memory, which no file
    excuses."""
    ending = subject.ending(i)
    if ending in (CRASHED, HUNG):
        words = subject.words.get(i, "").split(":")[0]
        return FileCause(name, "hangs" if ending == HUNG else "crashes", words)
    if subject.peaks[i] > allowed_memory(name, len(raw)):
        return FileCause(name, "memory", ending)
    return None


def table_cause(ending: str, faults: Sequence[str]) -> FileCause | None:
    """Return the cause if our reader's verdict differs from the table's, for a file with at most
    one fault."""
    if len(faults) > 1 or ending in (CRASHED, HUNG):
        return None
    kinds = FAULTS[faults[0]].kinds if faults else ()
    if ending in (kinds or (ACCEPTED,)):
        return None
    fault = faults[0] if faults else "no fault"
    return FileCause(TABLE, "accepts" if ending == ACCEPTED else "refuses", fault)


def refine_cause(cause: FileCause, raw: bytes) -> FileCause:
    """Return the cause with the differing types, for a small file that two parsers read
    differently."""
    if cause.symptom != "value":
        return cause
    types = sorted(types_in(raw, cause.kind))
    return FileCause(cause.stage, "value", " ".join([cause.kind, *types]))


def types_in(raw: bytes, part: str) -> set[str]:
    try:
        file = GgufFile.from_bytes(raw)
    except MalformedFile:
        return set()
    if part == "pairs":
        return {value.type_name for value in file.metadata.values()}
    return {tensor.type.name for tensor in file.tensors.values()} if part == "rows" else set()
