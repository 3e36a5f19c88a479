"""Byte-pair encoding compared with llama.cpp, for its vocabularies and every pre-tokenizer's
name."""

import subprocess
import sys
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.gpt2 import CHARACTER_OF_BYTE
from lockstep.engine.tokenizers.pre_tokenizers import KINDS, PRE_TOKENIZERS
from lockstep.engine.tokenizers.unicode_data import WHITESPACE, categories
from tests.differential import tokens
from tests.differential.texts import BYTE_PAIRS, ENGLISH, glued, scripts
from tests.differential.tokens import Ask, check, opened, refuses
from tests.places import ROOT
from tests.tokenizer_cases import Value, Word, vocabulary, written
from tests.vocabularies import vocabulary_file

SOME = 7
# the first tokens contain every kind; later tokens are all merged, and decoded by one rule
EVERY_SORT = 1000
# without the largest vocabularies: pre-tokenizers are compared above, and tests/golden tests all 19
VOCABULARIES = ("deepseek-coder", "falcon", "gpt-2", "gpt-neox", "llama-bpe", "mpt", "refact",
                "starcoder")  # fmt: skip


def seams(pre: str | None = "gpt-2", **changes: Any) -> dict[str, Value]:
    """Return a vocabulary in which almost every cut of a text changes the ids: pairs of bytes,
    merged in any order.

    It also has characters and byte tokens, for words that are not spelled in bytes.
    """
    words, merges = words_and_merges()
    usual = {"pre": pre, "scores": None, "merges": merges, "bos_token_id": 0}
    return vocabulary("gpt2", words, **(usual | changes))


@cache
def words_and_merges() -> tuple[list[Word], list[str]]:
    letters = [chr(CHARACTER_OF_BYTE[byte]) for byte in range(256)]
    usual = [byte for byte in range(256) if 0x20 <= byte < 0x7F or 0x80 <= byte < 0xC0]
    order = np.random.default_rng(5).bit_generator.random_raw(24000).reshape(-1, 2).tolist()
    pairs = [(letters[usual[a % len(usual)]], letters[b % 256]) for a, b in order]
    spaces = [("Ġ", letter) for letter in (*"abcdefghijklmnopqrstuvwxyzABC0123.,'", "Ġ")]
    raw = [("▁", "▁"), ("▁", "a"), ("h", "e"), ("he", "l"), ("\n", "\n"), ("日", "本"), ("é", "é")]
    merges = list(dict.fromkeys([*raw, *pairs, *spaces, ("Ċ", "Ċ"), ("Ġ", "Ġ")]))
    special = {"<s>": 3, "</s>": 3, "<unk>": 2, "<tool>": 4, "<|endoftext|>": 4}
    texts = [*special, *letters, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "日", "é", "\n",
             *("".join(pair) for pair in merges)]  # fmt: skip
    texts = list(dict.fromkeys(texts))
    types = [special.get(text, 6 if text.startswith("<0x") else 1) for text in texts]
    words = [(text, 0.0, kind) for text, kind in zip(texts, types, strict=True)]
    return words, [" ".join(pair) for pair in merges]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_answer_for_a_pre_tokenizer_is_that_of_llama_cpp(
    name: str, ask: Ask, tmp_path: Path
) -> None:
    path = written(tmp_path / "seams.gguf", seams(name))
    tokenizer = opened(path)
    # a code point beyond U+10FFFF; the test below covers WHITESPACE
    assert sum(refuses(tokenizer, text) for text in BYTE_PAIRS) == 1 or name == "whitespace"
    check(ask, path, BYTE_PAIRS, every=SOME, n_pieces=EVERY_SORT)


def test_texts_distinguish_all_pre_tokenizers(tmp_path: Path) -> None:
    names = {PRE_TOKENIZERS[name].kind: name for name in PRE_TOKENIZERS}
    telling = [*(text.encode() for text in ENGLISH.split("§")), *scripts(40)]
    found = {}
    for expressions in set(KINDS.values()):
        name = next(names[kind] for kind in names if KINDS[kind] == expressions)
        tokenizer = opened(written(tmp_path / "seams.gguf", seams(name)))
        found[name] = [tokenizer.encode(text) for text in telling if not refuses(tokenizer, text)]
    alike = [(a, b) for a, b in combinations(found, 2) if found[a] == found[b]]
    assert len(found) == len(set(KINDS.values()))
    assert alike == []


@pytest.mark.parametrize("name", VOCABULARIES)
def test_our_tokenizer_agrees_on_each_vocabulary_of_llama_cpp(name: str, ask: Ask) -> None:
    path = vocabulary_file(name)
    check(ask, path, [*BYTE_PAIRS, *glued(opened(path))], every=SOME)


# --- odd vocabularies, and what is refused -------------------------------------------------------

DNA = ["<dna>", "</dna>", "<oov>", "\ue000", "ACGTAC\ue000", "AAAAAA\ue000", "CCCCCC\ue000",
       "CAAAAA\ue000"]  # fmt: skip


def with_dna(**types: int) -> dict[str, Value]:
    """Return the tokens of DNA, of the given types."""
    words, _ = words_and_merges()
    texts = [*(text for text, _, _ in words), "CCCCCC", *DNA]
    kinds = [*(kind for _, _, kind in words), 1, *(types.get(text, 1) for text in DNA)]
    return seams(model="hybriddna", tokens=texts, token_type=np.array(kinds, np.int32))


