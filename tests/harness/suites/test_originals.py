"""The list of known differences from the original tokenizers, and its use in reports."""

from pathlib import Path

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.golden.fetch import NAMES
from lockstep.harness.adapters import adapter_class
from lockstep.harness.adapters.parts.originals import (
    BYTE,
    NORMAL,
    UNKNOWN,
    plain,
    sentencepiece_model,
    tokenizer_json,
)
from lockstep.harness.suites.parts.originals import Original, known_originals, originals_of
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.contexts import check_engine

KNOWN = known_originals()


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    path = tmp_path / "bert.gguf"
    write_llama(LlamaRecipe(vocab_kind="bert", n_layer=1, n_embd=16, n_head=2, n_ff=32), path)
    return path


def test_entries_have_unique_ids() -> None:
    assert len(KNOWN) >= 14
    assert len({known.id for known in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.id)
def test_entry_states_difference_original_and_report(known: Original) -> None:
    assert adapter_class(known.original).name == known.original
    assert known.vocabulary in NAMES
    assert known.llama_cpp != known.theirs
    assert known.text.decode()
    assert known.sentence.endswith(".")
    assert known.status.startswith(("reported", "not reported"))
    assert known.link.startswith("https://github.com/") or known.status.startswith("not reported")


def test_model_gets_the_entries_of_its_kind(bert: Path, tmp_path: Path) -> None:
    with GgufFile.open(bert) as file:
        found = {known.id for known in originals_of(file.metadata)}
    assert found == {known.id for known in KNOWN if known.model == "bert"}
    for pre, ids in (("qwen2", {"nfc-qwen2"}), ("gpt-2", set())):
        path = tmp_path / f"{pre}.gguf"
        write_llama(LlamaRecipe(vocab_kind="gpt2", vocab_pre=pre, n_vocab=600), path)
        with GgufFile.open(path) as file:
            assert {known.id for known in originals_of(file.metadata)} == ids


def test_report_names_the_original_and_still_compares(bert: Path) -> None:
    verdicts = check_engine(bert, "reference", "tokens")
    told = [v for v in verdicts if "differs from the original" in v.summary]
    assert len(told) == 4  # the ways to encode
    rows = told[0].detail["differs_from_the_original"]
    assert {row["id"] for row in rows} == {known.id for known in KNOWN if known.model == "bert"}
    assert all(row["sentence"] and row["status"] for row in rows)


# --- originals made from a file -----------------------------------------------------------------


def test_merges_are_split_at_their_space() -> None:
    data = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<x>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 3],
        "tokenizer.ggml.merges": ["a b"],
    }
    made = tokenizer_json(data, parse_special=False)
    assert made["model"]["merges"] == [["a", "b"]]
    assert made["added_tokens"] == []
    (added,) = tokenizer_json(data, parse_special=True)["added_tokens"]
    assert (added["content"], added["special"]) == ("<x>", True)


def test_original_wordpiece_gets_its_marks_back() -> None:
    data = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": ["[UNK]", "▁a", "b"],
        "tokenizer.ggml.unknown_token_id": 0,
    }
    made = tokenizer_json(data, parse_special=False)
    assert made["model"]["vocab"] == {"[UNK]": 0, "a": 1, "##b": 2}
    assert made["model"]["unk_token"] == "[UNK]"


def test_sentencepiece_model_holds_pieces_scores_and_types() -> None:
    data = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<0x00>", "a"],
        "tokenizer.ggml.scores": [0.0, 0.0, -1.5],
        "tokenizer.ggml.token_type": [UNKNOWN, BYTE, NORMAL],
    }
    raw = sentencepiece_model(data)
    assert raw.startswith(b"\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02")
    assert b"\x0a\x01a\x15\x00\x00\xc0\xbf\x18\x01" in raw
    assert b"\x0a\x08identity" in raw


def test_vocabulary_without_an_original_is_refused_with_the_choices(bert: Path) -> None:
    with GgufFile.open(bert) as file:
        data = plain(file.metadata)
    with pytest.raises(Exception, match=r"sentencepiece is not the original of 'bert'"):
        sentencepiece_model(data)
    with pytest.raises(Exception, match=r"does not have the original .* 'viking' \(known: gpt-2"):
        tokenizer_json(
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "viking"}, parse_special=False
        )
