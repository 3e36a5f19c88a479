"""Texts made of a vocabulary's own tokens. They expose wrong engines that no fixed text exposes."""

import itertools
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.tokenizers.gpt2 import Gpt2Tokenizer
from lockstep.engine.tokenizers.llama import LlamaTokenizer
from lockstep.engine.tokenizers.splitting import TextSplitter
from lockstep.engine.tokenizers.vocabulary import Attr, Vocabulary
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.judging.no_characters import is_utf8
from lockstep.harness.suites.parts.made_texts import OF_A_KIND, own_texts, special_texts
from lockstep.harness.suites.parts.originals import named_among
from lockstep.harness.suites.tokens import MORE_TEXTS, TEXTS
from lockstep.harness.synth.llama import LlamaRecipe, metadata, write_llama
from tests.contexts import check_engine
from tests.harness.suites.test_real_texts import Change, rewriting
from tests.models import with_metadata
from tests.quiet_engines import made

TYPES = {"<think>": 4, "<|tool|>": 4, "<|im_start|>": 3, "[gap]": 5, "<unknown>": 2}
RECIPES = {
    "llama": LlamaRecipe(n_layer=1),
    "gpt2": LlamaRecipe(vocab_kind="gpt2", vocab_pre="qwen2", n_vocab=600, n_layer=1),
}


def with_special_tokens(folder: Path, kind: str) -> Path:
    """Write a model whose last tokens are special tokens of several types."""
    recipe = {
        "llama": LlamaRecipe(n_layer=1),
        "gpt2": LlamaRecipe(vocab_kind="gpt2", vocab_pre="qwen2", n_vocab=600, n_layer=1),
    }[kind]
    keys = metadata(recipe)
    texts = list(keys["tokenizer.ggml.tokens"][1])
    types = np.array(keys["tokenizer.ggml.token_type"][1], np.int32)
    for token, (text, number) in enumerate(TYPES.items(), len(texts) - len(TYPES)):
        texts[token], types[token] = text, number
    path = folder / f"{kind}.gguf"
    with_metadata(
        path,
        recipe,
        tokenizer__ggml__tokens=(keys["tokenizer.ggml.tokens"][0], texts),
        tokenizer__ggml__token_type=(keys["tokenizer.ggml.token_type"][0], types),
    )
    return path


class Splits(Reference, name="special texts: splits user-defined tokens"):
    """A tokenizer that ignores tokens of one type in texts."""

    attr = Attr.USER_DEFINED

    @cached_property
    def wrong(self) -> Tokenizer:
        assert self.model is not None
        with GgufFile.open(self.model) as file:
            tokenizer = tokenizer_of(file.metadata)
        vocabulary = tokenizer.vocabulary
        kept = tuple(i for i in vocabulary.specials if not self.splits(vocabulary, i))
        object.__setattr__(vocabulary, "specials", kept)
        return tokenizer

    def splits(self, vocabulary: Vocabulary, token: int) -> bool:
        return bool(vocabulary.attrs[token] & self.attr)

    def tokenize(self, texts: Sequence[bytes], **flags: bool) -> list[list[int]]:
        return [self.wrong.encode(text, **flags) for text in texts]


class SplitsOtherControl(Splits, name="special texts: splits control tokens but BOS and EOS"):
    attr = Attr.CONTROL

    def splits(self, vocabulary: Vocabulary, token: int) -> bool:
        return super().splits(vocabulary, token) and token not in (vocabulary.bos, vocabulary.eos)


class SplitsUnknown(Splits, name="special texts: splits unknown tokens"):
    attr = Attr.UNKNOWN


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("engine", [Splits, SplitsOtherControl, SplitsUnknown])
def test_suite_finds_an_engine_that_splits_special_tokens(
    engine: type[Splits], kind: str, tmp_path: Path
) -> None:
    path = with_special_tokens(tmp_path, kind)
    assert exit_code(check_engine(path, engine, "tokens")) == 1


