"""The tables of README.md and reports/TRUST.md match the stored results for the current engines."""

import pytest

from lockstep.harness.catalogue.rates import BEGIN, END, PAGES, read, with_tables, write_rates
from lockstep.harness.catalogue.run import honest_engines, wrong_engines
from lockstep.harness.catalogue.trial import Trial
from tests.places import ROOT

AGAIN = "run what is at the head of tests/scripts/make_rates.py"


@pytest.fixture(scope="module")
def found() -> list[Trial]:
    return read((ROOT / "tests" / "catalogue_rates.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_tables_match_the_rates(page: str, found: list[Trial]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == with_tables(page, text, found), AGAIN
    assert text.split(BEGIN)[1].split(END)[0].count("|") > 20


def test_every_engine_has_been_run(found: list[Trial]) -> None:
    there = {cls.name for cls in (*wrong_engines(), *honest_engines())}
    assert {trial.engine for trial in found} == there, AGAIN


@pytest.mark.parametrize("page", PAGES)
def test_rate_that_was_edited_by_hand_is_noticed(page: str, found: list[Trial]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    found = read(write_rates(found))
    wrong = [trial for trial in found if not trial.honest]
    wrong[0].views["tensors"].__dict__["caught"] = not wrong[0].views["tensors"].caught
    assert text != with_tables(page, text, found)


def test_rates_survive_a_round_trip(found: list[Trial]) -> None:
    assert write_rates(read(write_rates(found))) == write_rates(found)
