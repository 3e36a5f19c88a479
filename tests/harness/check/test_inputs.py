"""Every command refuses inputs that are not regular files at once, so that no command waits for a
writer."""

import io
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.regular_file import check_regular, open_regular, read_regular
from lockstep.golden.manifest import NAME as MANIFEST
from lockstep.harness.check import inputs
from lockstep.harness.cli import app
from lockstep.harness.report.header import sha256_of
from lockstep.harness.synth.gguf_writer import write_gguf
from tests.models import builtin

Run = Callable[..., tuple[int, str, str]]
PIPE, DEVICE = "a pipe; expected a regular file", "a character device; expected a regular file"


@pytest.fixture(autouse=True)
def nobody_waits() -> Iterator[None]:
    """Fail a test that opens a pipe, because this would wait for ever."""

    def too_long(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    return path


@pytest.fixture
def lockstep(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*args: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            app([str(arg) for arg in args])
        sys.stdout.flush()
        return int(end.value.code or 0), *capfd.readouterr()

    return call


OURSELVES = ("--oracle", "reference", "--quiet")
MODEL = "{}"
COMMANDS = [
    ("check", MODEL, *OURSELVES),
    ("check", "builtin:f32", "--subject-model", MODEL, *OURSELVES),
    ("bisect", MODEL, *OURSELVES),
    ("bisect", "builtin:f32", "--subject-model", MODEL, *OURSELVES),
    ("trace", MODEL, "-o", "tensors", "--quiet"),
    ("run", MODEL, "--prompt", "x", "--engine", "reference", "--quiet"),
    ("tokenize", MODEL, "--text", "x"),
    ("tokenize", "builtin:f32", "--file", MODEL),
    ("shadow", MODEL, "--quiet"),
    ("fuzz", "gguf", "--file", MODEL, *OURSELVES),
    ("fuzz", "tokens", "--vocab", MODEL, "--cases", "1", *OURSELVES),
    ("bench", "tokens", "--vocab", MODEL, "--rounds", "1", "--quiet"),
    ("bench", "shadow", "--model", MODEL, "--quiet"),
    ("golden", "regen", MODEL, "--vectors", "vectors", "--quiet"),
    ("golden", "verify", "--engine", "reference", "--only", "dequant/f32", "--model", MODEL),
    ("golden", "diff", MODEL, MODEL),
    ("golden", "fetch", "--sdist", MODEL, "--quiet"),
    ("synth", "-o", MODEL),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_pipe_is_refused_by_its_name(
    command: tuple[str, ...],
    pipe: Path,
    tmp_path: Path,
    lockstep: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    path = pipe if "diff" not in command else pipe.rename(tmp_path / "pipe.safetensors")
    code, out, err = lockstep(*(str(path) if word == MODEL else word for word in command))
    assert (code, out) == (2, "")
    assert err.startswith("lockstep: ")
    assert err.count("\n") == 1
    assert path.name in err
    assert PIPE in err
    assert path.is_fifo()  # no file took its place


def test_a_pipe_in_a_corpus_is_refused(pipe: Path, lockstep: Run) -> None:
    code, _, err = lockstep("fuzz", "gguf", "--corpus", pipe.parent, *OURSELVES)
    assert code == 2
    assert f"{pipe}: {PIPE}" in err


def test_pipe_among_answers_is_named_and_not_read(tmp_path: Path, lockstep: Run) -> None:
    os.mkfifo(tmp_path / "add.safetensors")
    code, out, err = lockstep("golden", "ops", "--answers", tmp_path)
    assert code == 3
    assert "1 entries of the folder answer no operation: add.safetensors" in out + err


def test_a_pipe_in_place_of_the_manifest_is_refused(tmp_path: Path, lockstep: Run) -> None:
    os.mkfifo(tmp_path / MANIFEST)
    code, out, _ = lockstep("golden", "verify", "--vectors", tmp_path)
    assert code == 1
    assert PIPE in out


def test_endless_text_is_refused(lockstep: Run) -> None:
    code, out, err = lockstep("tokenize", "builtin:f32", "--file", "/dev/zero")
    assert (code, out) == (2, "")
    assert f"/dev/zero: {DEVICE}" in err


def test_a_text_may_come_from_standard_input(
    lockstep: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, given, _ = lockstep("tokenize", "builtin:f32", "--text", "Once upon")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Once upon")))
    assert lockstep("tokenize", "builtin:f32", "--file", "-") == (0, given, "")
    assert given.startswith("[1, ")


@pytest.mark.parametrize("name", ["-", "long.txt"])
def test_a_text_that_is_too_long_is_refused(
    name: str, tmp_path: Path, lockstep: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inputs, "LARGEST_TEXT", 8)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"123456789")))
    Path("long.txt").write_bytes(b"123456789")
    code, _, err = lockstep("tokenize", "builtin:f32", "--file", name)
    assert code == 2
    assert "longer than 8 bytes" in err


# --- the one place that opens them -----------------------------------------------------------


@pytest.mark.parametrize("opens", [GgufFile.open, sha256_of, open_regular, read_regular])
def test_all_readers_refuse_a_pipe(opens: Callable[[Path], object], pipe: Path) -> None:
    with pytest.raises(OSError, match="a pipe; expected a regular file"):
        opens(pipe)


def test_every_kind_of_file_has_a_name(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        for path, says in (
            (tmp_path, "a folder; expected a regular file"),
            (Path("/dev/null"), DEVICE),
            (tmp_path / "s", "a socket; expected a regular file"),
            (tmp_path / "gone", "no such file"),
            (tmp_path / "a\0b", "not a file name"),
        ):
            with pytest.raises(OSError, match=says):
                check_regular(path)


def test_link_counts_as_its_target(tmp_path: Path, pipe: Path) -> None:
    (tmp_path / "model").symlink_to(builtin("f32", tmp_path))
    (tmp_path / "waits").symlink_to(pipe)
    check_regular(tmp_path / "model")
    with pytest.raises(OSError, match="a pipe"):
        check_regular(tmp_path / "waits")


def test_device_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out")
    with pytest.raises(OSError, match="a pipe"):
        write_gguf(tmp_path / "out", {})
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
