"""The "hybriddna" tokenizer: byte-pair merges, and DNA between `<dna>` and `</dna>` in 6-mers.

Source: llm_tokenizer_hybriddna_session, and its cases in llama_vocab::impl::load, in
src/llama-vocab.cpp of llama-cpp-python 0.3.36.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from lockstep.engine.tokenizers.gpt2 import Gpt2Tokenizer
from lockstep.engine.tokenizers.vocabulary import Metadata

MARK = "\ue000".encode()  # ends the stored text of a piece of DNA, and is not shown
OPEN, CLOSE, UNKNOWN = b"<dna>", b"</dna>", b"<oov>"
SIZE = 6
DNA = re.compile(rb"<dna>(.*?)(</dna>|\Z)", re.DOTALL)


class HybridDnaTokenizer(Gpt2Tokenizer, name="hybriddna"):
    """Tokenizer of DNA. Without tokens for `<dna>`, `</dna>` and `<oov>`, it behaves like
    "gpt2"."""

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        vocabulary = self.vocabulary
        first = vocabulary.ids.get(UNKNOWN, vocabulary.n_vocab) + 1
        texts = tuple(
            text.removesuffix(MARK) or text if i >= first else text
            for i, text in enumerate(vocabulary.texts)
        )
        specials = sorted(sorted(vocabulary.specials), key=lambda i: -len(texts[i]))
        self.vocabulary = replace(vocabulary, texts=texts, specials=tuple(specials))
        self.pieces = tuple(self.render(i) for i in range(vocabulary.n_vocab))

    def segment(self, text: bytes) -> Iterable[int]:
        ids = self.vocabulary.ids
        if not {OPEN, CLOSE, UNKNOWN} <= ids.keys():
            yield from super().segment(text)
            return
        at = 0
        for dna in DNA.finditer(text):
            yield from super().segment(text[at : dna.start()])
            yield ids[OPEN]
            yield from self.sixes(dna[1])
            if dna[2]:
                yield ids[CLOSE]
            at = dna.end()
        yield from super().segment(text[at:])

    def sixes(self, dna: bytes) -> Iterator[int]:
        """Yield tokens of six letters, the last of them padded with A."""
        ids = self.vocabulary.ids
        for at in range(0, len(dna), SIZE):
            piece = dna[at : at + SIZE].upper().ljust(SIZE, b"A")
            yield ids.get(piece + MARK, ids[UNKNOWN])
