"""Byte-pair encoding against llama.cpp: its vocabularies, and every name of a pre-tokenizer."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import EngineError
from engine.gguf_file import GgufFile
from engine.tokenizers.base import Tokenizer, tokenizer_of
from engine.tokenizers.gpt2 import CHARACTER_OF_BYTE
from engine.tokenizers.pre_tokenizers import KINDS, PRE_TOKENIZERS
from engine.tokenizers.unicode_data import WHITESPACE, categories
from golden import fetch
from harness.gguf_writer import Typed, write_gguf
from tests.differential import test_tokens_llama_cpp as common

SOME = 7
REPO = Path(__file__).resolve().parents[2]
VOCABULARIES = ("aquila", "command-r", "deepseek-coder", "deepseek-llm",
                "falcon", "gpt-2", "gpt-neox", "llama-bpe", "mpt", "qwen2", "qwen35", "refact",
                "starcoder")  # fmt: skip

# --- llama.cpp's side: runs in the subprocess ---------------------------------------------------


def serve() -> None:
    """Answer one JSON request per line; a model that does not load is answered with null."""
    import ctypes

    import llama_cpp

    silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    for line in sys.stdin:
        request = json.loads(line)
        model = llama_cpp.llama_model_load_from_file(request["path"].encode(), params)
        answer = answers(llama_cpp, model, request) if model else None
        print(json.dumps(answer), flush=True)  # noqa: T201
        if model:
            llama_cpp.llama_model_free(model)


def answers(lib: Any, model: Any, request: dict[str, Any]) -> dict[str, Any]:
    vocab = lib.llama_model_get_vocab(model)
    texts = [bytes.fromhex(text) for text in request["texts"]]
    count = lib.llama_vocab_n_tokens(vocab)
    return {
        "encoded": [common.encode(lib, vocab, text, False, False) for text in texts],
        "flagged": [
            common.encode(lib, vocab, text, *flags)
            for text in flagged(texts)
            for flags in common.FLAGS
        ],
        "decoded": [
            common.decode(lib, vocab, ids, *flags).hex()
            for ids in request["ids"]
            for flags in common.FLAGS
        ],
        "pieces": [
            common.piece(lib, vocab, i, special).hex()
            for i in range(count)
            for special in (False, True)
        ],
        "adds": [
            lib.llama_vocab_get_add_bos(vocab),
            lib.llama_vocab_get_add_eos(vocab),
            lib.llama_vocab_get_add_sep(vocab),
            lib.llama_vocab_bos(vocab),
            lib.llama_vocab_eos(vocab),
        ],
    }


def flags_of_code_points() -> None:
    """Write what the library says of all code points: 16 bits each."""
    import ctypes

    import llama_cpp

    folder = Path(llama_cpp.__file__).parent / "lib"
    ask = ctypes.CDLL(str(folder / "libllama.so"))["_Z26unicode_cpt_flags_from_cptj"]
    ask.restype, ask.argtypes = ctypes.c_uint16, [ctypes.c_uint32]
    flags = np.array([ask(code) for code in range(0x110000)], "<u2")
    sys.stdout.buffer.write(flags.tobytes())


class LlamaCpp:
    """A process that answers; it is asked for one model after another."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPO,
        )

    def ask(self, path: Path, texts: list[bytes], ids: list[list[int]]) -> dict[str, Any] | None:
        assert self.process.stdin
        assert self.process.stdout
        request = {"path": str(path), "texts": [text.hex() for text in texts], "ids": ids}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"llama.cpp died: {self.process.wait()}"
        answer: dict[str, Any] | None = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture(scope="session")
def llama_cpp() -> Iterator[LlamaCpp]:
    process = LlamaCpp()
    yield process
    process.close()


# --- the questions --------------------------------------------------------------------------------

