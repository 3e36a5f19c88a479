"""House rules for the tracked files: their content and length."""

import ast
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.places import ROOT

LONGEST = 400
# Folders that exist only on some machines. They are joined here, so that this file does not contain
# the paths.
PLACES = b"|".join([b"work", b"root", b"home", b"Users", b"mnt"])
MACHINE_PATH = re.compile(rb"(?<![\w.~-])" + b"/" + rb"(?:%b)(?=/|\b)(?!-)" % PLACES)
INDEXES = ((b"pypi", b".org"), (b"python", b"hosted"), (b"index-", b"url"), (b"arti", b"factory"))
PACKAGE_INDEX = re.compile(b"|".join(re.escape(b"".join(parts)) for parts in INDEXES))
URL = re.compile(rb"https?://([\w.-]+\.[a-z]{2,})")
HOSTS = {"github.com", "json-schema.org", "huggingface.co", "example.org", "git-lfs.github.com"}
HOSTS |= {"www.w3.org", "img.shields.io"}  # names a format; hosts the badges
HOSTS |= {"semver.org"}


@cache
def tracked() -> tuple[Path, ...]:
    """Return every existing file that git tracks."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    if done.returncode:
        return ()
    paths = (ROOT / name for name in done.stdout.decode().split("\0") if name)
    return tuple(path for path in paths if path.is_file())


@pytest.fixture
def files() -> tuple[Path, ...]:
    if not tracked():
        pytest.skip("no git checkout: the tracked files were not looked through")
    return tracked()


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def matches(pattern: re.Pattern[bytes], files: tuple[Path, ...]) -> list[str]:
    found = ((path, m) for path in files for m in pattern.finditer(path.read_bytes()))
    return [f"{named(path)}: {m.group().decode()}" for path, m in found]


def test_files_name_no_machine_path(files: tuple[Path, ...]) -> None:
    assert matches(MACHINE_PATH, files) == []


def test_files_name_no_package_index(files: tuple[Path, ...]) -> None:
    assert matches(PACKAGE_INDEX, files) == []


def test_every_address_is_public(files: tuple[Path, ...]) -> None:
    hosts = {m.group(1).decode() for p in files for m in URL.finditer(p.read_bytes())}
    assert hosts <= HOSTS


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (b"/ %b/me/x" % b"home", True),
        (b"cd / %b/x" % b"work", True),
        (b'"/ %b"' % b"root", True),
        (b"/ %bflows/" % b"work", False),
        (b"at work/%b" % b"home", False),
        (b"a/ %b/b" % b"home", False),
    ],
)
def test_machine_path_is_recognised(text: bytes, is_one: bool) -> None:
    assert bool(MACHINE_PATH.search(text.replace(b"/ ", b"/"))) is is_one


def python_files(files: tuple[Path, ...]) -> list[Path]:
    return [path for path in files if path.suffix == ".py"]


def test_every_python_file_begins_with_a_docstring(files: tuple[Path, ...]) -> None:
    silent = []
    for path in python_files(files):
        text = path.read_text()
        if not text and path.name == "__init__.py":
            continue
        if not ast.get_docstring(ast.parse(text)) or not text.startswith(('"""', 'r"""')):
            silent.append(named(path))
    assert silent == []


def test_file_length_stays_below_the_limit(files: tuple[Path, ...]) -> None:
    lengths = {named(p): len(p.read_text().splitlines()) for p in python_files(files)}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


def test_architecture_page_is_short() -> None:
    page = ROOT / "ARCHITECTURE.md"
    if not page.exists():
        pytest.skip("no ARCHITECTURE.md: its length was not checked")
    assert len(page.read_text().splitlines()) <= 180  # 150 after the plan


def test_classes_have_unique_names(files: tuple[Path, ...]) -> None:
    """Classes of separate programs and examples do not count."""
    apart = ("harness/foreign/programs/", "harness/examples/", "tests/")
    names = Counter(
        node.name
        for path in python_files(files)
        if not named(path).startswith(apart)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert len(names) > 500
    assert [name for name, n in names.items() if n > 1] == []
