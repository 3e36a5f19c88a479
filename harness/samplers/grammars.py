"""Grammars for every engine that has such samplers, with any vocabulary that has letters.

Each tests a point at which engines fail: classes, repetitions, ends, characters cut between tokens,
tokens that no text can spell, nothing allowed, and text before a trigger.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.random import Generator

from lockstep.harness.records import SampleAnswer, SampleRequest

JSON = r"""root ::= ws value
value ::= "{" ws (pair ("," ws pair)*)? "}" ws | "[" ws (value ("," ws value)*)? "]" ws | plain ws
pair ::= string ":" ws value
plain ::= string | "-"? [0-9]+ ("." [0-9]+)? | "true" | "false" | "null"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" ["\\/bfnrt])* "\"" ws
ws ::= [ \t\n]*
"""
GRAMMARS: tuple[str, ...] = (
    "root ::= [a-z ]+ [0-9]*",
    "root ::= [^a-z]+",
    "root ::= [^a-m\\n] [^n-z]*",
    "root ::= .*",
    'root ::= .{2,4} "\\n"?',
    "root ::= [a-z]{2,3}",
    'root ::= [a-z]{1,2} ("." [a-z]{2}){0,2}',
    'root ::= ("a" | "e" | "i" | "o" | "t")*',
    'root ::= "" | [a-z] [a-z] [a-z]',
    "root ::= [A-Za-z]+ ([ ,.] [A-Za-z]+)* [.!?]?",
    "root ::= [\u00c0-\u00ff]+ [a-z]*",
    "root ::= [^\u00e0-\u00ef\\x00-\\x7f]* [a-z]+",
    "root ::= ([\u3041-\u3096] | [\u4e00-\u9faf]){1,3} | [\U0001f300-\U0001f64f]+",
    "root ::= !<[3]> [a-z]*",
    "root ::= (<[70]> | <[300]> | [a-z]) [0-9a-z]*",
    "root ::= [^\\x00-\\U0010FFFF]",
    'root ::= x\nx ::= [a-z] y? | "(" x ")"\ny ::= [a-z0-9] x | " "',
    'word ::= [a-z]+ | "0"\nroot ::= "(" word? ")" | word "."',
    JSON,
)
BAD_GRAMMARS: Mapping[str, str] = {  # no engine may treat these as an empty grammar
    "a text without an end": 'root ::= "a',
    "a class without an end": "root ::= [a-z",
    "an undefined rule": "root ::= [a-z] other",
    "no root": "other ::= [a-z]",
    "left recursion": 'root ::= root [a-z] | "a"',
    "nothing to repeat": "root ::= * [a-z]",
    "an unknown escape": 'root ::= "\\q"',
}
VOWELS = (b"a", b"e", b"i", b"o", b"u")
# grammar, words, patterns
WAITING: tuple[tuple[str, tuple[bytes, ...], tuple[bytes, ...]], ...] = (
    ("root ::= [aeiou] [^0-9]*", VOWELS, (b"[aeiou]",)),
    ("root ::= [aeiou] [a-z]* [^a-z]*", VOWELS, (b"x{9}", b"(?:.|\n)*?([aeiou])")),
    ("root ::= [a-z] [^a-z] [^0-9]*", (b"e ", b"t.", b"a"), (b"[a-z][^a-z]",)),
)
TOKEN_SHARE, MAX_TOKENS = 8, 1000  # one token in TOKEN_SHARE triggers a lazy grammar
ROOT = {"grammar_root": "root"}

Parameters = Callable[[Generator, int], Mapping[str, Any]]


def waiting(word: str, at: int) -> Parameters:
    """Return a function that makes the parameters of a lazy grammar, which waits for trigger words,
    patterns or tokens."""

    def parameters(rng: Generator, n: int) -> Mapping[str, Any]:
        row = WAITING[int(rng.integers(len(WAITING)))]
        by_tokens = bool(rng.random() < 0.3)
        few = rng.choice(n, min(n // TOKEN_SHARE, MAX_TOKENS), replace=False) if by_tokens else ()
        text = "root ::= !<[0]> [a-z ]*" if by_tokens else row[0]
        tokens = tuple(sorted(int(each) for each in few))
        return {"grammar_str": text, **ROOT, word: row[at], "trigger_tokens": tokens}

    return parameters


READING: dict[str, Parameters] = {
    "grammar": lambda rng, n: {"grammar_str": GRAMMARS[int(rng.integers(len(GRAMMARS)))], **ROOT},
    "grammar_lazy": waiting("trigger_words", 1),
    "grammar_lazy_patterns": waiting("trigger_patterns", 2),
}


def grammar_stage(text: str) -> dict[str, Any]:
    return {"sampler": "grammar", "grammar_str": text, **ROOT}


def bad_grammars(n_vocab: int) -> dict[str, SampleRequest]:
    """Return a question for each invalid grammar, by the name of its mistake."""
    return {
        mistake: SampleRequest(
            chain=(grammar_stage(text),),
            logits=np.zeros((1, n_vocab), np.float32),
            accepted=((),),
            draws=np.full((1, 1), np.nan),
        )
        for mistake, text in BAD_GRAMMARS.items()
    }


def is_open(answer: SampleAnswer) -> bool:
    """Return True if an answer forbids no token."""
    return len(answer.logits) > 0 and bool(np.isfinite(answer.logits).all())
