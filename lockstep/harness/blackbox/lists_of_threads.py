"""Does a program that has nothing but lists of likely tokens list the same with several threads?

As `several_threads` asks of logits: what threads do at once is another thing each time.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lockstep.harness.blackbox.long_prompt import THREADS
from lockstep.harness.blackbox.several_threads import WORDS, asked_with_threads, rounds
from lockstep.harness.check.check import Plan
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.judging.candidates import read_list
from lockstep.harness.protocol.session import ProgramSession
from lockstep.harness.records import Request, Verdict
from lockstep.harness.suites.logprobs import MOST, by_ids, by_text, compared, names

SUITE = "logprobs"


def checked(plan: Plan, context: Context) -> Iterator[Verdict]:
    """Nothing of an engine that has one thread whatever it is told."""
    if context.settings.n_threads >= THREADS or not isinstance(context.subject, ProgramSession):
        return
    context.progress(f"the likeliest tokens {WORDS}")
    yield from asked_with_threads(plan, context, SUITE, said)


def said(context: Context) -> Iterator[Verdict]:
    """Each time the same prefixes, until a list is wrong."""
    asked = by_text(context) if context.subject_info.text_only else by_ids(context)
    run = context.ask(context.oracle, "evaluate", Request(batches=asked.batches))
    logits = np.concatenate(run.logits)
    found, known = None, None
    for _ in rounds():
        try:
            k = min(MOST, logits.shape[1])
            lists = context.ask(context.subject, "logprobs", asked.prefixes, k)
        except NoAnswer as error:
            key = (SUITE, error.status, "threads")
            yield context.verdict(SUITE, error.status, f"{WORDS}: {error}", error.detail, key)
            return
        if lists == known:
            continue
        listed = [read_list(row, names(context, lists)) for row in lists]
        found = compared(context, asked, logits, listed)
        if found.status == "diverged":
            text = f"{WORDS}: {found.summary}; with one thread that is right"
            yield replace(found, summary=text, detail={**found.detail, "n_threads": THREADS})
            return
        known = lists
    if found is not None:
        yield replace(found, summary=f"{WORDS}: {found.summary}")
