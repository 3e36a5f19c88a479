"""Prompts for text generation."""

from lockstep.engine.errors import EngineError
from lockstep.harness.context.chat_template import prompt_ids
from lockstep.harness.context.further_runs import n_cells
from lockstep.harness.context.suite import Context
from lockstep.harness.suites.parts.made_texts import ordinary
from lockstep.harness.synth.draws import integers, stream

# After a single prompt, a wrong engine may well continue rightly: with a doubled BOS, a small story
# model does so for 32 tokens after "Once upon a time", and for 0 to 6 tokens after these prompts.
# The last prompt has spaces around it, which engines must not remove.
SPACED = b"\n The dog said: "
OTHERS = (b"2 + 2 =", b"The cat", b"def f(x):", SPACED)
# Characters of two, three and four bytes. UTF-16 stores the last kind as two surrogates. If the
# vocabulary has no byte tokens, it may have no tokens for these characters.
FOREIGN = "Caf\u00e9 \u2014 \u4f60\u597d \U0001f600, caf\u00e9".encode()
N_OTHERS = 8  # number of tokens after each prompt
# The second prompt is asked directly after the first and begins with it. An engine that keeps the
# cache of a prompt must find where the two part. No other two of these prompts test this.
BEFORE = b"Once there was a girl named Sue who had a red ball. One day"
ALIKE = b"Once there was a dog named Max who had a big bone. One day"
LONG = (
    b"On the first day of spring the old man opened the door of his shop, put 12 chairs before "
    b"it, and waited. Nobody came. On the second day a girl stopped and asked: 'What do you "
    b"sell?' He thought for a while. 'Time,' he said, 'but only by the hour, and no more than 3 "
    b"a day.' She laughed, counted her coins (there were 7), and bought one. They sat down, and "
    b"he told her about the river that once ran where the street is now, about the boats,"
)


def prompt_that_fills(context: Context, number: int) -> bytes:
    """Return random pieces of the vocabulary that nearly fill the context, because an engine may
    keep less of a prompt. Return no bytes if no piece is ASCII. number: the number of this prompt
    among several such prompts."""
    room = n_cells(context) - N_OTHERS - 2
    try:
        every = ordinary(context.tokenizer)
    except EngineError:
        return b""
    pieces = [text for text in every if text.isascii() and text.isprintable()]
    if not pieces or room <= 0:
        return b""
    drawn = integers(stream(context.seed, f"prompt {number}"), room, len(pieces))
    text = "".join(pieces[i] for i in drawn).encode()
    size = len(text)
    while size and len(prompt_ids(context, text[:size])) > room:
        size -= max(1, size // 16)
    return text[:size]
