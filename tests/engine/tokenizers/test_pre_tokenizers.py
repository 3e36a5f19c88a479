"""Pre-tokenizers: the splits of each kind, and the tables they use."""

import re
import sys
import unicodedata
from itertools import product

import numpy as np
import pytest
import regex

from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.engine.tokenizers.pre_tokenizers import KINDS, PRE_TOKENIZERS, pre_tokenizer_of
from lockstep.engine.tokenizers.splitting import MEMBERS, TextSplitter, collapse, expand, stand_ins
from lockstep.engine.tokenizers.unicode_data import WHITESPACE, categories
from tests.tokenizer_cases import Value

# a name, the words of a text, and another name that splits the text differently
CASES = (
    ("gpt-2", "I|'|M| we|'re| | x|1234|\n", "llama-bpe"),  # contractions only in lower case
    ("default", "x| |12| `|y", "falcon"),
    ("falcon", "x| 12| |`|y", "default"),
    ("llama-bpe", "I|'M| |123|45|!\n\n|x", "qwen2"),
    ("qwen2", "It|'S| |1|2|3", "llama-bpe"),
    ("bailingmoe", "It|'S| |1|2|3|\n", "gpt-2"),
    ("qwen35", "क्षि| a\u0301", "qwen2"),
    ("jais-2", "a|    |  | b", "llama-bpe"),
    ("deepseek-llm", "Ü|n|ï|¡¿|漢|a|\n| |12|  ", "deepseek-coder"),  # a list of letters: decomposed
    ("deepseek-coder", "αβ|,.| |1|2|漢字", "deepseek-llm"),
    ("deepseek-v3", "#include| |漢字|kana| |123|4|!\n", "spark2_5"),
    ("spark2_5", "a|!|\n|\n|b", "deepseek-v3"),
    ("youtu", "한국어|abc|。|HELLOworld|/\n", "gpt-4o"),
    ("starcoder", "x|1|2| |3", "gpt-2"),
    ("bloom", "a|,| b|  (|c|)| ١٢", "viking"),
    ("viking", "a|1|2|,| b", "bloom"),
    ("tekken", "Hello|WORLDs| don|'t|/\n|1", "gpt-4o"),
    ("gpt-4o", "Hello|WORLD's| |123|4", "tekken"),
    ("gpt-4o", "écoleÉ|COLE", "tekken_with_cases"),  # beyond ASCII, case is unknown
    ("granite-embed-multi-97m", "क्षि| ABc", "gpt-4o"),
    ("tiny_aya", "abc|1|234|567| HELLOworld's", "gpt-4o"),
    ("kimi-k2", "abc|漢字|'s| x's|漢|123|4", "gpt-4o"),
    ("superbpe", "a |1|234|567| |²1|234|. B", "deepseek-v3"),
    ("seed-coder", "a|!|\n\n|b", "qwen2"),
    ("ufakzeka", "Ali|'de|.", "qwen2"),
    ("afmoe", "abc|1|234|567| |漢|a|\ue000|b", "deepseek-v3"),
    ("laguna", "a| |\n| b|!|\n", "qwen2"),
    ("exaone-moe", "one two| | three|!//", "qwen2"),
    ("minicpm5", "a|  |123|4", "llama-bpe"),
    ("whitespace", "a|  |b|\u3000|c", "gpt-2"),
    ("gemma4", "a b|\n\n|c'd", "gpt-2"),
    ("chameleon", "IMGIMGABZ|  |<|sentinel|:|1|2|>|a|,|,|b", "starcoder"),
)
# the expression of an engine with Unicode's own cases
CASED_WORD = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"


def words(name: str, text: str) -> list[str]:
    if name == "tekken_with_cases":
        return regex.findall(rf"[^\r\n\p{{L}}\p{{N}}]?{CASED_WORD}|\S|\s+", text)
    return TextSplitter(PRE_TOKENIZERS[name].expressions).words(text)


@pytest.mark.parametrize(("name", "cut", "unlike"), CASES)
def test_only_the_right_pre_tokenizer_splits_a_text_as_expected(
    name: str, cut: str, unlike: str
) -> None:
    text = cut.replace("|", "")
    assert words(name, text) == cut.split("|")
    assert words(unlike, text) != cut.split("|")


