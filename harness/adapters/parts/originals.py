"""Tokenizers as data for the original libraries."""

from collections.abc import Mapping
from typing import Any

from lockstep.engine.errors import InvalidModel, Unsupported

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

Data = Mapping[str, Any]  # metadata without types
Json = dict[str, Any]


def split(expression: str, behavior: str = "Isolated") -> Json:
    return {
        "type": "Split",
        "pattern": {"Regex": expression},
        "behavior": behavior,
        "invert": False,
    }


def byte_level(*, use_regex: bool) -> Json:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def sequence(*parts: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def digits(*, individual: bool) -> Json:
    return {"type": "Digits", "individual_digits": individual}


def cut_by(expression: str) -> Json:
    return sequence(split(expression), byte_level(use_regex=False))


NFC: Json = {"type": "NFC"}
GPT2 = byte_level(use_regex=True)
SINGLE_DIGITS = sequence(digits(individual=True), GPT2)
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
LLAMA3 = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{SYMBOLS}|{REST}"
QWEN2 = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{SYMBOLS}|{REST}"
QWEN35 = (
    rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{REST}"
)
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_CODER = sequence(
    split(r"[\r\n]"),
    split(r"\s?\p{L}+"),
    split(r"\s?\p{P}+"),
    split(CJK),
    digits(individual=True),
    byte_level(use_regex=False),
)
DEEPSEEK_LETTERS = (
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-"
    "\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-"
    "\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
    "\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943]+"
)
DEEPSEEK_LLM = sequence(
    split(r"[\r\n]"),
    split(DEEPSEEK_LETTERS),
    split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
    split(r"\s+$"),
    split(CJK),
    digits(individual=True),
    byte_level(use_regex=False),
)
FALCON = sequence(
    {"type": "Punctuation", "behavior": "Contiguous"},
    GPT2,
    digits(individual=False),
    split("[0-9][0-9][0-9]"),
)
# tokenizer.ggml.pre -> normaliser, pre-tokenizer, True if a word that is a token is not split
ORIGINALS: Mapping[str, tuple[Json | None, Json, bool]] = {
    "gpt-2": (None, GPT2, False),
    "llama-bpe": (None, cut_by(LLAMA3), True),
    "qwen2": (NFC, cut_by(QWEN2), False),
    "qwen35": (NFC, cut_by(QWEN35), False),
    "mpt": (NFC, GPT2, False),
    "command-r": (NFC, SINGLE_DIGITS, False),
    "starcoder": (None, SINGLE_DIGITS, False),
    "refact": (None, SINGLE_DIGITS, False),
    "deepseek-coder": (None, DEEPSEEK_CODER, False),
    "deepseek-llm": (None, DEEPSEEK_LLM, False),
    "falcon": (None, FALCON, False),
    "": (None, GPT2, False),  # old files lack the key, and their byte-level BPE is GPT-2's
}


def tokenizer_json(data: Data, *, parse_special: bool) -> Json:
    """Return the `tokenizer.json` of a model. Without `parse_special`, control tokens are not found
    in text."""
    makers = {"gpt2": byte_bpe, "gemma4": gemma, "bert": word_piece}
    kind = text_of(data, "tokenizer.ggml.model")
    if kind not in makers:
        raise Unsupported(
            f"the package tokenizers is not the original of {kind!r} (known: {', '.join(makers)})"
        )
    made = makers[kind](data)
    wanted = (CONTROL, UNKNOWN, USER_DEFINED) if parse_special else (USER_DEFINED,)
    tokens = data["tokenizer.ggml.tokens"]
    types = data.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    made["added_tokens"] = [
        {
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            "id": i,
            "content": token,
            "special": bool(types[i] != USER_DEFINED),
        }
        for i, token in enumerate(tokens)
        if types[i] in wanted
    ]
    return {"version": "1.0", "truncation": None, "padding": None, "post_processor": None, **made}


def byte_bpe(data: Data) -> Json:
    pre = text_of(data, "tokenizer.ggml.pre")
    if pre not in ORIGINALS:
        known = ", ".join(name for name in ORIGINALS if name)
        raise Unsupported(
            f"Lockstep does not have the original of pre-tokenizer {pre!r} (known: {known})"
        )
    normalizer, pre_tokenizer, whole = ORIGINALS[pre]
    model = bpe(data, byte_fallback=False)
    model["ignore_merges"] = whole
    return {
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": byte_level(use_regex=True),
        "model": model,
    }


def gemma(data: Data) -> Json:
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "decoder": None,
        "model": bpe(data, byte_fallback=True) | {"unk_token": "<unk>", "fuse_unk": True},
    }