PLACES: dict[str, Change] = {  # mistake -> the text that the engine reads instead
    "<0x42> as a byte": lambda text: text.replace(b"<0x42>", b"B"),
    "no byte 0x1b": lambda text: text.replace(b"\x1b", b""),
    "no byte 0x95": lambda text: text.replace("\x95".encode(), b""),
    "no token behind a digit": lambda text: text.replace(b"1<", b"1 <"),
    "tokens of any case": lambda text: text.replace(b"<THINK>", b"<think>"),
    "no token beside another": lambda text: text.replace(b"<think><|im", b"<think>< |im"),
    "no token behind the 200th byte": (
        lambda text: text if len(text) <= 200 else text.replace(b"a<think>", b"a< think>")
    ),
    "no more than seven of a token": lambda text: text.replace(b"<think>" * 8, b"<think>" * 7),
    "no token behind its first character": lambda text: text.replace(b"<<think>", b"< <think>"),
    "no last tab": lambda text: text.rstrip(b"\t"),
}


@pytest.mark.parametrize("place", PLACES)
def test_suite_finds_tokens_and_bytes_misread_in_one_place(place: str, tmp_path: Path) -> None:
    path = with_special_tokens(tmp_path, "llama")
    found = check_engine(path, rewriting(f"special: {place}", PLACES[place]), "tokens")
    assert exit_code(found) == 1


# mistake -> function of ids and their text that returns the written text
WRITTEN: dict[str, Callable[[Any, bytes], bytes]] = {
    "a blank for no ids": lambda ids, text: text if ids else b" ",
    "no space behind a user-defined token": (
        lambda ids, text: text.replace(b"<think> ", b"<think>")
    ),
}


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("name", WRITTEN)
def test_suite_finds_a_wrong_text_with_or_without_special_tokens(
    name: str, kind: str, tmp_path: Path
) -> None:
    def detokenize(self: Any, rows: Sequence[Sequence[int]], **flags: bool) -> list[bytes]:
        right = Reference.detokenize(self, rows, **flags)
        return [WRITTEN[name](ids, text) for ids, text in zip(rows, right, strict=True)]

    engine = made(f"special texts: {name}, {kind}", Reference, detokenize=detokenize)
    found = check_engine(with_special_tokens(tmp_path, kind), engine, "tokens")
    assert exit_code(found) == 1
    assert {v.detail["way"] for v in found if v.status == "diverged"} == {"decode"}


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_texts_have_each_special_token_and_are_utf8(kind: str, tmp_path: Path) -> None:
    with GgufFile.open(with_special_tokens(tmp_path, kind)) as file:
        tokenizer = tokenizer_of(file.metadata)
    texts = special_texts(tokenizer, seed=0)
    assert len(texts) == len({*texts})
    assert all(map(is_utf8, texts))
    assert all(any(text.encode() in each for each in texts) for text in TYPES)
    assert texts == special_texts(tokenizer, seed=0)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_suite_accuses_no_right_engine(kind: str, tmp_path: Path) -> None:
    path = with_special_tokens(tmp_path, kind)
    assert exit_code(check_engine(path, "reference", "tokens")) == 0


# --- types that llama.cpp repairs -----------------------------------------------------------------

SHOWN = int(Attr.USER_DEFINED)
VOCABULARY = SimpleNamespace(
    stored_attrs=(SHOWN, SHOWN, int(Attr.CONTROL)),
    attrs=(SHOWN, int(Attr.USER_DEFINED | Attr.CONTROL), int(Attr.CONTROL)),
    texts=(b"a", b"</s>", b"<s>"),
)
CONTEXT: Any = SimpleNamespace(tokenizer=SimpleNamespace(vocabulary=VOCABULARY))


