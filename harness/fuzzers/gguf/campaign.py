"""A campaign on one family of files: it compares all parsers, shrinks differing files, and names
the differences."""

import shlex
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.engine.gguf.regular_file import read_regular
from lockstep.harness.adapters.parts.parsing import (
    ACCEPTED,
    CRASHED,
    NUMBER,
    SPARE_MEMORY,
    Parsed,
    allowed_memory,
)
from lockstep.harness.context.runner import Session
from lockstep.harness.fuzzers.base import Checkpoint, FuzzPlan, Progress
from lockstep.harness.fuzzers.gguf.findings import (
    MODEL_WAYS,
    TABLE,
    FileCause,
    cause_of,
    known_files,
    own_cause,
    refine_cause,
    suspects,
    table_cause,
    types_in,
)
from lockstep.harness.fuzzers.gguf.given import CORPUS, GIVEN, GUIDED, files_in, given_cases
from lockstep.harness.fuzzers.gguf.grammar import FileCase, cases
from lockstep.harness.fuzzers.gguf.models import MODELS, model_cases
from lockstep.harness.fuzzers.gguf.shrink import cost_of, shrink_file
from lockstep.harness.fuzzers.gguf.stages import FULL, Stage, answer_about, describe_answer, part
from lockstep.harness.fuzzers.numbers import CaseNumbers
from lockstep.harness.records import Status, Verdict

BATCH = 1024
BATCH_OF_MODELS = 16  # files of some hundred kilobytes each
SLICE = 64  # number of batches that one verdict covers
MOST_SHRUNK = 24  # examples of one cause that a campaign shrinks
LONG = 16  # tries for a long file, at least; each may take seconds
DEAR = 100  # files tried while shrinking a file that crashes a process; each may take a second


@dataclass(kw_only=True)
class FileBatch:
    """Files with the subject's answers, and with answers of other engines about some of the
    files."""

    cases: list[FileCase]
    subject: Parsed
    pending: list[tuple[Stage, list[int], "Future[Parsed]"]]


