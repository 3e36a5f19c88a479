"""report.html matches report.jsonl, and escapes all text that does not come from Lockstep."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from lockstep.harness.records import Verdict
from lockstep.harness.report.jsonl import SCHEMA, ReportWriter, plain
from lockstep.harness.report.nodes import NodeRow, node_columns
from lockstep.harness.report.page.page import page_of, source
from lockstep.harness.report.page.verdicts import RowsOfRun
from lockstep.harness.report.page.write import write_page_of_run
from lockstep.harness.report.text import printable
from tests.pages import Page, rich_rows

HOSTILE = (
    "<script>document.title = 'taken'</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!-- <script>",
    "]]></style><svg onload=alert(1)>",
    '" onmouseover="alert(1)" \'',
    "{{ 7 * 7 }}{% raw %}",
    "\x1b[2J\x1b[31mred\x07",
    "\u202egnp.exe\u2066 \u200f",
    "line\u2028separator \x00 \udc80 \ud83d",
    "javascript:alert(1)",
)
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def drawn(rows: list[dict[str, Any]]) -> str:
    return page_of(RowsOfRun.of(json.loads(json.dumps(plain(rows)))))


def hostile(text: str) -> Page:
    return Page(drawn(rich_rows(lambda usual: f"{usual}{text}")))


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(drawn(rich_rows()))


def test_rows_of_the_page_tests_are_valid() -> None:
    validator = Draft202012Validator(json.loads(SCHEMA.read_text()))
    for row in json.loads(json.dumps(plain(rich_rows()))):
        validator.validate(row)


# --- it says what the report says -------------------------------------------------------------


def test_verdict_is_one_sentence_at_the_top(page: Page) -> None:
    assert page.tags.count("h1") == 1
    weight = "the first weight that differs is blk.0.attn_q.weight, row 23, column 3"
    op = "the first op that is wrong on its own inputs is Qcur-1"
    assert f"Diverged: 5 differences of 5 kinds; {weight}; {op}" in page.text


@pytest.mark.parametrize(
    "text",
    [
        "lockstep check m.gguf",  # the command that reproduces the verdict
        "nan, expected 0.5",  # size of the difference
        "3e-06",  # limit
        "64 products",  # reason of the limit
        "1e-07 at the input, 0.2 at the output, gain inf",
        "The first token that differs, at position 1",
        "3 ids expected, 2 given",
        "uint8[16]",  # field of a block
        "ubatch 0, equal split, 1 set",
        "2 of the first 3 cells in use, head at 1",
        "00000000 47 47 55 46",  # a minimal file in hexadecimal digits
        "a line",  # last words of an engine
    ],
)
def test_page_lists_the_differences(page: Page, text: str) -> None:
    assert text in page.text


def test_layer_data_has_every_node_with_the_reason_of_its_limit() -> None:
    found = re.search(r'id="nodes">(.*?)</script>', drawn(rich_rows()), re.DOTALL)
    assert found
    data = json.loads(found[1])
    assert data["nodes"] == 6
    trace = data["models"][0]
    assert [data["texts"][i] for i in trace["name"]] == ["norm", "Qcur", "result_output"]
    assert {data["texts"][i] for i in trace["reason"]} == {"64 products"}
    assert trace["layer"] == [0, 1, None]
    assert trace["wrong"] == [1]
    assert trace["found"] == {"0/1/Qcur": ["nan", 0.5, 3e-06]}


def test_nodes_of_many_verdicts_come_in_execution_order() -> None:
    rows = rich_rows()
    for order, op in ((1, "ADD"), (0, "MUL")):
        node = NodeRow(step=0, order=order, layer=0, name=op, op=op, share=0.1, error=0.1)
        detail = {"op": op, "by_node": node_columns([node])}
        rows.insert(1, {**rows[1], "suite": "shadow", "case": "two", "detail": detail})
    found = re.search(r'id="nodes">(.*?)</script>', drawn(rows), re.DOTALL)
    assert found
    data = json.loads(found[1])
    (model,) = (m for m in data["models"] if m["case"] == "two")
    assert [data["texts"][i] for i in model["op"]] == ["MUL", "ADD"]


def test_unfinished_run_does_not_look_like_agreement() -> None:
    rows = rich_rows()[:-1]
    agreed = [row for row in rows if row.get("status", "agreed") == "agreed"]
    text = Page(drawn(agreed)).text
    assert "Not finished: the run was stopped" in text
    assert "Conform" not in text


@pytest.mark.parametrize(
    ("code", "word"), [(0, "Conform"), (2, "Internal error"), (3, "Incomplete")]
)
def test_each_exit_code_has_its_sentence(code: int, word: str) -> None:
    rows = rich_rows()
    rows[-1]["exit_code"] = code
    (heading,) = re.findall(r"<h1[^>]*>(.*?)</h1>", drawn(rows))
    assert heading.startswith(word)


def test_malformed_detail_is_named_and_the_page_is_drawn() -> None:
    rows = rich_rows()
    for row in rows[1:-1]:
        for key in ("by_position", "sides", "decoded", "schedule", "answers"):
            if key in row["detail"]:
                row["detail"][key] = ["another", "form"]
    text = Page(drawn(rows)).text
    assert "This page cannot draw the chart of this verdict" in text
    assert "This page cannot draw the schedule of this verdict" in text


# --- nothing on it runs, or comes from elsewhere ------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_adds_no_element_and_no_attribute(page: Page, text: str) -> None:
    found = hostile(text)
    assert found.open == []
    assert found.tags == page.tags
    names = [sorted(attributes) for _, attributes in found.elements]
    assert names == [sorted(attributes) for _, attributes in page.elements]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_without_control_characters(text: str) -> None:
    raw = drawn(rich_rows(lambda usual: f"{usual}{text}"))
    raw.encode("utf-8")  # lone surrogates are escaped
    assert not CONTROLS.search(raw)
    assert " ".join(printable(text).split()) in Page(raw).text


def test_bidirectional_characters_are_written_as_escapes() -> None:
    assert r"\u202egnp.exe" in hostile("\u202egnp.exe").text


def test_megabyte_is_cut_and_shows_its_length() -> None:
    raw = drawn(rich_rows(lambda usual: usual + "x" * 1_000_000))
    assert len(raw) < 1_000_000
    assert "characters)" in raw
    assert re.search(r"cut: 1,000,\d\d\d characters", raw)


def test_policy_allows_only_the_parts_in_the_file(page: Page) -> None:
    (policy,) = (m["content"] for m in page.all("meta") if m.get("http-equiv"))
    raw = drawn(rich_rows())
    parts = [re.findall(rf"<{tag}>(.*?)</{tag}>", raw, re.DOTALL) for tag in ("style", "script")]
    (style,), (script,) = parts
    hashes = [b64encode(sha256(part.encode()).digest()).decode() for part in (style, script)]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_page_loads_nothing_from_elsewhere(page: Page) -> None:
    assert not {"img", "link", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    attributes = [pair for _, found in page.elements for pair in found.items()]
    links = [value for name, value in attributes if name in ("href", "src", "action")]
    assert links
    assert all(link and link.startswith("#") for link in links)
    assert not any(name.startswith("on") or name == "style" for name, _ in attributes)


# --- it can be read by everybody ---------------------------------------------------------------


def test_heading_levels_increase_by_one(page: Page) -> None:
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_tables_name_columns_and_charts_have_titles(page: Page) -> None:
    assert all(th.get("scope") in ("row", "col") for th in page.all("th"))
    assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in page.all("svg"))
    assert all(box.get("aria-label") for box in page.all("div") if box.get("role") == "region")


def test_every_link_leads_to_a_place_on_the_page(page: Page) -> None:
    places = {found.get("id") for _, found in page.elements}
    assert {(a["href"] or "")[1:] for a in page.all("a")} <= places


def test_places_have_unique_names(page: Page) -> None:
    names = [found["id"] for _, found in page.elements if "id" in found]
    assert len(names) == len(set(names))


# --- every run has one, and many models are light ------------------------------------------------


def test_run_writes_its_page_next_to_its_report(tmp_path: Path) -> None:
    writer = ReportWriter(
        tmp_path / "run", {k: v for k, v in rich_rows()[0].items() if k != "kind"}
    )
    writer.verdict(Verdict(suite="logits", case="m.gguf", status="agreed", summary="all agree"))
    writer.footer(0, 1.0)
    text = Page.at(tmp_path / "run" / "report.html").text
    assert "Conform: 1 comparison of 1 model agree" in text


def test_defect_of_the_page_is_shown_and_the_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: RowsOfRun) -> str:
        raise KeyError("a defect")

    path = tmp_path / "report.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rich_rows()))
    monkeypatch.setattr("lockstep.harness.report.page.write.page_of", broken)
    text = Page.at(write_page_of_run(path)).text
    assert "Lockstep could not draw this page. Please report this defect." in text
    assert "KeyError: 'a defect'" in text


def test_fifty_thousand_nodes_stay_below_five_megabytes() -> None:
    rows = rich_rows()
    one = [
        NodeRow(
            step=i // 100,
            order=i % 100,
            layer=i % 8,
            name=f"node_{i % 40}",
            op=f"OP_{i % 12}",
            share=0.123 + i / 1e4,
            error=1.23e-7,
            worst=(0, 0, 11, 63),
            reason=f"{i % 20} products summed in float32, 11 roundings",
        )
        for i in range(315)
    ]
    detail = {"by_node": node_columns(one)}
    usual = {**rows[1], "suite": "shadow", "status": "agreed", "detail": detail}
    rows[1:-1] = [{**usual, "case": f"synth:{i}"} for i in range(159)]
    page = drawn(rows)
    assert len(page) < 5_000_000
    assert page.count("data-model=") == 159


def test_page_draws_charts_of_runs_nearest_to_their_limit() -> None:
    rows = rich_rows()
    usual = next(row for row in rows[1:] if (row["suite"], row["status"]) == ("logits", "agreed"))
    near = {"allowed_relative": 1.0}
    rows[1:-1] = [
        {**usual, "case": f"m{i}", "detail": {**usual["detail"], **near} | worst_logit(i / 200)}
        for i in range(150)
    ]
    page = drawn(rows)
    assert page.count('<figure class="chart">') == 100
    text = Page(page).text
    assert "Of 150 runs that agree the 100 nearest to their limit are drawn." in text
    assert "m49 logits" not in text
    assert "m50 logits" in text


def worst_logit(share: float) -> dict[str, float]:
    return {"worst_relative_to_largest_logit": share}


def test_undrawn_nodes_are_folded_with_a_note() -> None:
    rows = rich_rows()
    many = [
        NodeRow(step=i, order=0, layer=0, name="norm", op="MUL", share=i / 1e6, error=1e-7)
        for i in range(60_001)
    ]
    rows[1]["detail"] = {"by_node": node_columns(many)}
    page = drawn(rows)
    assert len(page) < 1_000_000
    assert "for each name in a layer only the worst step is drawn" in Page(page).text


def test_finding_of_the_weights_fuzzer_shows_its_block_and_place() -> None:
    rows = rich_rows()
    raw = "003c" + "00" * 31 + "80"
    rows[1] |= {"suite": "fuzz-quants", "case": "Q8_0"}
    rows[1]["detail"] = {"type": "Q8_0", "block": raw, "original": "11" * 34, "blocks": 20_000}
    text = Page(drawn(rows)).text
    assert "A block of Q8_0, 34 bytes, the smallest block" in text
    assert "as found" in text
    assert "cannot draw" not in text


# --- colours -------------------------------------------------------------------------------------

ON = {
    "paper": ("ink", "quiet", "bad", "good", "odd", "link"),
    "tint": ("ink", "quiet", "bad", "good"),
    "badpaper": ("ink", "bad"),
    "oddpaper": ("odd",),
    "h0": ("quiet",),
    **{f"h{i}": ("dark",) for i in range(1, 6)},
    **{f"h{i}": ("light",) for i in (6, 7)},
    "other": ("otherink",),
    "bad": ("light",),
}


def palettes() -> list[dict[str, str]]:
    """Return the palettes of the style's :root blocks: the light one, and the dark one with its
    changes."""
    style = source("page.css")
    blocks = re.findall(r":root \{([^}]*)\}", style)
    light, dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]+);", block)) for block in blocks[:2])
    return [light, light | dark]


def luminance(colour: str) -> float:
    """Return the luminance of a colour by WCAG."""
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    parts = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme: str) -> None:
    palette = palettes()[scheme == "dark"]
    for back, front in ((back, front) for back, fronts in ON.items() for front in fronts):
        low, high = sorted(luminance(palette[name]) for name in (back, front))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (back, front)
