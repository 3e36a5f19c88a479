"""Wrong conversions are found, and only the wrong keys, tensors and tokens are named."""

import copy
from functools import cache
from pathlib import Path

import pytest

from lockstep.harness.originals.compare import compare_original
from tests.harness.originals.checkpoints import write_checkpoint
from tests.harness.originals.conversions import Conversion, convert
from tests.harness.originals.wrong_conversions import WRONG, WrongConversion


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@cache
def honest(folder: Path, arch: str, stored: str, kind: str) -> tuple[Path, Conversion]:
    """Return the folder of a checkpoint, and its honest conversion."""
    place = folder / f"{arch}-{stored}"
    values = write_checkpoint(place, arch, stored)
    return place, convert(arch, values, kind)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda row: f"{row.arch}-{row.name}")
def test_wrong_conversion_is_named(wrong: WrongConversion, folder: Path, tmp_path: Path) -> None:
    place, conversion = honest(folder, wrong.arch, wrong.stored, wrong.kind)
    changed = copy.deepcopy(conversion)
    wrong.change(changed)
    found = compare_original(place, changed.write(tmp_path / "wrong.gguf"))
    differences = [each for part in found.parts for each in part.differences]
    assert found.exit_code == 1
    assert {each.place for each in differences} == set(wrong.places)
    if wrong.how is not None:
        assert {each.kind for each in differences} == {wrong.how}
    assert differences[0].detail | wrong.detail == differences[0].detail
