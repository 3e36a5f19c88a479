"""`lockstep report diff` lists new, resolved and changed differences. If any difference has become
worse, the exit code is 1."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.cli import app
from lockstep.harness.report.changes import Changes, changes_between
from lockstep.harness.report.jsonl import plain
from lockstep.harness.report.nodes import NodeRow, node_columns
from lockstep.harness.report.page.verdicts import RowsOfRun
from tests.pages import Page, rich_rows

Rows = list[dict[str, Any]]
UNFINISHED = ("crashed", "timed-out", "malformed", "internal")


def verdict(
    suite: str, status: str = "agreed", case: str = "m.gguf", **more: Any
) -> dict[str, Any]:
    usual = {"kind": "verdict", "suite": suite, "case": case, "status": status}
    usual |= {"summary": f"{suite} {status}", "detail": {}, "key": "", "repro": ""}
    if status == "diverged":
        usual |= {"key": f"{suite}/value", "repro": "lockstep check m.gguf"}
    return {**usual, "about": "both", **more}


def run(*verdicts: dict[str, Any], finished: bool = True, **header: Any) -> Rows:
    rows = [{**rich_rows()[0], **header}, *verdicts]
    codes = {v["status"] for v in verdicts}
    counts = {s: sum(v["status"] == s for v in verdicts) for s in codes}
    footer = {"kind": "footer", "exit_code": 0, "seconds": 1.0, "verdicts": len(verdicts)}
    return [*rows, {**footer, "counts": counts}] if finished else rows


def changes(a: Rows, b: Rows) -> Changes:
    return changes_between(RowsOfRun.of(a), RowsOfRun.of(b))


def op(share: float, name: str = "ROPE") -> dict[str, Any]:
    return verdict("shadow", detail={"op": name, "worst_share": share})


def test_run_has_no_changes_against_itself() -> None:
    found = changes(rich_rows(), rich_rows())
    assert not any((found.new, found.gone, found.changed, found.moved, found.worse))


def test_a_new_difference_is_worse() -> None:
    found = changes(run(verdict("logits")), run(verdict("logits", "diverged")))
    assert [row["suite"] for row in found.new] == ["logits"]
    assert found.worse
    assert [(c.before, c.after, c.worse) for c in found.changed] == [("agreed", "diverged", True)]


def test_resolved_difference_is_not_worse() -> None:
    found = changes(run(verdict("logits", "diverged")), run(verdict("logits")))
    assert [row["suite"] for row in found.gone] == ["logits"]
    assert not found.worse


def test_another_difference_in_a_differing_suite_is_new() -> None:
    """The suite's worst verdict is the same in both runs."""
    old, new = (verdict("trace", "diverged", key=f"trace/{name}") for name in ("ROPE", "MUL_MAT"))
    found = changes(run(old), run(old, new))
    assert [row["key"] for row in found.new] == ["trace/MUL_MAT"]
    assert not found.changed
    assert found.worse


def test_missing_suite_is_worse() -> None:
    found = changes(run(verdict("logits"), verdict("trace")), run(verdict("logits")))
    assert [(c.suite, c.after, c.worse) for c in found.changed] == [("trace", "absent", True)]
    assert found.worse


def test_missing_comparison_is_worse() -> None:
    """The suite agrees in both runs, but run B made fewer comparisons."""
    found = changes(run(verdict("trace"), verdict("trace")), run(verdict("trace")))
    assert [(c.n_before, c.n_after, c.worse) for c in found.changed] == [(2, 1, True)]
    assert found.worse


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ("agreed diverged diverged", "agreed", False),
        ("agreed agreed", "agreed excused", False),
        ("excused excused agreed", "agreed", False),
        ("agreed", "not-compared", True),
        ("agreed", "not-applicable", True),
        *(("not-compared", status, True) for status in UNFINISHED),
    ],
)
def test_new_gap_is_worse_and_resolved_difference_is_not(
    before: str, after: str, worse: bool
) -> None:
    a, b = ([verdict("trace", s) for s in statuses.split()] for statuses in (before, after))
    assert changes(run(*a), run(*b)).worse is worse


def test_runs_with_other_seeds_may_have_other_comparisons() -> None:
    assert not changes(run(verdict("trace"), verdict("trace")), run(verdict("trace"), seed=9)).worse


def test_additional_suite_or_model_is_not_worse() -> None:
    found = changes(
        run(verdict("logits")), run(verdict("logits"), verdict("logits", case="n.gguf"))
    )
    assert [(c.case, c.before) for c in found.changed] == [("n.gguf", "absent")]
    assert not found.worse


def test_op_that_comes_nearer_to_its_limit_is_not_a_failure() -> None:
    found = changes(run(op(0.3), op(0.5, "ADD")), run(op(0.8), op(0.55, "ADD")))
    assert [(m.what, m.before, m.after) for m in found.moved] == [("ROPE", 0.3, 0.8)]
    assert not found.worse


