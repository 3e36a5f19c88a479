"""Of how many tokens a prompt is that was given as a text: servers say it beside their answer, and
another number is a nearer cause of a wrong text than any op."""

from lockstep.harness.context.suite import Context


def counted_otherwise(context: Context, prompt: bytes, n: int) -> str:
    """A clause where the subject says that it is another number than n; "": it says no such thing.
    The same number says nothing: tokens may be others."""
    said = context.subject.counted.get(prompt)
    if said is None or said == n:
        return ""
    what = "a chat template around it, BOS once too often, or its tokenizer"
    if said < n:
        what = "BOS left out, a prompt that was cut, or its tokenizer"
    return f"; it counts {said} token{'s' * (said != 1)} in a prompt of {n}: {what}"
