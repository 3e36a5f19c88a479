"""Tokenizers: texts made from the vocabulary's pieces, and ids, until two engines differ."""

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.check.inputs import check_file
from lockstep.harness.context.runner import LocalSession, Runner, Session
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.fuzzers.base import Fuzzer, FuzzPlan, Progress
from lockstep.harness.fuzzers.numbers import CaseNumbers
from lockstep.harness.fuzzers.tokens.ask import Failure, GivenUp, TextAsker
from lockstep.harness.fuzzers.tokens.campaign import (
    FLAGS,
    QUESTIONS,
    Flags,
    TextCampaign,
    TextDifference,
)
from lockstep.harness.fuzzers.tokens.texts import Counter, Material, id_list, material_of, text
from lockstep.harness.records import Answered, Verdict
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from lockstep.harness.synth.llama import write_llama

BATCH = 2000  # texts that are judged between two looks at the clock
SECONDS = 30.0  # time limit of one question, because llama.cpp may loop endlessly
BUILTIN = "builtin:"
# libraries of original tokenizers, with the flags that they support; they accept only UTF-8, and
# only encode
ORIGINALS = {"tokenizers": FLAGS[:2], "sentencepiece": FLAGS[:1]}


class TokensFuzzer(Fuzzer, name="tokens"):
    """A fuzzer whose targets are GGUF files and built-in vocabularies."""

    def targets(self) -> list[str]:
        return [f"{BUILTIN}{kind}" for kind in BUILTIN_VOCABULARIES if kind != "none"]

    def check(self, plan: FuzzPlan) -> None:
        known = ", ".join(self.targets())
        for target in plan.targets:
            if target not in self.targets():
                check_file(Path(target), f", and no built-in vocabulary ({known})")

    def run(self, plan: FuzzPlan, progress: Progress) -> Iterator[Verdict]:
        with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
            for target in plan.targets or self.targets():
                path = Path(target)
                if target.startswith(BUILTIN):
                    path = Path(folder) / "vocabulary.gguf"
                    write_llama(BUILTIN_VOCABULARIES[target.removeprefix(BUILTIN)], path)
                yield from FuzzedVocabulary(
                    plan=plan, target=target, path=path, say=progress
                ).verdicts()


