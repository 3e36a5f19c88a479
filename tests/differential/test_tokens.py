"""Every tokenizer except "gpt2" compared with llama.cpp's, vocabulary by vocabulary."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.engine.tokenizers.vocabulary import Attr
from tests.differential.texts import NASTY, TRAPPED, glued
from tests.differential.tokens import Ask, answer, check, differences, opened
from tests.engine.tokenizers import test_tokenizer_bert as bert
from tests.engine.tokenizers import test_tokenizer_gemma4 as gemma4
from tests.engine.tokenizers import test_tokenizer_llama as llama
from tests.engine.tokenizers import test_tokenizer_plamo2 as plamo2
from tests.engine.tokenizers import test_tokenizer_rwkv as rwkv
from tests.engine.tokenizers import test_tokenizer_t5 as t5
from tests.places import ROOT
from tests.tokenizer_cases import (
    BYTE,
    NORMAL,
    USER_DEFINED,
    Metadata,
    Value,
    Word,
    byte_words,
    random_merges,
    random_words,
    vocabulary,
    written,
)
from tests.vocabularies import vocabulary_file

SHARED = ROOT.parent / "shared"
FILES = (
    "models/stories260K.gguf",
    "corpora/gguf/gridcore/vocab/vocab-spm.gguf",
    "corpora/gguf/gridcore/vocab/vocab-spm-zeroscores.gguf",
)

# --- vocabularies of real models ------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FILES, "bert-bge", "nomic-bert-moe", "gemma-4"])
def test_every_answer_on_a_real_vocabulary_is_that_of_llama_cpp(name: str, ask: Ask) -> None:
    path = SHARED / name if name in FILES else vocabulary_file(name)
    if not path.exists():
        pytest.skip(f"no shared/{name}: our tokenizer was not tested on it")
    check(ask, path, [*(NASTY if name in FILES else TRAPPED), *glued(opened(path))])


# --- vocabularies written by hand -----------------------------------------------------------------


def with_singles(words: list[Word]) -> list[Word]:
    """Return the words, and a token for each byte that begins a token. Without these tokens,
    llama.cpp hangs."""
    tokenizer = tokenizer_of(vocabulary("rwkv", words))
    alone = {piece for piece in tokenizer.pieces if len(piece) == 1}
    missing = {piece[:1] for piece in tokenizer.pieces if piece} - alone
    return [*words, *((f"\\x{piece[0]:02x}", 0, NORMAL) for piece in sorted(missing))]


def retyped(metadata: Metadata, kind: int, *texts: str) -> Any:
    types = metadata["tokenizer.ggml.token_type"].data.copy()
    tokens = metadata["tokenizer.ggml.tokens"].data
    types[[tokens.index(text) for text in texts]] = kind
    return types


RWKV = with_singles(rwkv.WORDS)
T5_TINY, GEMMA_TINY = t5.tiny(), gemma4.tiny()
T5_SCORES = T5_TINY["tokenizer.ggml.scores"].data
LLAMA_SCORES = llama.tiny()["tokenizer.ggml.scores"].data
LLAMA_TYPES = llama.tiny()["tokenizer.ggml.token_type"].data
ODD = llama.renamed(ab="<0x-1>", cd="<0xZZ>", aa="<0x", bc="<0x +>", no="abc7f", mn="<0x\\ta>")
ODD_TYPES = LLAMA_TYPES.copy()
ODD_TYPES[[i for i, text in enumerate(ODD) if text not in llama.renamed()]] = BYTE
# with different lengths, because llama.cpp's sort is unstable for equal lengths
LONGER = LLAMA_TYPES.copy()
LONGER[[llama.TEXTS.index(text) for text in ("▁▁▁▁", "日", "aa", "▁▁")]] = USER_DEFINED
FIM = llama.renamed(ab="<PRE>", cd="<SUF>", aa="<|fim_pad|>", no="<|file_sep|>", bc="<|repo_name|>")
HARMONY = llama.renamed(ab="<|end|>", cd="<|return|>", aa="<|call|>", no="<|channel|>")
ACCEPTED: dict[str, Metadata] = {
    "llama, as it is": llama.tiny(),
    "llama, no space prefix": llama.tiny(add_space_prefix=False),
    "llama, neither BOS nor prefix, but EOS": llama.tiny(
        add_bos_token=False, add_eos_token=True, add_space_prefix=False
    ),
    "llama, BOS and EOS": llama.tiny(
        add_eos_token=True, bos_token_id=5, eos_token_id=6, padding_token_id=0
    ),
    "llama, no scores": llama.tiny(scores=None),
    "llama, integer scores": llama.tiny(scores=LLAMA_SCORES.astype(np.int32)),
    "llama, infinite scores": llama.tiny(
        scores=np.where(LLAMA_SCORES < -20, -np.inf, LLAMA_SCORES).astype(np.float32)
    ),
    "llama, no types": llama.tiny(token_type=None),
    "llama, unheard-of types": llama.tiny(token_type=np.where(LLAMA_TYPES == 4, 77, LLAMA_TYPES)),
    "llama, more user-defined tokens": llama.tiny(token_type=LONGER),
    "llama, odd byte tokens": llama.tiny(tokens=ODD, token_type=ODD_TYPES),
    "llama, ids beyond the vocabulary": llama.tiny(bos_token_id=10**6, eos_token_id=2**32 - 1),
    "llama, end of turn by key": llama.tiny(eot_token_id=5),
    "llama, fill-in-the-middle tokens": llama.tiny(tokens=FIM, prefix_token_id=7),
    "llama, harmony": llama.tiny(tokens=HARMONY),
    "llama, a tool response": llama.tiny(tokens=llama.renamed(ab="<|tool_response>")),
    "llama, a NUL in a token": llama.tiny(tokens=llama.renamed(ab="ab\0c")),
    "llama, tokens that are not valid UTF-8": llama.tiny(
        tokens=llama.renamed(ab="\udce6", cd="\udce6a")
    ),
    "llama, phi-3": llama.tiny(tokens=llama.renamed(no="<|endoftext|>"), name="The PHI-3 model"),
    "llama, jina": llama.tiny(tokens=llama.renamed(**{"<tool>": "<mask>"}), pre="jina-v2-es"),
    "llama, modern-bert": llama.tiny(
        tokens=llama.renamed(**{"<tool>": "[MASK]"}), name="modern-bert"
    ),
    "bert": bert.tiny(),
    "bert, capitals kept": bert.tiny(normalizer__lowercase=False),
    "bert, accents kept": bert.tiny(normalizer__strip_accents=False),
    "bert, only accents stripped": bert.tiny(
        normalizer__lowercase=False, normalizer__strip_accents=True
    ),
    "bert, other flags": bert.tiny(
        add_bos_token=False, add_eos_token=True, add_sep_token=False, eos_token_id=3,
        add_space_prefix=True, remove_extra_whitespaces=True,
    ),
    "bert, no types": bert.tiny(token_type=None),
    "bert, modern": bert.tiny(name="modern-bert"),
    "bert, suppressed": bert.tiny(suppress_tokens=np.array([3, -1, 9], np.int32)),
    "bert, random": vocabulary(
        "bert", [*bert.WORDS[:5], *random_words(1, "▁▁abc日é")], **bert.ROLES
    ),
    "t5": t5.tiny(),
    "t5, no map": t5.tiny(precompiled_charsmap=None),
    "t5, a map of signed bytes": t5.tiny(precompiled_charsmap=t5.BLOB.view(np.int8)),
    "t5, a map without nodes": t5.tiny(
        precompiled_charsmap=np.frombuffer(b"\3\0\0\0...rest", np.uint8)
    ),
    "t5, a small map": t5.tiny(precompiled_charsmap=t5.one_child(t5.TO_LEAF, 1, b"?a\0")),
    "t5, no prefix": t5.tiny(add_space_prefix=False),
    "t5, spaces kept": t5.tiny(remove_extra_whitespaces=False),
    "t5, neither": t5.tiny(add_space_prefix=None, remove_extra_whitespaces=None),
    "t5, BOS": t5.tiny(add_bos_token=True, bos_token_id=3, add_eos_token=False),
    "t5, no scores": t5.tiny(scores=None),
    "t5, minus infinity": t5.tiny(
        scores=np.where(T5_SCORES < -4, -np.inf, T5_SCORES).astype(np.float32)
    ),
    "t5, huge scores": t5.tiny(scores=(T5_SCORES * 1e35).astype(np.float32)),
    "t5, rising scores": t5.tiny(scores=-T5_SCORES),
    "t5, no types": t5.tiny(token_type=None),
    "t5, the unknown token is a piece": t5.tiny(unknown_token_id=t5.TEXTS.index("a")),
    "t5, more user-defined tokens": t5.tiny(
        token_type=retyped(T5_TINY, USER_DEFINED, "é", "...", "ab", "<|start|>")
    ),
    "t5, random": vocabulary(
        "t5", [*t5.WORDS[:4], *random_words(2, "abc日▁")], add_space_prefix=True
    ),
    "t5, random ties": vocabulary(
        "t5", [*t5.WORDS[:4], *((x, -1.0, y) for x, _, y in random_words(3, "abcd"))]
    ),
    "rwkv": vocabulary("rwkv", RWKV, unknown_token_id=1),
    "rwkv, other flags": vocabulary(
        "rwkv", RWKV, unknown_token_id=1, add_space_prefix=True, add_bos_token=True,
        bos_token_id=0, add_eos_token=True, eos_token_id=rwkv.TEXTS.index("a"),
    ),
    "rwkv, no types": vocabulary("rwkv", RWKV, unknown_token_id=1, token_type=None),
    "rwkv, random": vocabulary(
        "rwkv", with_singles(random_words(4, "abc日\\xn0 ")), unknown_token_id=0
    ),
    "plamo2": plamo2.tiny(),
    "plamo2, other flags": plamo2.tiny(
        add_space_prefix=True, add_bos_token=True, add_eos_token=True, bos_token_id=9
    ),
    "plamo2, no scores": plamo2.tiny(scores=None),
    "plamo2, random": vocabulary(
        "plamo2", [*plamo2.WORDS[:260], *random_words(5, "abc日🙂 ", 200)]
    ),
    "plamo2, random ties": vocabulary(
        "plamo2", [*plamo2.WORDS[:260], *((x, -1.0, y) for x, _, y in random_words(6, "abcd"))]
    ),
    "gemma4": gemma4.tiny(),
    "gemma4, other flags": gemma4.tiny(
        add_bos_token=False, add_eos_token=True, add_space_prefix=True, pre="no such thing"
    ),
    "gemma4, merges cut by NUL": gemma4.tiny(merges=["a b\0c", "b c", "", " ", "a", "h  e"]),
    "gemma4, no merges": gemma4.tiny(merges=[]),
    "gemma4, more user-defined tokens": gemma4.tiny(
        token_type=retyped(GEMMA_TINY, USER_DEFINED, "▁▁", "\n\n", "日本", "hello")
    ),
    "gemma4, random": vocabulary(
        "gemma4", [*gemma4.WORDS[:4], *byte_words(), *random_words(7, "abc▁日")],
        merges=random_merges(random_words(7, "abc▁日")), **gemma4.ROLES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_answer_on_a_vocabulary_written_by_hand_is_that_of_llama_cpp(
    name: str, ask: Ask, tmp_path: Path
) -> None:
    path = written(tmp_path / "tiny.gguf", ACCEPTED[name])
    check(ask, path, [*(NASTY if name.startswith("llama") else TRAPPED), *glued(opened(path))])


def changed(metadata: Metadata, **changes: Any) -> Metadata:
    new = {f"tokenizer.ggml.{key}": Value(value) for key, value in changes.items()}
    return {key: value for key, value in {**metadata, **new}.items() if value.data is not None}


TINIES: dict[str, Callable[..., Metadata]] = {
    "bert": bert.tiny, "t5": t5.tiny, "rwkv": rwkv.tiny, "plamo2": plamo2.tiny,
    "gemma4": gemma4.tiny,
}  # fmt: skip
REFUSED: dict[str, Metadata] = {
    f"{kind}, {what}": changed(tiny(), **changes)
    for kind, tiny in TINIES.items()
    for what, changes in {
        "a token twice": {"tokens": [*tiny()["tokenizer.ggml.tokens"].data[:-1], "a"]},
        "too few scores": {"scores": np.zeros(5, np.float32)},
        "too few types": {"token_type": np.ones(5, np.int32)},
        "no tokens": {"tokens": None},
        "suppressed floats": {"suppress_tokens": np.ones(5, np.float32)},
        "an unknown kind": {"model": "lama"},
    }.items()
} | {
    "bert, a byte token": bert.tiny(token_type=retyped(bert.tiny(), BYTE, "▁a")),
    "t5, a map of 3 bytes": t5.tiny(precompiled_charsmap=np.zeros(3, np.uint8)),
    "t5, a map without replacements": t5.tiny(precompiled_charsmap=np.zeros(4, np.uint8)),
    "t5, a map cut short": t5.tiny(precompiled_charsmap=t5.BLOB[:-200].copy()),
    "t5, a map of floats": t5.tiny(precompiled_charsmap=np.zeros(9, np.float32)),
    "t5, a map that leads nowhere": t5.tiny(precompiled_charsmap=t5.blob([t5.ROOT], b"\0")),
    "plamo2, a byte without a token": plamo2.without("<0x41>"),
    "gemma4, no merges": gemma4.tiny(merges=None),
    "gemma4, merges are numbers": gemma4.tiny(merges=np.zeros(3, np.int32)),
    "llama, a token twice": llama.tiny(tokens=llama.renamed(ab="cd")),
    "llama, too few scores": llama.tiny(scores=np.zeros(5, np.float32)),
    "llama, too few types": llama.tiny(token_type=np.ones(5, np.int32)),
    "llama, a byte token too short": llama.tiny(tokens=llama.renamed(**{"<0x41>": "A"})),
    "llama, phi-3 without its tokens": llama.tiny(name="phi3"),
    "llama, a flag that is a number": llama.tiny(add_bos_token=1),
    "llama, no tokens": llama.tiny(tokens=None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_llama_cpp_refuses_or_crashes_on_every_file_that_we_refuse(
    name: str, ask: Ask, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=r"tokenizer\.ggml\."):
        tokenizer_of(REFUSED[name])
    theirs = ask(written(tmp_path / "bad.gguf", REFUSED[name]), [], [])
    assert theirs in (None, {"loaded": False})


def broken_further_in(word: int, leaf: int, replacements: bytes) -> Metadata:
    return t5.tiny(precompiled_charsmap=t5.one_child(word, leaf, replacements))


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (broken_further_in(0x1FFFFF << 10 | 0x100, 0, b"\0"), b"b"),
        (broken_further_in(t5.TO_LEAF, 9, b"abc\0"), b"b"),
        (broken_further_in(t5.TO_LEAF, 1, b"abc"), b"b"),
        (bert.tiny(bos_token_id=None), b"a"),
        (gemma4.tiny(bos_token_id=None), b"a"),
        (gemma4.tiny(), b"\xf4\x90\x80\x80"),
        (llama.tiny(**llama.without_bytes()), b"q"),
        (llama.tiny(tokens=["<unk>"], scores=None, token_type=None), b""),
    ],
    ids=[
        "node",
        "offset",
        "no end",
        "no CLS",
        "no BOS",
        "beyond Unicode",
        "a byte without a token",
        "no BOS of llama",
    ],
)
def test_llama_cpp_aborts_on_texts_that_we_refuse(
    metadata: Metadata, text: bytes, ask: Ask, tmp_path: Path
) -> None:
    with pytest.raises(EngineError):
        tokenizer_of(metadata).encode(text)
    path = written(tmp_path / "bad.gguf", metadata)
    assert ask(path, [b""] if text == b"b" else [], []) is not None
    assert ask(path, [text], []) is None


# --- refusals that llama.cpp lacks ----------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        bert.tiny(unknown_token_id=None),
        vocabulary("t5", [*t5.WORDS[:1], ("\n", 0, NORMAL)]),
        vocabulary("rwkv", RWKV),
    ],
    ids=["bert", "t5", "rwkv"],
)
def test_llama_cpp_returns_an_invalid_id_without_an_unknown_token(
    metadata: Metadata, ask: Ask, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=r"tokenizer\.ggml\.unknown_token_id"):
        tokenizer_of(metadata).encode(b"q", add_special=False)
    theirs = ask(written(tmp_path / "bare.gguf", metadata), [b"q"], [])
    assert theirs is not None
    assert theirs["encoded"][0][0] == [-1]


BOUNDED = """
import resource
from {module} import answer
import llama_cpp
with open("/proc/self/statm") as sizes:
    pages = int(sizes.read().split()[0])
