"""`golden fetch` accepts only the pinned archive and its files, and fails with a clear message."""

import hashlib
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.golden import fetch
from lockstep.golden.fetch import (
    FILES,
    MODELS,
    NAMES,
    WITH_CASES,
    VocabulariesNotFetched,
    own_cases,
)
from lockstep.golden.store import BrokenGolden
from lockstep.harness.asking.downloads import CACHE, cache_folder

CONTENT = {name: f"the bytes of {name}".encode() for name in FILES}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache, and disable pip."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.delenv(fetch.GIVEN, raising=False)

    def no_pip(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("pip was called")

    monkeypatch.setattr(subprocess, "run", no_pip)
    return tmp_path / "cache"


def archive(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def whole() -> dict[str, bytes | tarfile.TarInfo]:
    return {str(MODELS / name): content for name, content in CONTENT.items()}


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that makes an archive and pins its hash."""

    def make(members: dict[str, bytes | tarfile.TarInfo]) -> Path:
        path = archive(tmp_path / "llama_cpp_python-0.tar.gz", members)
        monkeypatch.setattr(fetch, "SDIST_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
        return path

    return make


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_sdist_has_19_vocabularies_of_which_15_have_cases() -> None:
    assert len(NAMES) == 19
    assert len(WITH_CASES) == 15
    assert set(WITH_CASES) < set(NAMES)
    assert len(FILES) == 19 + 2 * 15


def test_cache_is_empty_before_a_fetch() -> None:
    assert fetch.vocabularies() is None


def test_fetch_takes_only_the_listed_files(pinned: Callable[..., Path], cache: Path) -> None:
    others = {
        str(MODELS / "ggml-vocab-other.gguf"): b"no",
        str(MODELS / "templates/ggml-vocab-gpt-2.gguf"): b"no",
        "ggml-vocab-gpt-2.gguf": b"no",
        "../../outside": b"no",
        "/absolute": b"no",
    }
    folder = fetch.fetch(sdist=pinned({**others, **whole()}))
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == CONTENT
    assert fetch.vocabularies() == folder
    assert fetch.vocabulary(folder, "gpt-2").name == "ggml-vocab-gpt-2.gguf"
    assert sorted(p.name for p in cache.iterdir()) == ["fetch.lock", folder.name]


def test_cached_archive_is_not_fetched_again(pinned: Callable[..., Path]) -> None:
    path = pinned(whole())
    folder = fetch.fetch(sdist=path)
    path.unlink()
    assert fetch.fetch() == folder


def test_cache_that_lacks_a_file_is_rebuilt(pinned: Callable[..., Path]) -> None:
    path = pinned(whole())
    folder = fetch.fetch(sdist=path)
    (folder / "ggml-vocab-gpt-2.gguf").unlink()
    assert fetch.vocabularies() is None
    assert fetch.fetch(sdist=path) == folder
    assert fetch.vocabularies() == folder


def test_another_archive_is_refused_before_it_is_opened(tmp_path: Path, cache: Path) -> None:
    path = archive(tmp_path / "llama_cpp_python-0.tar.gz", whole())
    with pytest.raises(VocabulariesNotFetched, match="is not the sdist of llama-cpp-python"):
        fetch.fetch(sdist=path)
    assert [p.name for p in cache.iterdir()] == ["fetch.lock"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({str(MODELS / "ggml-vocab-gpt-2.gguf"): None}, "has no .*ggml-vocab-gpt-2.gguf"),
        (
            {
                str(MODELS / "ggml-vocab-gpt-2.gguf"): link(
                    str(MODELS / "ggml-vocab-gpt-2.gguf"), "/x"
                )
            },
            "is not a file",
        ),
        (
            {
                str(MODELS / "ggml-vocab-mpt.gguf"): link(
                    str(MODELS / "ggml-vocab-mpt.gguf"), "../../x", tarfile.LNKTYPE
                )
            },
            "is not a file",
        ),
        (
            {
                str(MODELS / "ggml-vocab-mpt.gguf"): link(
                    str(MODELS / "ggml-vocab-mpt.gguf"), "", b"5"
                )
            },
            "is not a file",
        ),
    ],
)
def test_archive_without_a_file_or_with_a_link_leaves_nothing(
    change: dict[str, Any], match: str, pinned: Callable[..., Path], cache: Path
) -> None:
    members = {name: value for name, value in {**whole(), **change}.items() if value is not None}
    with pytest.raises(VocabulariesNotFetched, match=match):
        fetch.fetch(sdist=pinned(members))
    assert [p.name for p in cache.iterdir()] == ["fetch.lock"]


def test_a_file_that_is_too_long_is_refused(
    pinned: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "LARGEST", 10)
    with pytest.raises(VocabulariesNotFetched, match="at most 10 bytes"):
        fetch.fetch(sdist=pinned(whole()))


def test_invalid_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(b"no archive")
    monkeypatch.setattr(fetch, "SDIST_SHA256", hashlib.sha256(b"no archive").hexdigest())
    with pytest.raises(VocabulariesNotFetched, match="cannot be unpacked"):
        fetch.fetch(sdist=path)
    with pytest.raises(VocabulariesNotFetched, match="nowhere"):
        fetch.fetch(sdist=tmp_path / "nowhere")


# --- pip ----------------------------------------------------------------------------------------


def answering(
    monkeypatch: pytest.MonkeyPatch, code: int, stderr: str, files: dict[str, bytes]
) -> list[list[str]]:
    """Replace pip by a fake with this behaviour; return the list of its command lines."""
    calls: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        assert not options.get("shell")
        calls.append(command)
        calls.append([Path(command[command.index("--requirement") + 1]).read_text()])
        folder = Path(command[command.index("--dest") + 1])
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return subprocess.CompletedProcess(command, code, b"", stderr.encode())

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_pip_gets_the_pinned_version_and_its_hash(
    pinned: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = pinned(whole()).read_bytes()
    calls = answering(monkeypatch, 0, "", {"llama_cpp_python-0.3.36.tar.gz": raw})
    folder = fetch.fetch()
    assert fetch.vocabularies() == folder
    command, (wanted,) = calls
    assert "--require-hashes" in command
    assert wanted == f"llama-cpp-python==0.3.36 --hash=sha256:{fetch.SDIST_SHA256}\n"


@pytest.mark.parametrize(
    ("code", "stderr", "files", "says"),
    [
        (1, "WARNING: x\nERROR: No matching distribution found\n", {}, "No matching distribution"),
        (1, "", {}, "pip printed no reason"),
        (1, "ERROR: see https://example.org/simple/x now", {}, r"see \(address\) now"),
        (0, "", {}, "pip printed no reason"),
        (0, "", {"llama_cpp_python-a.tar.gz": b"", "llama_cpp_python-b.tar.gz": b""}, "could not"),
    ],
)
def test_failure_of_pip_shows_its_last_line_and_leaves_nothing(
    code: int,
    stderr: str,
    files: dict[str, bytes],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
) -> None:
    answering(monkeypatch, code, stderr, files)
    with pytest.raises(VocabulariesNotFetched, match=says):
        fetch.fetch()
    assert [p.name for p in cache.iterdir()] == ["fetch.lock"]


def test_endless_pip_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(VocabulariesNotFetched, match="did not finish"):
        fetch.fetch()


# --- places -------------------------------------------------------------------------------------


def test_folder_from_the_environment_is_used_if_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fetch.GIVEN, str(tmp_path))
    with pytest.raises(VocabulariesNotFetched, match=r"which has no ggml-vocab-aquila\.gguf"):
        fetch.vocabularies()
    for name in FILES:
        (tmp_path / name).touch()
    assert fetch.vocabularies() == tmp_path


def test_cache_folder_follows_xdg_or_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/lockstep")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "lockstep"


def test_unwritable_cache_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE, str(tmp_path / "file" / "below"))
    with pytest.raises(VocabulariesNotFetched, match=r"Not a directory|File exists"):
        fetch.fetch()


# --- llama.cpp's cases --------------------------------------------------------------------------


def with_cases(folder: Path, texts: bytes, ids: str) -> Path:
    model = folder / "ggml-vocab-x.gguf"
    model.with_name("ggml-vocab-x.gguf.inp").write_bytes(texts)
    model.with_name("ggml-vocab-x.gguf.out").write_text(ids)
    return model


def test_cases_are_read_as_llama_cpp_reads_them(tmp_path: Path) -> None:
    between = fetch.SEPARATOR
    model = with_cases(tmp_path, b"a b" + between + between + b"\n" + between, " 1 2\n\n 3\n")
    assert own_cases(model) == [(b"a b", [1, 2]), (b"", []), (b"\n", [3])]


def test_a_vocabulary_without_cases_has_none(tmp_path: Path) -> None:
    assert own_cases(tmp_path / "ggml-vocab-x.gguf") == []


def test_cases_of_two_versions_are_refused(tmp_path: Path) -> None:
    model = with_cases(tmp_path, b"a" + fetch.SEPARATOR, "1\n2\n")
    with pytest.raises(BrokenGolden, match=r"1 cases, but .* has 2"):
        own_cases(model)