def test_figures_of_nodes_and_logits_may_move_towards_limits() -> None:
    def rows(share: float) -> Rows:
        node = NodeRow(step=0, order=0, layer=2, name="Qcur", op="ROPE", share=share, error=0.1)
        detail = {"allowed_relative": 1e-5, "worst_relative_to_largest_logit": share * 1e-5}
        return run(
            verdict("trace", detail={"by_node": node_columns([node])}),
            verdict("logits", detail=detail),
        )

    found = changes(rows(0.1), rows(0.9))
    assert {m.what for m in found.moved} == {"Qcur-2", "worst logit"}


# --- sizes ----------------------------------------------------------------------------------------


def off(times: float | str, count: int = 50, **more: Any) -> dict[str, Any]:
    """Return a verdict on logits whose error is this multiple of the limit."""
    far = times * 1e-5 if isinstance(times, float) else times
    detail = {"allowed_relative": 1e-5, "worst_relative_to_largest_logit": far}
    return verdict("logits", "diverged", detail=detail | {"mismatched": count}, **more)


def node(times: float) -> dict[str, Any]:
    detail = {"site": "Qcur", "op": "ROPE", "layer": 2, "allowed": 0.5}
    detail |= {"expected": -1.0, "actual": -1.0 - times * 0.5, "mismatched": 50}
    return verdict("trace", "diverged", detail=detail)


def tokens(margin: float) -> dict[str, Any]:
    detail = {"margin": margin, "allowed": 0.1, "expected": 3, "actual": 3000}
    return verdict("decode", "diverged", detail=detail)


def control_token(said: int) -> dict[str, Any]:
    """Return a verdict about ids. The distance between ids has no meaning."""
    return verdict("decode", "diverged", detail={"expected": 3, "actual": said, "allowed": 0.1})


def weights(count: int) -> dict[str, Any]:
    detail = {"tensor": "output.weight", "mismatched": count, "expected": 0.5, "actual": 0.25}
    return verdict("dequant", "diverged", detail=detail)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (off(5.0), off(50.0)),
        (off(5.0), off("nan")),
        (off(5.0), off("inf")),
        # the worst element is closer, but many more elements are wrong, so this is worse
        (off(5.0), off(4.0, 5000)),
        (node(3.0), node(300.0)),
        (op(3.0) | {"status": "diverged"}, op(9.0) | {"status": "diverged"}),
        (tokens(0.3), tokens(3.0)),
        (weights(1), weights(3)),
    ],
)
def test_larger_difference_is_worse(old: dict[str, Any], new: dict[str, Any]) -> None:
    """The verdict, its key and its place are the same in both runs."""
    found = changes(run(old), run(new))
    assert [growth.row for growth in found.larger] == [new]
    assert not any((found.new, found.gone, found.changed, found.smaller))
    assert found.worse


@pytest.mark.parametrize(
    ("old", "new"), [(off(50.0), off(5.0)), (off("nan"), off(5.0)), (weights(9), weights(3))]
)
def test_smaller_difference_is_reported_and_not_worse(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    found = changes(run(old), run(new))
    assert [growth.row for growth in found.smaller] == [new]
    assert not found.larger
    assert not found.worse


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (off(100.0), off(190.0)),  # the same fault with other rounding
        (off(1.1), off(3.0)),  # honest runs of two builds may differ by as much
        (off(9.0, 1), off(9.0, 9)),  # elements close to the limit
        (off("nan"), off("inf")),
        (weights(10), weights(20)),
        (control_token(9), control_token(3000)),
    ],
)
def test_variation_of_a_fault_is_not_growth(old: dict[str, Any], new: dict[str, Any]) -> None:
    for a, b in ((old, new), (new, old)):
        found = changes(run(a), run(b))
        assert not any((found.larger, found.smaller, found.worse))


def test_a_difference_in_more_runs_of_the_suite_is_larger() -> None:
    """All differing runs of the suite share one key and one place, and differ by the same error."""
    found = changes(run(off(9.0)), run(*[off(9.0)] * 5))
    assert [growth.after.count for growth in found.larger] == [250]


def test_runs_with_other_seeds_may_have_other_worst_elements() -> None:
    assert not changes(run(off(5.0)), run(off(45.0), seed=7)).worse
    assert changes(run(off(5.0)), run(off(55.0), seed=7)).worse


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str, Rows], str]:
    def make(name: str, rows: Rows) -> str:
        (tmp_path / name).mkdir()
        text = "".join(json.dumps(row) + "\n" for row in plain(rows))
        (tmp_path / name / "report.jsonl").write_text(text)
        return str(tmp_path / name)

    return make


