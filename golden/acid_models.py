"""Writer and checker of `golden/acid`: some acid models, the meaning of report lines, and hashes.

The folder's README.md is written by hand. Only `regenerate_acid` writes the other files.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from lockstep.golden.schemas import violations
from lockstep.golden.store import BrokenGolden, canonical, parse_json, read, replace_file, sha256
from lockstep.harness.acid.every import every
from lockstep.harness.acid.measurements.base import Measurement
from lockstep.harness.acid.report import VERSION, report_for
from lockstep.harness.acid.write import write_acid

ROOT = Path(__file__).parent / "acid"
MANIFEST, TESTS, PAGE = "manifest.json", "TESTS.md", "README.md"
FORMAT = 1
LARGEST = 4 << 20  # size of a file in bytes
# models that most engines can open; others are written on demand
HELD = (("llama", "F32"), ("llama", "Q8_0"), ("llama", "Q4_K"))


def regenerate_acid(root: Path = ROOT) -> list[Path]:
    """Write the acid models, the page and the manifest again; return the changed files. Other files
    stay, and verification reports them."""
    rows: list[dict[str, Any]] = []
    contents: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="lockstep-golden-") as folder:
        for arch, quant in every():
            path = Path(folder) / "acid.gguf"
            write_acid(path, arch, quant)
            raw = path.read_bytes()
            name = f"acid-{arch}-{quant}.gguf" if (arch, quant) in HELD else None
            rows.append(row_of(arch, quant, raw, name))
            if name:
                contents[name] = raw
    page = tests_page().encode()
    contents[TESTS] = page
    contents[MANIFEST] = manifest(rows, page)
    return [root / name for name, raw in contents.items() if replace_file(root / name, raw)]


def row_of(arch: str, quant: str, raw: bytes, name: str | None) -> dict[str, Any]:
    n = len(report_for(arch, quant).tests)
    about = {"arch": arch, "type": quant, "tests": n, "file": name}
    return about | {"sha256": sha256(raw), "bytes": len(raw)}


def manifest(rows: Sequence[Mapping[str, Any]], page: bytes) -> bytes:
    """Return the manifest. `seal`: the hash of its other content, as in the manifest of the
    vectors."""
    body = {"format": FORMAT, "version": VERSION, "models": list(rows), "page": sha256(page)}
    return canonical({**body, "seal": sha256(canonical(body))})


# --- meaning of the lines -------------------------------------------------------------------------


def tests_page() -> str:
    lines = ["# Lines of an acid report", ""]
    lines += [
        "Written by `lockstep golden regen`. [README.md](README.md) says how to get a report.",
        "",
    ]
    seen: set[str] = set()
    for arch, quant in HELD:
        report = report_for(arch, quant)
        new = [test for test in report.tests if test.name not in seen]
        seen |= {test.name for test in new}
        more = "" if len(new) == len(report.tests) else ": additional tests"
        lines += [f"## acid-{arch}-{quant}.gguf{more}", ""]
        names = {test.name for test in report.tests}
        lines += [line for test in new for line in entry(test, names)]
    return "\n".join(lines)


def entry(test: Measurement, names: Set[str]) -> Iterator[str]:
    """Yield a test's lines on the page. names: the tests of the same report. Of the tests that this
    test rests on, only those in `names` are listed."""
    prompted = "; only with the acid prompt" if test.needs_prompt else ""
    yield f"### {test.name}"
    yield f"`ok`: {test.sees}. Measured in: {test.where}{prompted}."
    if known := [says for says, _ in test.wrong if says and not says.startswith("ok ")]:
        yield ""
        yield from (f"- `NO ({says})`" for says in known)
    if rests := ", ".join(name for name in test.rests_on if name in names):
        yield ""
        yield f"If these say NO too, look at them first: {rests}."
    yield ""


# --- are they as they were written? ---------------------------------------------------------------


def problems_of(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield the name of each wrong file, with the problem and its remedy."""
    again = "restore it, or run `lockstep golden regen`"
    try:
        document = read_manifest(root)
    except BrokenGolden as error:
        yield MANIFEST, f"acid/{MANIFEST}: {error}; {again}"
        return
    hashes = {row["file"]: row["sha256"] for row in document["models"] if row["file"]}
    hashes[TESTS] = document["page"]
    for name, wanted in hashes.items():
        try:
            if sha256(read(root / name, LARGEST)) != wanted:
                yield name, f"acid/{name} was changed: its hash differs; {again}"
        except BrokenGolden as error:
            yield name, f"acid/{name}: {error}; {again}"
    known = {MANIFEST, PAGE, *hashes}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if (path.is_symlink() or not path.is_dir()) and name not in known:
            yield name, f"acid/{name} is an orphan: the manifest does not list it; delete it"


def read_manifest(root: Path) -> dict[str, Any]:
    """Read the manifest. Raises BrokenGolden if the file is missing, edited or not a manifest."""
    raw = read(root / MANIFEST, LARGEST)
    document: dict[str, Any] = parse_json(raw, MANIFEST)
    if wrong := next(violations("acid", document), None):
        raise BrokenGolden(f"it breaks its schema: {wrong}")
    body = {key: value for key, value in document.items() if key != "seal"}
    if raw != canonical({**body, "seal": sha256(canonical(body))}):
        raise BrokenGolden("it was not written by the generator: its seal or form is wrong")
    return document


def bytes_held(root: Path = ROOT) -> int:
    """Return the size in bytes of the models that ship."""
    return sum(row["bytes"] for row in read_manifest(root)["models"] if row["file"])
