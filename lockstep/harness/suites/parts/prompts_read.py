"""What an engine does to a prompt before it reads it: clauses for a text that is wrong."""

from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.suites.parts.prompts import N_OTHERS, SPACED

# of a prompt that is asked where those before it were right
READ_OTHERWISE = (
    "; behind plainer prompts it is right, so look at how characters are read: as Latin-1, in "
    "halves of UTF-16, without \\u escapes of two halves, composed or decomposed, or a line's end "
    "as two"
)


def cut_off(context: Context) -> str:
    """A clause where the text is that behind the prompt without its spaces."""
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
    return f"; it is the same without the spaces {where}: are they cut off?" if where else ""
