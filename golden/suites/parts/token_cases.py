"""Named texts that tokenizers often get wrong, the same for every vocabulary.

No text has a code point beyond U+10FFFF, because some of llama.cpp's tokenizers abort on it.
"""

from collections.abc import Iterator


def number_texts(group: str, *texts: str | bytes) -> Iterator[tuple[str, bytes]]:
    for i, text in enumerate(texts):
        yield f"{group}-{i:02d}", text if isinstance(text, bytes) else text.encode()


def count_units(group: str, unit: str, *counts: int) -> Iterator[tuple[str, bytes]]:
    for n in counts:
        yield f"{group}-{n}", (unit * n).encode()


def name_texts(group: str, *texts: tuple[str, str | bytes]) -> Iterator[tuple[str, bytes]]:
    for name, text in texts:
        yield f"{group}-{name}", text if isinstance(text, bytes) else text.encode()


def white_space() -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield from count_units("spaces", " ", 1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 32, 40, 64, 200)
    yield from count_units("newlines", "\n", 1, 2, 3, 4, 5, 8, 16, 100)
    yield from count_units("tabs", "\t", 1, 2, 3, 4, 8)
    yield from count_units("crlf", "\r\n", 1, 2, 3)
    yield from name_texts(
        "space",
        *(("cr", "\r"), ("vt", "\v"), ("ff", "\f"), ("nel", "\u0085"), ("line", "\u2028")),
        *(("paragraph", "\u2029"), ("no-break", "a\u00a0b"), ("narrow", "a\u202fb")),
        *(("ideographic", "a\u3000b"), ("zero-width", "a\u200bb"), ("en", "a\u2002b")),
        *(("joiner", "a\u2060b"), ("bom", "\ufeffa"), ("ogham", "a\u1680b")),
    )
    yield from number_texts(
        "spaced",
        *(
            " a",
            "  a",
            "   a",
            "a ",
            "a  ",
            "a  b",
            "a   b",
            " \n",
            "\n ",
            " \n ",
            "a\nb",
            "a\n\nb",
        ),
        *(
            "a \n b",
            "\t a",
            "a\t",
            "\ta",
            " \t \t ",
            "\n\n\n\nHello",
            "Hello\n",
            "Hello \n",
            "\n\ta",
        ),
        *("  two  words  ", "a\r\nb\r\n", "x\n  y\n    z\n", " \u00a0 ", "a \u3000 b"),
    )


def words() -> Iterator[tuple[str, bytes]]:
    yield from number_texts(
        "word",
        *(
            "a",
            " a",
            "hello",
            " hello",
            "Hello",
            "HELLO",
            "hElLo",
            "camelCaseWord",
            "snake_case_word",
        ),
        *("kebab-case-word", "SCREAMING_CASE", " the", "The quick brown fox", "e.g.", "U.S.A."),
        *("Once upon a time, there was a small town.", "supercalifragilisticexpialidocious"),
    )
    yield from number_texts(
        "contraction",
        *("it's", "don't", "we're", "I've", "I'm", "she'll", "they'd", "IT'S", "DON'T", "WE'RE"),
        *(
            "I'VE",
            "I'M",
            "SHE'LL",
            "THEY'D",
            "We'Ll",
            "it’s",
            "don’t",
            "y'all",
            "'tis",
            "rock'n'roll",
        ),
        *("l'été", "'s", " 's", "''s", "o'clock's", "'", "''", "'Quoted'", "a'lL", "x 'Re y"),
    )
    yield from count_units("digit", "7", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20)
    yield from number_texts(
        "number",
        *("3.14159", "1,000,000", "+1 (555) 010-9999", "0xDEADBEEF", "6.02e23", "127.0.0.1"),
        *("2024-02-29", "23:59:59", "a1b2c3", "v1.2.3-rc4", "x²+y²", "1½", "٠١٢٣٤٥٦٧٨٩", "०१२३"),
        *("１２３４", "ⅣⅧ", "①②③", "1st 2nd 3rd", " 1 22 333 4444", "007", "-5", "5%", "12:34pm"),
    )
    yield from number_texts(
        "punctuation",
        *(
            "!",
            "!!!",
            "?!",
            "...",
            "…",
            "--",
            "---",
            "—",
            "; :",
            '"quoted"',
            "“curly”",
            "(a)[b]{c}",
        ),
        *("$100", "100%", "#hashtag", "@name", "a.b@example.org", "https://example.org/a?b=c#d"),
        *(
            "C:\\dir\\file.txt",
            "../a/b.c",
            "# Heading",
            "- item",
            "**bold** _it_",
            "| a | b |",
            "^_^",
        ),
        *(
            "a/b",
            "and/or",
            "a&b",
            "~~~",
            "***",
            "=====",
            "______",
            "a,b,c",
            "¿Qué?",
            "«a»",
            "a . b !",
        ),
    )


