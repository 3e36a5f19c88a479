"""Of a model that is too large in F32 it is said what nobody looked for."""

from pathlib import Path

import pytest

from lockstep.harness.blackbox import whole
from lockstep.harness.blackbox.places import TOO_LARGE, see_in_place
from lockstep.harness.cli.blackbox import lines_of
from tests.black_boxes import asker_of, bisected
from tests.models import written


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "LARGEST_TWIN", 1)


@pytest.mark.usefixtures("small_room")
def test_who_agrees_is_said_not_to_have_been_asked_about_layers_by_their_numbers(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, n_layer=2)
    found = bisected(path, tmp_path / "made")
    assert not found.in_f32
    said = list(lines_of(asker_of(path, tmp_path / "made").plan, found))
    assert f"not asked: {TOO_LARGE}" in said
    assert "by its number" in TOO_LARGE


def test_of_a_small_one_nothing_is_left_out_for_its_size(tmp_path: Path) -> None:
    asker = asker_of(written(tmp_path, n_layer=2), tmp_path / "made")
    try:
        assert see_in_place(asker)[1] != TOO_LARGE
    finally:
        asker.close()
