"""`golden regen` and `golden verify` on the command line: their folders and exit codes."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.golden import generate, of_user
from lockstep.golden.store import DEFAULT_ROOT
from lockstep.harness.cli import app
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.golden.folders import STORIES, copied, needs_stories

Written = list[tuple[str, Path]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Written:
    """Record calls that write goldens, with model, folder and oracle; the command runs in an empty
    folder."""
    found: Written = []

    def ours(root: Path, *_: Any, **__: Any) -> list[Path]:
        found.append(("ours", root))
        return []

    def users(root: Path, *_: Any, **__: Any) -> list[Path]:
        found.append(("a user's", root))
        return []

    monkeypatch.setattr(generate, "regenerate", ours)
    monkeypatch.setattr(of_user, "regenerate_user", users)
    monkeypatch.chdir(tmp_path)
    return found


def called(*args: object) -> int:
    with pytest.raises(SystemExit) as end:
        app(["golden", *map(str, args), "-q"])
    assert isinstance(end.value.code, int)
    return end.value.code


def mine(folder: Path) -> Path:
    path = folder / "mine.gguf"
    write_llama(LlamaRecipe(seed=3, n_layer=1), path)
    return path


def test_vectors_of_a_users_model_are_written_to_the_users_folder(
    written: Written, tmp_path: Path
) -> None:
    assert called("regen", mine(tmp_path)) == 0
    assert called("regen", mine(tmp_path), "--out", "there", "--node", "l_out-0") == 0
    assert written == [("a user's", Path("goldens")), ("a user's", Path("there"))]


def test_shipped_vectors_are_written_in_their_place(written: Written) -> None:
    assert called("regen") == 0
    assert written == [("ours", DEFAULT_ROOT)]


@needs_stories
def test_model_with_shipped_vectors_is_refreshed_there_without_a_folder(
    written: Written,
) -> None:
    assert called("regen", STORIES) == 0
    assert called("regen", STORIES, "--out", "there") == 0
    assert written == [("ours", DEFAULT_ROOT), ("a user's", Path("there"))]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("regen", "--node", "l_out-0"), "--node and --out are for your own models"),
        (("regen", "--out", "there"), "--out needs models"),
        (("regen", "mnie.gguf"), "mnie.gguf: no such file (known: mine.gguf)"),
        (("verify", "nowhere"), "nowhere holds no golden vectors"),
        (("verify", "."), ". holds no golden vectors"),  # a folder of models without an error
    ],
)
def test_impossible_command_is_refused_and_writes_nothing(
    args: tuple[str, ...],
    says: str,
    written: Written,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    mine(tmp_path)
    assert called(*args) != 0
    ending = capfd.readouterr()
    assert says in ending.out + ending.err
    assert written == []


def test_misspelt_engine_or_vector_is_a_usage_error_with_near_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = copied(tmp_path)
    assert called("verify", root, "--engine", "refernce", "--only", "dequant/q8_0") == 2
    assert "(near: reference" in capfd.readouterr().err
    assert called("verify", root, "--engine", "reference", "--only", "dequant/q80") == 2
    assert "dequant/q8_0" in capfd.readouterr().err
    assert called("verify", root, "--engine", "reference", "--only", "dequant/q8_0") == 0