def bpe(data: Data, *, byte_fallback: bool) -> Json:
    merges = []
    for merge in data.get("tokenizer.ggml.merges", ()):
        # a part may begin with a space, but does not contain another
        left, _, right = merge[1:].partition(" ")
        merges.append([merge[0] + left, right])
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": {token: i for i, token in enumerate(data["tokenizer.ggml.tokens"])},
        "merges": merges,
    }


def word_piece(data: Data) -> Json:
    """Return a WordPiece tokenizer. GGUF marks the beginnings of words (`▁`), and the original
    marks all other pieces (`##`)."""
    tokens = data["tokenizer.ggml.tokens"]
    vocab = {}
    for i, token in enumerate(tokens):
        if token.startswith("[") and token.endswith("]"):
            vocab[token] = i
        else:
            vocab[token[1:] if token.startswith("▁") else f"##{token}"] = i
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,  # the value follows `lowercase`
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": None,
        "model": {
            "type": "WordPiece",
            "unk_token": tokens[int(data["tokenizer.ggml.unknown_token_id"])],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }


def text_of(data: Data, key: str) -> str:
    return str(data.get(key, ""))


# --- SentencePiece ------------------------------------------------------------------------------

UNIGRAM, BPE = 1, 2  # values of TrainerSpec.ModelType


def sentencepiece_model(data: Data) -> bytes:
    """Return a ModelProto (sentencepiece_model.proto) with the pieces and scores of a file."""
    kind = text_of(data, "tokenizer.ggml.model")
    if kind not in ("llama", "t5"):
        raise Unsupported(
            f"the package sentencepiece is not the original of {kind!r} (known: llama, t5)"
        )
    tokens, scores = data["tokenizer.ggml.tokens"], data["tokenizer.ggml.scores"]
    types = [int(t) for t in data["tokenizer.ggml.token_type"]]
    unk = int(data.get("tokenizer.ggml.unknown_token_id", 0 if kind == "llama" else 2))
    types = [CONTROL if t == UNKNOWN and i != unk else t for i, t in enumerate(types)]
    types[unk] = UNKNOWN
    pieces = b"".join(
        field(
            1,
            field(1, token.encode("utf-8", "surrogateescape"))
            + fixed_field(2, score)
            + varint(3, t),
        )
        for token, score, t in zip(tokens, scores, types, strict=True)
    )
    has_bytes = BYTE in types
    trainer = varint(3, UNIGRAM if kind == "t5" else BPE) + varint(35, int(has_bytes))
    trainer += b"".join(varint(at, number(value)) for at, value in ((40, unk), (41, -1), (42, -1)))
    charsmap = data.get("tokenizer.ggml.precompiled_charsmap")
    normalizer = field(1, b"identity" if charsmap is None else b"user_defined")
    normalizer += b"" if charsmap is None else field(2, bytes(charsmap))
    prefix = bool(data.get("tokenizer.ggml.add_space_prefix", kind == "llama"))
    extra = bool(data.get("tokenizer.ggml.remove_extra_whitespaces", False))
    normalizer += varint(3, int(prefix)) + varint(4, int(extra)) + varint(5, 1)
    return pieces + field(2, trainer) + field(3, normalizer)


def number(value: int) -> int:
    """Return a number as protobuf encodes it. A negative number has 64 bits in two's complement."""
    return value & 0xFFFFFFFFFFFFFFFF


def base128(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def varint(at: int, value: int) -> bytes:
    return base128(at << 3) + base128(value)


def field(at: int, raw: bytes) -> bytes:
    return base128(at << 3 | 2) + base128(len(raw)) + raw


def fixed_field(at: int, value: float) -> bytes:
    import struct

    return base128(at << 3 | 5) + struct.pack("<f", value)


def plain(metadata: Mapping[str, Any]) -> Json:
    """Return the metadata that tokenizers need, without types."""
    found = {
        key: value.data for key, value in metadata.items() if key.startswith("tokenizer.ggml.")
    }
    if "tokenizer.ggml.tokens" not in found:
        raise InvalidModel("the model has no tokenizer.ggml.tokens")
    return found
