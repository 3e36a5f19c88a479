"""The "t5" tokenizer: SentencePiece's unigram model, which takes the pieces with the largest sum of
scores.

Source: llm_tokenizer_ugm_session in src/llama-vocab.cpp of llama-cpp-python 0.3.36.
"""

from bisect import bisect
from sys import float_info

import numpy as np

from lockstep.engine.tokenizers.base import SPACE, Tokenizer, require_token
from lockstep.engine.tokenizers.charsmap import KEY, Charsmap
from lockstep.engine.tokenizers.matcher import Matcher
from lockstep.engine.tokenizers.utf8 import LENGTHS, REPLACEMENT, sequence_size, to_utf8
from lockstep.engine.tokenizers.vocabulary import Attr, Defaults, Metadata, Vocabulary, read_array

PIECE = Attr.NORMAL | Attr.USER_DEFINED | Attr.UNUSED
UNKNOWN_PENALTY = np.float32(10)  # subtracted from the worst score
NO_UNKNOWN = -1


class T5Tokenizer(Tokenizer, name="t5"):
    """Tokenizer of T5. The types in the file, before repairs, say which tokens are pieces."""

    defaults = Defaults(eos=1, unk=2, pad=0, add_eos=True)

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        vocabulary = self.vocabulary
        stored = list(enumerate(vocabulary.stored_attrs))
        blob = read_array(metadata, KEY, ("int8", "uint8"))
        self.charsmap = None if blob is None else Charsmap(blob.tobytes())
        self.matcher = Matcher({vocabulary.texts[i]: i for i, attr in stored if attr & PIECE})
        self.verbatim = Beginnings(
            [vocabulary.texts[i] for i, attr in stored if attr & Attr.USER_DEFINED]
        )
        self.scores = [
            0.0 if attr & Attr.USER_DEFINED else score
            for attr, score in zip(vocabulary.attrs, vocabulary.scores, strict=True)
        ]
        self.unknown_score = unknown_score(vocabulary)
        self.normalize(b"\n")  # finds a broken trie early, as llama.cpp does when it loads a model

    def segment(self, text: bytes) -> list[int]:
        return self.best(self.normalize(text))

    def normalize(self, text: bytes) -> bytes:
        """Normalise a text as the metadata says: replace characters, collapse spaces, put a space
        in front.

        With `remove_extra_whitespaces`, a space goes before every word, even without
        `add_space_prefix`.
        """
        merge, prefix = self.vocabulary.remove_extra_whitespaces, self.vocabulary.add_space_prefix
        found = bytearray()
        in_word = False
        at = 0
        while at < len(text):
            form, size = self.normal_form(text, at)
            at += size
            for byte in form:
                if byte == 0x20:
                    in_word = False
                    found += b"" if merge else SPACE
                    continue
                if not in_word and (merge or prefix):
                    found += SPACE
                    prefix = False
                in_word = True
                found.append(byte)
        return bytes(found)

    def normal_form(self, text: bytes, at: int) -> tuple[bytes, int]:
        """Return the replacement of the characters at `at`, and the number of their bytes."""
        size = self.verbatim.shared_length(text, at)
        if not size and self.charsmap and (found := self.charsmap.longest(text, at)):
            return found
        size = size or sequence_size(text, at)
        return (text[at : at + size], size) if size else (to_utf8(REPLACEMENT), 1)

    def best(self, text: bytes) -> list[int]:
        """Return the ids of a normalised text; the first of equal sums wins.

        A character without a token is unknown, and a run of them is one unknown token.
        """
        unk = NO_UNKNOWN if self.vocabulary.unk is None else self.vocabulary.unk
        sums = [0.0] + [-float_info.max] * len(text)
        starts, tokens = [0] * len(sums), [unk] * len(sums)
        at = 0
        while at < len(text):
            size = min(LENGTHS[text[at] >> 4], len(text) - at)
            found = list(self.matcher.matches(text, at))
            steps = [(length, token, self.scores[token]) for length, token in found]
            if not any(length == size for length, _ in found):
                steps.append((size, unk, self.unknown_score))
            for length, token, score in steps:
                if sums[at] + score > sums[at + length]:
                    sums[at + length] = sums[at] + score
                    starts[at + length], tokens[at + length] = at, token
            at += size
        return self.walk_back(starts, tokens, unk) if text else []

    def walk_back(self, starts: list[int], tokens: list[int], unk: int) -> list[int]:
        ids: list[int] = []
        at, after = len(tokens) - 1, NO_UNKNOWN - 1
        while True:
            if not tokens[at] == after == unk:
                ids.append(tokens[at])
            if starts[at] == 0:
                break
            at, after = starts[at], tokens[at]
        if NO_UNKNOWN in ids:
            require_token(None, "unknown", "a character that is in no token")
        return ids[::-1]


class Beginnings:
    """Prefix tree of user-defined tokens, which are not normalised.

    llama.cpp follows such a token as far as the text matches. It does not normalise the matching
    part, even if that part is less than a token or a character.
    """

    def __init__(self, texts: list[bytes]) -> None:
        self.texts = sorted(texts)
        self.firsts = frozenset(text[0] for text in texts)
        self.longest = max(map(len, texts), default=0)

    def shared_length(self, text: bytes, at: int) -> int:
        """Return how many bytes from `at` match the beginning of one of the texts."""
        if text[at] not in self.firsts:
            return 0
        part = text[at : at + self.longest]
        i = bisect(self.texts, part)
        neighbours = self.texts[max(i - 1, 0) : i + 1]  # one of these shares the longest prefix
        return max(shared_size(part, neighbour) for neighbour in neighbours)


def shared_size(a: bytes, b: bytes) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def unknown_score(vocabulary: Vocabulary) -> float:
    """Return the score of unknown pieces, in float32 like the other scores."""
    normal = [
        score
        for attr, score in zip(vocabulary.stored_attrs, vocabulary.scores, strict=True)
        if attr & Attr.NORMAL
    ]
    lowest = np.float32(min(normal, default=np.finfo(np.float32).max))
    return float(lowest - UNKNOWN_PENALTY)
