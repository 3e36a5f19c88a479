"""The static site of a matrix: its pages, its links, and how an interrupted run continues."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from lockstep.harness.check.check import BadInput, Plan
from lockstep.harness.records import EXACT, EngineInfo, Verdict
from lockstep.harness.runs.matrix import Cell, MatrixRow
from lockstep.harness.runs.site import UNFINISHED, ask_rest, open_site, write_site
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.pages import Page

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    path = tmp_path / "a.gguf"
    write_llama(LlamaRecipe(n_layer=1), path)
    return Plan(case="a", model=path, subject_model=path, settings=EXACT)


def row_named(engine: str, status: str = "agreed") -> MatrixRow:
    verdict = Verdict(suite="trace", case="a", status=status, summary=HOSTILE, key="k")  # type: ignore[arg-type]
    info = EngineInfo(engine=engine, version="1", build="b")
    cells = {"trace": Cell(cases={"a": verdict}, partly=frozenset())}
    return MatrixRow(engine=engine, info=info, cells=cells, code=int(status == "diverged"))


def test_site_links_engines_and_findings(plan: Plan, tmp_path: Path) -> None:
    rows = [
        row_named("right"),
        row_named(f"wrong{HOSTILE}", "diverged"),
        row_named("w", "diverged"),
    ]
    index = write_site(tmp_path / "site", rows, [plan], "lockstep matrix")
    pages = [index, *(tmp_path / "site" / "engines").iterdir()]
    (finding,) = (tmp_path / "site" / "findings").iterdir()  # both engines share the page
    assert len(pages) == 4
    for path in [*pages, finding]:
        page = Page.at(path)
        assert page.tags.count("script") == 1
        links = [a["href"] or "" for a in page.all("a") if not (a["href"] or "").startswith("#")]
        assert links
        assert all((path.parent / link).is_file() for link in links)
    assert f"wrong{HOSTILE}" in Page.at(finding).text


def test_interrupted_run_continues_after_finished_engines(plan: Plan, tmp_path: Path) -> None:
    plans = {"first": [plan], "second": [plan]}
    asked: list[str] = []

    def ask(some: Mapping[str, Sequence[Plan]]) -> Iterator[MatrixRow]:
        for engine in some:
            asked.append(engine)
            if asked == ["first", "second"]:
                raise KeyboardInterrupt
            yield row_named(engine, "diverged")

    with pytest.raises(KeyboardInterrupt):
        list(ask_rest(tmp_path / "site", plans, ask))
    rows = list(ask_rest(tmp_path / "site", plans, ask))
    assert asked == ["first", "second", "second"]
    assert rows == [row_named("first", "diverged"), row_named("second", "diverged")]
    write_site(tmp_path / "site", rows, [plan], "lockstep matrix")
    assert not (tmp_path / "site" / UNFINISHED).exists()


def test_rows_of_another_setup_are_ignored(plan: Plan, tmp_path: Path) -> None:
    list(ask_rest(tmp_path / "site", {"e": [plan]}, lambda some: iter([row_named("e")])))
    write_llama(LlamaRecipe(n_layer=2), plan.model)
    assert open_site(tmp_path / "site", {"e": [plan]}) == {}


def test_folder_with_other_files_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="name a new folder"):
        open_site(tmp_path, {"e": [plan]})
    assert plan.model.exists()
