"""The right engine and every wrong engine, which answer questions in this process on one file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.mirror import Mirror
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.catalogue.models import architecture_of
from lockstep.harness.catalogue.run import wrong_engines
from lockstep.harness.catalogue.trial import Wrong
from lockstep.harness.diagnosis.questions import MistakeQuestion
from lockstep.harness.mutants.parts.changed import WrongFormat
from lockstep.harness.mutants.parts.wrong_samplers import WrongSampler
from lockstep.harness.mutants.tokenizers import WrongTokenizer
from lockstep.harness.records import Settings

KnownMistake = Wrong | type[WrongSampler]


@dataclass(kw_only=True)
class Engines:
    """Our own engines on one file.

    plain: engines without conversions and deliberate roundings. keep: True to keep all answers, for
    more subjects on the same file. at_once: the number of processes that may hold the data of a run
    at the same time.
    """

    path: Path
    settings: Settings
    plain: bool = False
    keep: bool = False
    at_once: int = 1
    answers: dict[tuple[type[Any], str], Any] = field(default_factory=dict)
    sessions: dict[type[Any], LocalSession] = field(default_factory=dict)

    @contextmanager
    def open(self, cls: type[Any]) -> Iterator[None]:
        """Run the context, then close the engine's session, unless sessions are kept."""
        try:
            yield
        finally:
            if not self.keep and cls is not Reference and cls in self.sessions:
                self.sessions.pop(cls).close()

    def session(self, cls: type[Any]) -> LocalSession:
        if cls not in self.sessions:
            self.sessions[cls] = self.fresh(cls)
        return self.sessions[cls]

    def fresh(self, cls: type[Any]) -> LocalSession:
        """Return a new session, which no earlier question has used. The caller closes it."""
        made = without_roundings(cls) if self.plain else cls
        return LocalSession(made, self.path, self.settings)

    def answer(self, cls: type[Any], question: MistakeQuestion) -> Any:
        if question.is_as_right(cls):
            cls = Reference
        key = cls, question.words
        if key in self.answers:
            return self.answers[key]
        found = question.of(self.session(cls))
        if self.keep or cls is Reference:
            self.answers[key] = found
        return found

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()


def without_roundings(cls: type[Any]) -> type[Any]:
    def make_ops(self: Any) -> Any:
        ops = cls.make_ops(self)
        if isinstance(ops, Mirror):
            ops.build = replace(ops.build, plain=True)
        return ops

    return type(cls.__name__, (cls,), {"make_ops": make_ops})


# --- mistakes that are possible with this file -----------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Known mistakes to try. `near` are mistakes for the same architecture. `far` are all other
    mistakes. They are tried if no near mistake reproduces the answers."""

    near: tuple[Wrong, ...]
    far: tuple[Wrong, ...]


def candidates(file: GgufFile, architecture: str, *, vocabulary: bool) -> Candidates:
    types = {tensor.type.name for tensor in file.tensors.values()}
    fit = [cls for cls in wrong_engines() if may_be(cls, types, vocabulary=vocabulary)]
    near = [cls for cls in fit if is_near(cls, architecture)]
    return Candidates(near=tuple(near), far=tuple(cls for cls in fit if cls not in near))


def may_be(cls: Wrong, types: set[str], *, vocabulary: bool) -> bool:
    if issubclass(cls, WrongFormat):
        return cls.kind in types
    return vocabulary or not issubclass(cls, WrongTokenizer)


def is_near(cls: Wrong, architecture: str) -> bool:
    own = architecture_of(cls.shows_on)
    return issubclass(cls, WrongTokenizer | WrongFormat) or own == architecture