ENGLISH = """\
a ' b§it 's§it 'S§we 're 've 'll 'm 'd 't§ .§a  ?!§a , b ; c . d§'§ '§' ' '§''s§'s's§x's'T'RE've§\
I'M§'ſ§’s§it's’s§Don'T§HELLOworld§helloWORLD§HelloWorldFooBAR§fooBar's§ABC's§ABCd'LL§ÉCOLEécole§\
École§ÉÉa§aÉÉ§ŁódźŁ§ǅungla§ʰa§1§12§123§1234§12345§123456§1234567§a1234b§abc123§abc123456x§1a12§\
12 345 6789§1.5§²1234§1234²§²³¼½§١٢٣٤§१२३४५§１２３４§Ⅷ1Ⅸ§〇一二§x²y§a\u0301b§\u0301\u0301§क्षि§\
 \u0301a§न्1्2§a b c d§a b\u0301 c  d§a\u0300 b§  a§   a§ \n a§\n\n  \n§a \n§a\r\n\r\nb§  \n\n  x§\
\t\t x§ \t§x \t\n \r§!!\n\n§ !?\r\n§/\n/§?!/\r\n/§--->§::§ ::a§#a$b%c§((x))§[a]{b}§a_b§\
$1+2=3<4>5^6`7|8~9§…。，、।۔،؛§a…b。c§漢字かなカナ漢字§漢字abc漢字§abc漢字's§ 漢§漢1漢12§\
한국어abc§ᄀᆨ가§ㄅㄆㄱㄴ§\
ภาษาไทย123§ລາວ§ភាសា§မြန်မာ§\ufa6e\ufa6f漢§\U00020000\U0002a6df\U0002ebe0x§\uf900\u8c48§\
<sentinel:12><sentinel:x>§IMGIMGABZIMGIMGABCDEZ§    x  y   z§\t\n\tq§\x1c\x1d§a\u0085b§\
a\xa0b§\xa0\xa0a§\u2028\u2029x§\u3000\u3000漢§\u200b\u200ba§\ue000\ue001a§\U000f0000\ud7ff§\u0378\u0379a§😀😀a§a😀\n§€5§5€§±1"""

SCRIPTS = (  # first and last code point
    (0x20, 0x40), (0x41, 0x5A), (0x5B, 0x7E), (0x61, 0x7A), (0x30, 0x39), (0x09, 0x0D),
    (0xA0, 0xBF), (0xC0, 0x24F), (0x2B0, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x58F),
    (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE5B), (0xE80, 0xEFF),
    (0x1000, 0x109F), (0x10A0, 0x11FF), (0x13A0, 0x13FD), (0x1780, 0x17FF), (0x1C80, 0x1CBF),
    (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x2426), (0x2C00, 0x2DFF),
    (0x2F00, 0x2FDF), (0x3000, 0x303F), (0x3040, 0x30FF), (0x3100, 0x318F), (0x3400, 0x3420),
    (0x4E00, 0x4E40), (0x9F90, 0xA000), (0xA640, 0xA7FF), (0xA9E0, 0xA9FF), (0xAA60, 0xAABF),
    (0xAC00, 0xAC40), (0xD7A0, 0xD7FF), (0xE000, 0xE010), (0xF8F0, 0xFB17), (0xFE30, 0xFE4F),
    (0xFF00, 0xFFEF), (0x10400, 0x104FF), (0x10C80, 0x10CF2), (0x11880, 0x118DF),
    (0x1E900, 0x1E95F), (0x1D7C0, 0x1D7FF), (0x1F1E6, 0x1F64F), (0x2A6D0, 0x2A710),
    (0x2EBD0, 0x2EC00), (0x2F800, 0x2F810), (0x31340, 0x31350), (0xE0100, 0xE0110),
)  # fmt: skip
FILLERS = (" ", "  ", "\n", "'s", "1", "a", "A", ".")


def scripts(count: int) -> list[bytes]:
    """Random strings from many scripts, a tenth of them no UTF-8; the same every time."""
    raw = np.random.default_rng(4).bit_generator.random_raw(count * 40).tolist()
    texts = []
    for row in range(count):
        text = ""
        draws = iter(raw[40 * row : 40 * row + 40])
        for draw in range(2 + next(draws) % 12):
            first, last = SCRIPTS[next(draws) % len(SCRIPTS)]
            text += chr(first + next(draws) % (last - first + 1))
            if draw % 2:
                text += FILLERS[next(draws) % len(FILLERS)]
        data = bytearray(text.encode())
        if row % 10 == 0:
            data[next(draws) % len(data)] = next(draws) % 256
        texts.append(bytes(data))
    return texts


SPECIAL = [b"<s>a</s>", b"a<unk>", b"<tool>", b"a <tool> b", b"<|endoftext|> a", b"a</s>", b""]
TEXTS = [*common.NASTY, *(text.encode() for text in ENGLISH.split("§")), *scripts(300)]


def flagged(texts: list[bytes]) -> list[bytes]:
    """Those that are encoded with all flags: for some kinds llama.cpp takes a millisecond each."""
    return [*SPECIAL, *texts[::SOME]] if texts else []