def test_token_that_llama_cpp_hides_despite_the_file_is_named() -> None:
    wrong = [([1], b"", b"</s>"), ([0, 1], b"a", b"a</s>")]
    text = named_among(CONTEXT, wrong)
    assert "1 '</s>' as a control token" in text
    assert named_among(CONTEXT, [(b"</s>", [0], [1])]) == text


def test_difference_without_hidden_tokens_names_no_hidden_tokens() -> None:
    assert named_among(CONTEXT, [([1], b"", b"</s>"), ([2], b"", b"<s>")]) == ""
    assert named_among(CONTEXT, [(b"a", [0], [2])]) == ""


def model_of_kind(kind: str, folder: Path) -> Path:
    write_llama(RECIPES[kind], folder / f"{kind}.gguf")
    return folder / f"{kind}.gguf"


def rightmost(tokenizer: LlamaTokenizer, text: bytes) -> list[int]:
    """Merge the right pair first if two pairs have equal scores."""
    vocabulary = tokenizer.vocabulary
    parts = [character.encode() for character in text.decode()]
    while True:
        found = [vocabulary.ids.get(a + b) for a, b in itertools.pairwise(parts)]
        ranked = [(vocabulary.scores[t], at) for at, t in enumerate(found) if t is not None]
        if not ranked:
            break
        _, at = max(ranked)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    spelled = (
        [vocabulary.ids[part]] if part in vocabulary.ids else map(tokenizer.byte_token, part)
        for part in parts
    )
    return [token for each in spelled for token in each]


class MergesTheRightOne(LlamaTokenizer):
    def segment(self, text: bytes) -> list[int]:
        return rightmost(self, text)


def wrong_tokenizer(kind: str, file: GgufFile) -> Tokenizer:
    """Return a wrong tokenizer. The wrong tokenizer for gpt2 splits contractions only in lower
    case: it's, but not IT'S."""
    if kind == "llama":
        return MergesTheRightOne(file.metadata)
    wrong = Gpt2Tokenizer(file.metadata)
    expressions = tuple(each.replace("(?i:", "(?:") for each in wrong.pre.expressions)
    assert expressions != wrong.pre.expressions
    wrong.splitter = TextSplitter(expressions)
    return wrong


@pytest.mark.parametrize("kind", RECIPES)
def test_vocabulary_texts_show_a_mistake_that_fixed_texts_miss(kind: str, tmp_path: Path) -> None:
    with GgufFile.open(model_of_kind(kind, tmp_path)) as file:
        right = tokenizer_of(file.metadata)
        wrong = wrong_tokenizer(kind, file)
        fixed = [text for text in (*TEXTS, *MORE_TEXTS) if is_utf8(text) and len(text) < 1000]
        assert all(right.encode(text) == wrong.encode(text) for text in fixed)
        own = own_texts(right, seed=0)
        assert any(right.encode(text) != wrong.encode(text) for text in own)


@pytest.mark.parametrize("kind", RECIPES)
def test_texts_are_few_and_follow_from_vocabulary_and_seed(kind: str, tmp_path: Path) -> None:
    with GgufFile.open(model_of_kind(kind, tmp_path)) as file:
        tokenizer = tokenizer_of(file.metadata)
        texts = own_texts(tokenizer, seed=0)
        assert texts == own_texts(tokenizer, seed=0) != own_texts(tokenizer, seed=1)
    assert len(texts) == len({*texts}) <= 3 * OF_A_KIND
    assert all(map(is_utf8, texts))


def test_suite_asks_for_texts_made_of_the_vocabulary(tmp_path: Path) -> None:
    path = model_of_kind("llama", tmp_path)
    with GgufFile.open(path) as file:
        tokenizer = tokenizer_of(file.metadata)
        n = len([*own_texts(tokenizer, seed=0), *special_texts(tokenizer, seed=0)])
    said = [verdict.summary for verdict in check_engine(path, "reference", "tokens")]
    assert any(f"{len(TEXTS) + len(MORE_TEXTS) + n} inputs agree" in each for each in said)
