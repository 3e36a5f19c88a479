"""Asks llama.cpp for everything about a byte-pair vocabulary, and compares it with our answers."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.engine.tokenizers.gpt2 import CHARACTER_OF_BYTE
from lockstep.harness.synth.gguf_writer import Typed
from tests.differential import test_tokens_llama_cpp as common
from tests.differential.forked import REPO

SOME = 7

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
    asked = request["pieces"] or range(lib.llama_vocab_n_tokens(vocab))
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
            common.piece(lib, vocab, i, special).hex() for i in asked for special in (False, True)
        ],
        "asked": list(asked),
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
    """A process that answers about one model after another; when it dies, the next one starts."""

    def __init__(self) -> None:
        self.process = self.start()

    def start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPO,
        )

    def ask(
        self,
        path: Path,
        texts: list[bytes],
        ids: list[list[int]],
        pieces: Sequence[int] = (),
    ) -> dict[str, Any] | None:
        """pieces: of all tokens, if none is named."""
        if self.process.poll() is not None:
            self.close()
            self.process = self.start()
        assert self.process.stdin
        assert self.process.stdout
        request = {"path": str(path), "texts": [text.hex() for text in texts], "ids": ids}
        request["pieces"] = list(pieces)
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


def some_pieces(count: int) -> list[int]:
    """Of `seams`: the first, where those of every sort are, and some of the merged ones, which are
    all written by one rule."""
    return [*range(1000), *range(1000, count, SOME)]


def seams(pre: str) -> dict[str, Typed]:
    """A vocabulary in which a cut is seldom without effect: pairs of bytes, merged in any order.

    There are characters and byte tokens too, for words that are not spelled in bytes.
    """
    return {**seams_of_any(), "tokenizer.ggml.pre": ("STR", pre)}


@cache
def seams_of_any() -> dict[str, Typed]:
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
        "tokenizer.ggml.pre": ("STR", ""),
        "tokenizer.ggml.tokens": ("ARR[STR]", texts),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, np.int32)),
        "tokenizer.ggml.merges": ("ARR[STR]", [" ".join(pair) for pair in merges]),
        "tokenizer.ggml.bos_token_id": ("U32", 0),
    }


def opened(path: Path) -> Tokenizer:
    """It encodes each text once: it is asked whether it can, for ids to decode, and to compare."""
    with GgufFile.open(path) as file:
        tokenizer: Any = common.Remembering(tokenizer_of(file.metadata))
    found: Tokenizer = tokenizer
    return found


def answered(tokenizer: Tokenizer, text: bytes) -> bool:
    """Whether we give ids; what we refuse, llama.cpp dies of."""
    try:
        tokenizer.encode(text, add_special=False)
    except EngineError:
        return False
    return True


def compare(
    llama_cpp: LlamaCpp,
    path: Path,
    tokenizer: Tokenizer,
    texts: list[bytes],
    pieces: Sequence[int] = (),
) -> None:
    """Ask both for everything."""
    ids = common.id_lists(tokenizer, texts[::SOME])
    theirs = llama_cpp.ask(path, texts, ids, pieces)
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
            for i in theirs["asked"]
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
