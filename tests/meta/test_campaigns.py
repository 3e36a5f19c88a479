"""The list of tests that only `make test-all` runs names existing tests."""

import pytest

from tests.campaigns import CAMPAIGNS, campaign_of
from tests.meta.test_house import ROOT


@pytest.mark.parametrize("row", CAMPAIGNS)
def test_campaigns_name_existing_tests(row: str) -> None:
    path, _, name = row.partition("::")
    source = (ROOT / "tests" / path).read_text()
    assert f"def {name}(" in source if name else "def test_" in source


def test_test_belongs_only_to_its_own_row() -> None:
    for row in CAMPAIGNS:
        assert campaign_of(f"tests/{row}") == row
    assert campaign_of("tests/meta/test_campaigns.py::test_any") == ""
