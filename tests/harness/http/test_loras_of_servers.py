"""LoRA files that a server has loaded. Each request states the scales with which the server adds
them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.harness.check.check import BadInput
from lockstep.harness.http.llama_server import scales_of
from lockstep.harness.http.served import ServedSession, without_loras
from lockstep.harness.records import EXACT, LORA, AdapterFile, Verdict
from lockstep.harness.synth.adapters import LoraRecipe, write_lora
from tests.fake_server import NATIVE, OPENAI, Honest, serving
from tests.harness.check.test_check import plan_for, verdicts_of


@pytest.fixture(scope="module")
def loras(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("loras")
    paths = [folder / "a.gguf", folder / "b.gguf"]
    for seed, path in enumerate(paths):
        write_lora(LoraRecipe(seed=seed), model, path)
    return paths


def checked(model: Path, url: str, *adapters: AdapterFile) -> list[Verdict]:
    settings = replace(EXACT, adapters=adapters)
    suites = ("logprobs", "decode")
    return verdicts_of(plan_for(model, engine=url, suites=suites, n_steps=5, settings=settings))


def added(path: Path, scale: float) -> AdapterFile:
    return AdapterFile(kind=LORA, path=str(path), scale=scale)


@pytest.mark.parametrize("n_asked", [0, 1, 2])
def test_server_adds_the_requested_files(n_asked: int, model: Path, loras: list[Path]) -> None:
    """Ask a server that adds both files with scale 1 unless a request says otherwise."""
    asked = [added(loras[1], -0.7), added(loras[0], 0.4)][:n_asked]
    with serving(model, loras=loras) as url:
        assert {v.status for v in checked(model, url, *asked)} == {"agreed"}


@pytest.mark.parametrize("wrong", [(1.0, 1.0), (0.4, 0.0), (0.4, 0.7)])
def test_server_with_wrong_scales_diverges(
    wrong: Sequence[float], model: Path, loras: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Honest.engine_with
    monkeypatch.setattr(Honest, "engine_with", lambda server, _: honest(server, wrong))
    with serving(model, loras=loras) as url:
        found = checked(model, url, added(loras[0], 0.4), added(loras[1], -0.7))
    assert {v.status for v in found} == {"diverged"}


@pytest.mark.parametrize(
    ("pages", "n_loaded"), [(NATIVE, 1), (NATIVE - {"/lora-adapters"}, 2), (OPENAI, 2)]
)
def test_server_without_the_lora_file_is_not_compared(
    pages: frozenset[str], n_loaded: int, model: Path, loras: list[Path]
) -> None:
    with serving(model, pages=pages, loras=loras[:n_loaded]) as url, pytest.raises(BadInput):
        checked(model, url, added(loras[1], 1.0))


def test_files_of_one_name_are_distinguished_by_their_paths(tmp_path: Path) -> None:
    here, there = tmp_path / "a" / "x.gguf", tmp_path / "b" / "x.gguf"
    loaded = [str(there), str(here), "C:\\y.gguf"]
    said = scales_of([(here, 0.5), (there, 2.0), (Path("y.gguf"), 3.0)], loaded)
    assert [row["scale"] for row in said] == [2.0, 0.5, 3.0]
    with pytest.raises(Unsupported):
        scales_of([(here, 0.5), (here, 0.5), (here, 0.5)], loaded)


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("server -m {model} --lora {lora} --port {port}", "server -m {model} --port {port}"),
        ("server -m {model} --lora={lora} --port {port}", "server -m {model} --port {port}"),
        ("server {model} {port} {lora}", "server {model} {port}"),
        ("server {model} {port}", "server {model} {port}"),
    ],
)
def test_a_command_without_files_has_no_option_for_them(command: str, kept: str) -> None:
    assert without_loras(command.split()) == kept.split()


@pytest.mark.parametrize(
    ("option", "scale", "told"), [("", 1.0, False), ("{lora}", 1.0, True), ("{lora}", 0.5, False)]
)
def test_a_started_server_of_another_kind_adds_whole_files(
    option: str, scale: float, told: bool
) -> None:
    limits: dict[str, Any] = {"time_limit": 1.0, "memory_limit": None}
    session = ServedSession(f"serve:cat {{model}} {{port}} {option}", None, EXACT, **limits)
    assert session.starts_with([(Path("a.gguf"), scale)]) is told
