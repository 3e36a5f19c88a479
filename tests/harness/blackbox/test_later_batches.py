"""Where only batches behind the first are wrong, the place is the same and the mistake is not."""

from pathlib import Path

import pytest

from lockstep.harness.blackbox.naming import MASK, ROTATION
from tests.black_boxes import bisected, faults
from tests.models import builtin

LATER = "with all tokens in one batch: of batches behind the first it is wrong"


@pytest.mark.parametrize(
    ("mistake", "part", "later"),
    [
        ("rope-later-batches-late", ROTATION, True),
        ("rope-half-split", ROTATION, False),
        ("cache-batch-sees-itself-alone", MASK, True),
    ],
)
def test_where_one_batch_agrees_it_is_said_that_later_ones_are_wrong(
    mistake: str, part: str, later: bool, tmp_path: Path
) -> None:
    path = builtin("f32", tmp_path)
    found = bisected(path, tmp_path / "made", engine=f"mutant:{mistake}")
    assert faults(found) == {layer: [f"attention: {part}"] for layer in (0, 1)}
    for row in found.guilty:
        assert (LATER in row.parts[0].words) is later
