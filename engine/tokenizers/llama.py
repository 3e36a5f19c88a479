"""The "llama" tokenizer: SentencePiece vocabularies, merged pair by pair, best score first.

Source: llm_tokenizer_spm_session and the SPM cases of llama_vocab::impl::tokenize and
llama_vocab::byte_to_token in src/llama-vocab.cpp of llama-cpp-python 0.3.36.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import pairwise

from engine.errors import InvalidModel
from engine.tokenizers.base import SPACE, Tokenizer, required
from engine.tokenizers.utf8 import LENGTHS
from engine.tokenizers.vocabulary import Defaults


class Llama(Tokenizer, name="llama"):
    """All tokens take part in merging, whatever their type: control tokens too."""

    defaults = Defaults(bos=1, eos=2, unk=0, add_space_prefix=True, add_bos=True)

    def encode(
        self, text: bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        vocabulary = self.vocabulary
        ids: list[int] = []
        if add_special and vocabulary.add_bos:
            ids.append(required(vocabulary.bos, "bos"))
        # llama.cpp prefixes a space where the text starts and after a special token; between two
        # special tokens there is never more than one part, so that is every part
        prefix = b" " if vocabulary.add_space_prefix else b""
        for part in self.partition(text, parse_special=parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self.segment((prefix + part).replace(b" ", SPACE)))
        if add_special and vocabulary.add_eos:
            ids.append(required(vocabulary.eos, "eos"))
        return ids

    def segment(self, text: bytes) -> Iterator[int]:
        """Ids of a text without spaces; a symbol that is no token is spelled in bytes.

        llama.cpp also knows how to take a merged symbol apart again; that never happens, because
        it merges only what is a token.
        """
        for symbol in self.merge(text):
            token = self.vocabulary.ids.get(symbol)
            if token is None:
                yield from map(self.byte_token, symbol)
            else:
                yield token

    def merge(self, text: bytes) -> list[bytes]:
        """The symbols of `text` after all merges; n log n in its length."""
        symbols = Symbols(text)
        pairs = pairwise(range(len(symbols.sizes)))
        heap = [c for pair in pairs if (c := self.candidate(symbols, *pair))]
        heapify(heap)
        while heap:
            _, left, right, size = heappop(heap)
            if not symbols.unchanged(left, right, size):
                continue
            symbols.join(left, right)
            for pair in ((symbols.before[left], left), (left, symbols.after[left])):
                if NOTHING not in pair and (c := self.candidate(symbols, *pair)):
                    heappush(heap, c)
        return symbols.texts()

    def candidate(self, symbols: "Symbols", left: int, right: int) -> "Candidate | None":
        size = symbols.sizes[left] + symbols.sizes[right]
        token = self.vocabulary.ids.get(symbols.slice(left, size))
        return None if token is None else (self.order(token, left), left, right, size)

    def order(self, token: int, left: int) -> tuple[float, int]:
        """The smallest is merged first: the best score, and among equals the leftmost."""
        return -self.vocabulary.scores[token], left

    def byte_token(self, byte: int) -> int:
        """The token `<0xNN>`, or else the one whose text is that byte alone."""
        for text in (b"<0x%02X>" % byte, bytes([byte])):
            if text in self.vocabulary.ids:
                return self.vocabulary.ids[text]
        raise InvalidModel(  # llama.cpp ends the process
            f"tokenizer.ggml.tokens must have <0x{byte:02X}> to spell byte {byte}, which is in the "
            f"text and in no token"
        )


Candidate = tuple[tuple[float, int], int, int, int]  # order, left, right, bytes of both
NOTHING = -1  # beyond either end of the symbols


class Symbols:
    """A text as a doubly linked list of symbols, at first its characters."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.starts = list(character_starts(text))
        self.sizes = [end - start for start, end in pairwise([*self.starts, len(text)])]
        count = len(self.starts)
        self.before = list(range(NOTHING, count - 1))
        self.after = [*range(1, count), NOTHING]

    def unchanged(self, left: int, right: int, size: int) -> bool:
        """Whether neither was merged since they had `size` bytes together.

        The sum alone does not tell: when `left` is gone, `right` may have grown to as much.
        """
        a, b = self.sizes[left], self.sizes[right]
        return a > 0 and b > 0 and a + b == size

    def join(self, left: int, right: int) -> None:
        """Let `left` take in its right neighbour."""
        self.sizes[left] += self.sizes[right]
        self.sizes[right] = 0
        self.after[left] = self.after[right]
        if self.after[right] != NOTHING:
            self.before[self.after[right]] = left

    def slice(self, first: int, size: int) -> bytes:
        start = self.starts[first]
        return self.text[start : start + size]

    def texts(self) -> list[bytes]:
        return [self.slice(i, size) for i, size in enumerate(self.sizes) if size]


def character_starts(text: bytes) -> Iterator[int]:
    """Where characters begin, going by first bytes alone: what follows one is not looked at."""
    at = 0
    while at < len(text):
        yield at
        at += LENGTHS[text[at] >> 4]
