"""Undamaged state files. llama.cpp writes each from a small model when it is first needed."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.engine.batch import Batch
from lockstep.engine.states.fields import StateField
from lockstep.engine.states.file import SavedState, read_state
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.context.suite import no_answer
from lockstep.harness.records import Answered, Settings
from lockstep.harness.synth.small import SMALL, WINDOW

# name -> the sequence that is saved and loaded; None: the whole context
WAYS = {"context": None, "sequence": 0}
MEMORIES = ("attention", "window", "recurrent", "hybrid")
LENGTH = WINDOW + 3  # tokens; more than a window holds
TOKENS = (5, 9, 12, 3, 7, 8, 1, 2, 11)
BASES = {  # the batches before each save
    "one": (Batch.of(TOKENS[:1]),),
    "text": (Batch.of(TOKENS[:LENGTH]),),
    "two": (Batch.of(TOKENS[:LENGTH]), Batch.of(TOKENS[4:], seq_id=1)),
}
OTHER_WEIGHTS, OTHER_MODEL, F16, FLASH, OTHER_WAY = STRANGERS = (
    *("other-weights", "other-model", "f16", "flash", "other-way"),
)
Names = tuple[str, str]  # a way and a memory, as in names of targets


@dataclass(frozen=True)
class SavedBase:
    """An undamaged file. places: the places of its numbers; values: the ranges of keys, values and
    states."""

    raw: bytes
    state: SavedState
    places: Sequence[StateField]
    values: Sequence[range]

    def region(self, at: int) -> str:
        """Return the name of the number that contains a byte, or "values" or "name"."""
        for place in self.places:
            if place.at <= at < place.at + place.size:
                return place.name
        return "values" if any(at in each for each in self.values) else "name"


def base_of(raw: bytes) -> SavedBase:
    """Read an undamaged file, and return it with the places of its numbers and values."""
    places: list[StateField] = []
    state = read_state(raw, places=places)
    rows = (r for part in state.parts for stream in part.streams for r in stream.rows)
    values = [range(each.at, each.at + each.n_bytes) for each in rows if each.n_bytes]
    return SavedBase(raw, state, places, values)


def names_of(target: str) -> Names:
    way, _, memory = target.partition("-")
    return way, memory


def tokens_after(base: str) -> Batch:
    """Return the tokens that continue sequence 0 of a base."""
    return Batch.of((4, 6), start=len(BASES[base][0]))


class SavedStates:
    """The files for one kind of saved data and one memory, and files of other models and
    contexts."""

    def __init__(self, stack: ExitStack, runner: Runner, target: str, settings: Settings) -> None:
        self.stack, self.runner, self.settings = stack, runner, settings
        self.way, self.memory = names_of(target)
        self.folder = Path(stack.enter_context(TemporaryDirectory(prefix="lockstep-")))
        self.base = cache(self.make_base)
        self.session = cache(self.open)

    def model(self, memory: str, seed: int = 1) -> Path:
        path = self.folder / f"{memory}-{seed}.gguf"
        if not path.exists():
            SMALL[memory](path, seed)
        return path

    def open(self, stranger: str) -> Session:
        memory, seed, settings = self.memory, 1, self.settings
        if stranger == OTHER_WEIGHTS:
            seed = 2
        elif stranger == OTHER_MODEL:
            memory = MEMORIES[(MEMORIES.index(memory) + 1) % len(MEMORIES)]
        elif stranger == F16:
            settings = replace(settings, type_k="F16", type_v="F16")
        elif stranger == FLASH:
            settings = replace(settings, flash_attn=True)
        opened = self.runner.open("llama.cpp", self.model(memory, seed), settings)
        return self.stack.enter_context(opened)

    def raw(self, base: str, stranger: str = "") -> bytes:
        """Return the bytes of a file. Raises NoAnswer if llama.cpp does not write it."""
        way = self.way
        if stranger == OTHER_WAY:
            stranger, way = "", next(each for each in WAYS if each != way)
        path = self.folder / "state"
        session = self.session(stranger)
        outcome = session.ask("save", BASES[base], (tokens_after(base),), str(path), WAYS[way])
        if not isinstance(outcome, Answered):
            raise no_answer(session.name, "save", outcome)
        return path.read_bytes()

    def make_base(self, base: str, stranger: str = "") -> SavedBase:
        return base_of(self.raw(base, stranger))
