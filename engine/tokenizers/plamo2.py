"""The "plamo2" tokenizer: finds the cheapest way to cut a text into tokens, starting from its end.

The state at a character is the longest text from that character on that is a token or the end of a
token. All tokens that start at the character are prefixes of this text.

Source: llm_tokenizer_plamo2 in src/llama-vocab.cpp of llama-cpp-python 0.3.36, which keeps the
states in one table. llama.cpp accepts tokens that are not valid UTF-8, and then reads beyond its
arrays; we refuse such tokens.
"""

import re
from collections.abc import Iterator
from math import copysign, isfinite, trunc
from typing import NamedTuple

from lockstep.engine.errors import InvalidModel
from lockstep.engine.tokenizers.base import Tokenizer
from lockstep.engine.tokenizers.utf8 import LAST, code_points, to_utf8
from lockstep.engine.tokenizers.vocabulary import Attr, Defaults, Metadata

SCALE = 1e4  # gains are integers: scores times this factor
UNKNOWN = -10_000_000  # gain of a character that is spelled in bytes
NO_GAIN = -20_000_000  # gain of a text that is no token
WORST = 1 << 60
BYTE_TEXT = re.compile(rb"<0x([0-9a-fA-F]{2})>")
BYTE_ORDER_MARK = 0xFEFF
NO_CHARACTER = "\ud800"  # occurs in no token, because tokens are valid UTF-8


class TableStep(NamedTuple):
    """A step over the next `size` characters as one token; without a token, over one character, in
    bytes.
    """

    text: str
    gain: int
    size: int
    token: int | None


class Plamo2Tokenizer(Tokenizer, name="plamo2"):
    """Tokenizer of PLaMo 2. The types in the file, before repairs, say which tokens are bytes."""

    defaults = Defaults(bos=1, eos=2, unk=0, pad=3)

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        vocabulary = self.vocabulary
        self.bytes: dict[int, int] = {}
        self.tokens: dict[str, int] = {}
        for i, attr in enumerate(vocabulary.stored_attrs):
            if not attr & Attr.BYTE:
                self.tokens[decode_token(vocabulary.texts[i], i)] = i
            elif match := BYTE_TEXT.fullmatch(vocabulary.texts[i]):
                self.bytes[int(match[1], 16)] = i
        for byte in range(256):
            if not self.bytes.get(byte):  # llama.cpp takes id 0 for a missing token
                raise InvalidModel(
                    f"tokenizer.ggml.tokens must have the byte token <0x{byte:02X}> with an id > 0"
                )
        self.endings = {text[at:] for text in self.tokens for at in range(len(text))}
        self.known_steps: dict[str, tuple[TableStep, ...]] = {}

    def around(self) -> tuple[list[int], list[int]]:
        """Return no tokens: no token is ever added, even if flags say otherwise."""
        return [], []

    def segment(self, text: bytes) -> Iterator[int]:
        """Yield ids. A byte order mark at the start, and after each special token, is dropped."""
        codes = code_points(text)
        if codes[0] == BYTE_ORDER_MARK:
            del codes[0]
        path = self.cheapest(codes)
        at = 0
        while at < len(codes):
            step = path[at]
            if step.token is not None:
                yield step.token
            else:
                yield from (self.bytes[byte] for byte in to_utf8(codes[at]))
            at += step.size

    def cheapest(self, codes: list[int]) -> list[TableStep]:
        """Return the best step from each character, or the longest of equal steps."""
        path: list[TableStep] = []  # steps from later characters, the last one first
        costs = [0] * (len(codes) + 1)
        state = ""
        for at in range(len(codes) - 1, -1, -1):
            character = chr(codes[at]) if codes[at] <= LAST else NO_CHARACTER
            state = self.extend_state(character, state)
            costs[at] = WORST
            for step in self.steps(state):
                cost = costs[at + step.size] - step.gain
                if step.gain > NO_GAIN and cost < costs[at]:
                    costs[at], best = cost, step
            path.append(best)
        return path[::-1]

    def extend_state(self, character: str, state: str) -> str:
        for step in self.steps(state):
            text = character + step.text
            if text in self.endings:
                return text
        return ""

    def steps(self, state: str) -> tuple[TableStep, ...]:
        """Return the steps of a state, the longest first, spelling in bytes last.

        A token that gains as much as spelling in bytes ends the list, so shorter tokens are
        ignored.
        """
        if state not in self.known_steps:
            found: list[TableStep] = []
            for size in range(len(state), 0, -1):
                if state[:size] in self.endings:
                    found.append(self.step(state[:size]))
                    if found[-1].gain == UNKNOWN:
                        break
            else:
                found.append(TableStep("", UNKNOWN, 1, None))
            self.known_steps[state] = tuple(found)
        return self.known_steps[state]

    def step(self, text: str) -> TableStep:
        token = self.tokens.get(text)
        gain = NO_GAIN if token is None else gain_of(self.vocabulary.scores[token])
        return TableStep(text, gain, len(text), token)

    def render(self, token: int) -> bytes:
        """Return the text as stored, for tokens of any type: `▁` stays, and unused tokens are
        shown.
        """
        text = self.vocabulary.texts[token]
        match = BYTE_TEXT.fullmatch(text) if self.vocabulary.attrs[token] & Attr.BYTE else None
        return bytes([int(match[1], 16)]) if match else text


def decode_token(text: bytes, token: int) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise InvalidModel(
            f"tokenizer.ggml.tokens must be UTF-8, and token {token} is {text!r}"
        ) from None


def gain_of(score: float) -> int:
    """Return the score rounded as by C's round; a value beyond 32 bits gives no gain, as on x86."""
    if not isfinite(score):
        return NO_GAIN
    scaled = score * SCALE
    whole = trunc(scaled)
    if abs(scaled - whole) >= 0.5:
        whole += int(copysign(1, scaled))
    return whole if abs(whole) < 2**31 else NO_GAIN
