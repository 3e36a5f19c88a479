"""Does attention end where a model's window ends? Asked with a short one.

Real windows have 512 to 4096 tokens, and no prompt that is asked of a real model is as long: an
engine that knows of no window, or ends it a token too early, gives the same logits. So both engines
are given the model's first layers, one of each mask at least, in F32, with the first tokens of a
large vocabulary and a window of few tokens.
"""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32
from lockstep.harness.bisect.bisection import Bisection, bisect
from lockstep.harness.blackbox.asking import (
    SliceAsker,
    on_made_models,
    verdicts_of,
    why_not_asked,
    worst_of,
)
from lockstep.harness.blackbox.first_layers import check_alike, roles_in
from lockstep.harness.blackbox.rewriting import Recipe, rewrite
from lockstep.harness.blackbox.slices import first_layers, n_layers, window_of
from lockstep.harness.check.check import Opened, Plan, run_suites
from lockstep.harness.context.further_runs import n_cells
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import Context
from lockstep.harness.locate.segments import shows_tensors
from lockstep.harness.records import Answered, Request, Verdict

SUITE = "window"
SHORT = 11  # tokens: the prompt is three times as long, and no power of two hides one more or less
TOKENS = 32
NO_END = 1 << 20  # of a window that no text fills
LARGEST = 1 << 30  # bytes in F32, which two engines hold at once


def checked(plan: Plan, context: Context) -> Iterator[Verdict]:
    window, most = window_of(context.file), n_cells(context)
    if not window or window < most:
        if context.named:
            text = (
                f"its window has {window} tokens, and {most} are asked: logits shows where it ends"
            )
            text = text if window else "it has no window"
            yield context.verdict(SUITE, "not-applicable", text)
        return
    if reason := why_not_asked(context.subject.name, context.subject_info.levels):
        cut = f"lockstep slice {shlex.quote(str(plan.model))} -o short.gguf --window {SHORT}"
        text = f"no prompt is as long as its window of {window} tokens, and {reason}: {cut}"
        yield context.verdict(SUITE, "not-applicable", f"{text} makes a model to check")
        return
    yield from on_made_models(plan, context, SUITE, partial(asked, context, window))


def asked(context: Context, window: int, asker: SliceAsker) -> Iterator[Verdict]:
    plan, n, what = with_short_window(asker, window)
    opened = asker.open(plan)
    try:
        worst = worst_of(verdicts_of(opened, ()), plan.oracle)
        vacuous = unchanged(asker, opened, n) if worst.agrees else ""
        place = places(opened) if worst.differs else ""
    finally:
        opened.close()
    if vacuous:
        yield context.verdict(SUITE, "not-applicable", f"{what}: {vacuous}")
        return
    status = "not-applicable" if worst.status == "not-compared" else worst.status
    text = f"{what}: {worst.summary}" + (f": {place}" if place else "")
    yield context.verdict(SUITE, status, text, dict(worst.extent), (SUITE, status))


def bisected(plan: Plan, context: Context) -> Bisection | None:
    """Of the run that `checked` asks for, where no op is wrong in the usual ones. None: here
    neither."""
    with TemporaryDirectory(prefix="lockstep-") as folder:
        asker = SliceAsker(plan=plan, folder=Path(folder), progress=context.progress)
        try:
            made, _, what = with_short_window(asker, window_of(context.file))
            opened = asker.open(made)
            try:
                found = bisect(opened.context)
            finally:
                opened.close()
        finally:
            asker.close()
    return replace(found, asked=what) if found.culprits else None


def with_short_window(asker: SliceAsker, window: int) -> tuple[Plan, int, str]:
    """The plan, how many layers its model has, and what is asked in words."""
    n, of = layers_to_ask(asker)
    plan = asker.made(lambda file: of_window(asker, file, n, SHORT))
    what = f"with a window of {SHORT} tokens in the place of {window}, its first {n} of {of} layers"
    return replace(plan, n_tokens=TOKENS), n, what


def layers_to_ask(asker: SliceAsker) -> tuple[int, int]:
    """So many of so many: one that sees otherwise than the first does is among them. Raises
    Unsupported."""
    total = n_layers(asker.file)
    every = roles_in(asker.plan.model, total)
    n = min(total, next((layer + 1 for layer, (_, other) in enumerate(every) if other), 2))
    if n < total:
        made = asker.made(lambda file: of_window(asker, file, n, window_of(file)))
        check_alike(every, roles_in(made.model, n))
    return n, total


def of_window(asker: SliceAsker, file: GgufFile, n: int, window: int) -> Recipe:
    recipe = asker.with_few_tokens(file, first_layers(file, n, window))
    in_f32 = sum(4 * file.tensors[name].n_elements for name in recipe.names.values())
    return replace(recipe, stored=frozenset()) if in_f32 <= LARGEST else recipe


def unchanged(asker: SliceAsker, opened: Opened, n: int) -> str:
    """Why it says nothing that both engines agree: the oracle makes nothing of the key."""
    context = opened.context
    path = asker.folder / "wide.gguf"
    rewrite(asker.file, of_window(asker, asker.file, n, NO_END), path)
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