@dataclass(kw_only=True)
class FuzzedVocabulary:
    """The vocabulary of one target, with the plan."""

    plan: FuzzPlan
    target: str  # name on the command line
    path: Path
    say: Progress
    numbers: CaseNumbers = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = CaseNumbers(self.plan, BATCH)

    @property
    def case(self) -> str:
        return self.target if self.target.startswith(BUILTIN) else self.path.name

    @property
    def original(self) -> str:
        """Return the name of the engine that is an original library, or ""."""
        return next((n for n in (self.plan.oracle, self.plan.engine) if n in ORIGINALS), "")

    @property
    def ways(self) -> Sequence[Flags]:
        return ORIGINALS.get(self.original, FLAGS)

    def verdicts(self) -> Iterator[Verdict]:
        try:
            with GgufFile.open(self.path) as file:
                material = material_of(tokenizer_of(file.metadata), file.metadata)
        except (EngineError, OSError) as error:
            yield self.verdict("not-compared", f"Lockstep cannot make texts: {error}")
            return
        settings = self.plan.settings
        limit = min(SECONDS, self.plan.time_limit)
        runner = Runner(time_limit=limit, memory_limit=self.plan.memory_limit)
        with (
            runner.open(self.plan.oracle, self.path, settings) as oracle,
            runner.open(self.plan.engine, self.path, settings) as subject,
        ):
            campaign = campaign_of(oracle, subject)
            if self.original:
                campaign.legal = is_readable
            elif any(map(says_utf8_alone, (oracle, subject))):
                campaign.utf8_only = True
                campaign.legal = lambda given: type(given) is not bytes or is_readable(given)
            try:
                self.judge(campaign, material)
            except (NoAnswer, GivenUp) as error:
                status = getattr(error, "status", "crashed")
                yield self.verdict(status, str(error), key=f"fuzz-tokens/{status}")
        yield from self.report_campaign(campaign)

    def judge(self, campaign: TextCampaign, material: Material) -> None:
        if self.plan.given:
            cases = list(enumerate(self.plan.given))
            for flags in self.ways:
                runs = campaign.encode(cases, flags)
                for back in () if self.original else FLAGS:
                    campaign.decode(runs, back)
            return
        for numbers in self.numbers:
            self.judge_batch(campaign, material, numbers)
            differ = len(campaign.found) + campaign.more
            self.say(self.case, self.numbers.pace(numbers.stop, "texts", differ))

    def judge_batch(self, campaign: TextCampaign, material: Material, numbers: range) -> None:
        """Compare texts in the four ways to encode, and their ids and random ids in the four ways
        to decode. The seed and the number determine a case and its flags."""
        runs: dict[int, list[tuple[int, Any]]] = {0: [], 1: [], 2: [], 3: []}
        ways = self.ways
        for way, flags in enumerate(ways):
            texts = []
            for at in numbers[(way - numbers.start) % len(ways) :: len(ways)]:
                draw = Counter(self.plan.seed, f"fuzz.tokens.{at}")
                made = text(draw, material)
                texts.append((at, readable(made) if self.original else made))
                if at // 16 % 4 == 0:
                    runs[at // 4 % 4].append((at, tuple(id_list(draw, material))))
            for at, ids in campaign.encode(texts, flags):
                runs[at // 4 % 4].append((at, ids))
        for way, cases in () if self.original else runs.items():
            campaign.decode(cases, FLAGS[way])

    # --- verdicts ---------------------------------------------------------------------------------

    def report_campaign(self, campaign: TextCampaign) -> Iterator[Verdict]:
        counts = {
            "texts": campaign.texts,
            "id_lists": campaign.runs,
            "refused_by_both": campaign.refused,
            "more": campaign.more,
            "next": self.numbers.done,
        }
        for at, difference in enumerate(campaign.found):
            summary = in_words(difference)
            if at == 0 and campaign.more:
                summary += f"; {campaign.more} more inputs differ in these ways"
            yield self.verdict(
                difference.status,
                summary,
                {**detail_of(difference), **counts},
                key=f"fuzz-tokens/{difference.way}/{difference.shape}",
                again=self.again(difference),
            )
        if not campaign.found:
            summary = f"{campaign.texts:,} texts and {campaign.runs:,} lists of ids agree"
            if campaign.refused:
                summary += f"; {campaign.refused:,} inputs are refused"
            if campaign.left_out:
                summary += f"; {campaign.left_out:,} inputs that are not UTF-8 were not compared"
            compared = campaign.texts > campaign.refused_texts
            yield self.verdict("agreed" if compared else "not-compared", summary, counts)
        if campaign.confirmed:
            way, given, want, got = min(campaign.confirmed, key=lambda row: len(row[1]))
            summary = f"both engines refuse {given!r}: {want.text}; {self.plan.engine} {got.text}"
            detail = {"way": way, "input": repr(given), "oracle": want.text, "subject": got.text}
            yield self.verdict("excused", summary, detail)

    def again(self, d: TextDifference) -> list[str]:
        if isinstance(d.given, bytes):
            return ["--hex", d.given.hex()]
        if self.plan.given:  # ids of a text that the user gave
            return ["--hex", self.plan.given[d.case].hex()]
        return ["--seed", str(self.plan.seed), "--start", str(d.case), "--cases", "1"]

    def verdict(
        self,
        status: Any,
        summary: str,
        detail: Mapping[str, Any] | None = None,
        key: str = "",
        again: list[str] | None = None,
    ) -> Verdict:
        plan = self.plan
        words = ["lockstep", "fuzz", "tokens", "--vocab", self.target, "--engine", plan.engine]
        words += [] if plan.oracle == "llama.cpp" else ["--oracle", plan.oracle]
        campaign = ["--seed", str(plan.seed), "--start", str(plan.start)]
        campaign += ["--cases", str(plan.cases)]
        given = [word for text in plan.given for word in ("--hex", text.hex())]
        words += again or given or campaign
        return Verdict(
            suite="fuzz-tokens",
            case=self.case,
            status=status,
            summary=summary,
            detail=detail or {},
            key=key,
            repro="" if status == "agreed" else shlex.join(words),
        )


def readable(text: bytes) -> bytes:
    return text.decode(errors="ignore").encode()


def is_readable(given: Any) -> bool:
    return isinstance(given, bytes) and readable(given) == given


def says_utf8_alone(session: Session) -> bool:
    outcome = session.ask("describe")
    return isinstance(outcome, Answered) and bool(outcome.value.utf8_only)


def campaign_of(oracle: Session, subject: Session) -> TextCampaign:
    """Return a campaign. An engine in this process can be the refuser, because it refuses inputs at
    no cost, while an engine in another process may die."""
    asked = TextAsker(session=oracle), TextAsker(session=subject)
    local = [asker for asker in asked if isinstance(asker.session, LocalSession)]
    return TextCampaign(oracle=asked[0], subject=asked[1], refuser=local[-1] if local else None)


def in_words(d: TextDifference) -> str:
    names = QUESTIONS[d.way][1]
    on = " ".join(name for name, value in zip(names, d.flags, strict=True) if value) or "no flags"
    want, got = (x.text if isinstance(x, Failure) else repr(x) for x in (d.expected, d.actual))
    return f"{d.way} ({on}) of {repr(d.given)[:80]} gives {got[:120]}, expected {want[:120]}"


def detail_of(d: TextDifference) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Failure):
            return value.text
        return value.hex() if isinstance(value, bytes) else list(value)

    return {
        "way": d.way,
        "flags": dict(zip(QUESTIONS[d.way][1], d.flags, strict=True)),
        "input": plain(d.given),
        "expected": plain(d.expected),
        "actual": plain(d.actual),
        "case": d.case,
        "shape": d.shape,
    }
