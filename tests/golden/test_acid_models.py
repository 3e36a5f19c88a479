"""`golden/acid`: the shipped files match the generator, and any damage is found."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.golden.acid_models import (
    HELD,
    MANIFEST,
    PAGE,
    ROOT,
    TESTS,
    bytes_held,
    problems_of,
    read_manifest,
    regenerate_acid,
)
from lockstep.golden.manifest import read_manifest as read_vectors
from lockstep.golden.store import DEFAULT_ROOT, MAX_TOTAL, canonical, parse_json
from lockstep.harness.acid.every import every
from lockstep.harness.acid.read import read_report
from lockstep.harness.acid.report import report_for
from lockstep.harness.catalogue.acid import text_of
from lockstep.harness.records import EXACT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT, tmp_path / "acid")
    return tmp_path / "acid"


def test_shipped_models_are_intact_and_reproducible(folder: Path) -> None:
    assert list(problems_of()) == []
    assert regenerate_acid(folder) == []  # all bytes are equal


def test_all_goldens_together_stay_small() -> None:
    vectors = sum(entry.bytes for entry in read_vectors(DEFAULT_ROOT))
    assert vectors + bytes_held() < MAX_TOTAL


def test_the_manifest_has_the_hash_of_every_acid_model() -> None:
    rows = read_manifest(ROOT)["models"]
    assert [(row["arch"], row["type"]) for row in rows] == list(every())
    assert {(row["arch"], row["type"]) for row in rows if row["file"]} == {*HELD}


@pytest.mark.parametrize(("arch", "quant"), HELD)
def test_shipped_file_writes_a_report_without_a_no(arch: str, quant: str) -> None:
    path = ROOT / f"acid-{arch}-{quant}.gguf"
    reading = read_report(text_of("fast", path, EXACT))
    assert (reading.code, reading.arch, reading.quant) == (0, arch, quant)


@pytest.mark.parametrize(("arch", "quant"), HELD)
def test_pages_match_the_files(arch: str, quant: str) -> None:
    page, tests = (ROOT / PAGE).read_text(), (ROOT / TESTS).read_text()
    report = report_for(arch, quant)
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `acid-{arch}-{quant}."))
    assert f"{len(report.tests)} tests" in row
    assert all(f"### {test.name}\n" in tests for test in report.tests)
    with GgufFile.open(ROOT / f"acid-{arch}-{quant}.gguf") as file:
        assert "tokenizer.chat_template" in file.metadata
    assert "tokenizer.chat_template" in page
    assert f"{len(report_for('llama', 'F32').usual)} tests**" in page


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def other_hash(path: Path) -> None:
    document = parse_json(path.read_bytes(), path.name)
    document["models"][0]["sha256"] = "0" * 64
    path.write_bytes(canonical(document))


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("acid-llama-F32.gguf", flip, "its hash differs"),
        ("acid-llama-Q4_K.gguf", cut, "its hash differs"),
        ("acid-llama-Q8_0.gguf", Path.unlink, "cannot be read"),
        (TESTS, flip, "its hash differs"),
        (MANIFEST, other_hash, "not written by the generator"),
        (MANIFEST, cut, "is not JSON"),
        (MANIFEST, Path.unlink, "cannot be read"),
        ("acid-llama-Q5_0.gguf", lambda path: path.write_bytes(b"x"), "is an orphan"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_file_changed_by_hand_is_named(
    folder: Path, name: str, change: Callable[[Path], None], says: str
) -> None:
    change(folder / name)
    found = dict(problems_of(folder))
    assert says in found[name]
    assert [each for each in found if each != name] == []
