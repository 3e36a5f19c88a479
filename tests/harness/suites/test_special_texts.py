"""Texts with special tokens of the file, and engines that split one kind of them."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.tokenizers.vocabulary import Attr, Vocabulary
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.judging.no_characters import is_utf8
from lockstep.harness.suites.parts.special_texts import special_texts
from lockstep.harness.synth.llama import LlamaRecipe, metadata
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import with_metadata

TYPES = {"<think>": 4, "<|tool|>": 4, "<|im_start|>": 3, "[gap]": 5, "<unknown>": 2}


def with_special_tokens(folder: Path, kind: str) -> Path:
    """A model whose last tokens are special ones of several types."""
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
    """Tokens of one type are not looked for in texts."""

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

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        flags = {"add_special": add_special, "parse_special": parse_special}
        return [self.wrong.encode(text, **flags) for text in texts]


class SplitsOtherControl(Splits, name="special texts: splits control tokens but BOS and EOS"):
    attr = Attr.CONTROL

    def splits(self, vocabulary: Vocabulary, token: int) -> bool:
        return super().splits(vocabulary, token) and token not in (vocabulary.bos, vocabulary.eos)


class SplitsUnknown(Splits, name="special texts: splits unknown tokens"):
    attr = Attr.UNKNOWN


class ReadsBytes(Reference, name="special texts: reads <0x41> as a byte"):
    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        texts = [text.replace(b"<0x42>", b"B") for text in texts]
        return super().tokenize(texts, add_special=add_special, parse_special=parse_special)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "engine", [Splits.name, SplitsOtherControl.name, SplitsUnknown.name, ReadsBytes.name]
)
def test_suite_finds_an_engine_that_splits_special_tokens(
    engine: str, kind: str, tmp_path: Path
) -> None:
    if (engine, kind) == (ReadsBytes.name, "gpt2"):
        pytest.skip("gpt2 has no byte tokens")
    path = with_special_tokens(tmp_path, kind)
    assert exit_code(verdicts_of(plan_for(path, engine=engine, suites=("tokens",)))) == 1


PLACES = {  # what an engine reads in place of a text
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


class ReadsOtherwise(Reference, name="special texts: reads another text"):
    place = ""

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        texts = [PLACES[self.place](text) for text in texts]
        return super().tokenize(texts, add_special=add_special, parse_special=parse_special)


@pytest.mark.parametrize("place", PLACES)
def test_suite_finds_special_tokens_and_bytes_read_wrongly_in_one_place(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadsOtherwise, "place", place)
    path = with_special_tokens(tmp_path, "llama")
    found = verdicts_of(plan_for(path, engine=ReadsOtherwise.name, suites=("tokens",)))
    assert exit_code(found) == 1


class WritesOtherwise(Reference, name="special texts: writes a blank for no ids"):
    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        flags = {"remove_special": remove_special, "unparse_special": unparse_special}
        right = super().detokenize(ids, **flags)
        return [text if row else b" " for row, text in zip(ids, right, strict=True)]


def test_suite_finds_a_blank_for_no_ids(tmp_path: Path) -> None:
    path = with_special_tokens(tmp_path, "llama")
    found = verdicts_of(plan_for(path, engine=WritesOtherwise.name, suites=("tokens",)))
    assert exit_code(found) == 1


class LosesSpaces(Reference, name="special texts: loses the space behind a user-defined token"):
    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        flags = {"remove_special": remove_special, "unparse_special": unparse_special}
        return [text.replace(b"<think> ", b"<think>") for text in super().detokenize(ids, **flags)]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_suite_finds_a_wrong_text_behind_a_special_token(kind: str, tmp_path: Path) -> None:
    path = with_special_tokens(tmp_path, kind)
    found = verdicts_of(plan_for(path, engine=LosesSpaces.name, suites=("tokens",)))
    assert exit_code(found) == 1
    assert all("decode" in v.summary for v in found if v.status == "diverged")


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
    assert exit_code(verdicts_of(plan_for(path, suites=("tokens",)))) == 0
