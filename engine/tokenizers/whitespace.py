"""The "whitespace" tokenizer: byte-pair merges on the words between white space, which is dropped.

Source: llm_tokenizer_whitespace_session in src/llama-vocab.cpp of llama-cpp-python 0.3.36.
"""

import re
from collections.abc import Iterable

from lockstep.engine.tokenizers.base import SPACE
from lockstep.engine.tokenizers.bert import lower
from lockstep.engine.tokenizers.gpt2 import Gpt2Tokenizer, readable
from lockstep.engine.tokenizers.unicode_data import WHITESPACE
from lockstep.engine.tokenizers.vocabulary import Metadata, read_flag

GAPS = re.compile("[" + "".join(map(chr, WHITESPACE)) + "]+")


class WhitespaceTokenizer(Gpt2Tokenizer, name="whitespace"):
    """Tokenizer of words. Texts become lower case, unless `pre` is `whitespace` or a key says
    otherwise.
    """

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.lowercase = read_flag(metadata, "normalizer.lowercase", self.pre.lowercase)

    def segment(self, text: bytes) -> Iterable[int]:
        if self.pre.escape_whitespaces:  # an escaped space is not dropped
            text = text.replace(b" ", SPACE)
        for part in GAPS.split(readable(text)):
            if self.lowercase:
                part = "".join(chr(lower(ord(character))) for character in part)
            yield from super().segment(part.encode("utf-8", "surrogatepass"))
