"""Seeded random grammars, and real ones, with a vocabulary."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from lockstep.harness.synth.llama import metadata
from tests.models import with_metadata

WRITTEN = Path(__file__).with_name("grammars.gbnf")
MAX_RULES, MAX_DEPTH = 5, 3
LITERALS = ("a", "ab", "true", "{", '":', "0", " ", ", ", "\n", "é", "日本", "😀", "<b>", "xyz")
CLASSES = (
    *("[a-z]", "[^a-z]", "[0-9]+", "[^\\n]", "[ \\t]", "[A-Fa-f0-9]", "[^\\\\\\x22]", "."),
    *("[à-ÿ]", "[^à-ÿ]", "[ぁ-ん]", "[^ぁ-ん]", "[😀-😿]", "[\\u0400-\\u04FF]", "[^\\x00-\\x7F]"),
    *("[\\U0001F300-\\U0001F5FF]", "[é日]", "[^é日😀]", "[-+]", "[^-]", "[z-a]", "[b-da-cx]"),
)
TOKENS = ("<[300]>", "!<[300]>", "<[700]>", "<[97]>", "!<[10]>", "<think>", "!<think>", "<[634]>")
TIMES = ("*", "+", "?", "{2}", "{1,}", "{0,3}", "{2,5}", "{0}", "{0,1}", "{1}")
BIG_TIMES = ("{17}", "{0,60}", "{40,}", "{3,90}")
SPECIALS = ("<think>", "</think>", "<tool_call>")
PIECES = 1500


def written_grammars() -> dict[str, str]:
    """Return the grammars of the file WRITTEN, by name."""
    parts = ("\n" + WRITTEN.read_text()).split("\n### ")[1:]
    return {name: text for name, _, text in (part.partition("\n") for part in parts)}


def random_grammar(seed: int) -> str:
    """Return a legal grammar. Rules begin only with later rules, so that no rule is
    left-recursive."""
    rng = np.random.default_rng(seed)
    names = ["root", *(f"r{i}" for i in range(1, int(rng.integers(1, MAX_RULES + 1))))]
    return "\n".join(f"{name} ::= {choice(rng, names[i:], 0)}" for i, name in enumerate(names))


def pick(rng: Generator, of: tuple[str, ...]) -> str:
    return of[int(rng.integers(len(of)))]


def choice(rng: Generator, names: list[str], depth: int) -> str:
    sequences = [sequence(rng, names, depth) for _ in range(int(rng.choice([1, 1, 2, 3])))]
    if rng.random() < 0.1:
        sequences[-1] = '""'
    return " | ".join(sequences)


def sequence(rng: Generator, names: list[str], depth: int) -> str:
    items = [item(rng, names, depth, first=i == 0) for i in range(int(rng.integers(1, 5)))]
    return " ".join(items)


def item(rng: Generator, names: list[str], depth: int, *, first: bool) -> str:
    kind = rng.random()
    if first and depth == 0:
        return '"' + pick(rng, LITERALS).replace('"', '\\"').replace("\n", "\\n") + '"'
    if kind < 0.3:
        found = '"' + pick(rng, LITERALS).replace('"', '\\"').replace("\n", "\\n") + '"'
    elif kind < 0.6:
        found = pick(rng, CLASSES)
    elif kind < 0.64:
        found = pick(rng, TOKENS)
    elif kind < 0.84 and len(names) > (depth > 0):
        return str(rng.choice(names[depth > 0 :]))
    elif depth < MAX_DEPTH:
        found = "(" + choice(rng, names, depth + 1) + ")"
    else:
        found = pick(rng, CLASSES)
    if rng.random() < 0.35 and not found.endswith("+"):
        found += pick(rng, BIG_TIMES if rng.random() < 0.1 and depth == 0 else TIMES)
    return found


def deep_groups(rng: Generator) -> str:
    n = int(rng.integers(5, 60))
    return "root ::= " + "(" * n + pick(rng, CLASSES) + ")?" * n + ' "x"'


def nullable(rng: Generator) -> str:
    inner = " ".join(f'"{c}"{pick(rng, ("?", "*", "{0,2}"))}' for c in "abc")
    return f"root ::= (({inner}){pick(rng, TIMES[:5])} [0-9]?)* {pick(rng, CLASSES)}"


def large(rng: Generator) -> str:
    ranges = tuple(each for each in CLASSES if each.endswith("]"))
    return f"root ::= {pick(rng, ranges)}{{{rng.integers(50, 400)},{rng.integers(400, 900)}}}"


def many_choices(rng: Generator) -> str:
    words = ["".join(rng.choice(list("abcdefé日"), int(rng.integers(1, 7)))) for _ in range(60)]
    return "root ::= (" + " | ".join(f'"{word}"' for word in words) + ")+"


def many_rules(rng: Generator) -> str:
    n = int(rng.integers(20, 80))
    rules = [
        f'r{i} ::= "{"abc"[i % 3]}" r{(i * 7 + 1) % n} | [a-c] | r{i + 1}' for i in range(n - 1)
    ]
    return "root ::= r0\n" + "\n".join(rules) + f'\nr{n - 1} ::= "."'


EDGES: tuple[Callable[[Generator], str], ...] = (
    *(deep_groups, nullable, large, many_choices, many_rules),
)


def grammars(n: int) -> dict[str, str]:
    """Return n grammars by name: those of the file, then random grammars, some of them edge
    cases."""
    found = written_grammars()
    for i in range(n - len(found)):
        rng = np.random.default_rng(i)
        found[f"seed {i}"] = EDGES[i // 5 % len(EDGES)](rng) if i % 5 == 0 else random_grammar(i)
    return dict(list(found.items())[:n])


def grammar_vocabulary(path: Path) -> Path:
    """Write a model whose tokens are bytes, random pieces of the grammars' text, and some control
    tokens."""
    rng = np.random.default_rng(5)
    text = WRITTEN.read_bytes() + "日本語 ñéß😀🎉 \n true false null 0123".encode() * 40
    recipe = BUILTIN_VOCABULARIES["gpt2"]
    keys = metadata(recipe)
    tokens, types = ([*keys[f"tokenizer.ggml.{name}"][1]] for name in ("tokens", "token_type"))
    held = {*tokens}
    while len(tokens) < recipe.n_vocab + PIECES:
        at = int(rng.integers(len(text)))
        piece = written_as(text[at : at + int(rng.integers(2, 9))])
        if piece not in held:
            held.add(piece)
            tokens.append(piece)
            types.append(1)
    tokens, types = [*tokens, *SPECIALS], [*types, *[4] * len(SPECIALS)]
    changes: dict[str, Any] = {
        "tokenizer.ggml.tokens": ("ARR[STR]", tokens),
        "tokenizer.ggml.token_type": ("ARR[I32]", np.array(types, np.int32)),
    }
    return with_metadata(path, recipe, **changes)


def written_as(piece: bytes) -> str:
    """Return bytes as written in GPT-2's vocabularies, with invisible bytes from U+0100 on."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return "".join(chr(b) if b in shown else chr(256 + hidden.index(b)) for b in piece)
