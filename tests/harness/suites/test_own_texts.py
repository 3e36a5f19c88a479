"""Texts of a vocabulary's own pieces, and wrong tokenizers that no fixed text shows."""

import itertools
from pathlib import Path

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.tokenizers.gpt2 import Gpt2Tokenizer
from lockstep.engine.tokenizers.llama import LlamaTokenizer
from lockstep.engine.tokenizers.splitting import TextSplitter
from lockstep.harness.check.check import Plan, run_suites
from lockstep.harness.judging.no_characters import is_utf8
from lockstep.harness.records import EXACT
from lockstep.harness.suites.parts.made_texts import OF_A_KIND, own_texts, special_texts
from lockstep.harness.suites.tokens import MORE_TEXTS, TEXTS
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.contexts import context_of

RECIPES = {
    "llama": LlamaRecipe(n_layer=1),
    "gpt2": LlamaRecipe(vocab_kind="gpt2", vocab_pre="qwen2", n_vocab=600, n_layer=1),
}


def made(kind: str, folder: Path) -> Path:
    write_llama(RECIPES[kind], folder / f"{kind}.gguf")
    return folder / f"{kind}.gguf"


def rightmost(tokenizer: LlamaTokenizer, text: bytes) -> list[int]:
    """Of two merges of the same score the right one comes first."""
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
    """Of gpt2 one that cuts contractions in lower case alone: it's and not IT'S."""
    if kind == "llama":
        return MergesTheRightOne(file.metadata)
    wrong = Gpt2Tokenizer(file.metadata)
    expressions = tuple(each.replace("(?i:", "(?:") for each in wrong.pre.expressions)
    assert expressions != wrong.pre.expressions
    wrong.splitter = TextSplitter(expressions)
    return wrong


@pytest.mark.parametrize("kind", RECIPES)
def test_a_mistake_that_no_fixed_text_shows_is_seen_in_texts_of_the_vocabulary(
    kind: str, tmp_path: Path
) -> None:
    with GgufFile.open(made(kind, tmp_path)) as file:
        right = tokenizer_of(file.metadata)
        wrong = wrong_tokenizer(kind, file)
        fixed = [text for text in (*TEXTS, *MORE_TEXTS) if is_utf8(text) and len(text) < 1000]
        assert all(right.encode(text) == wrong.encode(text) for text in fixed)
        own = own_texts(right, seed=0)
        assert any(right.encode(text) != wrong.encode(text) for text in own)


@pytest.mark.parametrize("kind", RECIPES)
def test_texts_follow_from_vocabulary_and_seed_and_are_few(kind: str, tmp_path: Path) -> None:
    with GgufFile.open(made(kind, tmp_path)) as file:
        tokenizer = tokenizer_of(file.metadata)
        texts = own_texts(tokenizer, seed=0)
        assert texts == own_texts(tokenizer, seed=0) != own_texts(tokenizer, seed=1)
    assert len(texts) == len({*texts}) <= 3 * OF_A_KIND
    assert all(map(is_utf8, texts))


def test_the_suite_asks_them(tmp_path: Path) -> None:
    path = made("llama", tmp_path)
    with GgufFile.open(path) as file:
        tokenizer = tokenizer_of(file.metadata)
        n = len([*own_texts(tokenizer, seed=0), *special_texts(tokenizer, seed=0)])
    plan = Plan(
        case="own texts",
        model=path,
        subject_model=path,
        oracle="reference",
        suites=("tokens",),
        settings=EXACT,
    )
    with context_of(plan) as context:
        said = [verdict.summary for verdict in run_suites(context, plan.suites)]
    assert any(f"{len(TEXTS) + len(MORE_TEXTS) + n} inputs agree" in each for each in said)
