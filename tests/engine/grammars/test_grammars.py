"""Hand-written grammars: their allowed tokens, refusals of invalid grammars, and limits for hostile
ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import InvalidGrammar
from lockstep.engine.grammars.parser import parse_grammar
from lockstep.engine.grammars.table import GrammarTable
from lockstep.engine.grammars.utf8 import WHOLE, Half, add_byte, span_of
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.parts.chain import Chain, make_chain

WORDS = (
    *(b"", b"</s>", b"a", b"ab", b"b", b"ba", b"1", b"12", b"\n", b"\xc3", b"\xa9", b"a\xc3"),
    *("é".encode(), b"<x>", b"\x00", b"\xff", "日".encode(), b"\xe6\x97", b"\xa5b"),
)
END, CUT = 1, WORDS.index(b"\xc3")
TEXTS = {word: token for token, word in enumerate(WORDS)}


@dataclass(frozen=True)
class FewWords:
    """A vocabulary of some words, an end-of-text token and a control token."""

    spellings = words = WORDS
    pieces = tuple(b"" if word in (b"</s>", b"<x>") else word for word in WORDS)
    ends = (END,)
    end_of_turn = END

    def tokenize(self, text: bytes) -> list[int]:
        return [TEXTS[text]]

    def find_special(self, text: bytes) -> int | None:
        return TEXTS.get(text)


def chain_for(text: str, sampler: str = "grammar", **given: Any) -> Chain:
    stage = {"sampler": sampler, "grammar_str": text, "grammar_root": "root", **given}
    return make_chain([stage], len(WORDS), FewWords())


def allowed(chain: Chain, *accepted: bytes) -> set[bytes]:
    for word in accepted:
        chain.accept(TEXTS[word])
    (found,) = chain.apply(CandidateList.of_logits(np.zeros(len(WORDS), np.float32)))
    return {WORDS[token] for token in np.flatnonzero(np.isfinite(found.logits))}


E_ACUTE = "é".encode()
ALLOWED: list[tuple[str, Sequence[bytes], set[bytes]]] = [
    ('root ::= "ab"', [], {b"a", b"ab"}),
    ('root ::= "ab"', [b"a"], {b"b"}),
    ('root ::= "ab"', [b"ab"], {b"</s>"}),
    ('root ::= "ab"', [b"ab", b"</s>"], {b"</s>"}),
    ('root ::= "a" | "b"', [], {b"a", b"b"}),
    ("root ::= [ab]{2}", [], {b"a", b"b", b"ab", b"ba"}),
    ("root ::= [ab]{1,2}", [b"a"], {b"a", b"b", b"</s>"}),
    ("root ::= [ab]{2,}", [b"ab"], {b"a", b"b", b"ab", b"ba", b"</s>"}),
    ('root ::= "a"{0} "b"', [], {b"b"}),
    ("root ::= [0-9]*", [], {b"1", b"12", b"</s>"}),
    ("root ::= [0-9]+", [], {b"1", b"12"}),
    ('root ::= "b"? "1"', [], {b"b", b"1"}),
    ('root ::= ("a" | "b" "1")+', [b"b"], {b"1", b"12"} - {b"12"}),
    ("root ::= [^a-z<0-9]", [], {b"\n", b"\xc3", E_ACUTE, b"\xe6\x97", "日".encode()}),
    ("root ::= [^é<a-z0-9\\n日]", [], {b"\xc3", b"\xe6\x97"}),
    ('root ::= "é"', [], {E_ACUTE, b"\xc3"}),
    ('root ::= "é"', [b"\xc3"], {b"\xa9"}),
    ('root ::= "a" "é"?', [b"a\xc3"], {b"\xa9"}),
    ('root ::= "日b"', [b"\xe6\x97"], {b"\xa5b"}),
    ("root ::= [\\u00e0-\\u00ff]", [], {E_ACUTE, b"\xc3"}),
    ('root ::= . "b"', [b"a"], {b"b"}),
    ('root ::= "\\x61\\U00000062"', [], {b"a", b"ab"}),
    ("root ::= <[2]> <[4]>", [], {b"a"}),
    ("root ::= <[9]>", [], {b"\xc3"}),
    ('root ::= "a" <[3]>', [], {b"a"}),
    ("root ::= !<[2]>", [], {w for w in WORDS if w not in (b"", b"</s>", b"\x00", b"a")}),
    ("root ::= <x> [ab]", [], {b"<x>"}),
    ('root ::= "<x>"', [], {b"<x>"}),
    ("root ::= [z-a]", [], set()),
    ("", [], set(WORDS)),
    ('root ::= "(" root ")" | "a"', [], {b"a"}),
    ('root ::= x* "1"\nx ::= "a" | ""', [], {b"a", b"1"}),
    ('root ::= "1"\nroot ::= "b"', [], {b"b"}),
]


@pytest.mark.parametrize(("text", "accepted", "words"), ALLOWED)
def test_grammar_allows_tokens(text: str, accepted: list[bytes], words: set[bytes]) -> None:
    assert allowed(chain_for(text), *accepted) == words


def test_forbidden_token_leaves_nothing() -> None:
    assert allowed(chain_for('root ::= "ab"'), b"b") == set()


def test_reset_restarts_the_text() -> None:
    chain = chain_for('root ::= "ab"')
    assert allowed(chain, b"a") == {b"b"}
    chain.reset()
    assert allowed(chain) == {b"a", b"ab"}


BAD = [
    *('root ::= "a', "root ::= [a", "root ::= (", "root ::= )", "root ::= * [a]", "root := [a]"),
    *("root ::= other", "other ::= [a]", "# nothing", 'root ::= "\\q"', 'root ::= "\\x1"'),
    *('root ::= "a"{3,2}', 'root ::= "a"{', 'root ::= "a"{x}', "root ::= []", "root ::= <[a]>"),
    *("root ::= <y", "root ::= <unknown>", 'root ::= "\\U00110000"', 'root ::= "a"\n| "b"'),
    *('root ::= root "a" | "b"', 'root ::= x root | "a"\nx ::= y\ny ::= "b" | ""'),
    *("root ::= (root)*", "root ::= x\nx ::= root", "root ::= é"),
]


@pytest.mark.parametrize("text", BAD)
def test_bad_grammar_is_refused(text: str) -> None:
    with pytest.raises(InvalidGrammar):
        allowed(chain_for(text))


HOSTILE = {
    "deep groups": "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "many times": 'root ::= ("a" | "b"){99999} [a]{99999} [b]{99999}',
    "many rules": "root ::= x0\n" + "\n".join(f"x{i} ::= x{i + 1} | x{i + 1}" for i in range(2000)),
    "many bytes": "#" * (1 << 20) + "\nroot ::= [a]",
    "large numbers": 'root ::= "a"{' + "9" * 10_000 + "}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammar_is_refused(name: str) -> None:
    with pytest.raises(InvalidGrammar):
        allowed(chain_for(HOSTILE[name]))


def test_ambiguous_grammar_reaches_a_limit() -> None:
    chain = chain_for('root ::= "a" root "b" | "a" root "1" | "b"')
    with pytest.raises(InvalidGrammar, match="readings"):
        allowed(chain, *[b"a"] * 40)


def test_nested_repetitions_add_up() -> None:
    table = GrammarTable(parse_grammar('root ::= ((("a"{90}){90}){90}){90}'), "root", len)
    assert len(table.places) < 400


# --- grammars that wait ---------------------------------------------------------------------------

LAZY: list[tuple[dict[str, Any], Sequence[bytes], set[bytes]]] = [
    ({"trigger_words": (b"b",)}, [b"a", b"1"], set(WORDS)),
    ({"trigger_words": (b"b",)}, [b"1", b"ab"], {b"1"}),
    ({"trigger_words": (b"12b", b"1b")}, [b"1", b"b"], set()),
    ({"trigger_words": (), "trigger_tokens": (4,)}, [b"ab"], set(WORDS)),
    ({"trigger_words": (), "trigger_tokens": (4,)}, [b"1", b"b"], {b"1"}),
    ({"trigger_patterns": (b"1(b)",)}, [b"1", b"b"], {b"1"}),
    ({"trigger_patterns": (b"x", b"[b]")}, [b"ab"], {b"1"}),
]


@pytest.mark.parametrize(("given", "accepted", "words"), LAZY)
def test_lazy_grammar_waits_for_its_trigger(
    given: dict[str, Any], accepted: list[bytes], words: set[bytes]
) -> None:
    name = "grammar_lazy" if "trigger_words" in given else "grammar_lazy_patterns"
    chain = chain_for('root ::= "b1"', name, **({"trigger_tokens": ()} | given))
    assert allowed(chain, *accepted) == words


@pytest.mark.parametrize("pattern", [b"(a", b"(a|aa)+[1c]"])
def test_bad_pattern_is_refused(pattern: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.engine.samplers.parts.triggers.MAX_SECONDS", 0.05)
    given = {"trigger_patterns": (pattern,), "trigger_tokens": ()}
    chain = chain_for('root ::= "a"', "grammar_lazy_patterns", **given)
    tokens = [TEXTS[word] for word in [b"a"] * 40 + [b"b"]]
    with pytest.raises(InvalidGrammar):
        list(map(chain.accept, tokens))


# --- characters byte by byte ----------------------------------------------------------------------


def reads(word: bytes) -> bool:
    half = WHOLE
    for byte in word:
        after = add_byte(half, byte)
        if after is None:
            return False
        half = after if isinstance(after, Half) else WHOLE
    return True


def is_decodable(word: bytes) -> bool:
    try:
        return bool(word.decode())
    except UnicodeDecodeError:
        return False


def test_byte_text_is_accepted_exactly_if_python_decodes_it() -> None:
    for first in range(256):
        for second in (0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0):
            word = bytes([first, second])
            is_legal = any(is_decodable(word + tail) for tail in (b"", b"\x80", b"\x80\x80"))
            assert reads(word) is is_legal, word


@pytest.mark.parametrize(
    ("word", "span"),
    [
        (b"\xc3", (0xC0, 0xFF)),
        (b"\xe0", (0x800, 0xFFF)),
        (b"\xed", (0xD000, 0xD7FF)),
        (b"\xf4", (0x100000, 0x10FFFF)),
        (b"\xf0\x9f", (0x1F000, 0x1FFFF)),
    ],
)
def test_partial_character_spans_its_possible_characters(
    word: bytes, span: tuple[int, int]
) -> None:
    half = WHOLE
    for byte in word:
        after = add_byte(half, byte)
        assert isinstance(after, Half)
        half = after
    assert span_of(half) == span
