"""The "gemma4" tokenizer: "gpt2" on plain UTF-8, with `▁` for spaces and with lines instead of
words.

A line is merged as a whole. A run of newlines becomes one token if the vocabulary has a token for
it. A character without a token is spelled with the tokens `<0xNN>`, and a byte without a token is
lost. The file's pre-tokenizer is ignored, and `add_bos_token` is always true. Decoding drops spaces
before punctuation, although the tokens hold all spaces.

Source: the "gemma4" case of llama_vocab::impl::load, and LLAMA_VOCAB_PRE_TYPE_GEMMA4, in
src/llama-vocab.cpp of llama-cpp-python 0.3.36.
"""

from lockstep.engine.tokenizers.gpt2 import Gpt2Tokenizer
from lockstep.engine.tokenizers.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from lockstep.engine.tokenizers.vocabulary import Defaults, Metadata


class Gemma4Tokenizer(Gpt2Tokenizer, name="gemma4"):
    defaults = Defaults()

    def choose(self, metadata: Metadata) -> PreTokenizer:
        return PRE_TOKENIZERS["gemma4"]
