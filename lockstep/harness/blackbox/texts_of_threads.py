"""Does a program that has nothing but text write the same with several threads?

As `several_threads` asks of logits: what threads do at once is another thing each time.
"""

from collections.abc import Iterator
from dataclasses import replace

from lockstep.harness.blackbox.long_prompt import THREADS
from lockstep.harness.blackbox.several_threads import WORDS, asked_with_threads, rounds
from lockstep.harness.check.check import Plan
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.protocol.session import ProgramSession
from lockstep.harness.records import Verdict
from lockstep.harness.suites.parts.prompts import N_OTHERS
from lockstep.harness.suites.text import behind, is_wrong

SUITE = "text"


def checked(plan: Plan, context: Context) -> Iterator[Verdict]:
    """Nothing of an engine that has one thread whatever it is told."""
    if context.settings.n_threads >= THREADS or not isinstance(context.subject, ProgramSession):
        return
    context.progress(f"a text {WORDS}")
    yield from asked_with_threads(plan, context, SUITE, said)


def said(context: Context) -> Iterator[Verdict]:
    """Each time behind the first prompt, until a text is wrong."""
    n = min(N_OTHERS, context.n_steps)
    found: list[Verdict] = []
    known = None
    for _ in rounds():
        try:
            text = context.ask(context.subject, "generate", context.prompt, n)
            if text == known:
                continue
            found, known = list(behind(context, context.prompt, n, text)), text
        except NoAnswer as error:
            key = (SUITE, error.status, "threads")
            yield context.verdict(SUITE, error.status, f"{WORDS}: {error}", error.detail, key)
            return
        if any(map(is_wrong, found)):
            break
    for verdict in found:
        more = "; with one thread that is right" if is_wrong(verdict) else ""
        detail = {**verdict.detail, "n_threads": THREADS} if more else verdict.detail
        yield replace(verdict, summary=f"{WORDS}: {verdict.summary}{more}", detail=detail)
