"""The "rwkv" tokenizer: repeatedly takes the longest token that matches.

A token may contain any bytes, so the file stores it escaped: `\\n`, `\\t`, `\\r`, `\\xNN`. A
backslash before any other character stands for that character.

Source: llama_unescape_rwkv_token and llm_tokenizer_rwkv_session in src/llama-vocab.cpp of
llama-cpp-python 0.3.36.
"""

from collections.abc import Iterator

from lockstep.engine.errors import InvalidModel
from lockstep.engine.tokenizers.base import Tokenizer, require_token
from lockstep.engine.tokenizers.matcher import Matcher
from lockstep.engine.tokenizers.vocabulary import Defaults, Metadata

ESCAPED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}
BACKSLASH = ord("\\")


class RwkvTokenizer(Tokenizer, name="rwkv"):
    """Tokenizer of RWKV. If two tokens have the same unescaped text, it finds the later token."""

    defaults = Defaults()

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        tokens = {text: i for i, text in enumerate(self.pieces) if text}
        self.matcher = Matcher(tokens)
        self.first_bytes = frozenset(text[0] for text in tokens)

    def around(self) -> tuple[list[int], list[int]]:
        """Return no tokens: no token is ever added, even if flags say otherwise."""
        return [], []

    def segment(self, text: bytes) -> Iterator[int]:
        at = 0
        while at < len(text):
            found = self.matcher.longest(text, at)
            if found:
                size, token = found
            elif text[at] not in self.first_bytes:
                size, token = 1, require_token(self.vocabulary.unk, "unknown", "a byte in no token")
            else:  # llama.cpp loops endlessly, because it starts again at the start of the text
                raise InvalidModel(
                    f"tokenizer.ggml.tokens must have byte 0x{text[at]:02X} as a token: "
                    "longer tokens start with it, and none of them fits the text"
                )
            yield token
            at += size

    def render(self, token: int) -> bytes:
        return unescape(self.vocabulary.texts[token])


def unescape(text: bytes) -> bytes:
    """Unescape a token. Any character is accepted as a hexadecimal digit; an incomplete escape is
    dropped.
    """
    found = bytearray()
    at = 0
    while at < len(text):
        if text[at] != BACKSLASH:
            found.append(text[at])
            at += 1
        elif text[at + 1 : at + 2] != b"x":
            escaped = text[at + 1 : at + 2]
            found += ESCAPED.get(escaped, escaped)
            at += 2
        else:
            if at + 3 < len(text):
                found.append((digit(text[at + 2]) << 4) + digit(text[at + 3]) & 0xFF)
            at += 4
    return bytes(found)


def digit(character: int) -> int:
    """Return a hexadecimal digit's value modulo 256; bytes from 0x80 on are negative in C."""
    letter = ord("a") <= character < 0x80
    return character - ord("a") + 10 if letter else character - ord("0")
