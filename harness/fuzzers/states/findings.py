"""Rules for findings about state files: the symptoms, and the known findings."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.harness.adapters.parts.parsing import ACCEPTED, CRASHED, HUNG, OUT_OF_MEMORY, Parsed
from lockstep.harness.adapters.parts.restoring import CELLS_STAY, STUCK
from lockstep.harness.fuzzers.gguf.findings import place_of
from lockstep.harness.known import entries

DIES, REFUSES = "dies", "refuses"  # symptoms of the subject itself, which are never excused
OWN = (DIES, REFUSES)


@dataclass(frozen=True, slots=True, order=True)
class StateCause:
    """The cause by which findings are counted.

    symptom, of the oracle: `crashes`, `hangs`, `accepts` (a file that our reader refuses),
    `keeps-cells` (after it refuses a file). If both accept a file: `stuck` (the next tokens are
    refused) or `changes` (their logits change). Symptoms of the subject: `dies`, or `refuses` (a
    file that the oracle accepts). kind: the assertion, the subject's reason to refuse, or the names
    of the damage. If a file makes the oracle die, our reader must refuse the file.
    """

    symptom: str
    kind: str

    def __str__(self) -> str:
        return f"{self.symptom}/{self.kind}"


@dataclass(frozen=True, kw_only=True)
class KnownState:
    """An entry of [[state]] of harness/known. case: a damaged file, as JSON (states/damage.py)."""

    id: str
    component: str
    version: str
    ways: tuple[str, ...]
    memories: tuple[str, ...]
    symptom: str
    kinds: tuple[str, ...]
    case: str
    sentence: str
    status: str
    link: str

    def explains(self, symptom: str, kind: str, way: str, memory: str) -> bool:
        here = way in self.ways and memory in self.memories
        return here and symptom == self.symptom and kind in self.kinds


def known_states() -> list[KnownState]:
    lists = ("ways", "memories", "kinds")
    rows = entries("state")
    return [KnownState(**{**row, **{name: tuple(row[name]) for name in lists}}) for row in rows]


def entry_for(
    known: Sequence[KnownState], cause: StateCause, way: str, memory: str
) -> KnownState | None:
    """Return the entry for the cause's first kind; None if one of the cause's kinds is unknown."""
    found = [
        next((each for each in known if each.explains(cause.symptom, kind, way, memory)), None)
        for kind in cause.kind.split("+")
    ]
    return found[0] if None not in found else None


def state_cause(mine: Parsed, theirs: Parsed, i: int, right: int, damage: str) -> StateCause | None:
    """Return the cause of the worst finding about file i; None if there is none. right: the
    oracle's digest for the undamaged file; damage: the names of the damaged parts."""
    own, other = mine.ending(i), theirs.ending(i)
    digest = int(theirs.digests[i])
    if own in (CRASHED, HUNG):
        return StateCause(DIES, mine.words.get(i, "").split(":")[0])
    if own == ACCEPTED != other:
        return StateCause(REFUSES, damage)
    if other in (HUNG, OUT_OF_MEMORY):
        return StateCause("hangs", "")
    if other == CRASHED:
        return StateCause("crashes", place_of(theirs, i))
    if other != ACCEPTED:
        return StateCause("keeps-cells", "") if digest == CELLS_STAY else None
    if own != ACCEPTED:
        return StateCause("accepts", mine.words[i].split(":")[0])
    if digest == STUCK:
        return StateCause("stuck", damage)
    return StateCause("changes", damage) if digest != right else None