def code_of(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        app(["report", "diff", *words])
    return int(end.value.code or 0)


def test_command_reports_in_lines_json_and_a_page(
    folder: Callable[[str, Rows], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = folder("a", run(verdict("logits"), op(0.2)))
    b = folder("b", run(verdict("logits", "diverged"), op(0.9)))
    page = tmp_path / "d.html"
    assert code_of(a, b, "-o", str(page)) == 1
    said = capsys.readouterr().out
    assert "new      logits m.gguf" in said
    assert "changed  logits m.gguf: ok to diverged, worse" in said
    assert "nearer   shadow m.gguf ROPE: 20% of its limit to 90% of its limit" in said
    text = Page.at(page).text
    assert "Worse: 1 new difference of 1 kind, 0 gone, 1 changed verdict (1 for the worse)" in text
    assert "20% of its limit 90% of its limit" in text
    assert code_of(a, b, "--json") == 1
    assert json.loads(capsys.readouterr().out)["worse"] is True


def test_page_replaces_no_model_no_input_report_and_no_device(
    folder: Callable[[str, Rows], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = folder("a", run(verdict("logits")))
    (tmp_path / "m.gguf").write_bytes(b"GGUF and more")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(Path(a) / "report.jsonl")
    for name, why in (
        ("m.gguf", "is a model, and would be overwritten"),
        ("a/report.jsonl", "is an input, and would be overwritten"),
        ("link", "is an input, and would be overwritten"),
        ("pipe", "a pipe; expected a regular file"),
        ("nowhere/d.html", "is not a folder"),
    ):
        assert code_of(a, a, "-o", str(tmp_path / name)) == 2
        assert why in capsys.readouterr().err
    assert (tmp_path / "m.gguf").read_bytes() == b"GGUF and more"
    assert (tmp_path / "pipe").is_fifo()


def test_move_fails_the_command_on_request(
    folder: Callable[[str, Rows], str],
) -> None:
    a, b = folder("a", run(op(0.2))), folder("b", run(op(0.5)))
    assert code_of(a, b) == 0
    assert code_of(a, b, "--moved", "0.5") == 0
    assert code_of(a, b, "--moved", "0.25") == 1


def test_command_fails_if_a_difference_grew(
    folder: Callable[[str, Rows], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = folder("a", run(off(5.0))), folder("b", run(off("nan", 7000)))
    page = tmp_path / "d.html"
    assert code_of(a, b, "-o", str(page)) == 1
    said = capsys.readouterr().out
    sizes = "500% of its limit to inf times its limit, 50 to 7,000 elements off"
    assert f"larger   logits m.gguf diverged: {sizes}" in said
    text = Page.at(page).text
    assert "Worse: no verdict changed; 1 difference larger." in text
    assert "Larger in B" in text
    assert sizes in text
    assert code_of(b, a) == 0
    assert "smaller  logits m.gguf diverged: inf times" in capsys.readouterr().out
    assert code_of(a, b, "--json") == 1
    (larger,) = json.loads(capsys.readouterr().out)["larger"]
    assert (larger["before"]["count"], larger["after"]) == (50, {"share": "inf", "count": 7000})


def test_a_folder_without_a_report_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(str(tmp_path), str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert (
        said == f"lockstep: {tmp_path}: expected a run's folder with a report.jsonl, found none\n"
    )


@pytest.mark.parametrize("command", ["page", "diff", "convert"])
def test_report_with_a_wrong_sum_in_its_footer_is_a_usage_error(
    folder: Callable[[str, Rows], str], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    whole = run(verdict("logits"), verdict("trace"))
    for n, rows in enumerate([[*whole[:-2], whole[-1]], [whole[0], whole[-1], *whole[1:-1]]]):
        a, b = folder(f"a{n}", whole), folder(f"b{n}", rows)
        with pytest.raises(SystemExit) as end:
            app(["report", command, *([a] if command == "diff" else []), b])
        assert end.value.code == 2
        assert "footer" in capsys.readouterr().err


def test_unfinished_run_is_incomplete_if_nothing_got_worse(
    folder: Callable[[str, Rows], str],
) -> None:
    """The unfinished run may have been killed before it reached the fault."""
    whole, part = run(verdict("logits")), run(verdict("logits"), finished=False)
    assert code_of(folder("a", whole), folder("b", part)) == 3
    assert code_of(folder("c", part), folder("d", whole)) == 0
    worse = run(verdict("logits", "diverged"), finished=False)
    assert code_of(folder("e", whole), folder("f", worse)) == 1


def test_a_page_is_written_for_a_folder(
    folder: Callable[[str, Rows], str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder("a", rich_rows())
    with pytest.raises(SystemExit) as end:
        app(["report", place])
    assert not end.value.code
    assert capsys.readouterr().out == f"wrote {place}/report.html\n"
    assert "Diverged" in Page.at(Path(place) / "report.html").text


def test_hostile_text_in_two_runs_stays_text(
    folder: Callable[[str, Rows], str], tmp_path: Path
) -> None:
    text = "</script><script>alert(1)</script>"
    b = rich_rows(lambda usual: usual + text)
    page = tmp_path / "d.html"
    code_of(folder("a", run(verdict("logits"))), folder("b", b), "-o", str(page))
    found = Page.at(page)
    assert found.tags.count("script") == 1
    assert "alert(1)" in found.text