def code() -> Iterator[tuple[str, bytes]]:
    yield from name_texts(
        "code",
        ("python", "def f(x):\n    return x ** 2  # square\n"),
        ("c", "for (int i = 0; i < n; ++i) { x[i] += 1; }"),
        ("json", '{"key": [1, 2.5, null, true], "s": "a\\nb"}'),
        ("html", '<div class="a">&nbsp;<b>x</b></div>'),
        ("sql", "SELECT * FROM t WHERE id=1 AND name LIKE '%a%';"),
        *(("shell", "ls -la | grep '^d' > out.txt 2>&1"), ("regex", r"^(?:\d{1,3}[^\s]+)*$")),
        ("latex", r"\frac{\alpha}{\beta^{2}} \leq \sum_{i=1}^n x_i"),
        *(("diff", "-old\n+new\n@@ -1,2 +1,2 @@"), ("tabs", "if x:\n\treturn\n\t\ty\n")),
        ("deep", "a\n        b\n                c\n"),
        *(("shebang", "#!/usr/bin/env python3\n"), ("comment", "/* a */ // b\n")),
        *(("operators", "a!=b&&c||d<<=2>>>3"), ("css", "a:hover{color:#fff;margin:0 auto}")),
        ("rust", "fn f<'a>(x: &'a str) -> Option<&'a str> { None }"),
    )


def letters() -> Iterator[tuple[str, bytes]]:
    yield from name_texts(
        "latin",
        *(("acute", "é"), ("acute-apart", "e\u0301"), ("acute-capital", "É"), ("tilde", "ñ")),
        *(("tilde-apart", "n\u0303"), ("ring", "Å"), ("angstrom", "\u212b")),
        *(("sharp-s", "Straße"), ("capital-sharp-s", "STRAẞE"), ("dotted-i", "İi")),
        *(("dotless-i", "Iı"), ("fi", "ﬁn ﬂ ﬃ"), ("dz", "ǆ ǅ Ǆ"), ("long-s", "ſ")),
        *(("vietnamese", "Tiếng Việt"), ("polish", "Zażółć gęślą jaźń")),
        *(("french", "À bientôt, ça va?"), ("two-marks", "e\u0323\u0302 e\u0302\u0323")),
        ("stacked", "Z\u0351\u036b\u0343a\u0348l\u0300\u0301g\u0332o"),
        *(("mark-alone", "\u0301"), ("marks-alone", "\u0301\u0308 \u0323")),
        *(("enclosed", "a\u20dd"), ("zwnj", "auf\u200clage"), ("soft-hyphen", "co\u00adop")),
        *(("kelvin", "\u212a"), ("ohm", "\u2126"), ("sigma", "ΣΊΣΥΦΟΣ")),
    )
    yield from name_texts(
        "script",
        *(("greek", "Καλημέρα κόσμε"), ("cyrillic", "Привет, мир!"), ("hebrew", "שָׁלוֹם עולם")),
        *(("arabic", "مرحبا بالعالم"), ("arabic-marks", "مُحَمَّد"), ("persian", "می\u200cخواهم")),
        *(("urdu", "السلام علیکم"), ("hindi", "नमस्ते दुनिया"), ("bengali", "ওহে বিশ্ব")),
        *(("tamil", "வணக்கம்"), ("telugu", "హలో"), ("thai", "สวัสดีชาวโลก"), ("lao", "ສະບາຍດີ")),
        *(("khmer", "សួស្តី"), ("burmese", "မင်္ဂလာပါ"), ("tibetan", "བཀྲ་ཤིས་")),
        *(("georgian", "გამარჯობა"), ("armenian", "Բարեւ"), ("amharic", "ሰላም")),
        *(("cherokee", "ᎣᏏᏲ"), ("mongolian", "ᠰᠠᠢᠨ"), ("korean", "안녕하세요 세계")),
        *(("sinhala", "ආයුබෝවන්"), ("jamo", "\u1112\u1161\u11ab\u1100\u1173\u11af")),
        *(("jamo-compatible", "ㅎㅏㄴ"), ("hiragana", "こんにちは"), ("katakana", "カタカナー")),
        *(("katakana-half", "ｶﾀｶﾅﾞ"), ("japanese", "私は東京に住んでいます。")),
        *(("voiced-apart", "か\u3099は\u309a"), ("kanji", "回転行列")),
        *(("chinese", "你好，世界！"), ("chinese-traditional", "繁體中文測試")),
        *(("chinese-rare", "𠀀𪚥㐀䶿"), ("chinese-mixed", "我有3个apple。")),
        *(("compatibility", "豈更"), ("bopomofo", "ㄅㄆㄇ"), ("yi", "ꀀꀁ"), ("gothic", "𐌰𐌱")),
        *(("cuneiform", "𒀀𒁀"), ("hieroglyph", "𓀀𓂀"), ("adlam", "𞤀𞤣"), ("deseret", "𐐀𐐨")),
    )
    yield from name_texts(
        "direction",
        *(("mixed", "abc שלום 123 مرحبا xyz"), ("marks", "a\u200e\u200fb")),
        *(("override", "\u202eabc\u202c"), ("isolate", "\u2067שלום\u2069!")),
        ("punctuation", "(שלום) – 50%"),
    )


