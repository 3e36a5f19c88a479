"""Small seeded vocabularies for every tokenizer model of llama.cpp.

Source of the tokenizers' requirements: llama_vocab::impl::load in src/llama-vocab.cpp of
llama-cpp-python 0.3.36.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from lockstep.engine.choices import choices
from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.harness.synth import vocabulary as llama
from lockstep.harness.synth.vocabularies import bert, gemma4, gpt2, llama_ties, plamo2, rwkv, t5
from lockstep.harness.synth.vocabularies.glue import CONTROL

Keys = Mapping[str, tuple[str, Any]]


def none(n_vocab: int, seed: int) -> Keys:
    """Return keys without a vocabulary, for a model that has only ids."""
    return {"tokenizer.ggml.model": ("STR", "none")}


# kind -> least number of tokens, and a function that makes the keys from a number of tokens and a
# seed
KINDS: Mapping[str, tuple[int, Callable[[int, int], Keys]]] = MappingProxyType(
    {
        "llama": (llama.SMALLEST, llama.sentencepiece),
        "llama-ties": (llama_ties.SMALLEST, llama_ties.keys),
        "gpt2": (gpt2.SMALLEST, gpt2.keys),
        "bert": (bert.SMALLEST, bert.keys),
        "t5": (t5.SMALLEST, t5.keys),
        "rwkv": (rwkv.SMALLEST, rwkv.keys),
        "plamo2": (plamo2.SMALLEST, plamo2.keys),
        "gemma4": (gemma4.SMALLEST, gemma4.keys),
        "none": (1, none),
    }
)

# llama.cpp refuses models named phi3 that lack this token (harness/known)
LAST: Mapping[str, str] = MappingProxyType({"phi3": "<|endoftext|>"})
# architectures whose texts begin without SentencePiece's leading space
NO_SPACE_BEFORE = ("gemma", "gemma2", "gemma3")
# architecture -> kind of vocabulary of its published models, and their pre-tokenizer
USUAL: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("gemma", "gemma2", "gemma3", "minicpm"), ("llama", "")),
        "phi3": ("llama", "default"),
        **dict.fromkeys(("qwen2", "qwen2moe", "qwen3", "qwen3moe"), ("gpt2", "qwen2")),
        "gpt2": ("gpt2", "gpt-2"),
        "gpt-oss": ("gpt2", "gpt-4o"),
        "deepseek2": ("gpt2", "deepseek-llm"),
        "falcon": ("gpt2", "falcon"),
        **dict.fromkeys(("starcoder", "starcoder2"), ("gpt2", "starcoder")),
        **dict.fromkeys(("mamba", "mpt"), ("gpt2", "mpt")),
        **dict.fromkeys(("bert", "nomic-bert"), ("bert", "")),
        **dict.fromkeys(("t5", "t5encoder"), ("t5", "")),
        **dict.fromkeys(("rwkv6", "rwkv7"), ("rwkv", "")),
        "plamo2": ("plamo2", ""),
        "gemma4": ("gemma4", ""),
    }
)


def check_kind(kind: str, n_vocab: int) -> None:
    """Check the kind of vocabulary and its size. Raises Unsupported for an unknown kind, and
    InvalidModel for too few tokens."""
    if kind not in KINDS:
        raise Unsupported(f"synth cannot make a vocabulary of kind {kind!r} {choices(kind, KINDS)}")
    smallest = KINDS[kind][0]
    if n_vocab < smallest:
        what = "a vocabulary" if kind == "llama" else f"a vocabulary of kind {kind}"
        raise InvalidModel(f"n_vocab is {n_vocab}; {what} needs at least {smallest}")


def vocabulary_keys(kind: str, n_vocab: int, seed: int, pre: str = "", last: str = "") -> Keys:
    """Return the `tokenizer.ggml.*` keys of a vocabulary. `pre` names a pre-tokenizer other than
    the kind's own. `last` is a control token that replaces the last token."""
    check_kind(kind, n_vocab)
    made = dict(KINDS[kind][1](n_vocab, seed))
    if pre:
        made["tokenizer.ggml.pre"] = ("STR", pre)
    if last:
        made["tokenizer.ggml.tokens"][1][-1] = last
        made["tokenizer.ggml.token_type"][1][-1] = CONTROL
    return made
