"""JUnit, CTRF, Markdown, annotations and badges are valid, true, and safe to view."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import xmlschema
from jsonschema import Draft7Validator
from markdown_it import MarkdownIt

from lockstep.harness.exit_codes import exit_code_of_run
from lockstep.harness.records import EXACT, EngineInfo, Verdict
from lockstep.harness.report.formats import FORMATS, write_format
from lockstep.harness.report.formats.annotations import annotations
from lockstep.harness.report.formats.ctrf import STATUSES
from lockstep.harness.report.formats.results import LONGEST, read_results
from lockstep.harness.report.header import header
from lockstep.harness.report.jsonl import BrokenReport, ReportWriter

SCHEMAS = Path(__file__).parents[2] / "schemas"
JUNIT = xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd")
CTRF = Draft7Validator(json.loads((SCHEMAS / "ctrf-schema-0.0.json").read_text()))


def verdict(status: Any = "agreed", **changes: Any) -> Verdict:
    known: dict[str, Any] = {"suite": "dequant", "case": "m.gguf", "summary": "as it is"}
    return Verdict(**(known | {"status": status} | changes))


HOSTILE = (
    "</testcase></testsuite><script>alert(1)</script>",
    "]]><!-- <![CDATA[ &amp; &#0; \" '",
    "\x00\x01\x08\x0b\x1f\x7f\ufffe\uffff\ud800 \x1b[31mred\x1b[0m\x9b1m",
    "\u202egnp.exe\u2066\u200f\u2028",
    "x\n::error::injected\r::warning title=a,b::c%0A::stop-commands::x",
    "##[error]injected ##vso[task.complete result=Succeeded] ##[stop-commands]x",
    "a | b || c \\| d | ` | `` | ``` | ~~~",
    "```\n</code></pre><img src=x onerror=alert(1)>\n```",
    "![i](http://example.org/x.png) [l](javascript:alert(1)) <http://example.org> www.example.org",
    "@someone #1 **bold** _it_ ~~s~~ :tada: <details> <!-- -->",
    " `leading and trailing` ",
    "- [ ] x",
    "m" * 1_000_000,
)
ONE_OF_EACH = (
    verdict(summary="F32: 3 weights agree"),
    verdict("diverged", key="dequant/F32", repro="lockstep check m.gguf"),
    verdict("excused", summary="a tie within the noise"),
    verdict("not-compared", summary="it shows no tensors"),
    verdict("not-applicable", summary="the file has no vocabulary"),
    verdict("crashed", detail={"log": ["its last words"]}),
    verdict("timed-out", summary="no answer in 300 s"),
    verdict("malformed", summary="a shape of (2, 3), expected (3, 2)"),
    verdict("internal", detail={"traceback": "Traceback"}),
)


def run_of(folder: Path, *verdicts: Verdict, finished: bool = True, **footer: Any) -> Path:
    engines = [EngineInfo(engine="mine", version="1", settings=EXACT)]
    writer = ReportWriter(folder, header("lockstep check m.gguf", 7, [], engines))
    for each in verdicts:
        writer.verdict(each)
    if finished:
        writer.footer(exit_code_of_run(verdicts), 1.25, **footer)
    else:
        writer.close()
    return folder


def hostile_run(folder: Path) -> Path:
    """Write a report in which every text of every verdict tries to inject markup or commands."""
    found = [
        Verdict(
            suite=f"{text} {n}"[:300],
            case=text,
            status=status,
            summary=text,
            detail={"log": [text], "reason": text, "tensor": text},
            key=f"{text} {n}",
            repro=f"lockstep check {text}",
            about=text,
        )
        for n, text in enumerate(HOSTILE)
        for status in ("agreed", "diverged", "excused", "not-compared")
    ]
    return run_of(folder, *found)


def junit_of(folder: Path) -> ElementTree.Element:
    text = write_format(folder, "junit").read_text(encoding="utf-8")
    JUNIT.validate(text)
    return ElementTree.fromstring(text)


def ctrf_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(write_format(folder, "ctrf").read_text())
    CTRF.validate(document)
    return document


def test_junit_shows_each_status(tmp_path: Path) -> None:
    root = junit_of(run_of(tmp_path / "run", *ONE_OF_EACH))
    ends = [[child.tag for child in case] for case in root.iter("testcase")]
    assert ends == [[], ["failure"], ["skipped"], ["error"], ["skipped"], *[["error"]] * 4]
    assert [root.get(k) for k in ("tests", "failures", "errors")] == ["9", "1", "5"]
    (skipped,) = (e for e in root.iter("skipped") if e.get("type") == "excused")
    assert skipped.get("message") == "excused: a tie within the noise"
    (failure,) = root.iter("failure")
    assert failure.get("type") == "dequant/F32"
    assert "again: lockstep check m.gguf" in str(failure.text)


def test_ctrf_shows_each_status(tmp_path: Path) -> None:
    results = ctrf_of(run_of(tmp_path / "run", *ONE_OF_EACH))["results"]
    assert [test["status"] for test in results["tests"]] == [
        *("passed", "failed", "skipped", "other", "skipped"),
        *("failed", "failed", "failed", "failed"),
    ]
    assert [test["rawStatus"] for test in results["tests"]] == [v.status for v in ONE_OF_EACH]
    counts = {status: results["summary"][status] for status in STATUSES}
    assert counts == {"passed": 1, "failed": 5, "skipped": 2, "pending": 0, "other": 1}
    assert results["summary"]["tests"] == sum(counts.values())


@pytest.mark.parametrize("status", ["excused", "not-compared", "not-applicable", "malformed"])
def test_only_agreement_passes(tmp_path: Path, status: Any) -> None:
    folder = run_of(tmp_path / "run", verdict(status))
    assert all(len(case) for case in junit_of(folder).iter("testcase"))
    assert ctrf_of(folder)["results"]["summary"]["passed"] == 0
    assert json.loads(write_format(folder, "badge").read_text())["color"] != "brightgreen"
    assert " ok" not in write_format(folder, "markdown").read_text()


@pytest.mark.parametrize("found", ONE_OF_EACH, ids=lambda v: v.status)
def test_junit_fails_if_and_only_if_the_exit_code_is_not_0(tmp_path: Path, found: Verdict) -> None:
    folder = run_of(tmp_path / "run", verdict(), found)
    root = junit_of(folder)
    red = int(root.get("failures", "0")) + int(root.get("errors", "0"))
    assert (red > 0) is (read_results(folder).exit_code != 0)


def test_run_without_comparisons_fails_with_the_reason(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", verdict("not-applicable"))
    (error,) = junit_of(folder).iter("error")
    assert "nothing was compared for a model or for the engine under test (exit code 3)" in str(
        error.get("message")
    )


def test_unfinished_run_passes_in_no_format(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", verdict(), verdict(), finished=False)
    (error,) = junit_of(folder).iter("error")
    assert "did not finish" in str(error.get("message"))
    assert ctrf_of(folder)["results"]["summary"]["failed"] == 1
    assert json.loads(write_format(folder, "badge").read_text())["message"] == "unfinished"
    assert "DID NOT FINISH" in write_format(folder, "markdown").read_text()


def test_truncated_line_is_not_a_verdict(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", verdict(), verdict(), finished=False)
    path = folder / "report.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert len(junit_of(folder).findall("testsuite/testcase")) == 1 + 1


def test_report_with_a_wrong_footer_is_refused(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", verdict("diverged", key="k", repro="r"))
    path = folder / "report.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[2]]))
    with pytest.raises(BrokenReport, match="counts 1 verdicts, there are 0"):
        write_format(folder, "junit")


def test_names_are_unique_and_the_same_in_the_next_run(tmp_path: Path) -> None:
    place = {"site": "Qcur_rope", "layer": 1, "step": 2}
    found = [
        verdict("diverged", key="k", repro="r", detail=place, summary="12 of 20 elements off"),
        verdict(detail={"op": "MUL_MAT"}, summary="57 nodes agree", about="llama.cpp"),
        verdict(detail={"part": "encode (no flags)"}),
        verdict(detail={"part": "encode (no flags)"}),
        verdict(summary="34 positions: worst 2.3e-07 of the largest logit"),
    ]
    root = junit_of(run_of(tmp_path / "run", *found))
    assert [case.get("name") for case in root.iter("testcase")] == [
        "Qcur_rope-1 (step 2)",
        "MUL_MAT of llama.cpp",
        "encode (no flags)",
        "encode (no flags) (2)",
        "dequant",
    ]


def test_hostile_texts_are_valid_xml_and_end_no_element(tmp_path: Path) -> None:
    root = junit_of(hostile_run(tmp_path / "run"))
    cases = list(root.iter("testcase"))
    assert len(cases) == 4 * len(HOSTILE)
    assert {e.tag for case in cases for e in case} == {"failure", "skipped", "error"}
    texts = [t for e in root.iter() for t in (e.text or "", *e.attrib.values())]
    assert all(c.isprintable() or c == "\n" for text in texts for c in text)
    assert any("<script>alert(1)</script>" in text for text in texts)  # shown as plain text
    assert max(map(len, texts)) < 2 * LONGEST


def test_hostile_texts_are_valid_ctrf_without_control_characters(tmp_path: Path) -> None:
    folder = hostile_run(tmp_path / "run")
    tests = ctrf_of(folder)["results"]["tests"]
    assert len(tests) == 4 * len(HOSTILE)
    texts = [text for test in tests for text in (test["name"], test["message"], *test["suite"])]
    texts += [test.get("trace", "") for test in tests]
    assert all(c.isprintable() or c == "\n" for text in texts for c in text)


def test_hostile_texts_are_escaped_in_the_summary(tmp_path: Path) -> None:
    text = write_format(hostile_run(tmp_path / "run"), "markdown").read_text()
    assert len(text) < 1 << 20  # GitHub shows nothing of a longer text
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    inner = [child for token in tokens for child in token.children or ()]
    kinds = {token.type for token in [*tokens, *inner]}
    allowed = r"(heading|paragraph|table|thead|tbody|tr|th|td|bullet_list|list_item)_(open|close)"
    others = {k for k in kinds if not re.fullmatch(allowed, k)}
    assert others <= {"inline", "text", "text_special", "code_inline", "fence", "softbreak"}
    rows = [t for t in tokens if t.type == "tr_open"]
    assert len([t for t in tokens if t.type in ("td_open", "th_open")]) == len(rows) * 6
    read = "".join(t.content for t in inner if t.type.startswith("text"))
    assert "<img src=x onerror=alert(1)>" in read or "<details>" in read  # shown as plain text
    outside = re.sub(r"(?s)(`{3,})text\n.*?\n\1|(`+).*?\2", "", text)
    assert not re.search(r"://|www\.|@\w", outside)  # GitHub turns these into links


def test_hostile_texts_cannot_add_commands(tmp_path: Path) -> None:
    lines = list(annotations(read_results(hostile_run(tmp_path / "run"))))
    assert len(lines) == 20
    for line in lines:
        assert re.fullmatch(r"::(error|warning) title=[^:,\r\n]*::[^\r\n]*", line)
        assert line.isprintable()
    assert "causes are in the report" in lines[-1]


def test_texts_inside_lines_are_not_ci_commands(tmp_path: Path) -> None:
    folder = hostile_run(tmp_path / "run")
    for name in FORMATS:
        assert not re.search(r"##\w*\[", write_format(folder, name).read_text())


def test_summary_names_the_next_command(tmp_path: Path) -> None:
    command = "lockstep bisect m.gguf --engine ./mine"
    folder = run_of(tmp_path / "run", verdict("diverged", key="k", repro="again"), next=[command])
    assert read_results(folder).next == (command,)
    assert command in write_format(folder, "markdown").read_text()


def test_divergences_of_one_cause_are_one_annotation(tmp_path: Path) -> None:
    same = [verdict("diverged", key="k", repro="r", detail={"tensor": f"t{n}"}) for n in range(30)]
    run = read_results(run_of(tmp_path / "run", *same, verdict("not-compared")))
    error, warning = annotations(run)
    assert error.startswith("::error title=Lockstep%3A m.gguf dequant t0::")
    assert error.endswith("(and 29 more like it)")
    assert warning.startswith("::warning ")


@pytest.mark.parametrize(
    ("found", "message", "color"),
    [
        ([verdict(), verdict()], "2 agree", "brightgreen"),
        ([verdict(), verdict("diverged", key="k", repro="r")], "1 diverged", "red"),
        ([verdict(), verdict("internal")], "internal error", "red"),
        ([verdict(), verdict("not-compared")], "incomplete: 1 not compared", "orange"),
    ],
)
def test_badge_shows_the_result_of_the_run(
    tmp_path: Path, found: list[Verdict], message: str, color: str
) -> None:
    document = json.loads(write_format(run_of(tmp_path / "run", *found), "badge").read_text())
    assert document == {
        "schemaVersion": 1,
        "label": "lockstep",
        "message": message,
        "color": color,
        "isError": color != "brightgreen",
    }


def test_summary_of_many_models_and_causes_is_short_and_counts_the_rest(
    tmp_path: Path,
) -> None:
    found = [
        verdict("diverged", case=f"m{n}.gguf", key=f"k{n}", repro="r", summary="x" * 5000)
        for n in range(400)
    ]
    text = write_format(run_of(tmp_path / "run", *found), "markdown").read_text()
    assert len(text) < 1 << 20
    assert "200 more rows are in the report" in text
    assert "380 more causes are in the report" in text


def test_schema_rejects_a_wrong_junit_file() -> None:
    """The other tests rely on this schema, so it must be able to fail."""
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        JUNIT.validate('<testsuites><testsuite name="m"><testcase/></testsuite></testsuites>')
    assert not CTRF.is_valid({"reportFormat": "CTRF", "specVersion": "0.0.0", "results": {}})
