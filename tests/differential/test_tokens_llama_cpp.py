"""Our "llama" tokenizer against llama.cpp's, vocabulary by vocabulary, in processes of its own."""

import ctypes
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.hparams import HasData
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.tokenizers.vocabulary import ROLE_TEXTS
from tests.differential.forked import REPO, Ask
from tests.engine.tokenizers.test_tokenizer_llama import (
    BYTE,
    TEXTS,
    USER_DEFINED,
    Value,
    renamed,
    tiny,
    without_bytes,
)

gguf = pytest.importorskip("gguf", reason="no gguf-py: vocabularies for llama.cpp not written")
pytest.importorskip("llama_cpp", reason="no llama_cpp: tokenizers not compared with llama.cpp")

SHARED = REPO.parent / "shared"
FILES = (
    "models/stories260K.gguf",
    "corpora/gguf/gridcore/vocab/vocab-spm.gguf",
    "corpora/gguf/gridcore/vocab/vocab-spm-zeroscores.gguf",
)
# (add_special, parse_special) of encode, (remove_special, unparse_special) of decode
FLAGS = tuple(product((False, True), repeat=2))
ROLES = ("bos", "eos", "eot", "sep", "pad", "mask", "fim_pre", "fim_suf", "fim_mid", "fim_pad",
         "fim_rep", "fim_sep")  # fmt: skip


# --- llama.cpp's side: runs in the subprocess ---------------------------------------------------


def answer() -> None:
    """Read one JSON request from stdin, write one JSON answer to stdout."""
    import llama_cpp

    request = json.load(sys.stdin)
    silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(request["path"].encode(), params)
    if not model:
        json.dump({"loaded": False}, sys.stdout)
        return
    vocab = llama_cpp.llama_model_get_vocab(model)
    count = range(llama_cpp.llama_vocab_n_tokens(vocab))
    json.dump(
        {
            "loaded": True,
            "encoded": [
                [encode(llama_cpp, vocab, bytes.fromhex(text), *flags) for flags in FLAGS]
                for text in request["texts"]
            ],
            "decoded": [
                [decode(llama_cpp, vocab, ids, *flags).hex() for flags in FLAGS]
                for ids in request["ids"]
            ],
            "pieces": [
                [piece(llama_cpp, vocab, i, special).hex() for special in (False, True)]
                for i in count
            ],
            "texts": [llama_cpp.llama_vocab_get_text(vocab, i).hex() for i in count],
            "scores": [llama_cpp.llama_vocab_get_score(vocab, i) for i in count],
            "attrs": [llama_cpp.llama_vocab_get_attr(vocab, i) for i in count],
            "eog": [i for i in count if llama_cpp.llama_vocab_is_eog(vocab, i)],
            "roles": {r: getattr(llama_cpp, f"llama_vocab_{r}")(vocab) for r in ROLES},
            "adds": [
                llama_cpp.llama_vocab_get_add_bos(vocab),
                llama_cpp.llama_vocab_get_add_eos(vocab),
                llama_cpp.llama_vocab_get_add_sep(vocab),
            ],
        },
        sys.stdout,
    )


