"""The table of interfaces names every method, and only existing vectors."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.golden.store import DEFAULT_ROOT

PAGE = DEFAULT_ROOT.parents[1] / "INTERFACES.md"
SEEDS = Path(__file__).parents[2].parent / "shared" / "seeds"
NO_SEEDS = "no sibling folder shared/ with seeds/: the methods in the table were not checked"
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
COUNTS = (18, 14, 69)  # the thirteen operations, and an operation that gives the name
# the interfaces in the order of the page: number of the document, first line of the trait
TRAITS = (
    ("000", "pub trait Backend {"),
    ("002", "pub trait Backend: Send + Sync {"),
    ("003", "Show 69 methods"),
)


def sections() -> list[list[tuple[str, str, str]]]:
    return [ROW.findall(part) for part in PAGE.read_text().split("\n## ")[1:]]


ROWS = [row for section in sections() for row in section]


def test_each_interface_has_a_row_for_each_method() -> None:
    assert tuple(len(section) for section in sections()) == COUNTS
    for section in sections():
        assert len({method for method, _, _ in section}) == len(section)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_each_method_has_vectors_or_a_reason(row: tuple[str, str, str]) -> None:
    _, vectors, how = row
    if vectors == "bookkeeping":
        assert how
        return
    names = re.findall(r"`([^`]+)`", vectors)
    assert names
    for name in names:
        assert list(DEFAULT_ROOT.glob(f"{name}.json")), f"{name} is not a file of vectors"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_named_cases_exist(row: tuple[str, str, str]) -> None:
    names = re.findall(r"`ops/(\w+)`", row[1])
    text = "".join((DEFAULT_ROOT / f"ops/{name}.json").read_text() for name in names)
    ids = re.findall(r'"id": "([^"]+)"', text)
    for sentence in re.findall(r"cases? ((?:`[^`]+`(?:, | and )?)+)", row[2]):
        for case in re.findall(r"`([^`]+)`", sentence):
            pattern = case.replace("*", ".*").replace("N", r"\d+")
            assert any(re.fullmatch(pattern, known) for known in ids), case


def methods(number: str, beginning: str) -> Iterator[str]:
    """Return the trait's methods. The trait ends with a brace in the first column."""
    (path,) = SEEDS.glob(f"{number}_*.txt")
    text = path.read_text()
    trait = text[text.index(beginning) :]
    yield from re.findall(r"\bfn (\w+)", trait[: trait.index("\n}")])


@pytest.mark.skipif(not SEEDS.is_dir(), reason=NO_SEEDS)
@pytest.mark.parametrize("place", range(3))
def test_listed_methods_match_the_interface(place: int) -> None:
    assert list(methods(*TRAITS[place])) == [method for method, _, _ in sections()[place]]
