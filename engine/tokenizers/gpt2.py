"""The "gpt2" tokenizer: words cut by a pre-tokenizer, then merged pair by pair, best rank first.

A word is spelled with one character per byte, unless its pre-tokenizer leaves it as it is.

Source: llm_tokenizer_bpe_session, llama_decode_text and the BPE cases of llama_vocab::impl::load
and tokenize in src/llama-vocab.cpp of llama-cpp-python 0.3.36.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import EngineError, InvalidModel
from lockstep.engine.tokenizers.base import SPACE, Tokenizer
from lockstep.engine.tokenizers.merging import NEVER, PLAIN, Merging
from lockstep.engine.tokenizers.pre_tokenizers import PreTokenizer, pre_tokenizer_of
from lockstep.engine.tokenizers.splitting import Remembered, TextSplitter
from lockstep.engine.tokenizers.tables import NONE, table_of, table_of_merges
from lockstep.engine.tokenizers.utf8 import LAST, code_points, to_utf8, writable_code_points
from lockstep.engine.tokenizers.vocabulary import (
    Attr,
    Defaults,
    Metadata,
    c_string,
    read_vocabulary,
)

MERGES_KEY = "tokenizer.ggml.merges"

UNDECODED = re.compile("[\udc80-\udcff]+")

# each byte has a visible character: itself, or a character from U+0100 on
VISIBLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
HIDDEN = tuple(byte for byte in range(256) if byte not in VISIBLE)
CHARACTER_OF_BYTE = {byte: byte for byte in VISIBLE} | {
    byte: 0x100 + i for i, byte in enumerate(HIDDEN)
}
# the opposite mapping; bytes without a visible form map to a character outside Latin-1
BYTE_OF_CHARACTER = dict.fromkeys(HIDDEN, 0xFFFF) | {
    character: byte for byte, character in CHARACTER_OF_BYTE.items()
}


class Gpt2Tokenizer(Tokenizer, name="gpt2"):
    """Byte-level BPE; without `tokenizer.ggml.pre` the pre-tokenizer is `default`, as in llama.cpp.

    `pre.kind` names the pre-tokenizer. No space is ever put before a text: `add_space_prefix`
    affects only decoding. BOS and EOS are 11 by default.
    """

    defaults = Defaults(bos=11, eos=11)

    def __init__(self, metadata: Metadata) -> None:
        self.pre = self.choose(metadata)
        vocabulary = read_vocabulary(metadata, defaults_of(self.pre, self.defaults))
        add_bos = vocabulary.add_bos or self.pre.kind == "GEMMA4"  # regardless of the key
        self.vocabulary = replace(vocabulary, add_bos=add_bos)
        self.pieces = tuple(self.render(i) for i in range(vocabulary.n_vocab))
        # kimi-k2 works without merges, because llama.cpp treats its words as tokens
        self.merges = read_merges(metadata, required=self.pre.kind != "KIMI_K2")
        self.splitter = TextSplitter(self.pre.expressions)
        self.known = Remembered(self.merge_words)

    def choose(self, metadata: Metadata) -> PreTokenizer:
        return pre_tokenizer_of(metadata)

    def segment(self, text: bytes) -> Iterable[int]:
        """Return ids of the words; invalid UTF-8 is treated as U+FFFD."""
        if self.pre.escape_whitespaces:
            text = text.replace(b" ", SPACE)
        return self.known.over(self.splitter.words(readable(text)))

    def merge_words(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of each word; a byte without a token is lost."""
        if not self.pre.byte_level:
            refuse_spaces(words, self.pre.kind)
        text = "".join(words).encode("utf-8", "surrogatepass")
        return self.merging.ids(text, list(map(len, words)))

    @cached_property
    def merging(self) -> Merging:
        """Return the merges of this vocabulary; the result of a merge need not be a token."""
        tokens = self.vocabulary.ids
        letters = [CHARACTER_OF_BYTE[byte] for byte in range(256)]
        return Merging(
            pairs=table_of_merges(self.merges),
            by_split=True,
            tokens=table_of(tokens, tokens.values()),
            spell=np.array([self.byte_token(byte) for byte in range(256)], np.int32),
            whole=self.kept_whole(),
            letters=np.array(letters, np.int32) if self.pre.byte_level else PLAIN,
        )

    def kept_whole(self) -> NDArray[np.bool_]:
        """Return, for each first byte of a word, whether a word that is a token stays whole."""
        kept = NEVER | self.pre.ignore_merges
        kept[ord("\n")] |= self.pre.kind == "GEMMA4"
        return kept

    def byte_token(self, byte: int) -> int:
        """Return the token of one byte of a symbol, or NONE; in byte-level files, only ASCII bytes
        have a token.
        """
        name = bytes([byte]) if self.pre.byte_level else b"<0x%02X>" % byte
        return self.vocabulary.ids.get(name, NONE)

    def render(self, token: int) -> bytes:
        text, attr = self.vocabulary.texts[token], self.vocabulary.attrs[token]
        plain = attr & Attr.NORMAL and not attr & Attr.SPECIAL
        if self.pre.escape_whitespaces or not plain:
            return super().render(token)
        try:
            return text.decode().translate(BYTE_OF_CHARACTER).encode("latin-1")
        except UnicodeError:
            return b"".join(bytes_of_character(code, text, token) for code in code_points(text))


def defaults_of(pre: PreTokenizer, defaults: Defaults) -> Defaults:
    return replace(
        defaults,
        bos=defaults.bos if pre.has_bos else None,
        add_bos=pre.add_bos,
        add_sep=pre.add_sep,
        clean_spaces=pre.clean_spaces,
    )


def readable(text: bytes) -> str:
    """Return `text` as llama.cpp decodes it; it may contain surrogates."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        # Python decodes no part of text that llama.cpp decodes differently
        return UNDECODED.sub(reread, text.decode("utf-8", "surrogateescape"))


def reread(undecoded: re.Match[str]) -> str:
    text = undecoded[0].encode("utf-8", "surrogateescape")
    return "".join(map(chr, writable_code_points(text)))


def bytes_of_character(code: int, text: bytes, token: int) -> bytes:
    """Return the byte for a character of a token, or llama.cpp's error text if there is none.

    For each such character of a token, the error text contains the whole token again.
    """
    if code > LAST:  # llama.cpp does not load such a model
        raise InvalidModel(
            f"token {token} of tokenizer.ggml.tokens must hold code points up to U+10FFFF, got "
            f"{code:#x}"
        )
    byte = BYTE_OF_CHARACTER.get(code, 0xFFFF)
    if byte < 256:
        return bytes([byte])
    return b"[UNK_BYTE_0x" + to_utf8(code).hex().encode() + text + b"]"


def refuse_spaces(words: Sequence[str], kind: str) -> None:
    """Refuse words with a space if words are not spelled as bytes: such words end llama.cpp's
    process."""
    for word in words:
        if " " in word and len(word) > 1:
            raise EngineError(
                f"pre-tokenizer {kind} can have no space in a part that is merged, got "
                f"{word[:40]!r}"
            )


def read_merges(metadata: Metadata, *, required: bool = True) -> list[bytes]:
    """Return merges `left right`, the best first; of equal merges, the first is used.

    No symbol contains a space, so a merge that is not two texts and one space never applies.
    """
    if MERGES_KEY not in metadata:
        if required:
            raise InvalidModel(f"the key {MERGES_KEY!r} is missing")
        return []
    value = metadata[MERGES_KEY].data
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InvalidModel(f"{MERGES_KEY} must be an array of strings, got {type(value).__name__}")
    return [c_string(text) for text in value]