def encode(lib: Any, vocab: Any, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
    room = len(text) + 8
    ids = (lib.llama_token * room)()
    n = lib.llama_tokenize(vocab, text, len(text), ids, room, add_special, parse_special)
    if n < 0:
        ids = (lib.llama_token * -n)()
        n = lib.llama_tokenize(vocab, text, len(text), ids, -n, add_special, parse_special)
    return list(ids[:n])


def decode(lib: Any, vocab: Any, ids: list[int], remove: bool, unparse: bool) -> bytes:
    tokens = (lib.llama_token * len(ids))(*ids)
    return grown(
        lambda room: lib.llama_detokenize(vocab, tokens, len(ids), room, len(room), remove, unparse)
    )


def piece(lib: Any, vocab: Any, token: int, special: bool) -> bytes:
    return grown(lambda room: lib.llama_token_to_piece(vocab, token, room, len(room), 0, special))


def grown(fill: Callable[[Any], int]) -> bytes:
    """What `fill` writes into a buffer; it returns minus the room it needs if it needs more."""
    buffer = ctypes.create_string_buffer(4096)
    n = fill(buffer)
    if n < 0:
        buffer = ctypes.create_string_buffer(-n)
        n = fill(buffer)
    return buffer.raw[:n]


# --- the questions --------------------------------------------------------------------------------

WORDS = """\
hello§Hello world§ Hello§Hello §\
  Hello  World  §HELLO wOrLd§It's§don't we'll they've I'd§\
Once upon a time, there was a little girl named Lily.§3.14159§1234567890§1,000,000.00§a§A§.§?!§...§\
Berätta på svenska§Füße§naïve café§Ελληνικά§Привет, мир§日本語のテキスト§回転行列§中文字符測試§\
한국어 문장§\
שלום עולם§مرحبا بالعالم§\u200frtl\u200f§हिन्दी§ไทย§ქართული§ᚠᚢᚦ§\U0001d518\U0001d52b§\ufb01 ligature§\
½ ² ™§\
\U0001f44d§\U0001f468\u200d\U0001f469\u200d\U0001f467§\U0001f3f3\ufe0f\u200d\U0001f308§\
\U0001f1f8\U0001f1ea\U0001f1ef\U0001f1f5§\U0001f44d\U0001f3fd ok§a\U0001f44db§\u200d§\ufe0f§\
\U0010ffff§\
\u200bzero\u200bwidth§\ufeffbom§\u00a0nbsp§\u3000wide§\u2028sep§\u0085nel§e\u0301§\u0301§I\u0307§\
▁§▁▁§▁a§a▁b§a ▁ b§<s>§</s>§<unk>§<s>hello</s>§<s><s>§</s><s>§ <s> a </s> §<S>§<s§s>§<<s>>§< s >§\
<s>a<s>b<s>§<0x0A>§<0x41>§<0xFF>§<0xff>§<|im_start|>user§<|endoftext|>§[INST] x [/INST]§<pad>§\
<tool>§<tool>ab§ab<tool>§a <tool> b§<to§<tool§<<tool>>§<tool><tool>§<to<tool>ol>§<x>§<x§<x>a<x>§\
<|message|>§<unused7>§<end_of_turn>\n§a▁b▁a▁b§aaa§aaaa§baaaab§\
mno§xyw§zz§ee§abcd§babcd§abcde§qqq§\
日本§日本本日§xyxyw§ab cd ab  cd§</s>  \n x§<tool> \t\v x§x \r\n<tool>x§<mask>§ [MASK] x§\
\\n \\t \\x00§\
def f(x):\n    return x§if (a && b) { return; }§#include <stdio.h>§{"k": [1, 2.5e-3, null]}§\
<a href="x">y</a>§SELECT * FROM t;§https://example.org/a?b=c&d=%20§user@example.org§C:\\dir\\file§\
/usr/bin/env python3§$\\frac{a}{b}$"""

BYTES = (
    b"", b" ", b"  ", b"   ", b" " * 7, b" " * 16, b" " * 33, b"\n", b"\n\n", b"\n\n\n\n", b"\r\n",
    b"\t", b"\t\t\t", b" \t \n ", b"\n a", b"a\n", b"a\n\n b", b"\v\f", b"    indent\n\tmore\n",
    b"\0", b"a\0b", b"\0\0", b"<s>\0</s>", b"\x01\x7f\x1b[0m",
    # not UTF-8: stray, cut short, overlong, surrogates, beyond U+10FFFF
    b"\x80", b"\xbf\xbf", b"\xc3", b"a\xc3", b"\xc3(", b"\xe2\x96", b"\xe2\x96a", b"\xe2 \x96\x81",
    b"\xe6\x97", b"\xe6aab", b"\xf0\x9f\x91", b"\xf0", b"\xf0 a b", b"\xf0<s>", b"\xff\xfe",
    b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    b"\xf8\x88\x80\x80\x80", b"\x96\x81", b"\xe2\x96\x81\x81", b"caf\xe9", bytes(range(256)),
    # long
    ("a" + "\u0315" * 40).encode(),
    b"a" * 3000, b"ab" * 1500, b"antidisestablishmentarianism" * 99, "日本".encode() * 400,
    b"the quick brown fox " * 60, b"<s>" * 200, b"<tool> " * 100, b"\xf0" * 301,
)  # fmt: skip
NASTY = [*BYTES, *(word.encode() for word in WORDS.split("§"))]


GLUE = (b"", b" ", b"\n", b"\xe2")
PIECES = 12  # of a text, at most


def glued(tokenizer: Tokenizer) -> list[bytes]:
    """240 texts of pieces of the vocabulary, cut at their ends or not; the same every time. A
    fourth of the pieces are of its first tokens, which are special."""
    n_vocab, texts = tokenizer.vocabulary.n_vocab, list[bytes]()
    raw = np.random.default_rng(6).bit_generator.random_raw(240 * (2 + 4 * PIECES))
    for row in raw.reshape(240, -1).tolist():
        draws = iter(row)
        glue, count = GLUE[next(draws) % len(GLUE)], 1 + next(draws) % PIECES
        pieces = []
        for _ in range(count):
            among = n_vocab if next(draws) % 4 else min(8, n_vocab)
            piece = tokenizer.piece(next(draws) % among, special=True)
            pieces.append(piece[next(draws) % 3 : len(piece) - next(draws) % 3])
        texts.append(glue.join(pieces))
    return texts


def id_lists(tokenizer: Tokenizer, texts: list[bytes]) -> list[list[int]]:
    """What texts encode to, and runs of ids that no text encodes to."""
    found = [
        list(ids)  # most flags make no difference to most texts
        for ids in dict.fromkeys(
            tuple(tokenizer.encode(text, add_special=add, parse_special=parse))
            for text in texts
            for add, parse in FLAGS
        )
    ]
    n_vocab = tokenizer.vocabulary.n_vocab
    random = np.random.default_rng(0).bit_generator
    stray = [[int(i) % n_vocab for i in random.random_raw(1 + k % 9)] for k in range(200)]
    ends = [[1], [2], [1, 2], [1, 1], [2, 2], [1, 3, 2], [1, 3, 3, 2, 2], [0, 3], [3, 3], []]
    return found + stray + [ids for ids in ends if max(ids, default=0) < n_vocab]


class Remembering:
    """A tokenizer that encodes each text once: it is asked for ids to decode, and to compare."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.encode = cache(tokenizer.encode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def differences(
    tokenizer: Tokenizer, theirs: dict[str, Any], texts: list[bytes], ids: list[list[int]]
) -> list[str]:
    """Every answer of ours that is not llama.cpp's."""
    found = []

    def compare(what: str, ours: Any, expected: Any) -> None:
        if ours != expected:
            found.append(f"{what}: llama.cpp {expected!r}, ours {ours!r}")

    for text, answers in zip(texts, theirs["encoded"], strict=True):
        for (add, parse), expected in zip(FLAGS, answers, strict=True):
            ours = tokenizer.encode(text, add_special=add, parse_special=parse)
            compare(f"encode {text!r} add_special={add} parse_special={parse}", ours, expected)
    for run, answers in zip(ids, theirs["decoded"], strict=True):
        for (remove, unparse), expected in zip(FLAGS, answers, strict=True):
            back = tokenizer.decode(run, remove_special=remove, unparse_special=unparse)
            compare(f"decode {run} {remove=} {unparse=}", back.hex(), expected)
    vocabulary = tokenizer.vocabulary
    for i, (hidden, shown) in enumerate(theirs["pieces"]):
        compare(f"piece {i}", tokenizer.piece(i, special=False).hex(), hidden)
        compare(f"special piece {i}", tokenizer.piece(i, special=True).hex(), shown)
    compare("texts", [text.hex() for text in vocabulary.texts], theirs["texts"])
    compare("scores", list(vocabulary.scores), theirs["scores"])
    compare("attrs", list(vocabulary.attrs), theirs["attrs"])
    compare("eog", sorted(vocabulary.eog), theirs["eog"])
    for role in ROLES:
        ours = -1 if (i := vocabulary.roles[role]) is None else i
        # two tokens with a text for the role: llama.cpp takes whichever its hash table has first
        texts_of_role = ROLE_TEXTS.get(role, "").encode().split()
        candidates = {vocabulary.ids[text] for text in texts_of_role if text in vocabulary.ids}
        doubtful = len(candidates) > 1 and ours == min(candidates)
        if not (doubtful and theirs["roles"][role] in candidates):
            compare(role, ours, theirs["roles"][role])
    adds = [vocabulary.add_bos, vocabulary.add_eos, vocabulary.add_sep]
    compare("adds", adds, theirs["adds"])
    return found


def check(ask: Ask, path: Path, tokenizer: Tokenizer) -> None:
    texts = [*NASTY, *glued(tokenizer)]
    tokenizer = Remembering(tokenizer)
    assert len(texts) > 400
    ids = id_lists(tokenizer, texts)
    theirs = ask(path, texts, ids)
    assert theirs is not None, "llama.cpp died"
    assert theirs["loaded"]
    found = differences(tokenizer, theirs, texts, ids)
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:20])