limit = pages * resource.getpagesize() + (1 << 28)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
answer()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no /proc: memory is not bounded")
@pytest.mark.parametrize("text", [b"e", b"ab e"], ids=str)
def test_unfinished_rwkv_token_fills_all_memory_in_llama_cpp(
    text: bytes, ask: Ask, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=r"tokenizer\.ggml\.tokens"):
        tokenizer_of(rwkv.tiny()).encode(text)
    path = written(tmp_path / "hangs.gguf", rwkv.tiny())
    assert ask(path, [b"ab c"], []) is not None
    request = {"path": str(path), "flagged": [text.hex()], "texts": [], "ids": [], "pieces": []}
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED.format(module=answer.__module__)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=False,
    )
    assert done.returncode < 0
    assert "bad_alloc" in done.stderr or "length_error" in done.stderr


# --- the rest -------------------------------------------------------------------------------------


def test_suppressed_tokens_are_those_of_llama_cpp(ask: Ask, tmp_path: Path) -> None:
    metadata = gemma4.tiny(suppress_tokens=np.array([7, -1, 3, 10**6, 7], np.int32))
    theirs = ask(written(tmp_path / "suppressed.gguf", metadata), [], [])
    assert theirs["suppressed"] == list(tokenizer_of(metadata).vocabulary.suppressed) != []


