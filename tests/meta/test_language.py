"""Rules of English that a program can check, for docstrings, comments, names of tests and pages."""

import ast
import re
import tokenize
from collections.abc import Callable, Iterator
from io import StringIO

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.meta.test_house import named, tracked
from tests.places import ROOT

# A sentence names its subject first: these words put a clause or a fragment there.
OPENERS = {"as", "how", "of", "that", "what", "when"}
OPENERS |= {"where", "whether", "which", "who", "whose", "why"}
NAME_OPENERS = OPENERS | {"if", "it", "or"}
# A docstring has no noun to which these words could refer.
POINTERS = {"it", "its", "they", "them", "their", "those", "these", "such", "else", "he", "she"}
POINTERS |= {
    "also",
    "and",
    "but",
    "if",
    "or",
    "so",
    "then",
    "once",
    "whatever",
    "whoever",
    "without",
}
POINTERS |= {"against", "along", "before", "behind", "beside", "between", "by", "for", "from", "in"}
POINTERS |= {"nobody", "on", "only", "alone", "raises", "to", "until", "up", "with", "within"}
FIRST_WORD = re.compile(r"\W*(\w+)(?!\w|:)")  # `what: ...` describes a parameter
LONGEST_NAME = 70  # characters
LONGEST_SENTENCE = 30  # words
LICENCES = "tests/schemas/"  # texts by others
ENDS = re.compile(r"(?<=[.?!])(?<!e\.g\.)(?<!i\.e\.)[\"')\]*]*\s+")
SKIPPED = {"table", "blockquote"}  # rows of tables are no sentences, and quotes are texts by others

Rule = Callable[[str], list[str]]


def begins_badly(text: str, openers: set[str] = OPENERS) -> bool:
    first = FIRST_WORD.match(text)
    return first is not None and first[1].lower() in openers


def wrong_docstrings(source: str) -> list[str]:
    """Return the first lines of docstrings that begin with a banned word."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    texts = [ast.get_docstring(node) or "" for node in nodes]
    openers = OPENERS | POINTERS
    return [text.splitlines()[0] for text in texts if begins_badly(text, openers)]


def wrong_comments(source: str) -> list[str]:
    """Return the comments that begin with a banned word. Adjacent lines are one comment."""
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    alone = {token.start[0] for token in comments if token.line.lstrip().startswith("#")}
    first = (token.string for token in comments if token.start[0] - 1 not in alone)
    return [text for text in first if begins_badly(text)]


def wrong_names(source: str) -> list[str]:
    """Return the names of tests that lack a subject, or are too long."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return [node.name for node in nodes if node.name.startswith("test_") and is_wrong(node.name)]


def is_wrong(name: str) -> bool:
    _, first, *_ = name.split("_")
    pronouns = "_who_" in name or "_whose_" in name
    return first in NAME_OPENERS or pronouns or len(name) > LONGEST_NAME


def text_of(inline: Token) -> str:
    """Return the text of links and words. A piece of code counts as one word; a picture has no
    words."""
    pieces = []
    for token in inline.children or ():
        if token.type == "code_inline":
            pieces.append(f"`{token.content.replace(' ', '·')}`")
        elif token.type == "text":
            pieces.append(token.content)
        elif token.type in ("softbreak", "hardbreak"):
            pieces.append(" ")
    return "".join(pieces)


def blocks_of(page: str) -> Iterator[tuple[bool, str]]:
    """Yield the text of each heading (True) and of each other block with words (False)."""
    skipped, heading = 0, False
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        if token.type.removesuffix("_open").removesuffix("_close") in SKIPPED:
            skipped += token.nesting
        heading = token.type == "heading_open" or (heading and token.type != "heading_close")
        if token.type == "inline" and not skipped:
            yield heading, text_of(token)


def wrong_headings(page: str) -> list[str]:
    """Return the headings that begin with a banned word and are not questions."""
    headings = (text for heading, text in blocks_of(page) if heading)
    return [text for text in headings if begins_badly(text) and not text.endswith("?")]


def n_words(sentence: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in sentence.split())


def long_sentences(page: str) -> list[str]:
    """Return the sentences of a page with more words than `LONGEST_SENTENCE`."""
    every = (each for heading, text in blocks_of(page) if not heading for each in ENDS.split(text))
    return [sentence for sentence in every if n_words(sentence) > LONGEST_SENTENCE]


def problems(rule: Rule, ending: str, folder: str = "") -> list[str]:
    """Return the findings of a rule in the tracked files with this ending, each with its file."""
    names = [named(path) for path in tracked()]
    names = [name for name in names if name.endswith(ending) and name.startswith(folder)]
    if not names:
        pytest.skip("no git checkout: the language of the files was not checked")
    texts = ((name, (ROOT / name).read_text()) for name in names if not name.startswith(LICENCES))
    return [f"{name}: {found}" for name, text in texts for found in rule(text)]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    assert problems(wrong_docstrings, ".py") == []


def test_comments_begin_with_their_subject() -> None:
    assert problems(wrong_comments, ".py") == []


def test_names_of_tests_have_a_subject_and_few_letters() -> None:
    assert problems(wrong_names, ".py", "tests/") == []


def test_headings_begin_with_a_verb_or_a_noun() -> None:
    assert problems(wrong_headings, ".md") == []


def test_sentences_of_pages_are_short() -> None:
    assert problems(long_sentences, ".md") == []


def test_wrong_docstring_is_found() -> None:
    source = '"""Whether it ends."""\ndef f():\n    """Of all.\n\n    More."""\n\n'
    right = 'class A:\n    """Where"""\n    def g(self):\n        """Return what is left."""\n'
    assert wrong_docstrings(source + right) == ["Whether it ends.", "Of all.", "Where"]


def test_wrong_comment_is_found() -> None:
    source = (
        "a = 1  # of all\n# What ends,\n# as one may say\nb = 2  # bytes of all\n# --- where ---\n"
    )
    assert wrong_comments(source) == ["# of all", "# What ends,", "# --- where ---"]


def test_wrong_name_is_found() -> None:
    names = ["test_who_ends", "test_it_ends", "test_engine_whose_end_is_near", f"test_a_{'b' * 64}"]
    fine = ["test_engine_ends", f"test_a_{'b' * 63}", "who_ends"]
    assert wrong_names("".join(f"def {name}(): ...\n" for name in [*names, *fine])) == names


def test_wrong_heading_is_found() -> None:
    page = "# What it finds\n## What does it find?\n### `lockstep`\nOf text\n-------\n\nWhat\n"
    assert wrong_headings(page) == ["What it finds", "Of text"]


def test_long_sentence_is_found() -> None:
    short, long = " ".join(["word"] * 29 + ["end."]), " ".join(["word"] * 30 + ["end."])
    page = f"{short} {short}\n\n- {long}\n\n> {long}\n\n```\n{long}\n```\n\n| {long} |\n|---|\n"
    code = f"`{long}` [{short}](a.md) e.g. [a link](b.md)"
    assert long_sentences(page) == [long]
    assert long_sentences(code) == [f"`{long.replace(' ', '·')}` {short}"]