def whitespace(pre: str, **keys: Any) -> dict[str, Value]:
    return seams(pre, model="whitespace", **keys)


REFUSED = {
    "an unknown pre-tokenizer": seams("gpt2"),
    "a pre-tokenizer that is not a string": seams(pre=2),
    "no merges": seams(merges=None),
    "merges that are not strings": seams(merges=np.zeros(3, np.int32)),
    "a piece beyond Unicode": seams(tokens=[b"a", b"\xf4\x90\x80\x80"], token_type=None),
}
ODD_MERGES = ["", " ", "a", "a ", " a", "ab", "a b c", "a  b", b"\x80 a", b"a b\0c", "a b", "b c",
              "ab c"]  # fmt: skip
ACCEPTED = {
    "no pre-tokenizer": seams(None),
    "an empty pre-tokenizer": seams(""),
    "no merges for kimi-k2": seams("kimi-k2", merges=None),
    "merges that never apply": seams(merges=ODD_MERGES),
    "the same merge twice": seams(merges=["a b", "b c", "c d", "a b"]),
    "merges whose results are not tokens": seams(
        merges=["q q", "qq q", "qqq qqq", "Ġ q", "Ġq qq", "ċ Ċ"]
    ),
    "surrogates in merges": seams(
        "sarvam-moe", merges=[b"\xed\xb2\x80 a", b"\x80 a", b"b \xed\xb2\x80"]
    ),
    "BOS and EOS": seams(add_bos_token=True, add_eos_token=True, eos_token_id=1),
    "a space prefix": seams(add_space_prefix=True),
    "no BOS for gemma4": seams("gemma4", add_bos_token=False),
    "no types": seams(token_type=None),
    "white space dropped": whitespace("whitespace"),
    "white space dropped, in lower case": whitespace("whitespace", normalizer__lowercase=True),
    "white space dropped, another pre-tokenizer": whitespace("gpt-2"),
    "white space escaped before it is dropped": whitespace("sarvam-moe"),
    "DNA": with_dna(),
    "DNA between special tokens": with_dna(**{"<dna>": 4, "</dna>": 3, "CCCCCC\ue000": 4}),
    "DNA without its tokens": seams(model="hybriddna"),
}
ODD = [
    *(b"abc", b"abcd", b"qqqqqqqq", b" qqq", b"\xed\xb2\x80a", b"b\xed\xb2\x80a", b"\xff\n"),
    *(b"CCCCCC", b"<dna>", b"</dna>", b"<dna></dna></dna>"),
    b"<dna><dna>a</dna>\n <dna>ACGTACA</dn",
    *(b"x <dna>ACGTACaaaaAACC c</dna> y<dna>ccccccC", "HALLÖ İK".encode()),
]


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_answer_on_an_odd_vocabulary_is_that_of_llama_cpp(
    name: str, ask: Ask, tmp_path: Path
) -> None:
    path = written(tmp_path / "odd.gguf", ACCEPTED[name])
    check(ask, path, [*ODD, *BYTE_PAIRS], every=SOME, n_pieces=EVERY_SORT)


@pytest.mark.parametrize("name", REFUSED)
def test_llama_cpp_loads_no_vocabulary_that_we_refuse(name: str, ask: Ask, tmp_path: Path) -> None:
    path = written(tmp_path / "bad.gguf", REFUSED[name])
    with pytest.raises(EngineError, match=r"tokenizer\.ggml\.(pre|merges|tokens)"):
        opened(path)
    assert ask(path, [], []) in (None, {"loaded": False})


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (seams(), b"\xf4\x90\x80\x80"),
        (seams(), b"a\xf7\xbf\xbf\xbf"),
        (seams("whitespace"), b"a  b"),
        (seams("whitespace"), b"a\n b"),
        (seams("gemma4"), b"a\xc0\xa0b"),
        (seams("glm4", bos_token_id=None, add_bos_token=True), b"a"),
    ],
    ids=lambda value: repr(value) if isinstance(value, bytes) else "",
)
def test_llama_cpp_aborts_on_texts_that_we_refuse(
    metadata: dict[str, Value], text: bytes, ask: Ask, tmp_path: Path
) -> None:
    path = written(tmp_path / "deadly.gguf", metadata)
    with pytest.raises(EngineError):
        opened(path).encode(text)
    assert ask(path, [text], []) is None
    assert ask(path, [], []) is not None, "it died of the model"


# --- tables -------------------------------------------------------------------------------------


def test_llama_cpp_has_our_category_for_every_code_point() -> None:
    code = f"from {tokens.__name__} import flags_of_code_points as ask; ask()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    if b"AttributeError" in done.stderr:
        pytest.skip("libllama does not export its flags: categories were not compared with it")
    assert done.returncode == 0, done.stderr.decode()
    flags = np.frombuffer(done.stdout, "<u2")
    letters = np.frombuffer(b"UNLZMPSC", np.uint8)
    assert np.array_equal(letters[np.log2(flags & 0xFF).astype(int)], categories())
    assert np.flatnonzero(flags & 0x100).tolist() == list(WHITESPACE)
