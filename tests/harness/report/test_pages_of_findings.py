"""Pages of weights, black boxes and diagnoses: the headline names the finding."""

import re
from typing import Any

import pytest

from lockstep.harness.report.page.hexdump import values_of
from tests.harness.report.test_page import drawn
from tests.pages import Page, rich_rows


def of_black_box(tokens: bool) -> list[dict[str, Any]]:
    """Return rows of a black-box run: one wrong head in each of three layers, and the whole
    model."""
    part = {"name": "attention: head 5", "words": "7 other heads agree", "asked_as": ""}
    size = {"worst": 0.0, "allowed": 0.0} if tokens else {"worst": 0.3, "allowed": 1e-5}
    rows = rich_rows()
    slices = [
        rows[1]
        | {"suite": "black-box", "status": "diverged", "key": f"black-box/layer {i}/head"}
        | {"detail": {"where": f"layer {i}", "layer": i, "what": "", **size, "parts": [part]}}
        for i in range(3)
    ]
    fine = slices[0] | {"status": "agreed", "key": ""}
    fine["detail"] = {**slices[0]["detail"], "where": "outside the layers", "parts": []}
    whole = slices[0] | {"key": "black-box/the whole model/"}
    whole["detail"] = {"where": "the whole model", **size}
    return [rows[0], fine, *slices, whole, rows[-1]]


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "logits"])
def test_black_box_page_names_the_part_once_and_shows_every_slice(tokens: bool) -> None:
    page = Page(drawn(of_black_box(tokens)))
    first = "the first is layer 0: attention: head 5 in black-box"
    assert f"Diverged: 4 differences of 2 kinds; {first}." in page.text
    (table,) = re.findall("Slices Each slice is.*?Suites", page.text)
    assert table.count("attention: head 5") == 3
    assert "outside the layers ok" in table
    assert "why so much" not in page.text
    assert "Allowed 0" not in page.text


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("named", "rope on half-split pairs or one of 1 more"),
        ("few", "too few answers differ to name a mistake"),
        ("none", "none of 377 known mistakes"),
    ],
)
def test_headline_of_a_diagnosis_states_its_result(status: str, said: str) -> None:
    header, row, *_, footer = rich_rows()
    match = {"engine": "mutant:a", "mistake": "rope on half-split pairs"}
    named = [] if status == "none" else [match, match]
    row |= {"suite": "diagnose", "status": "diverged"}
    row["detail"] = {"where": "runs", "aspect": "runs", "status": status, "named": named}
    row["detail"]["tried"] = 377
    assert f"the first is its runs: {said}." in Page(drawn([header, row, footer])).text


def test_key_of_a_chart_has_every_color_of_its_bars() -> None:
    page = Page(drawn(rich_rows()))
    assert "beyond the limit" in page.text
    assert any(e.get("class") == "key over-key" for e in page.all("span"))


def test_page_marks_the_bytes_that_differ_between_two_blocks() -> None:
    rows = rich_rows()
    one = {"type": "Q4_0", "hex": "003c" + "80" * 16, "weight": 20, "values": [0.0] * 32}
    other = {**one, "hex": "003c" + "80" * 4 + "5f" + "80" * 11}
    rows[1]["detail"] = {"decoded": {"oracle": one, "subject": other}}
    marked = re.findall("<mark>(..)</mark>", drawn(rows))
    assert marked == ["80", "5f"]


def test_page_shows_the_weights_around_the_wrong_one() -> None:
    values = [float(i) for i in range(256)]
    one = {"type": "Q4_K", "hex": "00" * 144, "weight": 82, "values": values}
    other = {**one, "values": [*values[:82], -1.0, *values[83:]]}
    found = values_of({"oracle": one, "subject": other})
    assert [v["at"] for v in found] == [*range(78, 87)]
    assert [v["at"] for v in found if v["differs"]] == [82]