class FileCampaign:
    """A campaign. `run` yields a verdict for each finding, and one for each slice of files."""

    def __init__(
        self, plan: FuzzPlan, family: str, subject: Session, stages: list[Stage], say: Progress
    ) -> None:
        self.plan, self.family, self.subject, self.stages = plan, family, subject, stages
        self.say = say
        self.corpus = [read_regular(path) for path in files_in(plan.corpus)]
        self.numbers = CaseNumbers(plan, BATCH_OF_MODELS if family == MODELS else BATCH)
        self.known = {cause: entry for entry in known_files() for cause in entry.causes}
        self.found: Counter[FileCause] = Counter({c: 0 for c in map(as_cause, plan.found)})
        self.told = set(self.found)  # known causes; others are reported when they are found
        self.shrinks: Counter[FileCause] = Counter()
        self.slice: Counter[str] = Counter()
        self.peak = 0  # largest memory that the subject used beyond twice a file's size

    def run(self) -> Iterator[Verdict | Checkpoint]:
        """Run the cases from the plan's `start` on, which may be the case number of a
        checkpoint."""
        begun, asked = self.plan.start, [self.batch(self.numbers.behind(self.plan.start))]
        for numbers in self.numbers:
            if following := self.numbers.behind(numbers.stop):
                asked.append(self.batch(following))
            yield from self.judge_batch(asked.pop(0))
            self.tell(numbers.stop)
            if numbers.stop - begun >= SLICE * self.numbers.size:
                yield from self.slice_done(begun, numbers.stop)
                begun = numbers.stop
        if begun < self.numbers.done:
            yield from self.slice_done(begun, self.numbers.done)
        for batch in asked:  # the time limit was reached
            for _, _, waiting in batch.pending:
                waiting.exception()

    def slice_done(self, begun: int, done: int) -> Iterator[Verdict | Checkpoint]:
        yield self.about(begun, done)
        yield Checkpoint(target=self.family, done=done)

    def judge_given(self, made: Sequence[FileCase]) -> Iterator[Verdict]:
        """Yield verdicts on the user's files. Every parser reads all of them."""
        for stage in self.stages:
            stage.every = 1
        for at, case in enumerate(made):
            self.found.clear()
            self.told.clear()
            self.shrinks.clear()
            self.say(self.family, f"{at:,} of {len(made):,} files, now {case.name}")
            yield from self.judge_batch(self.ask_parsers([case]))
            yield self.about(case.number, case.number + 1, case)

    def judge_kept(self, made: Sequence[FileCase]) -> Iterator[Verdict]:
        """Yield verdicts on the files of a guided run. Every parser reads all of them, and findings
        with one cause are counted together."""
        for stage in self.stages:
            stage.every = 1
        for first in range(0, len(made), BATCH):
            yield from self.judge_batch(self.ask_parsers(list(made[first : first + BATCH])))
        yield self.about(0, len(made))

    def batch(self, numbers: range) -> FileBatch:
        first, n = numbers.start, len(numbers)
        if self.family == MODELS:
            return self.ask_parsers(model_cases(self.plan.seed, first, n, self.corpus))
        return self.ask_parsers(cases(self.plan.seed, self.family, first, n, self.corpus))

    def ask_parsers(self, made: list[FileCase]) -> FileBatch:
        """Ask all parsers. Our own reader comes last, so that the other parsers work at the same
        time."""
        pending = []
        for stage in self.stages:
            every = 1 if self.family == MODELS and stage.way in MODEL_WAYS else stage.every
            some = [i for i, case in enumerate(made) if case.number % every == 0]
            if some:
                pending.append((stage, some, stage.ask([made[i].raw for i in some])))
        subject = answer_about(self.subject, FULL, [case.raw for case in made])
        return FileBatch(cases=made, subject=subject, pending=pending)

    def tell(self, done: int) -> None:
        text = self.numbers.pace(done, "files", sum(self.found.values()))
        for stage in self.stages:
            if stage.witness:
                text += f", {stage.asked:,} of them seen by {stage.name}"
        self.say(self.family, text)

    # --- judging --------------------------------------------------------------------------------

    def judge_batch(self, batch: FileBatch) -> Iterator[Verdict]:
        made, subject = batch.cases, batch.subject
        self.slice["files"] += len(made)
        self.slice["accepted"] += int((subject.endings == NUMBER[ACCEPTED]).sum())
        sizes = np.array([len(case.raw) for case in made], np.int64)
        share = allowed_memory(self.subject.name, sizes) - SPARE_MEMORY
        beyond = int((subject.peaks - share).max(initial=0))
        self.peak = max(self.peak, beyond)
        for i, case in enumerate(made):
            cause = own_cause(self.subject.name, subject, i, case.raw)
            if cause is None and self.family in ("valid", "broken"):
                cause = table_cause(subject.ending(i), case.faults)
            if cause is not None:
                yield from self.note_finding(cause, case, None)
        parted: set[int] = set()
        for stage, some, future in batch.pending:
            odd = yield from self.compare_stage(stage, batch, some, future.result())
            parted.update(() if stage.witness else odd)
        for stage in self.stages:
            if stage.witness:
                some = sorted(i for i in parted if made[i].number % stage.every)
                other = stage.ask([made[i].raw for i in some]).result()
                yield from self.compare_stage(stage, batch, some, other)

    def compare_stage(
        self, stage: Stage, batch: FileBatch, some: list[int], other: Parsed
    ) -> Generator[Verdict, None, list[int]]:
        """Compare the answers of one stage, and yield verdicts. some: the indices of the files that
        the stage was asked about. Return the indices of suspicious files."""
        made, subject = [batch.cases[i] for i in some], part(batch.subject, some)
        sizes = np.array([len(case.raw) for case in made], np.int64)
        self.count(stage, subject, other)
        odd = suspects(stage.session.name, stage.way, subject, other, sizes).tolist()
        for i in odd:
            cause = cause_of(stage.session.name, stage.way, subject, other, i, made[i].raw)
            if cause is not None:
                yield from self.note_finding(cause, made[i], stage)
        return [some[i] for i in odd]

    def count(self, stage: Stage, subject: Parsed, other: Parsed) -> None:
        """Count pairs of answers. Two refusals agree even if their reasons differ."""
        mine, theirs = subject.endings == NUMBER[ACCEPTED], other.endings == NUMBER[ACCEPTED]
        stage.asked += len(mine)
        stage.counts["asked"] += len(mine)
        stage.counts["both accept"] += int((mine & theirs).sum())
        stage.counts["both refuse"] += int((~mine & ~theirs).sum())
        if stage.way in MODEL_WAYS:  # the file was read, but is no model
            refused = ~theirs & (other.endings < NUMBER[CRASHED])
            stage.counts["refused late"] += int((mine & refused).sum())
        same = subject.endings == other.endings
        stage.counts["for the same reason"] += int((~mine & ~theirs & same).sum())

    def note_finding(
        self, cause: FileCause, case: FileCase, stage: Stage | None
    ) -> Iterator[Verdict]:
        """Report one shrunk example of each cause, and only count the others."""
        for same in self.explanations(cause, case.raw):
            self.found[same] += 1
            if same in self.known and same not in self.told:
                self.told.add(same)
                yield self.finding(same, case, self.known[same].raw)
            return
        if self.shrinks[cause] >= MOST_SHRUNK:
            self.slice["not looked at"] += 1
            return
        self.shrinks[cause] += 1
        small = self.small(cause, case, stage)
        exact = refine_cause(cause, small)
        is_new = exact not in self.found
        self.found[exact] += 1
        if is_new:
            yield self.finding(exact, case, small)

    def explanations(self, cause: FileCause, raw: bytes) -> Iterator[FileCause]:
        """Yield earlier and known causes that may also be the cause of this finding."""
        if cause.symptom != "value":
            if cause in self.found or cause in self.known:
                yield cause
            return
        for other in (*self.found, *self.known):
            part, *types = other.kind.split(" ")
            if (other.stage, other.symptom, part) == (cause.stage, cause.symptom, cause.kind) and (
                not types or types_in(raw, part) & set(types)
            ):
                yield other

    def small(self, cause: FileCause, case: FileCase, stage: Stage | None) -> bytes:
        if cause.stage == TABLE:
            return case.raw  # a shrunk file would no longer show the fault

        def shows(files: list[bytes]) -> list[bool]:
            subject = answer_about(self.subject, FULL, files)
            if stage is None:
                return [own_cause(cause.stage, subject, i, raw) == cause
                        for i, raw in enumerate(files)]  # fmt: skip
            other = stage.ask(files).result()
            return [
                cause_of(stage.session.name, stage.way, subject, other, i, raw) == cause
                for i, raw in enumerate(files)
            ]

        dear = cause.symptom in ("hangs", "memory") or (stage and stage.way in MODEL_WAYS)
        most = DEAR if dear else 10 * DEAR if cause.symptom == "crashes" else 4000
        return shrink_file(case.raw, shows, max(most, LONG * cost_of([case.raw])))

    # --- verdicts -------------------------------------------------------------------------------

    def finding(self, cause: FileCause, case: FileCase, small: bytes) -> Verdict:
        known = self.known.get(cause)
        status: Status = "diverged"
        if known:
            status = "excused"
        elif cause.stage == self.subject.name:
            status = "diverged"  # its own crash is a finding about the subject
        elif cause.symptom in ("crashes", "hangs"):
            status = "crashed" if cause.symptom == "crashes" else "timed-out"
        answers = self.answers(small)
        text = f"{case.name}: " if case.name else ""
        text += f"{cause.stage} {cause.symptom} {cause.kind}".strip()
        text += f" (known: {known.id}: {known.sentence.rstrip('.')})" if known else ""
        text += f": {len(small)} bytes, {small[:60].hex()}{'...' if len(small) > 60 else ''}"
        detail = {
            "stage": cause.stage,
            "symptom": cause.symptom,
            "kind": cause.kind,
            "case": case.number,
            "name": case.name,
            "faults": list(case.faults),
            "file": small.hex() if len(small) <= 1 << 16 else "",
            "bytes": len(small),
            "first_bytes": len(case.raw),
            "answers": answers,
            "known": known.id if known else None,
        }
        return self.verdict(
            status, text, detail, f"fuzz-gguf/{cause}", self.again(cause, case, small)
        )

    def again(self, cause: FileCause, case: FileCase, small: bytes) -> list[str]:
        """Return the options that show a finding again. They contain the bytes if these are few,
        else the case. A finding about the table always names the case, because the table's verdicts
        apply only to its own files."""
        if len(small) <= 2048 and cause.stage != TABLE:
            return ["--hex", small.hex()]
        return list(case.again) or self.number_files(case.number, 1)

    def answers(self, raw: bytes) -> dict[str, str]:
        """Return the answer of every parser about one file, with its words."""
        subject = answer_about(self.subject, FULL, [raw])
        told = {self.subject.name: describe_answer(subject)}
        for stage in self.stages:
            told[stage.name] = describe_answer(stage.ask([raw]).result())
        return told

    def about(self, first: int, end: int, case: FileCase | None = None) -> Verdict:
        """Return the verdict on the cases from `first` to `end`. case: the single file, if it has a
        name."""
        known = {str(c): n for c, n in sorted(self.found.items()) if n and c in self.known}
        other = {str(c): n for c, n in sorted(self.found.items()) if n and c not in self.known}
        n = self.slice["files"]
        text = f"{n:,} files read, {self.slice['accepted']:,} accepted; "
        if case is not None:
            text = f"{case.name}: {'accepted' if self.slice['accepted'] else 'refused'}; "
        text += f"{len(known) + len(other)} causes so far, {len(known)} of them known"
        detail = {
            "seed": self.plan.seed,
            "cases": [first, end],
            **self.slice,
            "peak": self.peak,
            "stages": {stage.name: dict(stage.counts) for stage in self.stages},
            "known": known,
            "found": other,
        }
        self.slice.clear()
        for stage in self.stages:
            stage.counts.clear()
        return self.verdict("agreed" if n else "not-compared", text, detail)

    def number_files(self, first: int, n: int) -> list[str]:
        words = ["--family", self.family, "--seed", str(self.plan.seed)]
        words += ["--corpus", str(self.plan.corpus)] if self.family == CORPUS else []
        return [*words, "--start", str(first), "--cases", str(n)]

    def all_again(self) -> list[str]:
        """Return the options that run the whole target again."""
        plan = self.plan
        if self.family == GIVEN:
            return [word for case in given_cases(plan) for word in case.again]
        if self.family == GUIDED:
            return [
                "--guided",
                str(plan.keep),
                "--seed",
                str(plan.seed),
                "--cases",
                str(plan.cases),
            ]
        return self.number_files(plan.start, plan.cases)

    def verdict(
        self,
        status: Status,
        summary: str,
        detail: dict[str, Any],
        key: str = "",
        again: Sequence[str] = (),
    ) -> Verdict:
        words = ["lockstep", "fuzz", "gguf", "--engine", self.plan.engine]
        words += [] if self.plan.oracle == "llama.cpp" else ["--oracle", self.plan.oracle]
        words += [] if self.plan.witness else ["--no-witness"]
        return Verdict(
            suite="fuzz-gguf",
            case=self.family,
            status=status,
            summary=f"{self.family}: {summary}",
            detail=detail,
            key=key,
            repro=shlex.join([*words, *again]) if again else "",
        )


def as_cause(key: str) -> FileCause:
    """Return the cause that a verdict's key contains."""
    _, stage, symptom, kind = key.split("/", 3)
    return FileCause(stage, symptom, kind)