def symbols() -> Iterator[tuple[str, bytes]]:
    yield from name_texts(
        "emoji",
        *(("plain", "😀"), ("two", "😀😀"), ("after-space", " 😀"), ("in-word", "a😀b")),
        *(("skin", "👍🏽"), ("family", "👨\u200d👩\u200d👧\u200d👦"), ("flag", "🇩🇪🇫🇷")),
        *(("half-flag", "🇩"), ("keycap", "1\ufe0f\u20e3"), ("heart-text", "❤")),
        *(("heart-emoji", "❤\ufe0f"), ("pirate", "🏴\u200d☠\ufe0f"), ("new", "🫨🪿")),
        ("scotland", "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"),
        *(("doctor", "👩🏾\u200d⚕\ufe0f"), ("joiner-alone", "\u200d")),
        ("selector-alone", "\ufe0f"),
    )
    yield from number_texts(
        "symbol",
        *(
            "∑∫√∞≠≤",
            "←↑→↓⇒",
            "┌─┐│└┘",
            "⠓⠑⠇⠇⠕",
            "€£¥₹₿",
            "x₁²³",
            "Ⅰⅱ",
            "𝐀𝑏𝒞𝟘𝟙",
            "Ｆｕｌｌ　ｗｉｄｔｈ",
        ),
        *("Ⓐⓑ㈠㊀", "♔♞♠♥", "𝄞♪♫", "℃℉№™®©", "½⅓¾", "†‡§¶", "ﷺ", "㎏㎡㏒", "°±×÷", "‰‱", "″′‴"),
    )
    yield from number_texts(
        "private", "\ue000", "\uf8ff", "\U000f0000", "\U0010fffd", "a\ue000b", "\ue000\ue001 \ue002"
    )
    yield from name_texts(
        "control",
        *(("nul", "\0"), ("nul-inside", "a\0b"), ("nuls", "\0\0\0")),
        *(("low", "\x01\x02\x03\x1f"), ("bell", "\a"), ("delete", "\x7f")),
        *(("c1", "\u0080\u009f"), ("escape", "\x1b[31mred\x1b[0m"), ("backspace", "a\bb")),
        *(("replacement", "\ufffd"), ("nonfffe", "\ufffe"), ("nonffff", "\uffff")),
        *(("last", "\U0010ffff"), ("unassigned", "\u0378\u0379\U000e0080")),
        ("interlinear", "\ufff9a\ufffab\ufffb"),
    )