def seams(pre: str) -> dict[str, Typed]:
    """A vocabulary in which a cut is seldom without effect: pairs of bytes, merged in any order.

    There are characters and byte tokens too, for words that are not spelled in bytes.
    """
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
    return {
        "general.architecture": ("STR", "llama"),
        "tokenizer.ggml.model": ("STR", "gpt2"),
        "tokenizer.ggml.pre": ("STR", pre),
        "tokenizer.ggml.tokens": ("ARR[STR]", texts),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, np.int32)),
        "tokenizer.ggml.merges": ("ARR[STR]", [" ".join(pair) for pair in merges]),
        "tokenizer.ggml.bos_token_id": ("U32", 0),
    }


def opened(path: Path) -> Tokenizer:
    with GgufFile.open(path) as file:
        return tokenizer_of(file.metadata)


def answered(tokenizer: Tokenizer, text: bytes) -> bool:
    """Whether we give ids; what we refuse, llama.cpp dies of."""
    try:
        tokenizer.encode(text)
    except EngineError:
        return False
    return True


def compare(
    llama_cpp: LlamaCpp, path: Path, texts: list[bytes], ids: list[list[int]] | None = None
) -> None:
    """Ask both for everything."""
    tokenizer = opened(path)
    ids = common.id_lists(tokenizer, texts[::SOME]) if ids is None else ids
    theirs = llama_cpp.ask(path, texts, ids)
    assert theirs is not None, "llama.cpp did not load the model"
    found = list(differences(tokenizer, theirs, texts, ids))
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:20])


def differences(
    tokenizer: Tokenizer, theirs: dict[str, Any], texts: list[bytes], ids: list[list[int]]
) -> Iterator[str]:
    vocabulary = tokenizer.vocabulary
    questions = {
        "encoded": [(text, tokenizer.encode(text, add_special=False)) for text in texts],
        "flagged": [
            (text, tokenizer.encode(text, add_special=add, parse_special=parse))
            for text in flagged(texts)
            for add, parse in common.FLAGS
        ],
        "decoded": [
            (row, tokenizer.decode(row, remove_special=remove, unparse_special=unparse).hex())
            for row in ids
            for remove, unparse in common.FLAGS
        ],
        "pieces": [
            (i, tokenizer.piece(i, special=special).hex())
            for i in range(vocabulary.n_vocab)
            for special in (False, True)
        ],
        "adds": [
            ("add_bos", vocabulary.add_bos),
            ("add_eos", vocabulary.add_eos),
            ("add_sep", vocabulary.add_sep),
            ("bos", -1 if vocabulary.bos is None else vocabulary.bos),
            ("eos", -1 if vocabulary.eos is None else vocabulary.eos),
        ],
    }
    for what, rows in questions.items():
        for (asked, ours), expected in zip(rows, theirs[what], strict=True):
            if ours != expected:
                yield f"{what} {asked!r}: llama.cpp {expected!r}, ours {ours!r}"


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
    compare(llama_cpp, path, texts)


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
    compare(llama_cpp, path, texts)


@pytest.mark.parametrize("name", [name for name in VOCABULARIES if name in fetch.WITH_CASES])
def test_the_cases_that_come_with_a_vocabulary_hold_both_ways(name: str) -> None:
    path = vocabulary(name)
    tokenizer = opened(path)
    texts = path.with_name(f"{path.name}.inp").read_bytes().split(fetch.SEPARATOR)
    lines = path.with_name(f"{path.name}.out").read_text().splitlines()
    expected = [[int(number) for number in line.split()] for line in lines]
    assert len(expected) > 40
    found = [tokenizer.encode(text, add_special=False) for text in texts[: len(expected)]]
    assert found == expected
    if not tokenizer.vocabulary.clean_spaces:
        assert [tokenizer.decode(ids) for ids in found] == texts[: len(expected)]


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
    compare(llama_cpp, path, texts)


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
    changes: dict[str, Typed | None], text: bytes, llama_cpp: LlamaCpp, tmp_path: Path
) -> None:
    path = changed(tmp_path / "deadly.gguf", changes)
    with pytest.raises(EngineError):
        opened(path).encode(text)
    assert common.ask(path, [text], []) is None
    assert llama_cpp.ask(path, [], []) is not None, "it died of the model"


# --- tables -------------------------------------------------------------------------------------


def test_llama_cpp_has_our_category_for_every_code_point() -> None:
    code = f"from {__name__} import flags_of_code_points as ask; ask()"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, check=False)
    if b"AttributeError" in done.stderr:
        pytest.skip("libllama does not export its flags: categories were not compared with it")
    assert done.returncode == 0, done.stderr.decode()
    flags = np.frombuffer(done.stdout, "<u2")
    letters = np.frombuffer(b"UNLZMPSC", np.uint8)
    assert np.array_equal(letters[np.log2(flags & 0xFF).astype(int)], categories())
    assert np.flatnonzero(flags & 0x100).tolist() == list(WHITESPACE)
