"""Texts that are no UTF-8: llama.cpp decodes what Unicode forbids, and nobody has to follow."""

from pathlib import Path

import pytest

from lockstep.harness.diagnosis.questions import Ids
from lockstep.harness.judging.no_characters import shown_as
from lockstep.harness.records import Verdict
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.contexts import check_engine, statuses
from tests.harness.suites.test_real_texts import rewriting

OVERLONG = b"\xc0\xaf overlong"


# As Go reads a text as runes. Honest under BPE, where llama.cpp has U+FFFD for such bytes as well;
# wrong where there are tokens of bytes, which keep them.
EVERY_BYTE = rewriting("U+FFFD for every byte", lambda text: max(shown_as(text), key=len))
# Wrong anywhere: what is no character vanishes.
DROPPED = rewriting("dropped", lambda text: text.decode("utf-8", "ignore").encode())


def tokens(kind: str, engine: str, folder: Path) -> list[Verdict]:
    path = folder / f"{kind}.gguf"
    recipe = LlamaRecipe(vocab_kind=kind, n_vocab=600, n_layer=1)  # type: ignore[arg-type]
    write_llama(recipe, path)
    found = check_engine(path, engine, "tokens")
    return [v for v in found if v.summary.startswith("encode")]


def test_who_reads_them_as_unicode_has_it_is_not_accused_under_bpe(tmp_path: Path) -> None:
    found = tokens("gpt2", EVERY_BYTE, tmp_path)
    assert statuses(found) == {"excused"}
    assert all(repr(OVERLONG) in v.detail["read_with_replacements"] for v in found)


@pytest.mark.parametrize(("kind", "engine"), [("gpt2", DROPPED), ("llama", EVERY_BYTE)])
def test_who_loses_bytes_that_the_vocabulary_has_tokens_for_diverges(
    kind: str, engine: str, tmp_path: Path
) -> None:
    assert statuses(tokens(kind, engine, tmp_path)) == {"diverged"}


def test_the_right_engine_is_excused_of_nothing(tmp_path: Path) -> None:
    assert statuses(tokens("gpt2", "reference", tmp_path)) == {"agreed"}


@pytest.mark.parametrize(("kept", "same"), [([1], True), ([9], False)])
def test_a_diagnosis_leaves_them_open_only_where_such_bytes_are_replaced(
    kept: list[int], same: bool
) -> None:
    texts = (OVERLONG, "\ufffd\ufffd overlong".encode(), b"\xff", "\ufffd".encode())
    question = Ids(words="the ids of texts", texts=texts, flags=())
    answer = [[7], [1, 1], kept, [1]]
    said = [[1, 1], *answer[1:]]
    compared = question.compare(said, answer, None, 0.0)  # type: ignore[arg-type]
    assert compared.same.tolist() == [same, True, True, True]
