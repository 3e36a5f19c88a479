"""The matrix: the worst verdict of each engine, suite and case, as a table and as JSON."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

from lockstep.harness.check.check import Plan
from lockstep.harness.cli import app
from lockstep.harness.cli.matrix import named_apart, shown_matrix
from lockstep.harness.records import EXACT, EngineInfo, Status, Verdict
from lockstep.harness.runs.matrix import (
    NOTHING,
    SCHEMA,
    Cell,
    MatrixRow,
    cells_of,
    columns,
    exit_code_of_matrix,
    markdown,
    names_of,
    write_matrix,
)
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.pages import Page


def verdict(suite: str, case: str, status: Status, summary: str = "") -> Verdict:
    return Verdict(suite=suite, case=case, status=status, summary=summary, repro="lockstep check m")


def test_cell_shows_the_worst_verdict_of_a_case() -> None:
    found = cells_of(
        [
            verdict("dequant", "a", "agreed"),
            verdict("dequant", "a", "diverged", "Q4_K"),
            verdict("dequant", "a", "not-compared"),
            verdict("dequant", "b", "excused"),
        ],
        ["a", "b"],
    )
    assert found["dequant"].cases["a"].summary == "Q4_K"
    assert found["dequant"].text == "1/2, 1 diverged, 1 excused"


def test_suite_that_an_engine_lacks_is_not_counted() -> None:
    cell = Cell(cases={"a": verdict("trace", "a", "not-applicable")})
    assert cell.text == NOTHING
    both = Cell(cases={**cell.cases, "b": verdict("trace", "b", "agreed")})
    assert both.text == "1/1"


def test_partly_compared_case_counts_with_a_note() -> None:
    found = cells_of(
        [
            verdict("tokens", "a", "agreed"),
            verdict("tokens", "a", "not-compared"),
            verdict("tokens", "b", "not-compared"),
        ],
        ["a", "b"],
    )
    assert found["tokens"].text == "1/2, 1 partly, 1 not compared"


def test_suite_without_a_verdict_on_the_subject_has_no_column() -> None:
    assert cells_of([verdict("shadow", "a", "diverged")], ["a"]) == {}


def test_column_without_answers_is_omitted() -> None:
    asked = {"logits": Cell(cases={"a": verdict("logits", "a", "agreed")})}
    silent = {"trace": Cell(cases={"a": verdict("trace", "a", "not-applicable")})}
    assert columns([MatrixRow(engine="x", cells=asked), MatrixRow(engine="y", cells=silent)]) == [
        "logits"
    ]


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0), 0), ((0, 3), 3), ((3, 1), 1), ((2, 3), 2), ((2, 1), 1)]
)
def test_exit_code_of_a_matrix_comes_from_the_worst_engine(
    codes: tuple[int, ...], code: int
) -> None:
    assert exit_code_of_matrix([MatrixRow(engine="x", code=c) for c in codes]) == code


def test_engine_text_is_escaped() -> None:
    bad = "<img src=x onerror=y> | [a](b) \x1b[2J"
    cells = {"logits": Cell(cases={"a": verdict("logits", "a", "diverged", bad)})}
    rows = [MatrixRow(engine="x", cells=cells, code=1), MatrixRow(engine="y", error=bad)]
    plan = Plan(case="a", model=Path("m"), subject_model=Path("m"), settings=EXACT)
    page = "\n".join(markdown(rows, [plan]))
    assert "<img" not in page
    assert "](b)" not in page
    assert "\x1b" not in page
    assert page.count("onerror") == 2  # the text is shown, but harmless


def test_engines_with_one_name_show_their_commands() -> None:
    info = EngineInfo(engine="engine.py", version="1", build="")
    rows = [MatrixRow(engine=f"./{f}/engine.py", info=info) for f in "ab"] + [
        MatrixRow(engine="fast")
    ]
    assert names_of(rows) == [
        "engine.py 1 (./a/engine.py)",
        "engine.py 1 (./b/engine.py)",
        "fast",
    ]


def many_suites(name: str) -> MatrixRow:
    cells = {
        suite: Cell(cases={"a": verdict(suite, "a", "diverged")})
        for suite in ("metadata", "tokens", "dequant", "logits", "decode", "black-box", "products")
    }
    return MatrixRow(engine=f"python some/where/{name}.py", cells=cells, code=1)


@pytest.mark.parametrize("width", [80, 300])
def test_narrow_terminal_cuts_nothing_of_a_matrix(width: int) -> None:
    out = io.StringIO()
    rows = [many_suites("e_right_all"), many_suites("e_right_text")]
    shown_matrix(rows, Console(file=out, width=width, soft_wrap=True, markup=False))
    said = out.getvalue()
    for text in ("e_right_all.py", "e_right_text.py", "black-box", "products"):
        assert text in said
    assert said.count("0/1, 1 diverged") == 14
    assert "…" not in said


def test_engine_without_comparisons_is_reported() -> None:
    silent = {"trace": Cell(cases={"a": verdict("trace", "a", "not-applicable")})}
    rows = [many_suites("e_right"), MatrixRow(engine="mute", cells=silent)]
    out = io.StringIO()
    shown_matrix(rows, Console(file=out, width=80, soft_wrap=True, markup=False))
    assert out.getvalue().count("nothing was compared") == 1
    plan = Plan(case="a", model=Path("a"), subject_model=Path("a"), settings=EXACT)
    notes = [line for line in markdown(rows, [plan]) if "nothing was compared" in line]
    assert [note.partition(" nothing")[0] for note in notes] == ["- **mute**"]


def test_page_with_one_case_says_so() -> None:
    plan = Plan(case="a", model=Path("m"), subject_model=Path("m"), settings=EXACT)
    assert "Each cell: cases that agree, of 1 case (a)." in [*markdown([many_suites("x")], [plan])]


def test_files_of_one_name_are_separate_cases(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a" / "m.gguf", tmp_path / "b" / "m.gguf", tmp_path / "c.gguf"
    named = named_apart([a, c, b, tmp_path / "b" / ".." / "a" / "m.gguf"], str(tmp_path))
    assert [name for name, _ in named] == [
        str(tmp_path / "b" / ".." / "a" / "m.gguf"),
        "c.gguf",
        str(b),
    ]


def test_built_in_model_is_selected_by_name(tmp_path: Path) -> None:
    """The command line names the model twice, but the model runs only once."""
    [(name, path)] = named_apart([Path("builtin:f16")] * 2, str(tmp_path))
    assert name == "builtin:f16"
    assert path.exists()


def test_missing_model_is_refused_without_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "no.gguf")
    with pytest.raises(SystemExit) as end:
        app(
            ["matrix", "reference", "fast", "--only", "--model", missing, "--report", str(tmp_path)]
        )
    assert end.value.code == 2
    assert "no.gguf: no such file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_interrupted_matrix_keeps_its_findings_and_names_the_other_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(plans: dict[str, object], **_: object) -> Iterator[MatrixRow]:
        yield MatrixRow(engine=next(iter(plans)), code=0)
        raise KeyboardInterrupt

    monkeypatch.setattr("lockstep.harness.runs.matrix.run_matrix", interrupted)
    model = tmp_path / "tiny.gguf"
    write_llama(LlamaRecipe(n_layer=1), model)
    options = ["--only", "--model", str(model), "--report", str(tmp_path), "-q"]
    with pytest.raises(SystemExit) as end:
        app(["matrix", "reference", "fast", *options])
    assert end.value.code == 130
    (path,) = tmp_path.glob("*-matrix/matrix.json")
    document = json.loads(path.read_text())
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    assert [row["error"] for row in document["engines"]] == ["", "the run was interrupted before"]


def test_failed_start_costs_only_the_engines_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("llama_cpp", reason="llama_cpp is missing: no engine was asked")
    model = tmp_path / "tiny.gguf"
    write_llama(LlamaRecipe(n_layer=1), model)
    missing = str(tmp_path / "no-such-engine")
    options = ["--only", "--model", str(model), "--steps", "4", "--report", str(tmp_path), "-q"]
    with pytest.raises(SystemExit) as end:
        app(["matrix", "reference", "mutant:rope-half-split", missing, *options, "--html"])
    assert end.value.code == 1
    (path,) = tmp_path.glob("*-matrix/matrix.json")
    document = json.loads(path.read_text())
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    reference, wrong, gone = document["engines"]
    assert {row["status"] for cases in reference["suites"].values() for row in cases.values()} <= {
        "agreed",
        "not-applicable",
    }
    assert wrong["suites"]["dequant"]["tiny.gguf"]["status"] == "agreed"
    assert wrong["suites"]["trace"]["tiny.gguf"]["status"] == "diverged"
    assert "--engine mutant:rope-half-split" in wrong["suites"]["trace"]["tiny.gguf"]["repro"]
    assert "no-such-engine" in gone["error"]
    assert gone["suites"] == {}
    said = capsys.readouterr().out
    assert "1/1" in said
    assert "no-such-engine was not asked" in said
    assert "| reference" in path.with_name("matrix.md").read_text()
    page = Page.at(path.with_name("matrix.html"))
    assert "1 of 3 engines agree with llama.cpp in every comparison; 1 diverges; 1 incomplete." in (
        page.text
    )
    links = [a["href"] or "" for a in page.all("a") if not (a["href"] or "").startswith("#")]
    assert len(links) == 2
    assert all((path.parent / link).is_file() for link in links)


HOSTILE = '"><script>alert(1)</script>'


def test_matrix_page_escapes_foreign_text(tmp_path: Path) -> None:
    case = f"m.gguf{HOSTILE}"
    cell = Cell(cases={case: verdict("trace", case, "diverged", f"off{HOSTILE}")})
    info = EngineInfo(engine=f"e{HOSTILE}", version="javascript:alert(1)", settings=EXACT)
    report = str(tmp_path / '../x"><script>' / "report.jsonl")
    row = MatrixRow(engine=HOSTILE, info=info, cells={"trace": cell}, report=report, code=1)
    gone = MatrixRow(engine="gone", error=HOSTILE)
    plan = Plan(case=case, model=tmp_path, subject_model=tmp_path, settings=EXACT)
    paths = write_matrix([row, gone], [plan], tmp_path, f"lockstep {HOSTILE}", html=True)
    assert [path.name for path in paths] == ["matrix.json", "matrix.md", "matrix.html"]
    page = Page.at(paths[-1])
    assert page.tags.count("script") == 1
    assert page.text.count("<script>alert(1)</script>") >= 5
    links = [a["href"] or "" for a in page.all("a")]
    assert links == ["#main", "./../../x%22%3E%3Cscript%3E/report.html"]