def test_the_comparison_sees_one_wrong_id_and_one_wrong_byte(ask: Ask, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(llama.tiny())
    texts, ids = [b"ab", b"q"], [[1, 5], [6]]
    theirs = ask(written(tmp_path / "tiny.gguf", llama.tiny()), texts, ids)
    assert theirs is not None
    assert differences(tokenizer, theirs, texts, ids) == []
    theirs["encoded"][0][3][-1] += 1
    theirs["decoded"][1][0] += "00"
    theirs["pieces"][7][2] = "ff"
    theirs["attrs"][9] ^= 1
    said = [line.split(":")[0] for line in differences(tokenizer, theirs, texts, ids)]
    assert [line.split()[0] for line in said] == ["encode", "decode", "special", "attrs"]


def test_comparison_finds_a_repaired_type_and_an_uncleaned_text(ask: Ask, tmp_path: Path) -> None:
    path = written(tmp_path / "tiny.gguf", bert.tiny())
    tokenizer = tokenizer_of(bert.tiny())
    ids = [bert.ids("▁a", "▁,")]
    theirs = ask(path, [], ids)
    assert theirs is not None
    assert differences(tokenizer, theirs, [], ids) == []
    vocabulary = tokenizer.vocabulary
    attrs = (Attr.NORMAL, *vocabulary.attrs[1:])
    tokenizer.vocabulary = replace(vocabulary, clean_spaces=False, attrs=attrs)
    vars(tokenizer).pop("hidden")  # cached for the earlier types
    found = {line.split()[0] for line in differences(tokenizer, theirs, [], ids)}
    assert found == {"decode", "piece", "attrs:"}
