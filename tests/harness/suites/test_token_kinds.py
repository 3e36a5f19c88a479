"""Kinds of differences between two tokenizers. Known findings are matched by these kinds."""

from copy import copy
from dataclasses import replace

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.harness.runs.run import builtin_model
from lockstep.harness.suites.parts.token_kinds import kinds_of


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    with GgufFile.open(builtin_model("f32", tmp_path_factory.mktemp("model"))) as file:
        return tokenizer_of(file.metadata)


def kinds(tokenizer: Tokenizer, expected: object, actual: object) -> list[str]:
    return [kind.name for kind, _ in kinds_of(tokenizer, (), expected, actual)]


def test_missing_bos_is_separate_from_other_differences(tokenizer: Tokenizer) -> None:
    bos, ids = (
        tokenizer.vocabulary.bos,
        tokenizer.encode(b"aeee", add_special=False, parse_special=True),
    )
    assert kinds(tokenizer, [bos, *ids], ids) == ["BOS"]
    assert kinds(tokenizer, [bos, *ids], ids[:-1]) == ["BOS", "CUT"]
    assert kinds(tokenizer, [bos], []) == ["BOS"]
    assert kinds(tokenizer, [bos, bos], [bos]) == ["BOS"]


def test_vocabulary_without_bos_misses_none(tokenizer: Tokenizer) -> None:
    other, vocabulary = copy(tokenizer), tokenizer.vocabulary
    other.vocabulary = replace(vocabulary, roles={**vocabulary.roles, "bos": None})
    ids = tokenizer.encode(b"aeee", add_special=False, parse_special=True)
    assert kinds(other, ids, ids[:-1]) == ["CUT"]


def test_other_tokens_of_one_text_are_distinguished_from_another_text(tokenizer: Tokenizer) -> None:
    space, *letters = tokenizer.encode(b"aeee", add_special=False, parse_special=True)
    byte = tokenizer.pieces.index(b"e")  # the token of the byte, not the token of the letter
    assert kinds(tokenizer, [space, *letters], [space, *letters[:-1], byte]) == ["TOKENS"]
    assert kinds(tokenizer, [space, *letters], letters) == ["LEADING_SPACE"]
    assert kinds(tokenizer, [space, *letters], letters[::-1]) == ["TEXT"]
    assert kinds(tokenizer, [space, *letters], [10**6]) == ["TEXT"]


def test_space_after_a_special_token_and_byte_name_are_kinds_of_their_own(
    tokenizer: Tokenizer,
) -> None:
    def ids(text: bytes) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=True)

    around = ids(b"a<s>a")
    at = around.index(tokenizer.vocabulary.bos or 0)
    assert kinds(tokenizer, around, [*around[: at + 1], *around[at + 2 :]]) == ["LEADING_SPACE"]
    assert kinds(tokenizer, [*around[: at + 1], *around[at + 2 :]], around) == ["EXTRA_SPACE"]
    space, letter = ids(b"a")
    byte = tokenizer.pieces.index(b"\n")
    assert kinds(tokenizer, ids(b"a<0x0A>"), [space, letter, byte]) == ["BYTE_NAME"]
    assert kinds(tokenizer, ids(b"a<0x0A>"), [space, letter, byte, letter]) == ["TEXT"]


@pytest.mark.parametrize(
    ("expected", "actual", "kind"),
    [
        (b" upon", b"upon", "LEADING_SPACE"),
        (b"a , b", b"a, b", "SPACES"),
        (b"upon", b"up", "CUT"),
        (b"upon", b"open", "TEXT"),
    ],
)
def test_missing_spaces_and_a_missing_end_are_distinguished(
    expected: bytes, actual: bytes, kind: str, tokenizer: Tokenizer
) -> None:
    assert kinds(tokenizer, expected, actual) == [kind]
