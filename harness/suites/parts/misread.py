"""Prompts that show if an engine misreads characters.

A misread character changes the next token for only a few prompts. So for each known misreading,
this module searches for a prompt after which the oracle's choice changes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from unicodedata import normalize

import numpy as np

from lockstep.engine.batch import steps_of
from lockstep.engine.errors import EngineError
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context
from lockstep.harness.records import Answered, Request
from lockstep.harness.suites.parts.next_tokens import ROOM, allowed_in
from lockstep.harness.suites.parts.prompts import FOREIGN
from lockstep.harness.suites.parts.text_readings import Pieces

TRIED = 12  # prompts for each reading; 2 of a large model, because each costs a run or two
BEFORE = ("", "The ", "She said: ", "1, 2, ", "It was a ", "x = ", "and ")
# composed and decomposed, with a compatible form, beyond 16 bits, joined, quoted, a line end
CHARACTERS = (
    *("caf\u00e9", "cafe\u0301", "o\ufb03ce", "\uff21", "\u4f60\u597d", "\U0001f600"),
    *("\U0001d504", "\U0001f469\u200d\U0001f680", "\u201cHi\u201d", "\u2014", "day\n"),
)
BEYOND = re.compile("[\U00010000-\U0010ffff]")  # characters beyond 16 bits
QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"'})


def halves(text: str) -> bytes:
    """Encode each UTF-16 code unit of the text as if it were a character."""
    units = np.frombuffer(text.encode("utf-16-le"), "<u2").tolist()
    return "".join(map(chr, units)).encode("utf-8", "surrogatepass")


READINGS: tuple[Callable[[str], bytes], ...] = (
    lambda text: text.encode().decode("latin-1").encode(),
    lambda text: text.encode("latin-1", "replace"),
    halves,
    lambda text: BEYOND.sub(lambda c: chr(ord(c[0]) & 0xFFFF), text).encode(errors="replace"),
    lambda text: BEYOND.sub("\ufffd", text).encode(),
    lambda text: BEYOND.sub("", text).encode(),
    lambda text: text.encode("ascii", "replace"),
    lambda text: text.encode("ascii", "ignore"),
    lambda text: normalize("NFC", text).encode(),
    lambda text: normalize("NFD", text).encode(),
    lambda text: normalize("NFKC", text).encode(),
    lambda text: text.replace("\u200d", "").encode(),
    lambda text: text.translate(QUOTES).encode(),
    lambda text: text.replace("\u2014", "-").encode(),
    lambda text: text.replace("\n", "\r\n").encode(),
)


def misread_prompts(context: Context) -> list[bytes]:
    """Return FOREIGN, and prompts for misreadings that FOREIGN does not reveal. A prompt with
    characters outside the vocabulary is omitted, because engines may read it differently."""
    behind = Behind(context=context, pieces=Pieces.of(context))
    found = [FOREIGN.decode()] if behind.keeps(FOREIGN.decode()) else []
    usual = [before + characters for before in BEFORE for characters in CHARACTERS]
    n_tried = TRIED if context.facts.is_small else 2
    for read in READINGS:
        tried = (text for text in usual if read(text) != text.encode() and behind.keeps(text))
        if any(behind.tells(text, read) for text in found):
            continue
        for _, text in zip(range(n_tried), tried, strict=False):
            if behind.tells(text, read):
                found.append(text)
                break
    return [text.encode() for text in found]


@dataclass(frozen=True, kw_only=True)
class Behind:
    """The oracle's logits and choices after each prompt."""

    context: Context
    pieces: Pieces
    rows: dict[bytes, F32 | None] = field(default_factory=dict)

    def keeps(self, text: str) -> bool:
        ids = self.ids_of(text.encode())
        return bool(ids) and text.encode() in self.pieces.tokenizer.decode(ids)

    def ids_of(self, prompt: bytes) -> Sequence[int]:
        try:
            return self.pieces.tokenizer.encode(prompt)
        except EngineError:  # some texts make llama.cpp crash
            return ()

    def tells(self, text: str, read: Callable[[str], bytes]) -> bool:
        """Return True if this misreading changes the token after the text, by a margin larger than
        the noise of honest runs."""
        if (as_read := read(text)) == text.encode():
            return False
        right, wrong = self.row(text.encode()), self.row(as_read)
        if right is None or wrong is None:
            return False
        other = int(wrong.argmax())
        words = {self.pieces[int(right.argmax())].strip(), self.pieces[other].strip()}
        margin = float(right.max() - right[other])
        shown = len(words) == 2 and b"" not in words
        return shown and margin > ROOM * allowed_in(self.context, right)

    def row(self, prompt: bytes) -> F32 | None:
        """Return the oracle's logits after the prompt; None if the oracle does not answer, or if
        the logits are not finite."""
        if prompt not in self.rows:
            self.rows[prompt] = self.compute(prompt)
        return self.rows[prompt]

    def compute(self, prompt: bytes) -> F32 | None:
        if not (ids := self.ids_of(prompt)):
            return None
        batches = steps_of(ids, [0], self.context.facts.decoder_start)
        outcome = self.context.oracle.ask("evaluate", Request(batches=batches))
        row: F32 | None = outcome.value.logits[-1][-1] if isinstance(outcome, Answered) else None
        return row if row is not None and np.isfinite(row).all() else None
