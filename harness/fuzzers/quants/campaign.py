"""A campaign on the blocks of one weight format: it compares engines with an oracle, shrinks
differences, and names them."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32, Bytes, WeightFormat
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import NoAnswer, no_answer
from lockstep.harness.fuzzers.base import FuzzPlan, Progress
from lockstep.harness.fuzzers.numbers import CaseNumbers
from lockstep.harness.fuzzers.quants.blocks import Blocks, Cases
from lockstep.harness.fuzzers.quants.differences import Differences, symptom_of
from lockstep.harness.fuzzers.quants.examples import SAME, Examiner, Example, decoded_by
from lockstep.harness.fuzzers.quants.known import Known, entry_for, known_divergences
from lockstep.harness.records import Answered, Crashed, Malformed, Status, Unanswerable, Verdict

CHUNK = 1 << 22  # weights in one question; the answer has 16 MB
# the witness is slow, so it is asked about one block in so many, and about all that differ
SAMPLE = 64
EXAMPLES = 4  # differing blocks of one chunk that are shrunk
SHRUNK = 48  # differing blocks of a campaign that are shrunk


@dataclass
class TwoDecoders:
    """The findings of a comparison of the oracle with one other engine."""

    other: Session
    blocks: int = 0
    differing: int = 0
    nan_sign: int = 0
    shrunk: int = 0
    examples: dict[str, list[Example]] = field(default_factory=dict)


class BlockCampaign:
    """A campaign, which verdicts() runs. `ieee754` is the oracle for types that llama.cpp does not
    decode."""

    def __init__(
        self,
        plan: FuzzPlan,
        kind: type[WeightFormat],
        subject: Session,
        oracle: Session,
        witness: Session,
        ieee754: Session,
        progress: Progress,
    ) -> None:
        self.plan, self.kind, self.progress = plan, kind, progress
        self.oracle, self.ieee754 = oracle, ieee754
        self.subject, self.witness = TwoDecoders(subject), TwoDecoders(witness)
        self.cases = Cases(kind, plan.seed)
        self.numbers = CaseNumbers(plan, max(1, CHUNK // kind.weights))
        self.lacks = ""  # the reason why the witness has no answer
        self.known = known_divergences()

    def verdicts(self) -> Iterator[Verdict]:
        try:
            self.choose_oracle()
            self.compare_all()
        except NoAnswer as error:
            yield self.verdict_for_unanswered(error)
        try:
            yield from self.divergences()
            yield from self.of_the_witness()
        except NoAnswer as error:
            yield self.verdict_for_unanswered(error)
        if self.subject.blocks and not self.subject.differing:
            yield self.agreement()

    # --- asking -----------------------------------------------------------------------------

    def choose_oracle(self) -> None:
        block = np.zeros(self.kind.layout.itemsize, np.uint8)
        asked = [s.ask("dequantize", self.kind.name, block) for s in (self.oracle, self.ieee754)]
        if isinstance(asked[0], Unanswerable) and isinstance(asked[1], Answered):
            self.oracle = self.ieee754
        outcome = self.witness.other.ask("dequantize", self.kind.name, block)
        if not isinstance(outcome, Answered):
            self.lacks = no_answer(self.witness.other.name, "dequantize", outcome).summary

    def compare_all(self) -> None:
        """Compare the blocks chunk by chunk. While the subject decodes, the oracle decodes too, and
        the next chunk is made."""
        if self.plan.given:
            raw = np.frombuffer(b"".join(self.plan.given), np.uint8)
            self.compare(0, raw, decoded_by(self.oracle, self.kind, raw))
            return
        # started here, because a worker belongs to the thread that starts it
        decoded_by(self.oracle, self.kind, self.cases.blocks(0, 1))
        with ThreadPoolExecutor(1) as helper:
            raw = self.blocks(self.numbers.behind(self.numbers.done))
            for numbers in self.numbers:
                pending: Future[F32] = helper.submit(decoded_by, self.oracle, self.kind, raw)
                following = self.blocks(self.numbers.behind(numbers.stop))
                self.compare(numbers.start, raw, pending)
                raw, differ = following, self.subject.differing
                self.progress(self.kind.name, self.numbers.pace(numbers.stop, "blocks", differ))

    def blocks(self, numbers: range) -> Bytes:
        return self.cases.blocks(numbers.start, numbers.stop)

    def compare(self, first: int, raw: Bytes, pending: "Future[F32] | F32") -> None:
        """Compare the cases from `first` on. The oracle's answer may still be pending."""
        actual = decoded_by(self.subject.other, self.kind, raw)
        expected = pending.result() if isinstance(pending, Future) else pending
        blocks = raw.reshape(-1, self.kind.layout.itemsize)
        rows = expected.reshape(-1, self.kind.weights)
        found = self.compare_blocks(self.subject, first, blocks, rows, actual)
        if self.lacks:
            return
        sample = np.arange(0, len(blocks), SAMPLE)
        if len(found.values):
            sample = np.unique(np.concatenate([sample, found.values[:1000]]))
        with self.witness_may_fail():
            theirs = decoded_by(self.witness.other, self.kind, blocks[sample].reshape(-1))
            self.compare_blocks(self.witness, first + sample, blocks[sample], rows[sample], theirs)

    @contextmanager
    def witness_may_fail(self) -> Iterator[None]:
        """Record if the witness gives no answer, which does not count against the subject."""
        try:
            yield
        except NoAnswer as error:
            self.lacks = error.summary

    def compare_blocks(
        self,
        pair: TwoDecoders,
        numbers: int | NDArray[np.int64],
        blocks: Blocks,
        expected: F32,
        actual: F32,
    ) -> Differences:
        """Count the blocks that differ, and shrink some of them."""
        found = Differences.between(expected.reshape(-1), actual, self.kind.weights)
        pair.blocks += len(blocks)
        pair.differing += len(found.values)
        pair.nan_sign += len(found.nan_sign)
        places = list(found.values[:: max(1, len(found.values) // EXAMPLES)][:EXAMPLES])
        if pair is self.witness and "nan-sign" not in {k.split("/")[1] for k in pair.examples}:
            places += list(found.nan_sign[:1])
        for i in places if pair.shrunk < SHRUNK else ():
            case = int(numbers[i]) if isinstance(numbers, np.ndarray) else numbers + int(i)
            example = self.examiner(pair).example(case, blocks, int(i))
            pair.shrunk += 1
            pair.examples.setdefault(example.key, []).append(example)
        return found

    # --- verdicts ---------------------------------------------------------------------------

    def verdict(
        self, status: Status, summary: str, detail: dict[str, Any], key: str = "", repro: str = ""
    ) -> Verdict:
        return Verdict(
            suite="fuzz-quants",
            case=self.kind.name,
            status=status,
            summary=f"{self.kind.name}: {summary}",
            detail={"type": self.kind.name, "oracle": self.oracle.name, **detail},
            key=f"fuzz-quants/{self.kind.name}/{key}" if key else "",
            repro=repro,
        )

    def counts(self) -> dict[str, Any]:
        start, stop = (0, 0) if self.plan.given else (self.plan.start, self.numbers.done)
        return {
            "seed": self.plan.seed,
            "cases": [start, stop],
            "blocks": self.subject.blocks,
            "directed": self.cases.directed_among(start, stop),
            "differing": self.subject.differing,
            "nan_sign": self.subject.nan_sign,
            "witness": self.witness.other.name,
            "witness_blocks": self.witness.blocks,
            "witness_differing": self.witness.differing,
            "witness_nan_sign": self.witness.nan_sign,
        }

    def agreement(self) -> Verdict:
        counts = self.counts()
        text = f"{self.subject.blocks:,} blocks ({counts['directed']:,} directed) agree bit for bit"
        text += f" with {self.oracle.name}"
        if self.subject.nan_sign:
            text += (
                f"; in {self.subject.nan_sign:,} only the sign of a NaN differs, which "
                "does not count"
            )
        return self.verdict("agreed", text, counts)

    def verdict_for_unanswered(self, error: NoAnswer) -> Verdict:
        """Return the verdict on a chunk without an answer. A crash or a malformed answer is
        narrowed down to one block if a single block shows it."""
        options = ["--seed", str(self.plan.seed), "--start", str(self.numbers.done)]
        options += ["--cases", str(self.numbers.size)]
        if self.plan.given:
            options = [word for raw in self.plan.given for word in ("--block", raw.hex())]
        if error.status in ("crashed", "malformed") and not self.plan.given:
            block = self.failing_block(self.blocks(self.numbers.behind(self.numbers.done)))
            options = options if block is None else ["--block", block.tobytes().hex()]
        repro = self.plan.command("quants", self.kind.name, *options)
        key = "" if error.status == "not-compared" else error.status
        return self.verdict(
            error.status, error.summary, {**self.counts(), **error.detail}, key, repro
        )

    def failing_block(self, raw: Bytes) -> Bytes | None:
        session, size = self.subject.other, self.kind.layout.itemsize
        if not isinstance(session.ask("dequantize", self.kind.name, raw), Crashed | Malformed):
            return None  # the oracle failed, or the failure is not reproducible
        while raw.size > size:
            middle = raw.size // size // 2 * size
            halves = (raw[:middle], raw[middle:])
            outcomes = (session.ask("dequantize", self.kind.name, half) for half in halves)
            failed = (isinstance(outcome, Crashed | Malformed) for outcome in outcomes)
            found = next((h for h, bad in zip(halves, failed, strict=True) if bad), None)
            if found is None:
                return None
            raw = found
        return raw

    def divergences(self) -> Iterator[Verdict]:
        """Yield a verdict for each kind of mistake, with the smallest block that shows it."""
        for key, same in self.subject.examples.items():
            example = min(same, key=lambda example: example.size)
            alone = self.who_stands_alone(example)
            text = (
                f"{example.in_words(self.kind)}; {alone}. {self.subject.differing:,} of "
                f"{self.subject.blocks:,} blocks differ"
            )
            detail = {**self.counts(), **detail_of(example), "found": len(same), "alone": alone}
            yield self.verdict("diverged", text, detail, key, self.again(example))

    def again(self, example: Example) -> str:
        shown = example.beside or (example.block,)
        options = [word for block in shown for word in ("--block", block.tobytes().hex())]
        if example.symptom == "unsteady":
            options = ["--seed", str(self.plan.seed), "--start", str(example.case)]
            options += ["--cases", str(self.numbers.size)]
        return self.plan.command("quants", self.kind.name, *options)

    def who_stands_alone(self, example: Example) -> str:
        """Say which of the other two decoders the witness agrees with. The third decoder is then
        usually wrong."""
        names = self.oracle.name, self.subject.other.name, self.witness.other.name
        third = None
        if not self.lacks and example.symptom not in ("neighbours", "unsteady"):
            with self.witness_may_fail():
                third = decoded_by(self.witness.other, self.kind, example.block)
        if third is None:
            return f"{names[2]} gives no answer"
        with_oracle = symptom_of(example.expected, third) in SAME
        with_subject = symptom_of(example.actual, third) in SAME
        if with_oracle:
            return f"{names[2]} agrees with {names[0]}"
        return f"{names[2]} agrees with {names[1]}" if with_subject else "all three differ"

    def of_the_witness(self) -> Iterator[Verdict]:
        """Yield excused verdicts on the blocks for which the witness differs from the oracle but
        the subject does not."""
        name = self.witness.other.name
        if self.lacks:
            known = entry_for(self.known, name, self.kind.name, "unsupported")
            text, detail = f"{self.lacks}{note_known(known)}", {"known": id_of(known)}
            if self.oracle is not self.ieee754:  # the witness need not know plain numbers
                yield self.verdict("excused", text, detail)
            return
        for key, same in self.witness.examples.items():
            example = min(same, key=lambda example: example.size)
            if self.examiner(self.subject).symptom(example.block) not in SAME:
                continue  # this is a divergence of the subject
            known = entry_for(self.known, name, self.kind.name, example.symptom)
            count = self.witness.nan_sign if "nan-sign" in key else self.witness.differing
            text = (
                f"{name} differs from {self.oracle.name} and {self.subject.other.name} in "
                f"{count:,} of {self.witness.blocks:,} blocks: {example.in_words(self.kind)}"
            )
            detail = {**self.counts(), **detail_of(example), "known": id_of(known)}
            yield self.verdict("excused", text + note_known(known), detail)

    def examiner(self, pair: TwoDecoders) -> Examiner:
        return Examiner(self.kind, self.oracle, pair.other)


def detail_of(example: Example) -> dict[str, Any]:
    return {
        "case": example.case,
        "block": example.block.tobytes().hex(),
        "original": example.original.tobytes().hex(),
        "field": example.fields,
        "symptom": example.symptom,
    }


def id_of(known: Known | None) -> str | None:
    return None if known is None else known.id


def note_known(known: Known | None) -> str:
    return " (not among the known divergences)" if known is None else f" (known: {known.id})"
