"""Does attention end where a model's window ends? Asked with a short one.

Real windows have 128 to 4096 tokens. The run of which ops are judged is shorter than any of them,
and what is asked besides of a real model has 300 tokens at most, and logits that are allowed a few
percents: an engine that knows of no window, or ends it a token too early, gives the same. So both
engines are given the model's first layers, one of each mask at least, in F32, with the first tokens
of a large vocabulary and a window of few tokens.
"""

import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32
from lockstep.harness.bisect.bisection import Bisection, bisect
from lockstep.harness.blackbox.asking import (
    SliceAnswer,
    SliceAsker,
    left_unanswered,
    on_made_models,
    verdicts_of,
    why_not_asked,
    worst_of,
)
from lockstep.harness.blackbox.first_layers import check_alike, roles_in
from lockstep.harness.blackbox.rewriting import Recipe, rewrite
from lockstep.harness.blackbox.slices import first_layers, n_layers, window_of
from lockstep.harness.check.check import BadInput, Opened, Plan, run_suites
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import STEPS_TRACED, Context, NoAnswer
from lockstep.harness.locate.segments import shows_tensors
from lockstep.harness.records import Answered, Request, Verdict

Way = Callable[[GgufFile, int], Recipe]  # of a model with such a window
SUITE = "window"
SHORT = 11  # tokens: the prompt is three times as long, and no power of two hides one more or less
TOKENS = 32
NO_END = 1 << 20  # of a window that no text fills
LARGEST = 1 << 30  # bytes in F32, which two engines hold at once


def checked(plan: Plan, context: Context) -> Iterator[Verdict]:
    window, usual = window_of(context.file), context.n_tokens + STEPS_TRACED
    if not window or window < usual:
        if context.named:
            text = f"its window has {window} tokens, and the usual run, with {usual}, shows it"
            text = text if window else "it has no window"
            yield context.verdict(SUITE, "not-applicable", text)
        return
    if reason := why_not_asked(context.subject.name, context.subject_info.levels):
        cut = f"lockstep slice {shlex.quote(str(plan.model))} -o short.gguf --window {SHORT}"
        text = f"its window of {window} tokens is longer than the usual run, and {reason}: {cut}"
        yield context.verdict(SUITE, "not-applicable", f"{text} makes a model to check")
        return
    yield from on_made_models(plan, context, SUITE, partial(asked, context, window))


def asked(context: Context, window: int, asker: SliceAsker) -> Iterator[Verdict]:
    n, what = layers_to_ask(asker, window)
    for way in ways_to_make(asker, n):
        found = answer_of(asker, way)
        if found.worst.status != "not-compared":
            break
    text, status = f"{what}: {found.worst.summary}", found.worst.status
    if status == "not-compared" or found.vacuous:  # a model that is not taken spoils nothing
        text = f"{what}: {found.vacuous}" if found.vacuous else text
        status = "not-applicable"
    if found.places:
        text += f": {found.places}"
    yield context.verdict(SUITE, status, text, dict(found.worst.extent), (SUITE, status))


@dataclass(frozen=True, kw_only=True)
class WindowAnswer:
    """places: that are wrong; vacuous: why it says nothing that both agree."""

    worst: SliceAnswer
    places: str = ""
    vacuous: str = ""


def answer_of(asker: SliceAsker, way: Way) -> WindowAnswer:
    plan = replace(asker.made(lambda file: way(file, SHORT)), n_tokens=TOKENS)
    try:
        opened = asker.open(plan)
    except NoAnswer as error:
        return WindowAnswer(worst=left_unanswered(error, plan.oracle))
    except BadInput as error:
        return WindowAnswer(worst=SliceAnswer(status="not-compared", summary=str(error)))
    try:
        worst = worst_of(verdicts_of(opened, ()), plan.oracle)
        if worst.agrees:
            return WindowAnswer(worst=worst, vacuous=unchanged(asker, opened, way))
        return WindowAnswer(worst=worst, places=places(opened) if worst.differs else "")
    finally:
        opened.close()


def bisected(plan: Plan, context: Context) -> Bisection | None:
    """Of the run that `checked` asks for, where no op is wrong in the usual ones. None: here
    neither, or the engine takes no such model."""
    with TemporaryDirectory(prefix="lockstep-") as folder:
        asker = SliceAsker(plan=plan, folder=Path(folder), progress=context.progress)
        try:
            n, what = layers_to_ask(asker, window_of(context.file))
            for way in ways_to_make(asker, n):
                with suppress(NoAnswer, BadInput):
                    found = bisection_of(asker, way)
                    return replace(found, asked=what) if found.culprits else None
        finally:
            asker.close()
    return None


def bisection_of(asker: SliceAsker, way: Way) -> Bisection:
    opened = asker.open(replace(asker.made(lambda file: way(file, SHORT)), n_tokens=TOKENS))
    try:
        return bisect(opened.context)
    finally:
        opened.close()


def ways_to_make(asker: SliceAsker, n: int) -> Iterator[Way]:
    """A model of n layers: in F32 with the first tokens of a large vocabulary; for who does not
    take that, in the types that it has, and with all tokens."""

    def in_types(file: GgufFile, window: int) -> Recipe:
        return asker.with_few_tokens(file, first_layers(file, n, window))

    def in_f32(file: GgufFile, window: int) -> Recipe:
        return replace(in_types(file, window), stored=frozenset())

    names = first_layers(asker.file, n).names.values()
    if sum(4 * asker.file.tensors[name].n_elements for name in names) <= LARGEST:
        yield in_f32
    yield in_types
    yield lambda file, window: first_layers(file, n, window)


def layers_to_ask(asker: SliceAsker, window: int) -> tuple[int, str]:
    """How many: one that sees otherwise than the first does is among them; and what is asked, in
    words. Raises Unsupported."""
    total = n_layers(asker.file)
    every = roles_in(asker.plan.model, total)
    n = min(total, next((layer + 1 for layer, (_, other) in enumerate(every) if other), 2))
    if n < total:
        made = asker.made(lambda file: asker.with_few_tokens(file, first_layers(file, n)))
        check_alike(every, roles_in(made.model, n))
    what = f"a window of {SHORT} tokens in the place of {window}, its first {n} of {total} layers"
    return n, f"with {what}"


def unchanged(asker: SliceAsker, opened: Opened, way: Way) -> str:
    """Why it says nothing that both engines agree: the oracle makes nothing of the key."""
    context, path = opened.context, asker.folder / "wide.gguf"
    rewrite(asker.file, way(asker.file, NO_END), path)
    with context.runner.open(context.oracle.name, path, context.settings) as other:
        short, wide = (logits_of(session, context) for session in (context.oracle, other))
    if short is None or wide is None:
        return f"{context.oracle.name} does not say what a window changes"
    apart = np.abs(short - wide).max() / (np.abs(wide).max() or 1.0)
    if apart <= 2 * context.noise.relative:
        return f"{context.oracle.name} gives the same logits with any window"
    return ""


def logits_of(session: Session, context: Context) -> F32 | None:
    outcome = session.ask("evaluate", Request(batches=context.batches))
    return np.concatenate(outcome.value.logits) if isinstance(outcome, Answered) else None


def places(opened: Opened) -> str:
    """What of an engine that shows tensors is wrong on its own inputs."""
    if not shows_tensors(opened.context):
        return ""
    found = [v.detail for v in run_suites(opened.context, ("trace",)) if v.status == "diverged"]
    return ", ".join(dict.fromkeys(f"{d['site']}-{d['layer']}" for d in found if "site" in d))
