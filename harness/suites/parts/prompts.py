"""Prompts for text generation."""

from collections.abc import Iterator

from lockstep.harness.context.chat_template import prompt_ids
from lockstep.harness.context.suite import Context

# Behind one prompt a wrong engine may well go on rightly: with BOS put in twice a model of stories
# does so for 32 tokens behind "Once upon a time", and for 0 to 6 behind these.
# The last has spaces around it, which engines cut off that should not.
SPACED = b"\n The dog said: "
OTHERS = (b"2 + 2 =", b"The cat", b"def f(x):", SPACED)
# Characters of two, three and four bytes, which UTF-16 has as one and as two halves. Where the
# vocabulary has no bytes there may be no tokens for them.
FOREIGN = "Caf\u00e9 \u2014 \u4f60\u597d \U0001f600, caf\u00e9".encode()
N_OTHERS = 8  # tokens behind each
# The second is asked right behind the first, with which it begins: who keeps a prompt for the next
# must see where they part, which no other two of these ask for.
BEFORE = b"Once there was a girl named Sue who had a red ball. One day"
ALIKE = b"Once there was a dog named Max who had a big bone. One day"
LONG = (
    b"On the first day of spring the old man opened the door of his shop, put 12 chairs before "
    b"it, and waited. Nobody came. On the second day a girl stopped and asked: 'What do you "
    b"sell?' He thought for a while. 'Time,' he said, 'but only by the hour, and no more than 3 "
    b"a day.' She laughed, counted her coins (there were 7), and bought one. They sat down, and "
    b"he told her about the river that once ran where the street is now, about the boats,"
)
TURNS = 16  # of the words of LONG, in a text that is much longer


def long_prompts(context: Context, room: int) -> Iterator[bytes]:
    """Yield LONG, and a prompt that fills the room if LONG has fewer tokens: an engine may keep
    less of a prompt than its context holds. room: the number of tokens that fit."""
    if room <= 0:
        return
    yield LONG[:room]  # a token is a byte at least
    words = LONG.split()
    turns = (words[i:] + words[:i] for i in range(0, len(words), len(words) // TURNS))
    longer = cut_to_fit(context, b" ".join(word for turn in turns for word in turn), room)
    if len(longer) > len(LONG):
        yield longer


def cut_to_fit(context: Context, text: bytes, room: int) -> bytes:
    """Return the beginning of an ASCII text that has nearly as many tokens as fit."""
    size = min(len(text), len(text) * room // max(1, len(prompt_ids(context, text))))
    while size and len(prompt_ids(context, text[:size])) > room:
        size -= max(1, size // 16)
    return text[:size]