# --- vocabularies of real models ------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_every_answer_on_a_real_vocabulary_is_that_of_llama_cpp(name: str, ask: Ask) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"no shared/{name}: our tokenizer was not compared on it")
    with GgufFile.open(path) as file:
        check(ask, path, tokenizer_of(file.metadata))


# --- the vocabulary written by hand ---------------------------------------------------------------


def write(path: Path, metadata: Mapping[str, HasData]) -> Path:
    """A GGUF file without tensors: whole numbers become U32, the rest what it is."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in ((key, value.data) for key, value in metadata.items()):
        if key == "general.architecture":
            continue  # the writer has put it there
        if isinstance(value, list):
            raw = [text.encode("utf-8", "surrogateescape") for text in value]
            writer.add_array(key, raw)
        elif isinstance(value, np.ndarray):
            writer.add_array(key, value.tolist())
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


SCORES = tiny()["tokenizer.ggml.scores"].data
TYPES = tiny()["tokenizer.ggml.token_type"].data
ODD = renamed(ab="<0x-1>", cd="<0xZZ>", aa="<0x", bc="<0x +>", no="abc7f", mn="<0x\\ta>")
ODD_TYPES = TYPES.copy()
ODD_TYPES[[i for i, text in enumerate(ODD) if text not in renamed()]] = BYTE
LONGER = TYPES.copy()  # of different lengths: llama.cpp's sort has no rule for equal ones
LONGER[[TEXTS.index(text) for text in ("▁▁▁▁", "日", "aa", "▁▁")]] = USER_DEFINED
FIM = renamed(ab="<PRE>", cd="<SUF>", aa="<|fim_pad|>", no="<|file_sep|>", bc="<|repo_name|>")
HARMONY = renamed(ab="<|end|>", cd="<|return|>", aa="<|call|>", no="<|channel|>")
ACCEPTED = {
    "as it is": tiny(),
    "no space prefix": tiny(add_space_prefix=False),
    "neither BOS nor prefix, but EOS": tiny(
        add_bos_token=False, add_eos_token=True, add_space_prefix=False
    ),
    "BOS and EOS": tiny(add_eos_token=True, bos_token_id=5, eos_token_id=6, padding_token_id=0),
    "no scores": tiny(scores=None),
    "integer scores": tiny(scores=SCORES.astype(np.int32)),
    "infinite scores": tiny(scores=np.where(SCORES < -20, -np.inf, SCORES).astype(np.float32)),
    "no types": tiny(token_type=None),
    "unheard-of types": tiny(token_type=np.where(TYPES == 4, 77, TYPES)),
    "more user-defined tokens": tiny(token_type=LONGER),
    "odd byte tokens": tiny(tokens=ODD, token_type=ODD_TYPES),
    "ids beyond the vocabulary": tiny(bos_token_id=10**6, eos_token_id=2**32 - 1),
    "end of turn by key": tiny(eot_token_id=5),
    "fill-in-the-middle tokens": tiny(tokens=FIM, prefix_token_id=7),
    "harmony": tiny(tokens=HARMONY),
    "a tool response": tiny(tokens=renamed(ab="<|tool_response>")),
    "a NUL in a token": tiny(tokens=renamed(ab="ab\0c")),
    "bytes that are no UTF-8 in tokens": tiny(tokens=renamed(ab="\udce6", cd="\udce6a")),
    "phi-3": tiny(tokens=renamed(no="<|endoftext|>"), name="The PHI-3 model"),
    "jina": tiny(tokens=renamed(**{"<tool>": "<mask>"}), pre="jina-v2-es"),
    "modern-bert": tiny(tokens=renamed(**{"<tool>": "[MASK]"}), name="modern-bert"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_answer_on_the_tiny_vocabulary_is_that_of_llama_cpp(
    name: str, ask: Ask, tmp_path: Path
) -> None:
    check(ask, write(tmp_path / "tiny.gguf", ACCEPTED[name]), tokenizer_of(ACCEPTED[name]))


REFUSED = {
    "a token twice": tiny(tokens=renamed(ab="cd")),
    "too few scores": tiny(scores=np.zeros(5, np.float32)),
    "too few types": tiny(token_type=np.ones(5, np.int32)),
    "a byte token too short": tiny(tokens=renamed(**{"<0x41>": "A"})),
    "phi-3 without its tokens": tiny(name="phi3"),
    "a flag that is a number": tiny(add_bos_token=1),
    "no tokens": tiny(tokens=None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_we_refuse_llama_cpp_refuses_or_dies_of(name: str, ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(EngineError):
        tokenizer_of(REFUSED[name])
    theirs = ask(write(tmp_path / "bad.gguf", REFUSED[name]), [], [])
    assert theirs in (None, {"loaded": False})


@pytest.mark.parametrize(
    ("name", "metadata", "text"),
    [
        ("a byte without a token", tiny(**without_bytes()), b"q"),
        ("no BOS", tiny(tokens=["<unk>"], scores=None, token_type=None), b""),
    ],
)
def test_texts_that_we_refuse_llama_cpp_dies_of(
    name: str, metadata: dict[str, Value], text: bytes, ask: Ask, tmp_path: Path
) -> None:
    with pytest.raises(EngineError):
        tokenizer_of(metadata).encode(text)
    assert ask(write(tmp_path / "bare.gguf", metadata), [text], []) is None


def test_the_comparison_sees_one_wrong_id_and_one_wrong_byte(ask: Ask, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tiny())
    texts, ids = [b"ab", b"q"], [[1, 5], [6]]
    theirs = ask(write(tmp_path / "tiny.gguf", tiny()), texts, ids)
    assert theirs is not None
    assert differences(tokenizer, theirs, texts, ids) == []
    theirs["encoded"][0][3][-1] += 1
    theirs["decoded"][1][0] += "00"
    theirs["pieces"][7][1] = "ff"
    theirs["attrs"][9] ^= 1
    said = [line.split(":")[0] for line in differences(tokenizer, theirs, texts, ids)]
    assert [line.split()[0] for line in said] == ["encode", "decode", "special", "attrs"]
