"""The pre-tokenizers of byte-level BPE: the split of a text into words, by tokenizer.ggml.pre.

Source: llm_tokenizer_bpe and llama_vocab::impl::load in src/llama-vocab.cpp of llama-cpp-python
0.3.36. An expression is written as there, unless llama.cpp has special code for it (then a comment
says so) or a simpler one is equivalent. splitting.py defines the meaning of expressions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from lockstep.engine.errors import Unsupported
from lockstep.engine.tokenizers.splitting import AFMOE_DIGITS, SUPERBPE_DIGITS, TINY_AYA_DIGITS
from lockstep.engine.tokenizers.vocabulary import Metadata, read_string

KEY = "tokenizer.ggml.pre"
ASSUMED = "default"  # used if the key is missing or empty, as in llama.cpp, which then warns


def either(*parts: str) -> str:
    return "|".join(parts)


def cased_word(capitals: str, smalls: str, ending: str = "") -> str:
    """Return an expression for a word that starts with capitals or ends with small letters, and for
    at most one other character before that word."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return either(
        f"{before}[{capitals}]*[{smalls}]+{ending}", f"{before}[{capitals}]+[{smalls}]*{ending}"
    )


CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDING = f"(?:{CONTRACTION})?"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SYMBOLS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
# the expression without the plus, as in BAILINGMOE and EXAONE_MOE, is equivalent
LINES = r"\s*[\r\n]+"
SPACES = r"\s+(?!\S)|\s+"

