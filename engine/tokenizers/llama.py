"""The "llama" tokenizer: SentencePiece vocabularies, merged pair by pair, best score first.

Source: llm_tokenizer_spm_session and the SPM cases of llama_vocab::impl::tokenize and
llama_vocab::byte_to_token in src/llama-vocab.cpp of llama-cpp-python 0.3.36.
"""

from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import InvalidModel
from lockstep.engine.tokenizers.base import SPACE, Tokenizer, require_token
from lockstep.engine.tokenizers.merging import Merging
from lockstep.engine.tokenizers.tables import table_of
from lockstep.engine.tokenizers.vocabulary import Defaults

KEPT = 256  # number of parts of texts in the cache
MISSING = -2  # stands for the missing token of byte 0; lower numbers stand for further bytes


class LlamaTokenizer(Tokenizer, name="llama"):
    """SentencePiece tokenizer. Tokens of all types take part in merging, even control tokens."""

    defaults = Defaults(bos=1, eos=2, unk=0, add_space_prefix=True, add_bos=True)

    def encode(
        self, text: bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        vocabulary = self.vocabulary
        ids: list[int] = []
        if add_special and vocabulary.add_bos:
            ids.append(require_token(vocabulary.bos, "bos"))
        # llama.cpp puts a space at the start of a text and after a special token. Between two
        # special tokens there is at most one part, so every part gets a space.
        prefix = b" " if vocabulary.add_space_prefix else b""
        for part in self.partition(text, parse_special=parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self.segment((prefix + part).replace(b" ", SPACE)))
        if add_special and vocabulary.add_eos:
            ids.append(require_token(vocabulary.eos, "eos"))
        return ids

    def segment(self, text: bytes) -> Iterable[int]:
        """Return ids of a text without spaces; a symbol that is not a token is spelled in bytes.

        llama.cpp also has code to split a merged symbol again, which never runs, because every
        merged symbol is a token.
        """
        ids = self.merged(text)
        if min(ids, default=0) < 0:  # llama.cpp crashes
            byte = MISSING - next(token for token in ids if token < 0)
            raise InvalidModel(
                f"tokenizer.ggml.tokens must have <0x{byte:02X}> to spell byte {byte}, which is in "
                f"the text and in no token"
            )
        return ids

    @cached_property
    def merged(self) -> Callable[[bytes], tuple[int, ...]]:
        """Return the merge function with a cache of recent parts, because flags change only a small
        part of a text.
        """
        merging = self.merging

        @lru_cache(KEPT)
        def merged(text: bytes) -> tuple[int, ...]:
            (ids,) = merging.ids(text, [len(text)])
            return tuple(ids)

        return merged

    @cached_property
    def merging(self) -> Merging:
        tokens = self.vocabulary.ids
        order = self.order()
        return Merging(
            pairs=table_of(tokens, order[list(tokens.values())]),
            by_split=False,
            tokens=table_of(tokens, tokens.values()),
            spell=np.array([self.byte_token(byte) for byte in range(256)], np.int32),
        )

    def order(self) -> NDArray[np.int32]:
        """Return each token's rank; the token with the lowest rank (the best score) is merged
        first.
        """
        scores = np.array(self.vocabulary.scores, np.float32)
        return np.unique(-scores, return_inverse=True)[1].astype(np.int32)

    def byte_token(self, byte: int) -> int:
        """Return the token `<0xNN>`, or else the token whose text is just that byte, or else
        MISSING - byte.
        """
        ids = self.vocabulary.ids
        return ids.get(b"<0x%02X>" % byte, ids.get(bytes([byte]), MISSING - byte))
