"""The "gpt2" tokenizer: words cut by a pre-tokenizer, then merged pair by pair, best rank first.

A word is spelled with one character per byte, unless its pre-tokenizer leaves it as it is.

Source: llm_tokenizer_bpe_session, llama_decode_text and the BPE cases of llama_vocab::impl::load
and tokenize in src/llama-vocab.cpp of llama-cpp-python 0.3.36.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import pairwise

from engine.errors import EngineError, InvalidModel
from engine.tokenizers.base import SPACE, Tokenizer
from engine.tokenizers.pre_tokenizers import PreTokenizer, pre_tokenizer_of
from engine.tokenizers.splitting import Remembered, Splitter
from engine.tokenizers.utf8 import LAST, code_points, to_utf8, writable_code_points
from engine.tokenizers.vocabulary import Attr, Defaults, Metadata, read_vocabulary

MERGES_KEY = "tokenizer.ggml.merges"
NEVER = -1  # the rank of what is not merged

# every byte as a character that can be seen: itself, or if it cannot, one from U+0100 up
VISIBLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
HIDDEN = tuple(byte for byte in range(256) if byte not in VISIBLE)
CHARACTER_OF_BYTE = {byte: byte for byte in VISIBLE} | {
    byte: 0x100 + i for i, byte in enumerate(HIDDEN)
}
# the way back; bytes that stand for themselves in neither direction become what Latin-1 lacks
BYTE_OF_CHARACTER = dict.fromkeys(HIDDEN, 0xFFFF) | {
    character: byte for byte, character in CHARACTER_OF_BYTE.items()
}


class Gpt2(Tokenizer, name="gpt2"):
    """Where `tokenizer.ggml.pre` is missing, the pre-tokenizer is `default`, as in llama.cpp.

    `pre.kind` tells which one it is. No space is ever put before a text: `add_space_prefix` is
    for decoding alone, and BOS and EOS are 11 if no key says otherwise.
    """

    defaults = Defaults(bos=11, eos=11)

    def __init__(self, metadata: Metadata) -> None:
        self.pre = self.choose(metadata)
        vocabulary = read_vocabulary(metadata, defaults_of(self.pre, self.defaults))
        add_bos = vocabulary.add_bos or self.pre.kind == "GEMMA4"  # whatever the key says
        self.vocabulary = replace(vocabulary, add_bos=add_bos)
        self.pieces = tuple(self.render(i) for i in range(vocabulary.n_vocab))
        # kimi-k2 can do without merges: llama.cpp says that its words are tokens
        self.ranks = read_merges(metadata, required=self.pre.kind != "KIMI_K2")
        self.splitter = Splitter(self.pre.expressions)
        self.words = Remembered(self.word)

    def choose(self, metadata: Metadata) -> PreTokenizer:
        return pre_tokenizer_of(metadata)

    def segment(self, text: bytes) -> Iterable[int]:
        """Ids of the words; bytes that are no UTF-8 are U+FFFD from here on."""
        if self.pre.escape_whitespaces:
            text = text.replace(b" ", SPACE)
        return self.words.over(self.splitter.words(readable(text)))

    def word(self, word: str) -> list[int]:
        """The ids of one word."""
        if self.pre.byte_level:
            word = word.encode("utf-8", "surrogatepass").decode("latin-1")
            word = word.translate(CHARACTER_OF_BYTE)
        elif " " in word and len(word) > 1:  # llama.cpp ends the process
            raise EngineError(
                f"pre-tokenizer {self.pre.kind} can have no space in a part that is merged, got "
                f"{word[:40]!r}"
            )
        whole = self.vocabulary.ids.get(word.encode("utf-8", "surrogatepass"))
        newlines = self.pre.kind == "GEMMA4" and word.startswith("\n")
        if whole is not None and (self.pre.ignore_merges or newlines):
            return [whole]
        return [token for symbol in merged(word, self.ranks) for token in self.spell(symbol)]

    def spell(self, symbol: str) -> Iterator[int]:
        """The token of a symbol or else those of its bytes; what has none is lost.

        Bytes are those of the symbol as it is spelled: of a byte-level one, only ASCII is found.
        """
        ids = self.vocabulary.ids
        text = symbol.encode("utf-8", "surrogatepass")
        if text in ids:
            yield ids[text]
            return
        for byte in text:
            name = bytes([byte]) if self.pre.byte_level else b"<0x%02X>" % byte
            if name in ids:
                yield ids[name]

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
    """`text` as llama.cpp reads it; there can be surrogates in it."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "".join(map(chr, writable_code_points(text)))


def bytes_of_character(code: int, text: bytes, token: int) -> bytes:
    """The byte that a character of a token stands for, or llama.cpp's words for there being none.

    Those hold the whole token once for each such character.
    """
    if code > LAST:  # llama.cpp does not load the model
        raise InvalidModel(
            f"token {token} of tokenizer.ggml.tokens must hold code points up to U+10FFFF, got "
            f"{code:#x}"
        )
    byte = BYTE_OF_CHARACTER.get(code, 0xFFFF)
    if byte < 256:
        return bytes([byte])
    return b"[UNK_BYTE_0x" + to_utf8(code).hex().encode() + text + b"]"


def read_merges(metadata: Metadata, *, required: bool = True) -> dict[str, int]:
    """Rank by `left right`; of two that are alike the first counts.

    No symbol has a space in it, so a merge that is not two texts and one space never applies; nor
    does one that is no UTF-8.
    """
    if MERGES_KEY not in metadata:
        if required:
            raise InvalidModel(f"the key {MERGES_KEY!r} is missing")
        return {}
    value = metadata[MERGES_KEY].data
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InvalidModel(f"{MERGES_KEY} must be an array of strings, got {type(value).__name__}")
    texts = [as_stored(text) for text in value]
    return dict(zip(reversed(texts), reversed(range(len(texts))), strict=True))


def as_stored(merge: str) -> str:
    """Its bytes up to the first NUL as the code points of a text, or nothing if they are not."""
    merge = merge.split("\0")[0]
    if merge.isprintable():  # so there is no surrogate for a byte in it
        return merge
    try:
        return merge.encode("utf-8", "surrogateescape").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return ""


def merged(word: str, ranks: dict[str, int]) -> list[str]:
    """The symbols of `word` after all merges; n log n in its length.

    The lowest rank is merged first, and among equals the leftmost. What comes of a merge need not
    be a token.
    """
    symbols = ["\0", *word, "\0"]  # no merge has a NUL in it
    # by symbol: its rank with the next one, and where its neighbours are
    rank = [ranks.get(f"{left} {right}", NEVER) for left, right in pairwise(symbols)]
    before, after = list(range(-1, len(word) + 1)), list(range(1, len(word) + 3))
    heap = [(best, left) for left, best in enumerate(rank) if best != NEVER]
    heapify(heap)
    while heap:
        best, left = heappop(heap)
        if rank[left] != best:
            continue  # one of the two has changed since
        right = after[left]
        symbols[left] += symbols[right]
        symbols[right], rank[right] = "", NEVER
        after[left] = after[right]
        before[after[left]] = left
        for one, other in ((before[left], left), (left, after[left])):
            rank[one] = ranks.get(f"{symbols[one]} {symbols[other]}", NEVER)
            if rank[one] != NEVER:
                heappush(heap, (rank[one], one))
    return [symbol for symbol in symbols[1:-1] if symbol]
