"""State files that our reader and llama.cpp read: whole files, damaged files, and files of other
models."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from lockstep.harness.adapters.parts.parsing import ACCEPTED, Parsed, pack_files, parse_answer
from lockstep.harness.check.check import BadInput
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import NoAnswer, no_answer
from lockstep.harness.fuzzers.base import Checkpoint, Fuzzer, FuzzPlan, Progress
from lockstep.harness.fuzzers.gguf.grammar import numbers_of
from lockstep.harness.fuzzers.numbers import CaseNumbers
from lockstep.harness.fuzzers.shrink import shrink
from lockstep.harness.fuzzers.states.damage import StateCase, state_case, state_case_from
from lockstep.harness.fuzzers.states.findings import (
    OWN,
    StateCause,
    entry_for,
    known_states,
    state_cause,
)
from lockstep.harness.fuzzers.states.saved import (
    BASES,
    MEMORIES,
    WAYS,
    SavedStates,
    names_of,
    tokens_after,
)
from lockstep.harness.records import Answered, Status, Verdict

BATCH = 256  # damaged files of one saved file
TRIES = 60  # files tried while shrinking a finding


class StateFuzzer(Fuzzer, name="states"):
    """A fuzzer of state files. A target is a kind of saved data together with a kind of memory,
    which has a small model."""

    def targets(self) -> list[str]:
        return [f"{way}-{memory}" for way in WAYS for memory in MEMORIES]

    def check(self, plan: FuzzPlan) -> None:
        super().check(plan)
        if plan.oracle != "llama.cpp":
            raise BadInput("the files are llama.cpp's own: omit --oracle")
        if plan.given and len(plan.targets) != 1:
            raise BadInput("--case needs what is saved and the memory: give one --type")
        for text in plan.given:
            state_case_from(text)

    def run(self, plan: FuzzPlan, progress: Progress) -> Iterator[Verdict | Checkpoint]:
        for target in plan.targets or self.targets():
            with ExitStack() as stack:
                campaign = StateCampaign(plan, target, stack, progress)
                try:
                    yield from campaign.verdicts()
                except NoAnswer as error:
                    yield campaign.verdict(error.status, error.summary, error.detail)


class StateCampaign:
    """A campaign on one target. It reports a finding once, shrunk, and counts repetitions."""

    def __init__(self, plan: FuzzPlan, target: str, stack: ExitStack, say: Progress) -> None:
        self.plan, self.target, self.say = plan, target, say
        self.way, self.memory = names_of(target)
        runner = plan.runner()
        self.saved = SavedStates(stack, runner, target, plan.settings)
        self.oracle = self.saved.session("")
        model = self.saved.model(self.memory)
        self.subject = stack.enter_context(runner.open(plan.engine, model, plan.settings))
        self.known = known_states()
        self.numbers = CaseNumbers(plan, BATCH)
        self.counts: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def verdicts(self) -> Iterator[Verdict | Checkpoint]:
        for cases in self.batches():
            for case, cause in self.judge(cases, counted=True):
                verdict = self.finding(case, cause)
                if verdict is not None:
                    yield verdict
            differ = sum(self.seen.values())
            self.say(self.target, self.numbers.pace(cases[-1].number + 1, "files", differ))
        yield self.summary()

    def batches(self) -> Iterator[list[StateCase]]:
        if self.plan.given:
            yield from ([state_case_from(text)] for text in self.plan.given)
            return
        bases = tuple(BASES)
        for numbers in self.numbers:
            base = bases[numbers.start // BATCH % len(bases)]
            saved = self.saved.base(base)
            family = f"state.{self.target}"
            drawn = numbers_of(self.plan.seed, family, numbers.start, len(numbers))
            pairs = zip(numbers, drawn, strict=True)
            yield [state_case(number, base, draw, saved) for number, draw in pairs]

    def judge(
        self, cases: Sequence[StateCase], *, counted: bool = False
    ) -> list[tuple[StateCase, StateCause]]:
        """Return the findings about cases with the same base. counted: add the cases to the
        statistics."""
        base = self.saved.base(cases[0].base)
        files = [base.raw, *(case.raw(self.saved) for case in cases)]
        mine, theirs = (self.answers(who, cases[0].base, files) for who in self.both)
        if theirs.ending(0) != ACCEPTED:
            raise NoAnswer("not-compared", "llama.cpp does not load a file of its own", {})
        right, found = int(theirs.digests[0]), []
        for i, case in enumerate(cases, start=1):
            cause = state_cause(mine, theirs, i, right, case.regions(base) or "none")
            found += [] if cause is None else [(case, cause)]
            if counted:
                takes = [who.ending(i) == ACCEPTED for who in (mine, theirs)]
                self.counts["files"] += 1
                self.counts["refused by ours"] += not takes[0]
                self.counts["refused by llama.cpp"] += not takes[1]
        return found

    @property
    def both(self) -> tuple[Session, Session]:
        return self.subject, self.oracle

    def answers(self, who: Session, base: str, files: Sequence[bytes]) -> Parsed:
        outcome = who.ask("restore", *pack_files(files), WAYS[self.way], tokens_after(base))
        if not isinstance(outcome, Answered):
            raise no_answer(who.name, "restore", outcome)
        return parse_answer(outcome.value, len(files))

    # --- findings -----------------------------------------------------------------------------

    def finding(self, case: StateCase, cause: StateCause) -> Verdict | None:
        """Return the verdict on a cause, with a shrunk case; None if the cause was reported
        before."""
        key = self.name_of(cause)
        if key not in self.seen:
            case = self.small(case, cause)
            again = self.judge([case])
            cause = again[0][1] if again else cause
            key = self.name_of(cause)
        self.seen[key] += 1
        full = f"fuzz-states/{self.target}/{key}"
        if self.seen[key] > 1 or full in self.plan.found:
            return None
        known = entry_for(self.known, cause, self.way, self.memory)
        status: Status = "diverged"
        if known is not None and cause.symptom not in OWN:
            status = "excused"
        elif cause.symptom in ("crashes", "hangs"):
            status = "crashed" if cause.symptom == "crashes" else "timed-out"
        who = self.subject if cause.symptom in OWN else self.oracle
        text = f"{who.name} {cause.symptom}: {cause.kind}".rstrip(": ")
        text += f" (known: {known.id}: {known.sentence.rstrip('.')})" if known else ""
        detail = {
            "symptom": cause.symptom,
            "kind": cause.kind,
            "case": case.number,
            "damage": case.text(),
            "bytes": len(case.raw(self.saved)),
            "known": known.id if known else None,
        }
        return self.verdict(status, text, detail, full, case)

    def name_of(self, cause: StateCause) -> str:
        known = entry_for(self.known, cause, self.way, self.memory)
        return known.id if known else str(cause)

    def small(self, case: StateCase, cause: StateCause) -> StateCase:
        """Return the smallest case found with the same symptom. Edits are removed first, and then
        the base is shortened. Its damage may differ from the first case's damage."""

        def shows(cases: list[StateCase]) -> list[bool]:
            found = [{c.symptom for _, c in self.judge([each])} for each in cases]
            return [cause.symptom in symptoms for symptoms in found]

        def fewer(one: StateCase) -> Iterator[StateCase]:
            for i in range(len(one.edits)):
                yield StateCase(one.number, one.base, one.edits[:i] + one.edits[i + 1 :])

        def shorter(one: StateCase) -> Iterator[StateCase]:
            yield from (StateCase(one.number, base, one.edits) for base in BASES)

        def size(one: StateCase) -> tuple[int, int]:
            return len(one.edits), list(BASES).index(one.base)

        return shrink(case, (fewer, shorter), shows, size, budget=TRIES, at_once=4)

    def summary(self) -> Verdict:
        words = [f"{n:,} {name}" for name, n in self.counts.items()]
        text = ", ".join(words) or "no files"
        if self.seen:
            text += "; " + ", ".join(f"{n:,} {key}" for key, n in self.seen.most_common())
        detail = {**self.counts, "next": self.numbers.done, "differences": dict(self.seen)}
        return self.verdict("agreed" if self.counts["files"] else "not-compared", text, detail)

    def verdict(
        self,
        status: Status,
        summary: str,
        detail: dict[str, Any],
        key: str = "",
        case: StateCase | None = None,
    ) -> Verdict:
        words = [] if case is None else ["--case", case.text()]
        command = self.plan.command("states", self.target, *words)
        return Verdict(
            suite="fuzz-states",
            case=self.target,
            status=status,
            summary=f"{self.target}: {summary}",
            detail=detail,
            key=key,
            repro=command if words else "",
        )
