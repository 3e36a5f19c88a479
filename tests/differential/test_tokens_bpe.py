"""Byte-pair encoding against llama.cpp: its vocabularies, and every name of a pre-tokenizer."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.pre_tokenizers import KINDS, PRE_TOKENIZERS
from lockstep.engine.tokenizers.unicode_data import WHITESPACE, categories
from lockstep.golden import fetch
from lockstep.harness.synth.gguf_writer import Typed, write_gguf
from tests.differential import bpe
from tests.differential import test_tokens_llama_cpp as common
from tests.differential.bpe import (
    ENGLISH,
    TEXTS,
    LlamaCpp,
    answered,
    compare,
    differences,
    opened,
    scripts,
    seams,
    some_pieces,
)
from tests.differential.forked import REPO, Ask

# without the largest: each pre-tokenizer is compared above, and tests/golden asks all 19
VOCABULARIES = ("deepseek-coder", "falcon", "gpt-2", "gpt-neox", "llama-bpe", "mpt", "refact",
                "starcoder")  # fmt: skip


@pytest.fixture(scope="session")
def llama_cpp() -> Iterator[LlamaCpp]:
    process = LlamaCpp()
    yield process
    process.close()


# --- every name of a pre-tokenizer --------------------------------------------------------------


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_answer_for_a_pre_tokenizer_is_that_of_llama_cpp(
    name: str, llama_cpp: LlamaCpp, tmp_path: Path
) -> None:
    path = tmp_path / "seams.gguf"
    write_gguf(path, seams(name))
    tokenizer = opened(path)
    texts = [text for text in TEXTS if answered(tokenizer, text)]
    # a code point beyond U+10FFFF, and of WHITESPACE what is in the test below
    assert len(texts) == len(TEXTS) - 1 or name == "whitespace"
    compare(llama_cpp, path, tokenizer, texts, some_pieces(tokenizer.vocabulary.n_vocab))


def test_the_texts_tell_all_pre_tokenizers_apart(tmp_path: Path) -> None:
    path = tmp_path / "seams.gguf"
    names = {PRE_TOKENIZERS[name].kind: name for name in PRE_TOKENIZERS}
    telling = [*(text.encode() for text in ENGLISH.split("§")), *scripts(40)]
    found = {}
    for expressions in set(KINDS.values()):
        name = next(names[kind] for kind in names if KINDS[kind] == expressions)
        write_gguf(path, seams(name))
        tokenizer = opened(path)
        found[name] = [tokenizer.encode(text) for text in telling if answered(tokenizer, text)]
    alike = [(a, b) for a, b in combinations(found, 2) if found[a] == found[b]]
    assert len(found) == len(set(KINDS.values()))
    assert alike == []


def test_the_comparison_sees_one_wrong_answer_of_each_sort(
    llama_cpp: LlamaCpp, tmp_path: Path
) -> None:
    path = tmp_path / "seams.gguf"
    write_gguf(path, seams("gpt-2"))
    theirs = llama_cpp.ask(path, [b"ab"], [[5, 6]])
    assert theirs is not None
    assert list(differences(opened(path), theirs, [b"ab"], [[5, 6]])) == []
    theirs["encoded"][0][0] += 1
    theirs["flagged"][3] = []
    theirs["decoded"][1] += "00"
    theirs["pieces"][7] = "ff"
    theirs["adds"][0] = not theirs["adds"][0]
    found = list(differences(opened(path), theirs, [b"ab"], [[5, 6]]))
    assert [line.split()[0] for line in found] == [
        *("encoded", "flagged", "decoded", "pieces", "adds"),
    ]


# --- llama.cpp's vocabularies -------------------------------------------------------------------


def vocabulary(name: str) -> Path:
    folder = fetch.vocabularies()
    if folder is None:
        pytest.skip(f"no ggml-vocab-{name}.gguf (lockstep golden fetch): it was not compared")
    return fetch.vocabulary(folder, name)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_answer_on_a_vocabulary_of_llama_cpp_is_its_own(
    name: str, llama_cpp: LlamaCpp
) -> None:
    path = vocabulary(name)
    tokenizer = opened(path)
    texts = [text for text in [*TEXTS, *common.glued(tokenizer)] if answered(tokenizer, text)]
    compare(llama_cpp, path, tokenizer, texts)


# --- odd vocabularies, and what is refused -------------------------------------------------------

DNA = [
    "<dna>",
    "</dna>",
    "<oov>",
    "\ue000",
    "ACGTAC\ue000",
    "AAAAAA\ue000",
    "CCCCCC\ue000",
    "CAAAAA\ue000",
]


def with_dna(**types: int) -> dict[str, Typed | None]:
    """The tokens of DNA, of the given types."""
    base = seams("gpt-2")
    texts = [*base["tokenizer.ggml.tokens"][1], "CCCCCC", *DNA]
    kinds = [*base["tokenizer.ggml.token_type"][1], 1, *(types.get(text, 1) for text in DNA)]
    return {
        "tokenizer.ggml.model": ("STR", "hybriddna"),
        "tokenizer.ggml.tokens": ("ARR[STR]", texts),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(kinds, np.int32)),
    }


def whitespace(pre: str, **keys: Typed) -> dict[str, Typed | None]:
    return {"tokenizer.ggml.model": ("STR", "whitespace"), "tokenizer.ggml.pre": ("STR", pre),
            **{f"tokenizer.ggml.{key}": value for key, value in keys.items()}}  # fmt: skip


WITHOUT_MERGES = {"tokenizer.ggml.merges": None}
LOWERED: dict[str, Typed] = {"normalizer.lowercase": ("BOOL", True)}
REFUSED: dict[str, dict[str, Typed | None]] = {
    "an unknown pre-tokenizer": {"tokenizer.ggml.pre": ("STR", "gpt2")},
    "a pre-tokenizer that is no string": {"tokenizer.ggml.pre": ("U32", 2)},
    "no merges": WITHOUT_MERGES,
    "merges that are no strings": {"tokenizer.ggml.merges": ("ARR[I32]", np.zeros(3, np.int32))},
    "a piece beyond Unicode": {"tokenizer.ggml.tokens": ("ARR[STR]", [b"a", b"\xf4\x90\x80\x80"]),
                               "tokenizer.ggml.token_type": None},
}  # fmt: skip
ACCEPTED: dict[str, dict[str, Typed | None]] = {
    "no pre-tokenizer": {"tokenizer.ggml.pre": None},
    "an empty pre-tokenizer": {"tokenizer.ggml.pre": ("STR", "")},
    "no merges for kimi-k2": {**WITHOUT_MERGES, "tokenizer.ggml.pre": ("STR", "kimi-k2")},
    "merges that never apply": {
        "tokenizer.ggml.merges": ("ARR[STR]", ["", " ", "a", "a ", " a", "ab", "a b c", "a  b",
                                               b"\x80 a", b"a b\0c", "a b", "b c", "ab c"]),
    },
    "the same merge twice": {"tokenizer.ggml.merges": ("ARR[STR]", ["a b", "b c", "c d", "a b"])},
    "merges into what is no token": {
        "tokenizer.ggml.merges": ("ARR[STR]", ["q q", "qq q", "qqq qqq", "Ġ q", "Ġq qq", "ċ Ċ"]),
    },
    "surrogates in merges": {
        "tokenizer.ggml.pre": ("STR", "sarvam-moe"),
        "tokenizer.ggml.merges": ("ARR[STR]", [b"\xed\xb2\x80 a", b"\x80 a", b"b \xed\xb2\x80"]),
    },
    "BOS and EOS": {"tokenizer.ggml.add_bos_token": ("BOOL", True),
                    "tokenizer.ggml.add_eos_token": ("BOOL", True),
                    "tokenizer.ggml.eos_token_id": ("U32", 1)},
    "a space prefix": {"tokenizer.ggml.add_space_prefix": ("BOOL", True)},
    "no BOS for gemma4": {"tokenizer.ggml.pre": ("STR", "gemma4"),
                          "tokenizer.ggml.add_bos_token": ("BOOL", False)},
    "no types": {"tokenizer.ggml.token_type": None},
    "white space dropped": whitespace("whitespace"),
    "white space dropped, in lower case": whitespace("whitespace", **LOWERED),
    "white space dropped, another pre-tokenizer": whitespace("gpt-2"),
    "white space escaped before it is dropped": whitespace("sarvam-moe"),
    "DNA": with_dna(),
    "DNA between special tokens": with_dna(**{"<dna>": 4, "</dna>": 3, "CCCCCC\ue000": 4}),
    "DNA without its tokens": {"tokenizer.ggml.model": ("STR", "hybriddna")},
}  # fmt: skip


def changed(path: Path, changes: dict[str, Typed | None]) -> Path:
    metadata: dict[str, Typed | None] = {**seams("gpt-2"), **changes}
    write_gguf(path, {key: value for key, value in metadata.items() if value is not None})
    return path


ODD = [
    *(
        b"abc",
        b"abcd",
        b"qqqqqqqq",
        b" qqq",
        b"\xed\xb2\x80a",
        b"b\xed\xb2\x80a",
        b"\xff\n",
        b"CCCCCC",
    ),
    *(b"<dna>", b"</dna>", b"<dna></dna></dna>", b"<dna><dna>a</dna>\n <dna>ACGTACA</dn"),
    *(b"x <dna>ACGTACaaaaAACC c</dna> y<dna>ccccccC", "HALLÖ İK".encode()),
]


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_answer_on_an_odd_vocabulary_is_that_of_llama_cpp(
    name: str, llama_cpp: LlamaCpp, tmp_path: Path
) -> None:
    path = changed(tmp_path / "odd.gguf", ACCEPTED[name])
    tokenizer = opened(path)
    texts = [text for text in [*ODD, *TEXTS] if answered(tokenizer, text)]
    compare(llama_cpp, path, tokenizer, texts)


@pytest.mark.parametrize("name", REFUSED)
def test_what_we_refuse_llama_cpp_does_not_load(
    name: str, llama_cpp: LlamaCpp, tmp_path: Path
) -> None:
    path = changed(tmp_path / "bad.gguf", REFUSED[name])
    with pytest.raises(EngineError, match=r"tokenizer\.ggml\.(pre|merges|tokens)"):
        opened(path)
    assert llama_cpp.ask(path, [], []) is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, b"\xf4\x90\x80\x80"),
        ({}, b"a\xf7\xbf\xbf\xbf"),
        ({"tokenizer.ggml.pre": ("STR", "whitespace")}, b"a  b"),
        ({"tokenizer.ggml.pre": ("STR", "whitespace")}, b"a\n b"),
        ({"tokenizer.ggml.pre": ("STR", "gemma4")}, b"a\xc0\xa0b"),
        ({"tokenizer.ggml.pre": ("STR", "glm4"), "tokenizer.ggml.bos_token_id": None,
          "tokenizer.ggml.add_bos_token": ("BOOL", True)}, b"a"),
    ],
)  # fmt: skip
def test_texts_that_we_refuse_llama_cpp_dies_of(
    changes: dict[str, Typed | None], text: bytes, ask: Ask, llama_cpp: LlamaCpp, tmp_path: Path
) -> None:
    path = changed(tmp_path / "deadly.gguf", changes)
    with pytest.raises(EngineError):
        opened(path).encode(text)
    assert ask(path, [text], []) is None
    assert llama_cpp.ask(path, [], []) is not None, "it died of the model"


# --- tables -------------------------------------------------------------------------------------


def test_llama_cpp_has_our_category_for_every_code_point() -> None:
    code = f"from {bpe.__name__} import flags_of_code_points as ask; ask()"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, check=False)
    if b"AttributeError" in done.stderr:
        pytest.skip("libllama does not export its flags: categories were not compared with it")
    assert done.returncode == 0, done.stderr.decode()
    flags = np.frombuffer(done.stdout, "<u2")
    letters = np.frombuffer(b"UNLZMPSC", np.uint8)
    assert np.array_equal(letters[np.log2(flags & 0xFF).astype(int)], categories())
    assert np.flatnonzero(flags & 0x100).tolist() == list(WHITESPACE)
