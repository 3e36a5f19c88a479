"""The contract of a kind of golden, and the answers of engines."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lockstep.engine.registry import Registered
from lockstep.golden.store import Tensors
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import NoAnswer, no_answer
from lockstep.harness.judging.no_characters import is_utf8
from lockstep.harness.records import BOTH, EXACT, Answered, EngineInfo, Settings, Verdict

GENERATOR = "golden.generate 1"  # the number changes with the meaning of the vectors
FORMAT = 1
MEMORY = 8 << 30  # limit of an engine's memory in bytes, as in `check`
SEED = 1  # seed of blocks, texts and prompts; made models have their own seeds
WORDS = frozenset({"compare", "plain_reason", "reason", "why"})  # keys whose values are sentences

Case = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """A document and its float data, as stored on disk."""

    document: Mapping[str, Any]
    tensors: Tensors = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AskedEngine:
    """An engine in a session, with a name for messages."""

    engine: str
    session: Session
    path: Path | None = None  # the model's file; llama.cpp's own cases are next to a vocabulary

    def __call__(self, question: str, *args: Any, **kwargs: Any) -> Any:
        """Return the engine's answer. Raises NoAnswer (harness.context.suite) with the reason if
        there is no answer."""
        outcome = self.session.ask(question, *args, **kwargs)
        if isinstance(outcome, Answered):
            return outcome.value
        raise no_answer(self.engine, question, outcome)

    def has(self, texts: Sequence[bytes]) -> list[bool]:
        """Return a flag for each text, False if the engine cannot take the text. Some engines
        declare that they take only UTF-8."""
        outcome = self.session.ask("describe")
        utf8_only = isinstance(outcome, Answered) and outcome.value.utf8_only
        return [not utf8_only or is_utf8(text) for text in texts]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Source of vectors: an oracle and, except for dequant, a model."""

    ask: AskedEngine
    info: EngineInfo
    settings: Settings
    seed: int
    path: Path | None = None
    model: Mapping[str, Any] | None = None  # result of golden.models.model_row
    nodes: tuple[str, ...] = ()  # nodes of llama.cpp's graph whose values are stored too
    progress: Callable[[str], None] = field(default=lambda _: None)

    def head(self, kind: str, *, build: bool = False) -> Case:
        """Return the document's head. `build`: True if the answer depends on the CPU's features,
        which are then part of the provenance."""
        oracle = {"engine": self.info.engine, "version": self.info.version}
        if build:
            oracle["build"] = self.info.build
        knobs = asdict(self.settings)
        for name in ("generic", "adapters", "turned"):  # no golden depends on these
            del knobs[name]
        provenance = {
            "generator": GENERATOR,
            "oracle": oracle,
            "settings": knobs,
            "seed": self.seed,
        }
        return {"kind": kind, "format": FORMAT, "provenance": provenance}


def source_of(
    ask: AskedEngine, progress: Callable[[str], None], seed: int = SEED, **of_model: Any
) -> Source:
    info = ask("describe")
    return Source(ask=ask, info=info, settings=EXACT, seed=seed, progress=progress, **of_model)


def difference(held: Vectors, made: Vectors, but: Collection[str] = ()) -> str:
    """Return the first part of the document, or tensor, that differs. Differences of the CPU are
    ignored."""
    a, b = parts(held), parts(made)
    changed = (name for name in sorted({*a, *b} - {*but}) if a.get(name) != b.get(name))
    return next((f"{name!r} differs" for name in changed), "")


def without_words(part: Any) -> Any:
    """Return a part of a document without the sentences that explain it: no answer depends on
    them."""
    if isinstance(part, Mapping):
        return {name: without_words(each) for name, each in part.items() if name not in WORDS}
    return [without_words(each) for each in part] if isinstance(part, list) else part


def parts(vectors: Vectors) -> Case:
    document = without_words(vectors.document)
    found = {name: part for name, part in document.items() if name != "tensors"}
    oracle = {k: v for k, v in found["provenance"]["oracle"].items() if k != "build"}
    found["provenance"] = {**found["provenance"], "oracle": oracle}
    arrays = {k: (str(v.dtype), v.shape, v.tobytes()) for k, v in vectors.tensors.items()}
    return {**found, **arrays}


class Golden(Registered):
    """Kind of vectors; the schema and the folder have the kind's name."""

    def make(self, source: Source, what: str) -> Vectors:
        """Make the vectors from the oracle's answers. what: the type of weights, or the name of the
        model."""
        raise NotImplementedError

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        """Yield errors that no schema can find, each as a sentence, for a document that its schema
        accepts."""
        return iter(())

    def why_outdated(self, held: Vectors, made: Vectors) -> str:
        """Explain why the stored vectors `held` must be replaced by `made`; "" if they can stay. By
        default, any difference is a reason, because no bit of the answer depends on the CPU."""
        return difference(held, made)

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        """Return the data for a diff: the JSON values and arrays of each case, by its name."""
        raise NotImplementedError

    def replay(self, vectors: Vectors, ask: AskedEngine, verdict: "Verdicts") -> Iterator[Verdict]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """Makes the verdicts of one golden; the suite is `golden-KIND`."""

    suite: str
    case: str
    repro: str
    engine: str = BOTH

    def __call__(
        self, status: Any, summary: str, detail: Mapping[str, Any] | None = None, key: str = ""
    ) -> Verdict:
        return Verdict(
            suite=self.suite,
            case=self.case,
            status=status,
            summary=summary,
            detail=detail or {},
            key=f"{self.suite}/{key}" if key else "",
            repro="" if status == "agreed" else self.repro,
            about=self.engine,
        )


def each(verdict: Verdicts, *questions: Callable[[], Iterator[Verdict]]) -> Iterator[Verdict]:
    """Yield the verdicts on each question; a question without an answer does not stop the next
    question."""
    for question in questions:
        try:
            yield from question()
        except NoAnswer as error:
            yield verdict_for_no_answer(verdict, error)


def verdict_for_no_answer(verdict: Verdicts, error: NoAnswer) -> Verdict:
    key = error.status if error.status != "not-compared" else ""
    return verdict(error.status, error.summary, error.detail, key)
