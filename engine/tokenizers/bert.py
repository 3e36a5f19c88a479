"""The "bert" tokenizer: WordPiece. Text is split at white space and punctuation, then into tokens.

The file's tokens have `▁` where a word begins, so continuations need no `##`.

Source: llm_tokenizer_wpm_session in src/llama-vocab.cpp of llama-cpp-python 0.3.36.
"""

import unicodedata
from collections.abc import Iterator

from lockstep.engine.errors import InvalidModel
from lockstep.engine.tokenizers.base import SPACE, Tokenizer, require_token
from lockstep.engine.tokenizers.matcher import Matcher
from lockstep.engine.tokenizers.unicode_data import WHITESPACE, categories
from lockstep.engine.tokenizers.utf8 import REPLACEMENT, to_utf8, writable_code_points
from lockstep.engine.tokenizers.vocabulary import Attr, Defaults, Metadata, read_flag

# characters that are separate words; Extension E begins 0x100 too late, as in the original
CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip

# effect of a character on the word before it
ENDS, GROWS, STANDS_ALONE = range(3)


class BertTokenizer(Tokenizer, name="bert"):
    """BERT's tokenizer. [CLS] (as BOS) and [SEP] surround every text, even if flags say
    otherwise."""

    defaults = Defaults(
        bos=101, unk=100, sep=102, pad=0, mask=103, add_bos=True, add_sep=True, clean_spaces=True
    )

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.lowercase = read_flag(metadata, "normalizer.lowercase", True)
        self.strip_accents = read_flag(metadata, "normalizer.strip_accents", self.lowercase)
        self.matcher = Matcher(self.vocabulary.ids)
        self.known: dict[int, tuple[int, bytes]] = {}

    def around(self) -> tuple[list[int], list[int]]:
        asker = "a text of a bert model"
        before = require_token(self.vocabulary.bos, "bos", asker)
        return [before], [require_token(self.vocabulary.sep, "seperator", asker)]

    def segment(self, text: bytes) -> Iterator[int]:
        for word in self.words(text):
            yield from self.longest_first(SPACE + word)

    def longest_first(self, word: bytes) -> list[int]:
        """Return the longest matching tokens of a word; if a part matches no token, the whole word
        is unknown.
        """
        ids: list[int] = []
        at = 0
        while at < len(word):
            found = self.matcher.longest(word, at)
            if found is None:
                return [
                    require_token(self.vocabulary.unk, "unknown", "a word that is in no tokens")
                ]
            at += found[0]
            ids.append(found[1])
        return ids

    def words(self, text: bytes) -> Iterator[bytes]:
        word = bytearray()
        for code in writable_code_points(text):
            does, written = self.character(code)
            if does == GROWS:
                word += written
                continue
            if word:
                yield bytes(word)
                word.clear()
            if does == STANDS_ALONE:
                yield written
        if word:
            yield bytes(word)

    def character(self, code: int) -> tuple[int, bytes]:
        """Return the effect of a character, and the bytes that it adds to a word."""
        if code not in self.known:
            self.known[code] = self.treat(code)
        return self.known[code]

    def treat(self, code: int) -> tuple[int, bytes]:
        code = bare(code) if self.strip_accents else code
        category = chr(categories()[code])
        if code in WHITESPACE:
            return ENDS, b""
        if code in (0, REPLACEMENT) or category == "C" or (self.strip_accents and category == "M"):
            return GROWS, b""
        written = to_utf8(lower(code) if self.lowercase else code)
        alone = category == "P" or (category == "S" and code < 0x7F) or is_chinese(code)
        return (STANDS_ALONE if alone else GROWS), written

    def render(self, token: int) -> bytes:
        attr = self.vocabulary.attrs[token]
        # llama.cpp aborts for such a token
        if attr & Attr.BYTE and not attr & (Attr.SPECIAL | Attr.NORMAL):
            raise InvalidModel(
                f"tokenizer.ggml.token_type must not be 6 (byte) in a bert model: token {token}"
            )
        return super().render(token)


def is_chinese(code: int) -> bool:
    return any(first <= code <= last for first, last in CHINESE)


def bare(code: int) -> int:
    """Return the first code point of the decomposition: for a Korean syllable, only the first
    consonant.

    Python's tables agree with llama.cpp's, except for newer code points.
    """
    return ord(unicodedata.normalize("NFD", chr(code))[0]) if is_assigned(code) else code


def lower(code: int) -> int:
    """Return the first code point of the lower-case form; unassigned code points do not change."""
    return ord(chr(code).lower()[0]) if is_assigned(code) else code


def is_assigned(code: int) -> bool:
    return bool(categories()[code] != ord("U"))
