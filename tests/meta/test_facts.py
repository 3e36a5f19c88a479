"""Code decides by enums and numbers, never by texts that Lockstep wrote for people."""

import ast
from collections.abc import Iterator

import pytest

from tests.places import LOCKSTEP, package_files

NOT_OURS = {"suites/metadata.py": "gguf-py's own refusal of a type that it lacks"}
WORDS = {"summary", "message"}  # attributes of verdicts, answers and refusals
READS = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "find", "index", "count", "split"),
    *("partition", "rpartition", "match", "search", "fullmatch", "findall", "sub"),
}


def reads_words(tree: ast.AST) -> Iterator[int]:
    """Yield the numbers of lines that decide by a summary or a message."""
    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            asked = node.comparators
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asked = [node.func.value, *node.args] if node.func.attr in READS else []
        if any(map(is_words, asked)):
            yield node.lineno


def is_words(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in WORDS


def test_code_never_decides_on_our_own_words() -> None:
    found = [
        f"{path.relative_to(LOCKSTEP.parent)}:{line}"
        for path in package_files()
        if "/".join(path.parts[-2:]) not in NOT_OURS
        for line in reads_words(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "if HALVES in row.answer.summary: pass",
        "verdict.summary.startswith(WHERE)",
        "re.search(PATTERN, verdict.summary)",
        "PART.match(verdict.summary)",
        "named = 'x' not in outcome.message",
    ],
)
def test_decision_on_words_is_found(code: str) -> None:
    assert list(reads_words(ast.parse(code))) == [1]


@pytest.mark.parametrize(
    "code", ["text = f'{verdict.summary}; more'", "if verdict.status in LOUD: pass", "x in names"]
)
def test_printed_words_are_not_decisions(code: str) -> None:
    assert list(reads_words(ast.parse(code))) == []