def test_every_way_to_split_has_a_case() -> None:
    assert {PRE_TOKENIZERS[name].expressions for name, _, _ in CASES} == set(KINDS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_between_words(kind: str) -> None:
    splitter = TextSplitter(KINDS[kind])
    for atoms in product(
        ("a", "É", "'s", " ", "\n", "\xa0", "12", "漢", "\u0301", "!", "\0"), repeat=3
    ):
        text = "".join(atoms)
        found = splitter.words(text)
        assert "".join(found) == text
        assert all(found)


def test_table_has_all_kinds_and_names_of_llama_cpp() -> None:
    assert len(KINDS) == 60
    assert len(PRE_TOKENIZERS) == 91
    nameless = set(KINDS) - {pre.kind for pre in PRE_TOKENIZERS.values()}
    assert nameless == {"CHATGLM3", "LLAMA4", "PIXTRAL"}


# --- names --------------------------------------------------------------------------------------


def metadata(pre: object) -> dict[str, Value]:
    return {} if pre is None else {"tokenizer.ggml.pre": Value(pre)}


def test_missing_name_means_the_default_pre_tokenizer() -> None:
    assert pre_tokenizer_of(metadata(None)).kind == "DEFAULT"
    assert pre_tokenizer_of(metadata("")).kind == "DEFAULT"


@pytest.mark.parametrize("name", ["gpt2", "GPT-2", "llama3 ", "LLAMA3", "qwen36"])
def test_unknown_name_is_refused_by_key_and_value(name: str) -> None:
    with pytest.raises(Unsupported, match=re.escape("tokenizer.ggml.pre")) as caught:
        pre_tokenizer_of(metadata(name))
    assert repr(name) in str(caught.value)


def test_near_name_is_suggested_for_an_unknown_name() -> None:
    with pytest.raises(Unsupported, match="'gpt-2'"):
        pre_tokenizer_of(metadata("gpt2"))


def test_non_string_name_is_refused() -> None:
    with pytest.raises(InvalidModel, match=re.escape("tokenizer.ggml.pre must be a string")):
        pre_tokenizer_of(metadata(7))


# --- expressions --------------------------------------------------------------------------------


def test_category_is_bracketed_unless_in_brackets() -> None:
    number = MEMBERS["N"]
    assert expand(r"\p{N}+[\s\p{N}]") == rf"[{number}]+[\s{number}]"
    assert expand(r"\[\p{N}\]") == rf"\[[{number}]\]"
    assert expand(r"[\]\p{N}]") == rf"[\]{number}]"


@pytest.mark.parametrize("kind", KINDS)
def test_every_category_in_an_expression_is_known(kind: str) -> None:
    named = [name for each in KINDS[kind] for name in re.findall(r"\\p\{([^}]+)\}", each)]
    assert {*named} - {"AFMoE_digits"} <= MEMBERS.keys()


def test_members_are_stand_ins_beyond_ascii_and_unicode_in_ascii() -> None:
    for category in "NLPMS":
        pattern = re.compile(f"[{MEMBERS[category]}]")
        members = {code for code in range(0x80) if pattern.match(chr(code))}
        assert members == {c for c in range(0x80) if unicodedata.category(chr(c))[0] == category}
    assert collapse("aé漢\u3000१!¿€\u0301\u0378") == "aªº\v¹!¿±¨¬"


def test_ascii_character_matches_only_itself() -> None:
    table = stand_ins()
    assert table[:0x80].tolist() == list(range(0x80))
    beyond = {chr(code) for code in np.unique(table[0x80:]).tolist()}
    assert beyond == set("\v¬¦ªº¹¿¨±")


# --- categories ---------------------------------------------------------------------------------


def test_categories_are_those_of_unicode_15_1() -> None:
    table = "".join(map(chr, categories().tolist()))
    assert len(table) == 0x110000
    # assigned in 15.1, assigned in 16.0, never assigned; a surrogate; private use
    assert [table[c] for c in (0x2FFC, 0x1C89, 0x0378, 0xD800, 0xE000)] == ["S", "U", "U", "C", "C"]


def by_regex() -> list[str]:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    found = ["U"] * len(everything)
    for category in "LMNPSZC":
        for match in regex.finditer(rf"(?![\p{{Cn}}])\p{{{category}}}", everything):
            found[match.start()] = category
    return found


def by_unicodedata() -> list[str]:
    found = [unicodedata.category(chr(code)) for code in range(sys.maxunicode + 1)]
    return ["U" if category == "Cn" else category[0] for category in found]


@pytest.mark.parametrize("tables", [by_regex, by_unicodedata])
def test_python_differs_only_in_assigned_code_points(tables: object) -> None:
    assert callable(tables)
    theirs = np.frombuffer("".join(tables()).encode(), np.uint8)
    differing = np.flatnonzero(theirs != categories())
    either = (theirs[differing] == ord("U")) | (categories()[differing] == ord("U"))
    assert either.all(), [hex(code) for code in differing[~either][:9]]
    # one of the two implements a later version of Unicode, so only one knows more characters
    assert len({bool(code) for code in theirs[differing] == ord("U")}) <= 1


def test_white_space_matches_the_regex_module() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert [match.start() for match in regex.finditer(r"\s", everything)] == list(WHITESPACE)
