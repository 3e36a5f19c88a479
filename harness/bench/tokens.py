"""Bytes per second of our tokenizer and of llama.cpp's, on prose and on one endless word."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.engine.choices import choices
from lockstep.harness.bench.base import (
    Bench,
    BenchPlan,
    BenchRow,
    Progress,
    Promise,
    why_unmeasured,
)
from lockstep.harness.bench.prose import long_word, prose
from lockstep.harness.check.check import BadInput
from lockstep.harness.check.inputs import check_file
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from lockstep.harness.synth.llama import write_llama

OURS, THEIRS = "reference", "llama.cpp"
BUILTIN = "builtin:"
HALF = 0.5  # promised share of llama.cpp's speed
SHORTER = 4  # the long word is also measured at one so-many-th of its length
# least share of the speed on the short word; quadratic work would give a quarter
LINEAR = 0.5
PROSE, WORD, PART = "prose", "one word", "a quarter of it"


class TokensBench(Bench, name="tokens"):
    """Benchmark of tokenizers. A target is a GGUF file or a built-in vocabulary. Each turn opens a
    new tokenizer, so its cache holds only words of the measured text."""

    unit = "bytes"
    engines = {OURS: "ours", THEIRS: "llama.cpp"}  # noqa: RUF012  # the contract's class variable
    threads = (1,)

    def targets(self) -> list[str]:
        return [f"{BUILTIN}llama", f"{BUILTIN}gpt2"]

    def run(self, plan: BenchPlan, progress: Progress) -> Iterator[BenchRow]:
        with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
            for target in plan.targets or self.targets():
                path = Path(target)
                if target.startswith(BUILTIN):
                    path = Path(folder) / f"{target.removeprefix(BUILTIN)}.gguf"
                    write_builtin(target, path)
                else:
                    check_file(path, ", and no built-in vocabulary")
                yield from rows(path, plan, progress)

    def promises(self, rows: Sequence[BenchRow]) -> list[Promise]:
        found: list[Promise] = []
        ours = {row.target: row.rates.get((OURS, 1), 0.0) for row in rows}
        for row in rows:
            ratio = row.ratio((OURS, 1), (THEIRS, 1))
            if row.target.endswith(PROSE) and ratio is not None:
                text = f"{row.target} against llama.cpp's tokenizer"
                found.append(Promise(text=text, least=HALF, found=ratio))
            part = ours.get(f"{row.target}, {PART}")
            if part:
                text = f"{row.target}: speed relative to a quarter of the text"
                found.append(Promise(text=text, least=LINEAR, found=ours[row.target] / part))
        return found


def write_builtin(target: str, path: Path) -> None:
    kind = target.removeprefix(BUILTIN)
    if kind not in BUILTIN_VOCABULARIES:
        known = choices(kind, BUILTIN_VOCABULARIES)
        raise BadInput(f"no built-in vocabulary {kind!r} {known}")
    write_llama(BUILTIN_VOCABULARIES[kind], path)


def rows(path: Path, plan: BenchPlan, progress: Progress) -> Iterator[BenchRow]:
    """Yield rows with the highest rates of all rounds, because other load on the machine can only
    lower a rate."""
    name = path.stem.removeprefix("ggml-vocab-")
    best: dict[tuple[str, str], float] = {}
    for i in range(plan.rounds):
        word = long_word(plan.size, plan.seed + i)
        texts = {
            f"{name}, {PROSE}": prose(plan.size, plan.seed + i),
            f"{name}, {WORD}": word,
            f"{name}, {WORD}, {PART}": word[: plan.size // SHORTER],
        }
        for target, text in texts.items():
            for engine in (OURS, THEIRS):
                progress(target, f"round {i + 1} of {plan.rounds}, {engine}")
                rate = len(text) / seconds(engine, path, text)
                best[target, engine] = max(rate, best.get((target, engine), 0.0))
    for target in texts:
        yield BenchRow(target=target, rates={(e, 1): best[target, e] for e in (OURS, THEIRS)})


def seconds(engine: str, path: Path, text: bytes) -> float:
    """Return the number of seconds that a new tokenizer needs to encode the text once. The time to
    open the tokenizer is not included."""
    with Runner(time_limit=600).open(engine, path, EXACT) as session:
        answer(session, b"a")
        return answer(session, text).seconds


def answer(session: Session, text: bytes) -> Answered:
    outcome = session.ask("tokenize", [text], add_special=False)
    if not isinstance(outcome, Answered):
        raise why_unmeasured(session.name, "tokenize", outcome)
    return outcome