def broken_texts() -> Iterator[tuple[str, bytes]]:
    yield from name_texts(
        "bytes",
        *(("continuation", b"\x80"), ("continuations", b"\x80\xbf\x80\xbf"), ("ff", b"\xff")),
        *(("ffs", b"\xff\xff\xff\xff\xff"), ("fe", b"\xfe"), ("utf16", b"\xff\xfea\0b\0")),
        *(("lead-2", b"\xc3"), ("lead-2-ascii", b"\xc3("), ("lead-2-lead", b"\xc3\xc3\xa9")),
        *(("cut-3", b"\xe2\x82"), ("cut-3-ascii", b"\xe2\x82a")),
        *(("cut-3-lead", b"\xe2\x82\xe2\x82\xac"), ("cut-4", b"\xf0\x9f\x98")),
        *(("cut-4-early", b"\xf0\x9f"), ("cut-4-ascii", b"\xf0\x9f\x98 x")),
        *(("overlong-slash-2", b"\xc0\xaf"), ("overlong-slash-3", b"\xe0\x80\xaf")),
        *(("overlong-slash-4", b"\xf0\x80\x80\xaf"), ("overlong-nul", b"\xc0\x80")),
        *(("c1", b"\xc1\xbf"), ("surrogate", b"\xed\xa0\x80")),
        *(("surrogate-pair", b"\xed\xa0\xbd\xed\xb8\x80"), ("five", b"\xf8\x88\x80\x80\x80")),
        *(("six", b"\xfc\x84\x80\x80\x80\x80"), ("latin-1", b"caf\xe9 cr\xe8me")),
        *(("windows", b"\x93quoted\x94"), ("inside", b"ab\xffcd"), ("after-space", b" \xff")),
        *(("before-space", b"\xff "), ("word-end", b"word\xe4\xb8")),
        *(("shift-jis", b"\x93\xfa\x96\x7b"), ("mixed", "é".encode() + b"\xe9" + "é".encode())),
    )


def special_like() -> Iterator[tuple[str, bytes]]:
    yield from number_texts(
        "special",
        *("<s>", "</s>", "<unk>", "<pad>", "<mask>", "<bos>", "<eos>", "[CLS]", "[SEP]", "[MASK]"),
        *("[PAD]", "[UNK]", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"),
        *(
            "<|begin_of_text|>",
            "<start_of_turn>",
            "<end_of_turn>",
            "<fim_prefix>",
            "<|fim_prefix|>",
        ),
        *(
            "<0x0A>",
            "<0xFF>",
            "<0x00>",
            "▁",
            "▁▁",
            "▁a",
            "a▁b",
            "Ġ",
            "Ġthe",
            "Ċ",
            "##ing",
            "<|endof",
        ),
        *(
            "endoftext|>",
            "<S>",
            "<|ENDOFTEXT|>",
            "<s><s>",
            " <s> ",
            "<s>text</s>",
            "<<s>>",
            "a<s>b",
        ),
        *("<s> a", "a </s>", "\n<s>\n", "<|endoftext|><|endoftext|>", "x<|im_end|>\ny", "[MASK]ed"),
        *("[ MASK ]", "<unk> <unk>", "<unused0>", "<|reserved_special_token_0|>", "<extra_id_0>"),
        *("user<|im_start|> ", "  <mask>  x", "a<mask>b"),
    )


def long_texts() -> Iterator[tuple[str, bytes]]:
    yield from name_texts(
        "long",
        *(("a-100", "a" * 100), ("a-1000", "a" * 1000), ("ab", "ab" * 250)),
        *(("abc", "abc" * 100), ("capitals", "A" * 120), ("digits", "1234567890" * 15)),
        *(("chinese", "中文" * 60), ("equals", "=" * 150), ("dots", "." * 130)),
        *(("emoji", "😀" * 24), ("word", "buffalo " * 30)),
        ("german", "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamte"),
        ("base64", "TG9ja3N0ZXAgcnVucyB0d28gR0dVRiBpbmZlcmVuY2UgZW5naW5lcyBpbiBzdGVw" * 3),
        *(("path", "/usr/share/doc/" * 12), ("marks", "a" + "\u0301" * 60)),
        ("khmer", "កាន់តែពិសេសអាចខលចេញ" * 3),
    )


def known_texts() -> Iterator[tuple[str, bytes]]:
    """Yield texts whose ids under Gemma 4's vocabulary are known from other sources."""
    yield from number_texts(
        "noted",
        *(
            "Derinkuyu is an underground city.",
            " hello",
            "hello",
            "  hello",
            "   hello",
            "回転行列",
        ),
        " " * 40 + "hello",
    )


def token_cases() -> dict[str, bytes]:
    """Return the texts by name. A text occurs twice only if its two names have different
    purposes."""
    groups = (
        *(white_space(), words(), code(), letters(), symbols(), broken_texts(), special_like()),
        *(long_texts(), known_texts()),
    )
    found: dict[str, bytes] = {}
    for group in groups:
        for name, text in group:
            if name in found:
                raise ValueError(f"two cases are named {name}")
            found[name] = text
    return found
