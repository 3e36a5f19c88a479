"""Does a program that has nothing but greedy tokens choose the same with several threads?

As `several_threads` asks of logits: what threads do at once is another thing each time.
"""

from collections.abc import Iterator
from dataclasses import replace

from lockstep.engine.batch import steps_of
from lockstep.harness.blackbox.long_prompt import THREADS
from lockstep.harness.blackbox.several_threads import WORDS, asked_with_threads, rounds
from lockstep.harness.check.check import Plan
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.protocol.session import ProgramSession
from lockstep.harness.records import Verdict
from lockstep.harness.suites.decode import Decode, judged
from lockstep.harness.suites.parts.oracles_logits import oracles_logits

SUITE = "decode"


def checked(plan: Plan, context: Context) -> Iterator[Verdict]:
    """Nothing of an engine that has one thread whatever it is told."""
    if context.settings.n_threads >= THREADS or not isinstance(context.subject, ProgramSession):
        return
    context.progress(f"greedy tokens {WORDS}")
    yield from asked_with_threads(plan, context, SUITE, said)


def said(context: Context) -> Iterator[Verdict]:
    """Each time the same prompt, until other tokens than the oracle's are no tie."""
    prompt = Decode().prompt(context)
    asked = ("greedy", prompt, context.n_steps)
    oracle = context.ask(context.oracle, *asked)
    batches = steps_of(prompt, oracle, context.facts.decoder_start)
    logits = oracles_logits(context, batches)
    if logits is None:
        return  # said where one thread was asked
    found, known = None, None
    for _ in rounds():
        try:
            subject = context.ask(context.subject, *asked)
        except NoAnswer as error:
            key = (SUITE, error.status, "threads")
            yield context.verdict(SUITE, error.status, f"{WORDS}: {error}", error.detail, key)
            return
        if subject == known:
            continue
        found = judged(context, batches, logits[-len(oracle) :], None, oracle, subject)
        if found.status == "diverged":
            text = f"{WORDS}: {found.summary}; with one thread that is right"
            yield replace(found, summary=text, detail={**found.detail, "n_threads": THREADS})
            return
        known = subject
    if found is not None:
        yield replace(found, summary=f"{WORDS}: {found.summary}")
