"""Contents of an installed package: pyproject.toml lists every data file of a package."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.places import LOCKSTEP, ROOT, package_files


@pytest.fixture
def settings() -> dict[str, Any]:
    path = ROOT / "pyproject.toml"
    if not path.is_file():
        pytest.skip("no checkout: pyproject.toml was not compared with the files of the packages")
    tools: dict[str, Any] = tomllib.loads(path.read_text())["tool"]
    return tools


def packaged(patterns: dict[str, list[str]]) -> set[Path]:
    found = set()
    for package, names in patterns.items():
        folder = LOCKSTEP.parent / package.replace(".", "/")
        for name in names:
            matching = {path for path in folder.glob(name) if path.is_file()}
            assert matching, f"{package} has no {name}"
            found |= matching
    return found


def test_wheel_contains_every_data_file_of_a_package(
    settings: dict[str, Any],
) -> None:
    data = packaged(settings["setuptools"]["package-data"])
    there = set(package_files("*"))
    compiled = {path for path in there if "__pycache__" in path.parts}
    sources = {path for path in there if path.suffix == ".py"}
    assert there - compiled - sources - data == set()
