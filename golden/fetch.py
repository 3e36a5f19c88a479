"""Gets llama.cpp's own vocabularies from the pinned llama-cpp-python sdist into a cache.

The sdist contains llama.cpp's whole source, with `models/ggml-vocab-*.gguf`: 19 vocabularies
without weights. 15 of them have texts (`.inp`) and the right ids of the texts (`.out`). Lockstep
may not ship these files. pip checks the sdist's hash before it runs any code of it.
"""

import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from lockstep.golden.store import BrokenGolden
from lockstep.harness.asking import downloads
from lockstep.harness.asking.downloads import NotDownloaded, cache_folder, hold_lock
from lockstep.harness.report.header import sha256_of

VERSION = "0.3.36"  # version of llama-cpp-python that pyproject.toml pins
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
MODELS = PurePosixPath(f"llama_cpp_python-{VERSION}/vendor/llama.cpp/models")
PREFIX = "ggml-vocab-"
WITH_CASES = (
    *("bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2"),
    *("llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)
NAMES = tuple(sorted((*WITH_CASES, "aquila", "baichuan", "gpt-neox", "nomic-bert-moe")))
FILES = frozenset(
    [f"{PREFIX}{name}.gguf" for name in NAMES]
    + [f"{PREFIX}{name}.gguf.{end}" for name in WITH_CASES for end in ("inp", "out")]
)
LARGEST = 64 << 20  # size of a file in bytes
SEPARATOR = b"\n__ggml_vocab_test__\n"

GIVEN = "LOCKSTEP_VOCABULARIES"  # variable with a folder that holds the files

Progress = Callable[[str], None]


class VocabulariesNotFetched(BrokenGolden):
    """Error: the vocabularies are not available; the message is one sentence with the reason."""


def vocabularies() -> Path | None:
    """Return the folder of the vocabularies, or None if they were not fetched; nothing is
    downloaded.

    Raises VocabulariesNotFetched if LOCKSTEP_VOCABULARIES names a folder that lacks a file.
    """
    given = os.environ.get(GIVEN)
    if given:
        missing = sorted(FILES - present(Path(given)))
        if missing:
            raise VocabulariesNotFetched(f"{GIVEN} names {given}, which has no {missing[0]}")
        return Path(given)
    folder = fetched_folder()
    return folder if present(folder) >= FILES else None


def fetched_folder() -> Path:
    return cache_folder() / f"vocabularies-{VERSION}"


def present(folder: Path) -> frozenset[str]:
    return frozenset(p.name for p in folder.iterdir()) if folder.is_dir() else frozenset()


def vocabulary(folder: Path, name: str) -> Path:
    return folder / f"{PREFIX}{name}.gguf"


def fetch(progress: Progress = lambda _: None, *, sdist: Path | None = None) -> Path:
    """Return the folder of the vocabularies. Missing files come from `sdist` if given, else from
    pip.

    Raises VocabulariesNotFetched; a failed attempt leaves no files.
    """
    folder = fetched_folder()
    try:
        with hold_lock(folder.parent / "fetch.lock"):
            if not present(folder) >= FILES:
                make(folder, sdist, progress)
    except OSError as error:
        raise VocabulariesNotFetched(
            f"{error.filename or folder}: {error.strerror or error}"
        ) from error
    return folder


def make(folder: Path, sdist: Path | None, progress: Progress) -> None:
    """Unpack to a temporary folder and rename it, so that the final folder is always complete."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as name:
        work = Path(name)
        archive = sdist or download(work, progress)
        progress("unpacking the vocabularies")
        unpacked = work / "unpacked"
        unpacked.mkdir()
        check_archive(archive)
        unpack(archive, unpacked)
        if folder.exists():  # an older or incomplete folder
            folder.rename(work / "replaced")
        unpacked.rename(folder)


# --- the sdist ----------------------------------------------------------------------------------


def download(folder: Path, progress: Progress) -> Path:
    progress(f"asking pip for the sdist of llama-cpp-python {VERSION} (77 MB)")
    try:
        return downloads.download("llama-cpp-python", VERSION, SDIST_SHA256, folder, source=True)
    except NotDownloaded as error:
        raise VocabulariesNotFetched(
            f"{error}; without a network, get the sdist elsewhere and give it with --sdist"
        ) from error


def check_archive(archive: Path) -> None:
    try:
        found = sha256_of(archive)
    except OSError as error:
        raise VocabulariesNotFetched(f"{archive}: {error.strerror or error}") from error
    if found != SDIST_SHA256:
        raise VocabulariesNotFetched(
            f"{archive.name} is not the sdist of llama-cpp-python {VERSION}: its sha256 is "
            f"{found}, expected {SDIST_SHA256}"
        )


def unpack(archive: Path, folder: Path) -> None:
    """Copy only the files in FILES, whatever paths the archive contains."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.parent == MODELS and path.name in FILES:
                    copy_member(tar, member, folder / path.name)
    except (tarfile.TarError, EOFError) as error:
        raise VocabulariesNotFetched(f"{archive.name} cannot be unpacked: {error}") from error
    missing = sorted(FILES - present(folder))
    if missing:
        raise VocabulariesNotFetched(f"{archive.name} has no {MODELS / missing[0]}")


def copy_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Copy only the bytes: no mode, no owner, no link."""
    if not member.isreg() or member.size > LARGEST:
        raise VocabulariesNotFetched(f"{member.name} is not a file of at most {LARGEST:,} bytes")
    source = tar.extractfile(member)
    assert source is not None  # the member is a file
    with source, path.open("xb") as out:
        out.write(source.read(LARGEST))


# --- llama.cpp's own cases ----------------------------------------------------------------------


def own_cases(model: Path) -> list[tuple[bytes, list[int]]]:
    """Return the texts and ids of the `.inp` and `.out` files next to a vocabulary, in order. The
    list is empty if a file is missing.

    Source: read_tests in tests/test-tokenizer-0.cpp. Special tokens are neither added nor parsed.
    """
    texts, ids = (model.with_name(f"{model.name}.{end}") for end in ("inp", "out"))
    if not texts.is_file() or not ids.is_file():
        return []
    parts = texts.read_bytes().removesuffix(SEPARATOR).split(SEPARATOR)
    lines = ids.read_text().splitlines()
    if len(parts) != len(lines):
        raise BrokenGolden(
            f"{texts.name} has {len(parts)} cases, but {ids.name} has {len(lines)}: "
            "their versions differ"
        )
    return [
        (text, [int(word) for word in line.split()])
        for text, line in zip(parts, lines, strict=True)
    ]
