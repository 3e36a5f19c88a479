"""Changes that an engine makes to a prompt before it reads it, and the length of the text that it
writes."""

from lockstep.harness.context.further_runs import LeftOut
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.records import Answered, Rejected, Unanswerable
from lockstep.harness.suites.parts.prompts import N_OTHERS, SPACED

# added to a verdict on a prompt if the answers to earlier prompts were right
READ_OTHERWISE = (
    "; after plainer prompts it is right, so look at how the engine reads characters: as "
    "Latin-1, as UTF-16 surrogates, without \\u escapes of surrogate pairs, composed or "
    "decomposed, or a line end as two characters"
)


def cut_off(context: Context) -> str:
    """Return a clause if the text after a prompt with outer spaces equals the text after the prompt
    without them; else ""."""
    n = min(N_OTHERS, context.n_steps)
    texts = {}
    for name, prompt in {
        "": SPACED,
        "around it": SPACED.strip(),
        "at its end": SPACED.rstrip(),
    }.items():
        try:
            texts[name] = context.ask(context.subject, "generate", prompt, n)
        except NoAnswer:
            return ""
    whole = texts.pop("")
    where = next((name for name, text in texts.items() if text == whole), None)
    return (
        f"; the text is the same without the spaces {where}: does the engine strip them?"
        if where
        else ""
    )


def counted_otherwise(context: Context, prompt: bytes, n: int) -> str:
    """Return a clause if a server counts a different number of prompt tokens than n, which is a
    likely cause of a wrong text. Return "" if the server reports no number, or the same number,
    which proves nothing."""
    said = context.subject.counted.get(prompt)
    if said is None or said == n:
        return ""
    what = "look for a chat template around the prompt, a doubled BOS, or the tokenizer"
    if said < n:
        what = "look for a missing BOS, a truncated prompt, or the tokenizer"
    return f"; the engine counts {said} token{'s' * (said != 1)} in a prompt of {n}: {what}"


def said_in_full(context: Context, prompt: bytes, n: int) -> tuple[int, bytes, LeftOut | None]:
    """Return the number of tokens of text that the subject writes, the text, and the reason why it
    writes no more. A server may have a limit or a small context. Raises NoAnswer if the subject
    cannot even write one token."""
    first = outcome = context.subject.ask("generate", prompt, n)
    taken = n
    while isinstance(outcome, Unanswerable | Rejected) and taken > 1:
        taken //= 2
        outcome = context.subject.ask("generate", prompt, taken)
    if taken == n or not isinstance(outcome, Answered):
        return n, context.answer(context.subject, "generate", first), None
    assert isinstance(first, Unanswerable | Rejected)
    what = f"the text after its first {taken} tokens (--steps {taken} asks for no more)"
    return taken, outcome.value, LeftOut.of(what, first)
