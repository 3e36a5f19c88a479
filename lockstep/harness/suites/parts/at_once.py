"""Several prompts before any of them is answered: of a server that keeps one cache, or one buffer,
for all that it is asked, each answer alone is right.

Servers put such prompts in one batch, whose sums may be others by roundings: a text that is not the
one that comes alone is held against the oracle like any other, and ties are excused.
"""

from collections.abc import Callable, Iterator, Sequence

from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.records import Answered, Crashed, Outcome, TimedOut, Verdict
from lockstep.harness.suites.parts.prompts import N_OTHERS, OTHERS

Judge = Callable[[Context, bytes, int, bytes], Iterator[Verdict]]
AT_ONCE = "while others are being answered"
ROUNDS = 3  # which of them meet is a matter of microseconds


def asked_at_once(judge: Judge, context: Context) -> Iterator[Verdict]:
    """judge: verdicts on a text of so many tokens behind a prompt. Last of all that is asked of a
    server, since it may end it. Of another engine nothing."""
    n, prompts = min(N_OTHERS, context.n_steps), [*OTHERS]
    if not context.subject.takes_several:
        return
    try:
        alone = [context.ask(context.subject, "generate", prompt, n) for prompt in prompts]
    except NoAnswer:  # that has been said
        return
    for _ in range(ROUNDS):
        outcomes = context.subject.ask_at_once("generate", [(prompt, n) for prompt in prompts])
        texts = [outcome.value for outcome in outcomes if isinstance(outcome, Answered)]
        if len(texts) < len(prompts):
            still_there(context, outcomes, prompts[0], n)
            text = f"{AT_ONCE} it answers {len(texts)} of {len(prompts)} prompts"
            yield context.verdict("text", "not-applicable", text)
            return
        for prompt, usual, said in zip(prompts, alone, texts, strict=True):
            if said != usual and is_wrong(judge(context, prompt, n, said)):
                yield another(context, prompt, usual, said)
                return
    text = f"{AT_ONCE} the texts behind {len(prompts)} prompts are the same, but for ties"
    yield context.verdict("text", "agreed", text)


def still_there(context: Context, outcomes: Sequence[Outcome], prompt: bytes, n: int) -> None:
    """One at a time is what many servers take, if they live on. Who does not answer in time hangs:
    all together are half the tokens of the usual text, which came in that time. Raises NoAnswer."""
    for outcome in outcomes:
        if isinstance(outcome, Crashed | TimedOut):
            context.answer(context.subject, "generate several times at once", outcome)
    context.ask(context.subject, "generate", prompt, n)


def is_wrong(verdicts: Iterator[Verdict]) -> bool:
    return any(verdict.status == "diverged" for verdict in verdicts)


def another(context: Context, prompt: bytes, usual: bytes, said: bytes) -> Verdict:
    text = (
        f"{AT_ONCE} the text behind {prompt.decode()!r} is {said[:40]!r}, alone it is "
        f"{usual[:40]!r}: what do requests share that come at the same time, a cache or a buffer?"
    )
    detail = {"at_fault": "subject", "prompt": repr(prompt), "margin": None}
    return context.verdict("text", "diverged", text, detail, key=("text", "at once"))