GPT2 = either("'s|'t|'re|'ve|'m|'ll|'d", r" ?\p{L}+", r" ?\p{N}+", r" ?[^\s\p{L}\p{N}]+", SPACES)
LLAMA3 = either(CONTRACTION, WORD, r"\p{N}{1,3}", SYMBOLS, LINES, SPACES)
QWEN2 = either(CONTRACTION, WORD, r"\p{N}", SYMBOLS, LINES, SPACES)
QWEN35 = either(
    CONTRACTION,
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"\p{N}",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    LINES,
    SPACES,
)
MINICPM5 = either(CONTRACTION, WORD, r"\p{N}+", SYMBOLS, LINES, SPACES)
UFAKZEKA = either(WORD, r"\p{N}", SYMBOLS, LINES, SPACES)
SEED_CODER = either(CONTRACTION, WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", LINES, SPACES)
EXAONE_MOE = either(
    CONTRACTION,
    r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
    r"\p{N}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
    LINES,
    SPACES,
)
JAIS2 = either(
    CONTRACTION,
    WORD,
    r"\p{N}{1,3}",
    SYMBOLS,
    r"(?<![^\S\r\n])" + LINES,  # saves time: within a run of spaces, this was already tried
    *(rf"\s{{{size}}}(?!\S)" for size in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")),
    r"\s",
)
KIMI_K2 = either(
    r"\p{Han}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L-Han}}+{ENDING}",
    r"\p{N}{1,3}",
    SYMBOLS,
    LINES,
    SPACES,
)

TEKKEN = either(
    cased_word(r"\p{L-ASCII}A-Z", r"\p{L-ASCII}a-z"), r"\p{N}", SYMBOLS_AND_SLASHES, LINES, SPACES
)
GPT4O = either(
    cased_word(r"\p{L-ASCII}A-Z", r"\p{L-ASCII}a-z", ENDING),
    r"\p{N}{1,3}",
    SYMBOLS_AND_SLASHES,
    LINES,
    SPACES,
)
GRANITE_EMB_MULTI = either(
    cased_word(r"\p{M}\p{L-ASCII}A-Z", r"\p{M}\p{L-ASCII}a-z", ENDING),
    r"\p{N}{1,3}",
    SYMBOLS_AND_SLASHES,
    LINES,
    SPACES,
)
# the tokenizers that these two imitate distinguish upper and lower case
CASED = cased_word(r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}", ENDING)
YOUTU = either(CASED, r"\p{N}", SYMBOLS_AND_SLASHES, LINES, SPACES)
TINY_AYA = either(CASED, r"\p{N}{1,3}", SYMBOLS_AND_SLASHES, LINES, SPACES)

ASCII_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
MARKED_WORD = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
DEEPSEEK3 = either(ASCII_WORD, MARKED_WORD, r" ?[\p{P}\p{S}]+[\r\n]*", LINES, SPACES)
SPARK = either(ASCII_WORD, MARKED_WORD, r" ?[\p{P}\p{S}]+", r"[\r\n]", SPACES)
HAN_AND_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK_CJK = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
LAST_SPACES = r"(?<!\s)\s++\Z"  # not \s+$, which would read a run of spaces once from each of them
BLOOM = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
NEWLINES = r"[^\n]+|\n+"

DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-"
    r"\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    r"\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    r"\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    r"\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-"
    r"\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    r"\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
    r"\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    r"\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    r"\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    r"\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    r"\U000118a0-\U000118df\U0001e900-\U0001e943]+"
)

# The third range should start at U+F900, whose canonical equivalent is U+8C48. So it includes
# Hangul, surrogates and the private use area.
AFMOE_SCRIPTS = (
    r"[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    r"\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    r"\u1100-\u11ff]+"
)

YOUTU_SCRIPTS = (
    r"[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    r"\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)

# kinds in llama.cpp's spelling, without LLAMA_VOCAB_PRE_TYPE_
EXPRESSIONS_OF_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # no name selects the last three, which have no expressions of their own
    ("DEFAULT CHATGLM3 LLAMA4 PIXTRAL", (r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9]{3}")),
    ("LLAMA3 DBRX SMAUG CHATGLM4", (LLAMA3,)),
    ("JAIS2", (JAIS2,)),
    (
        "DEEPSEEK_LLM",
        (
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            LAST_SPACES,
            DEEPSEEK_CJK,
            r"\p{N}+",
        ),
    ),
    ("DEEPSEEK3_LLM HUNYUAN_DENSE JOYAI_LLM HY_V4", (r"\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK3)),
    ("SPARK2_5", (r"\p{N}{1,3}", HAN_AND_KANA, SPARK, r"\p{N}")),
    ("YOUTU", (YOUTU_SCRIPTS, YOUTU)),
    ("DEEPSEEK_CODER", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}")),
    ("FALCON", (r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9]{3}")),
    (
        "STARCODER REFACT COMMAND_R SMOLLM CODESHELL EXAONE MINERVA MELLUM2",
        (r"\p{N}", GPT2),
    ),
    ("GPT2 MPT OLMO JAIS TRILLION GRANITE_DOCLING", (GPT2,)),
    ("STABLELM2 QWEN2 HUNYUAN SOLAR_OPEN GROK_2 BAILINGMOE", (QWEN2,)),
    ("QWEN35", (QWEN35,)),
    ("PORO BLOOM GPT3_FINNISH", (BLOOM,)),
    ("VIKING", (BLOOM, r"\p{N}")),
    ("TEKKEN", (TEKKEN,)),
    (
        "CHAMELEON",
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ),
    ),
    ("GPT4O MINIMAX_M2", (GPT4O,)),
    ("GRANITE_EMB_MULTI", (GRANITE_EMB_MULTI,)),
    ("TINY_AYA", (TINY_AYA_DIGITS, TINY_AYA)),
    ("KIMI_K2", (KIMI_K2,)),
    ("SUPERBPE", (r"\p{N}+", SUPERBPE_DIGITS)),
    ("SEED_CODER", (SEED_CODER,)),
    ("UFAKZEKA", (UFAKZEKA,)),
    ("AFMOE", (AFMOE_DIGITS, AFMOE_SCRIPTS, DEEPSEEK3)),
    ("LAGUNA", (NEWLINES, QWEN2)),
    ("EXAONE_MOE", (EXAONE_MOE,)),
    ("MINICPM5", (r"\p{N}{1,3}", MINICPM5)),
    ("WHITESPACE", (r"\S+",)),
    ("GEMMA4 SARVAM_MOE", (NEWLINES,)),
)
KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {kind: each for kinds, each in EXPRESSIONS_OF_KINDS for kind in kinds.split()}
)
# the words of these are not converted to byte characters
RAW_KINDS = ("GEMMA4", "SARVAM_MOE", "WHITESPACE")
ESCAPED_KINDS = ("GEMMA4", "SARVAM_MOE")  # these store a space as U+2581


@dataclass(frozen=True, kw_only=True, slots=True)
class PreTokenizer:
    """A kind of splitting, and other settings that llama.cpp derives from the pre-tokenizer's
    name."""

    kind: str
    clean_spaces: bool = True  # decoding removes spaces before punctuation
    ignore_merges: bool = False  # a word that is a token is not split
    has_bos: bool = True  # default if no key says otherwise
    add_bos: bool = False  # default if no key says otherwise
    add_sep: bool = False  # default if no key says otherwise; encoding of BPE ignores it
    # default if no key says otherwise; only tokenizer.ggml.model = whitespace reads it
    lowercase: bool = True

    @property
    def expressions(self) -> tuple[str, ...]:
        return KINDS[self.kind]

    @property
    def byte_level(self) -> bool:
        """Return True if each byte of a word is written as one character."""
        return self.kind not in RAW_KINDS

    @property
    def escape_whitespaces(self) -> bool:
        return self.kind in ESCAPED_KINDS


def pre_tokenizer_of(metadata: Metadata) -> PreTokenizer:
    """Return the pre-tokenizer that the metadata names.

    Raises Unsupported if llama.cpp does not know the name: it refuses the model.
    """
    name = read_string(metadata, KEY).decode("utf-8", "replace") or ASSUMED
    if name not in PRE_TOKENIZERS:
        close = " or ".join(map(repr, get_close_matches(name, PRE_TOKENIZERS))) or "nothing"
        raise Unsupported(
            f"{KEY} must be one of the {len(PRE_TOKENIZERS)} names that llama.cpp knows, got "
            f"{name!r} (like it: {close})"
        )
    return PRE_TOKENIZERS[name]


ROWS = (
    ("default", PreTokenizer(kind="DEFAULT")),
    ("minicpm5", PreTokenizer(kind="MINICPM5", ignore_merges=True)),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer(kind="LLAMA3", add_bos=True, ignore_merges=True),
    ),
    ("deepseek-llm", PreTokenizer(kind="DEEPSEEK_LLM", clean_spaces=False)),
    ("deepseek-coder", PreTokenizer(kind="DEEPSEEK_CODER", clean_spaces=False)),
    ("deepseek-v3", PreTokenizer(kind="DEEPSEEK3_LLM", clean_spaces=False)),
    ("spark2_5", PreTokenizer(kind="SPARK2_5", clean_spaces=False)),
    ("youtu", PreTokenizer(kind="YOUTU", clean_spaces=False, ignore_merges=True)),
    ("falcon", PreTokenizer(kind="FALCON")),
    ("mpt", PreTokenizer(kind="MPT")),
    ("starcoder", PreTokenizer(kind="STARCODER")),
    (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
        "exaone4",
        PreTokenizer(kind="GPT2"),
    ),
    ("jais-2", PreTokenizer(kind="JAIS2")),
    ("gemma4 granite-embed-multi-311m", PreTokenizer(kind="GEMMA4")),
    ("sarvam-moe", PreTokenizer(kind="SARVAM_MOE", clean_spaces=False)),
    ("jina-v1-en jina-v2-code roberta-bpe", PreTokenizer(kind="GPT2", add_sep=True)),
    ("whitespace", PreTokenizer(kind="WHITESPACE", lowercase=False)),
    ("refact", PreTokenizer(kind="REFACT")),
    ("command-r", PreTokenizer(kind="COMMAND_R", clean_spaces=False)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2", PreTokenizer(kind="QWEN2", clean_spaces=False)),
    ("qwen35", PreTokenizer(kind="QWEN35", clean_spaces=False)),
    ("stablelm2", PreTokenizer(kind="STABLELM2")),
    ("olmo", PreTokenizer(kind="OLMO")),
    ("dbrx", PreTokenizer(kind="DBRX")),
    ("smaug-bpe", PreTokenizer(kind="SMAUG")),
    ("poro-chat", PreTokenizer(kind="PORO", clean_spaces=False)),
    ("chatglm-bpe", PreTokenizer(kind="CHATGLM4", has_bos=False)),
    ("glm4 glm5", PreTokenizer(kind="CHATGLM4", ignore_merges=True, has_bos=False)),
    ("viking", PreTokenizer(kind="VIKING", clean_spaces=False)),
    ("jais", PreTokenizer(kind="JAIS")),
    (
        "tekken",
        PreTokenizer(kind="TEKKEN", add_bos=True, clean_spaces=False, ignore_merges=True),
    ),
    ("smollm", PreTokenizer(kind="SMOLLM", clean_spaces=False)),
    ("codeshell", PreTokenizer(kind="CODESHELL")),
    ("bloom", PreTokenizer(kind="BLOOM")),
    ("gpt3-finnish", PreTokenizer(kind="GPT3_FINNISH")),
    ("exaone", PreTokenizer(kind="EXAONE")),
    ("exaone-moe", PreTokenizer(kind="EXAONE_MOE")),
    ("chameleon", PreTokenizer(kind="CHAMELEON", add_bos=True, clean_spaces=False)),
    ("minerva-7b", PreTokenizer(kind="MINERVA")),
    ("megrez", PreTokenizer(kind="QWEN2")),
    ("gpt-4o llama4 kanana2 talkie", PreTokenizer(kind="GPT4O", clean_spaces=False)),
    (
        "granite-embed-multi-97m",
        PreTokenizer(kind="GRANITE_EMB_MULTI", clean_spaces=False, ignore_merges=True),
    ),
    ("tiny_aya cohere2moe", PreTokenizer(kind="TINY_AYA", clean_spaces=False)),
    ("superbpe", PreTokenizer(kind="SUPERBPE", clean_spaces=False)),
    ("trillion", PreTokenizer(kind="TRILLION", clean_spaces=False)),
    ("granite-docling", PreTokenizer(kind="GRANITE_DOCLING", clean_spaces=False)),
    ("bailingmoe bailingmoe2 llada-moe", PreTokenizer(kind="BAILINGMOE", clean_spaces=False)),
    ("seed-coder", PreTokenizer(kind="SEED_CODER", clean_spaces=False)),
    ("hunyuan", PreTokenizer(kind="HUNYUAN", clean_spaces=False)),
    ("hunyuan-dense", PreTokenizer(kind="HUNYUAN_DENSE", clean_spaces=False)),
    ("hy_v4", PreTokenizer(kind="HY_V4", clean_spaces=False)),
    ("joyai-llm", PreTokenizer(kind="JOYAI_LLM", clean_spaces=False)),
    ("kimi-k2", PreTokenizer(kind="KIMI_K2", clean_spaces=False)),
    ("ufakzeka", PreTokenizer(kind="UFAKZEKA", clean_spaces=False)),
    ("grok-2", PreTokenizer(kind="GROK_2", clean_spaces=False)),
    ("afmoe", PreTokenizer(kind="AFMOE", clean_spaces=False)),
    ("laguna", PreTokenizer(kind="LAGUNA", clean_spaces=False)),
    ("minimax-m2", PreTokenizer(kind="MINIMAX_M2", clean_spaces=False)),
    ("solar-open", PreTokenizer(kind="SOLAR_OPEN", clean_spaces=False)),
    ("mellum2", PreTokenizer(kind="MELLUM2")),
)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {name: pre for names, pre in ROWS for name in names.split()}
)
