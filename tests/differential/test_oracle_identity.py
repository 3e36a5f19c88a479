"""The oracle is the pinned llama.cpp: no other build in LLAMA_CPP_LIB_PATH is used."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.harness.adapters.llama_cpp.identity import (
    COMMIT,
    LIBRARIES,
    VERSION,
    OtherBuild,
    check_loaded,
    installed_folder,
    why_not_pinned,
)
from lockstep.harness.adapters.llama_cpp.lib import library
from lockstep.harness.asking.environments import NotBuilt
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import EXACT
from lockstep.harness.runs.doctor import library_row
from tests.command_line import Lockstep, assert_refused, lockstep
from tests.places import ROOT

__all__ = ["lockstep"]
LLAMA, GGML = "libllama.so", "libggml-base.so.0"
MACHINE = 18  # offset of the processor's number in an ELF header


def installed() -> Path:
    folder = installed_folder()
    assert folder is not None
    return folder


def changed(file: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return a function that copies the relevant installed libraries, with one of them changed."""

    def make(folder: Path) -> None:
        for name in (LLAMA, GGML):
            raw = (installed() / name).read_bytes()
            (folder / name).write_bytes(change(raw) if name == file else raw)

    return make


def renamed(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)

    def change(raw: bytes) -> bytes:
        assert b"\0" + old + b"\0" in raw
        return raw.replace(b"\0" + old + b"\0", b"\0" + new + b"\0")

    return change


def compiled(code: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("c++")
        assert compiler is not None
        source = folder / "small.c"
        source.write_text(code)
        subprocess.run([compiler, "-shared", "-o", folder / LLAMA, source], check=True)

    return make


def text_file(folder: Path) -> None:
    (folder / LLAMA).write_text("libllama is not here\n")


def nothing(folder: Path) -> None:
    del folder


def for_arm(raw: bytes) -> bytes:
    return raw[:MACHINE] + b"\xb7" + raw[MACHINE + 1 :]


OTHERS = {
    "another commit": (
        changed(LLAMA, renamed(b"llama_decode", b"llama_decodf")),
        "a different llama.cpp: it lacks 1 (llama_decode) of 2077 names, "
        "and has 1 (llama_decodf) more",
    ),
    "another commit, same C interface": (
        changed(
            LLAMA, renamed(b"_ZN13llama_context10get_logitsEv", b"_ZN13llama_context10got_logitsEv")
        ),
        "lacks 1 (llama_context::get_logits)",
    ),
    "another ggml": (changed(GGML, renamed(b"ggml_rope", b"ggml_role")), "lacks 1 (ggml_rope)"),
    "fork": (compiled("void llama_decode(void) {}"), "lacks 2076 ("),
    "no llama.cpp": (compiled("void decode(void) {}"), "is not llama.cpp"),
    "no library": (nothing, "No such file"),
    "text": (text_file, "is not an ELF library: it begins with b'libllama'"),
    "cut off": (changed(LLAMA, lambda raw: raw[:100_000]), "is truncated or broken"),
    "another processor": (changed(LLAMA, for_arm), "is built for AArch64, this Python for "),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_build_is_not_accepted_as_oracle(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, says = OTHERS[name]
    make(tmp_path)
    monkeypatch.setenv(LIBRARIES, str(tmp_path))
    with pytest.raises(OtherBuild, match=re.escape(says)) as refused:
        Runner().open("llama.cpp", None, EXACT)
    for fact in (LIBRARIES, str(tmp_path / "lib"), COMMIT, VERSION):
        assert fact in str(refused.value)
    assert library_row()[2] is False


INLINE = b"_ZN14llama_kv_cache9slot_infoD1Ev"


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw,
        renamed(INLINE, INLINE.replace(b"D1", b"D7")),
        # a symbol of a vector template
        lambda raw: raw.replace(b"14opt_epoch_iterEP16", b"14opt_epoch_itexEP16"),
    ],
    ids=["copy", "inline function", "standard library"],
)
def test_same_commit_by_another_compiler_is_the_oracle(
    change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """The build has no backends and no tools."""
    changed(LLAMA, change)(tmp_path)
    assert why_not_pinned(tmp_path) == ""


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    text_file(tmp_path)
    assert why_not_pinned(tmp_path)
    shutil.copy(installed() / LLAMA, tmp_path)
    assert why_not_pinned(tmp_path) == ""


def test_installed_build_is_the_pinned_build(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f'"llama-cpp-python=={VERSION}"' in (ROOT / "pyproject.toml").read_text()
    monkeypatch.setenv(LIBRARIES, str(installed()))
    assert library_row()[1:] == (library_row()[1], True)
    for commit in ("unknown", COMMIT[:7] + "-dirty", COMMIT, COMMIT + "0123"):
        check_loaded(commit, library().types())


def test_library_with_another_version_is_not_the_oracle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(LIBRARIES, str(installed()))
    with pytest.raises(OtherBuild, match="says that it is commit 552f18f91"):
        check_loaded("552f18f91-dirty", library().types())
    with pytest.raises(OtherBuild, match="weight types"):
        check_loaded(COMMIT, [("q4_0", 32, 20)])


def test_other_versions_have_their_own_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIBRARIES, str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NotBuilt):
        Runner().open("llama.cpp@0.3.8", None, EXACT)


def another_commit_inside(folder: Path) -> None:
    """Copy the installed libraries, changed to report another commit."""
    shutil.copytree(installed(), folder, dirs_exist_ok=True)
    commit = library().ggml.ggml_commit()
    for path in folder.glob("libggml-base.so*"):
        path.write_bytes(path.read_bytes().replace(commit, commit[::-1]))


@pytest.mark.parametrize(
    ("make", "says"), [(nothing, LLAMA), (another_commit_inside, "says that it is commit")]
)
@pytest.mark.parametrize("oracle", ["llama.cpp", "reference"])
def test_check_of_another_build_is_refused(
    oracle: str,
    make: Callable[[Path], None],
    says: str,
    lockstep: Lockstep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong build is not reported as a divergence of the tested engine."""
    make(tmp_path)
    monkeypatch.setenv(LIBRARIES, str(tmp_path))
    ending = lockstep("check", "builtin:f32", "--oracle", oracle, "--report", tmp_path / "reports")
    assert_refused(ending, LIBRARIES, says, COMMIT)
