"""Texts and lists of ids that tokenizers often get wrong, the same every time."""

from itertools import product

import numpy as np

from lockstep.engine.tokenizers.base import Tokenizer

# (add_special, parse_special) for encode, (remove_special, unparse_special) for decode
FLAGS = tuple(product((False, True), repeat=2))
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
    # not UTF-8: stray bytes, incomplete characters, overlong forms, surrogates, beyond U+10FFFF
    b"\x80", b"\xbf\xbf", b"\xc3", b"a\xc3", b"\xc3(", b"\xe2\x96", b"\xe2\x96a", b"\xe2 \x96\x81",
    b"\xe6\x97", b"\xe6aab", b"\xf0\x9f\x91", b"\xf0", b"\xf0 a b", b"\xf0<s>", b"\xff\xfe",
    b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    b"\xf8\x88\x80\x80\x80", b"\x96\x81", b"\xe2\x96\x81\x81", b"caf\xe9", bytes(range(256)),
    # long texts
    ("a" + "\u0315" * 40).encode(),
    b"a" * 3000, b"ab" * 1500, b"antidisestablishmentarianism" * 99, "日本".encode() * 400,
    b"the quick brown fox " * 60, b"<s>" * 200, b"<tool> " * 100, b"\xf0" * 301,
)  # fmt: skip
NASTY = [*BYTES, *(word.encode() for word in WORDS.split("§"))]


# texts that reveal mistakes in normalisation, white space and Unicode tables
TRAPS = """\
ﬁﬂ ａｂｃ ＨＥＬＬＯ§İstanbul ISTANBUL ıi§ΑΣ Σ ς ΌΣ§ǅ ǆ Ǆ§ẞß§Å Å A\u030a§한국어 각§\
\u1112\u1161\u11ab§e\u0301e\u0302\u0301e§\u0301a§a\u0301\u0301\u0301b§\u0e33\u0e34§\u0cf3\u0ece\U00010efd§\ua7cb\u1c89§\
\U00031350\U0001f6dc§\u00ad§a\u00adb§\u180ea§a\u2060b§\U000e0041\U000e007f§\ue000\uf8ff\U000f0000§\
\ufdd0\ufffe\uffff§\u2028\u2029\u0085\u00a0\u1680\u202f\u205f\u3000§a\u00a0b\u3000c§ \u3000 §\
々〆ヶ§㌔㍿㊙§『』「」。、・…§ｶﾞ｡｢§\U0002a6df\U0002a700§\U0002b81f\U0002b820\U0002b91f\U0002b920§\
\U0002ceaf\U0002ceb0\U0002f800§\uf900\ufaff§¿¡«»§®©™°§$€£¥+<=>^`|~§a$b€c§_-‐–—§'’`´§\
don 't§he 's , I 'm ; they 're we 've . he ' s§a ?b !c .d ,§ .§ ' ' ' §a  ,  b§\
٣٤٥ ४५ ½ Ⅷ ⓐ§…§＜tool>§＜|start|>§＜|message|>§月§日x日§<t<to<tool§\
\ufeffa\ufeff§a\ufeff§\ufeff\ufeff§gggg hhh kkk defgdefg§abcabcabc abab§\
本語日本語§</s><|plamo:eos|>§[CLS] [SEP] [MASK] [UNK] [PAD]§\
 [MASK] a [MASK]a§<mask> <mask>§a <mask>  b§<bos><eos>\n<|tool_response>§\\n\\t\\x41\\§xy<xy<x§\
\n\n\n§a\n\nb\n\n\n\nc§\n\n\n\n\n\n\n\n§ \n \n§\r\n\r\n§▁▁ ▁§a/b//c"""
TRAPPED = [
    *NASTY,
    *(text.encode() for text in TRAPS.split("§")),
    b"a\xc0\xafb",
    b"\xf7\xbf\xbf\xbf",
]


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

SCRIPTS = (  # first and last code points
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
    """Return random strings from many scripts, a tenth of them invalid UTF-8; the same every
    time."""
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
BYTE_PAIRS = [*NASTY, *(text.encode() for text in ENGLISH.split("§")), *scripts(300)]


GLUE = (b"", b" ", b"\n", b"\xe2")
PIECES = 12  # maximum number of pieces in a text


def glued(tokenizer: Tokenizer) -> list[bytes]:
    """Return 240 texts made of the vocabulary's pieces, some cut at their ends; the same every
    time. A fourth of the pieces come from the first tokens, which are special."""
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
    """Return the ids that texts encode to, and lists of ids that no text encodes to."""
    found = [
        list(ids)  # most flags do not change most texts
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
