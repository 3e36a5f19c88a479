"""`lockstep smoke`: asks one question for each level that an engine offers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.harness.asking.session import Session
from lockstep.harness.protocol.messages import LEVELS
from lockstep.harness.protocol.program import words_for_banner
from lockstep.harness.records import (
    Answered,
    Busy,
    Crashed,
    EngineInfo,
    Evaluation,
    Malformed,
    Outcome,
    Rejected,
    Request,
    SampleRequest,
    Site,
    TimedOut,
    Unanswerable,
)

PROMPT, NEXT = (1, 5, 9, 13), (2,)  # ids in every model here
N_GREEDY = 4
TEXTS = (b"Once upon a time", b"", "\u00e4\u2713\U0001f600".encode())
NO_UTF8 = b"\xff no UTF-8"
Q8_0 = np.arange(2 * 34, dtype=np.uint8)  # two blocks: an F16 scale and 32 weights each
SAMPLED = SampleRequest(
    chain=({"sampler": "top_k", "k": 2}, {"sampler": "greedy"}),
    logits=np.array([[0, 2, 1, -1]], np.float32),
    accepted=((),),
    draws=np.full((1, 2), np.nan),
)
START = "start"


@dataclass(frozen=True, kw_only=True)
class SmokeStep:
    """The result of one level. status: works, not offered, unsupported, refused, wrong."""

    level: str
    status: str
    words: str = ""
    seconds: float = 0.0


def smoke(session: Session) -> Iterator[SmokeStep]:
    """Yield one step for the start, and then one step for each level, as soon as it is complete.
    After a failed start, yield no further steps."""
    outcome = session.ask("describe")
    if not isinstance(outcome, Answered):
        yield step_of(START, outcome)
        return
    info: EngineInfo = outcome.value
    banner = f"; {words_for_banner('it', info.printed)}" if info.printed else ""
    yield SmokeStep(level=START, status="works", words=info.version + banner)
    shown: dict[Site, Any] = {}
    with TemporaryDirectory(prefix="lockstep-") as folder:
        for level in LEVELS:
            if level == "replace":
                yield check_replacement(session, shown)
                continue
            question, args, kwargs = question_for_level(level, info, Path(folder) / "state")
            outcome = session.ask(question, *args, **kwargs)
            yield step_of(level, outcome)
            if level == "trace" and isinstance(outcome, Answered):
                shown = outcome.value.trace.values()


def question_for_level(
    level: str, info: EngineInfo | None = None, state: Path = Path("state")
) -> tuple[str, tuple[Any, ...], Mapping[str, Any]]:
    """Return the question that tests a level. `state` is the file to save to."""
    batches = Batch.of(PROMPT), Batch.of(NEXT, start=len(PROMPT))
    ones = np.ones((1, Q8_0.size // 34 * 32), np.float32)
    norm = {"x": np.ones((1, 8), np.float32), "weight": np.ones(8, np.float32)}
    texts = TEXTS if info and info.utf8_only else (*TEXTS, NO_UTF8)
    embeds = embeds_alone(info)
    prefixes = [TEXTS[0], TEXTS[0][:4]] if info and info.text_only else [PROMPT, PROMPT[:1]]
    questions: dict[str, tuple[str, tuple[Any, ...], Mapping[str, Any]]] = {
        "parse": ("metadata", (), {}),
        "tokenize": ("tokenize", (texts,), {}),
        "detokenize": (
            "detokenize",
            ([PROMPT, ()],),
            {"remove_special": False, "unparse_special": True},
        ),
        "dequantize": ("dequantize", ("Q8_0", Q8_0), {}),
        "multiply": ("multiply", ("Q8_0", Q8_0, ones), {}),
        "operate": ("operate", ("weighted_rms_norm", norm, {"eps": 1e-5}), {}),
        "sample": ("sample", (SAMPLED,), {}),
        "embed": ("embed", (batches[:1],), {}),
        "generate": ("generate", (TEXTS[0], N_GREEDY), {}),
        "greedy": ("greedy", (PROMPT, N_GREEDY), {}),
        "logprobs": ("logprobs", (prefixes, N_GREEDY), {}),
        "save": ("save", (batches[:1], batches[1:], str(state)), {}),
        "guide": ("guide", (batches[:1], batches[:1], 1.5), {}),
        "load": ("load", (str(state), batches[1:]), {}),
        "logits": ("evaluate", (Request(batches=batches),), {}),
        "trace": ("evaluate", (Request(batches=batches, capture=True, embeddings=embeds),), {}),
    }
    return questions[level]


def embeds_alone(info: EngineInfo | None) -> bool:
    """Return True if the model gives only embeddings. Such a model shows its tensors in embedding
    runs."""
    levels = (info.levels if info else None) or ()
    return "embed" in levels and "logits" not in levels


def step_of(level: str, outcome: Outcome) -> SmokeStep:
    match outcome:
        case Answered(seconds=seconds):
            return SmokeStep(level=level, status="works", seconds=seconds)
        case Unanswerable(declared=True):
            return SmokeStep(level=level, status="not offered")
        case Unanswerable(message=message):
            return SmokeStep(level=level, status="unsupported", words=message)
        case Rejected(message=message):
            return SmokeStep(level=level, status="refused", words=message)
        case Crashed(message=message, log=log):
            words = "; ".join([message, *log[-3:]])
            return SmokeStep(level=level, status="wrong", words=words)
        case TimedOut(seconds=seconds, log=log, note=note):
            said = [*([note] if note else []), *(line for line in log[-3:] if line not in note)]
            words = "; ".join([f"no answer within {seconds:.0f} s", *said])
            return SmokeStep(level=level, status="wrong", words=words, seconds=seconds)
        case Busy(message=message) | Malformed(message=message):
            return SmokeStep(level=level, status="wrong", words=message)


def check_replacement(session: Session, shown: Mapping[Site, Any]) -> SmokeStep:
    """Replace the value of one node by zeros, and check that the outputs change."""
    info: Any = session.ask("describe")
    fixed = info.value.fixed if isinstance(info, Answered) else ()
    site = next((s for s in shown if s.name not in fixed and s.name != "result_output"), None)
    batches = (Batch.of(PROMPT),)
    if site is None:
        return step_of("replace", Unanswerable(message="", declared=True))
    zeros = {site: np.zeros_like(shown[site])}
    plain = Request(batches=batches, embeddings=embeds_alone(info.value))
    before = session.ask("evaluate", plain)
    after = session.ask("evaluate", replace(plain, replace=zeros))
    step = step_of("replace", after)
    if not (isinstance(before, Answered) and isinstance(after, Answered)):
        return step
    runs: tuple[Evaluation, Evaluation] = before.value, after.value
    if np.array_equal(runs[0].logits[0], runs[1].logits[0], equal_nan=True):
        words = f"zeros replaced {site}, but the outputs did not change"
        return replace(step, status="wrong", words=words)
    return step
