"""report.html in Chromium: its own script runs, no other script runs, and the console stays
empty."""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from lockstep.harness.report.jsonl import plain
from lockstep.harness.report.page.write import write_page_of_run
from tests.harness.report.test_page import HOSTILE
from tests.pages import Page, rich_rows

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--log-level=0")


@cache
def browser() -> str:
    return next((found for name in NAMES if (found := shutil.which(name))), "")


@pytest.fixture
def chromium() -> str:
    if not browser():
        pytest.skip(
            "no chromium: the page was opened in no browser (drawing, hostile text, console)"
        )
    return browser()


def opened(chromium: str, rows: list[dict[str, object]], folder: Path) -> tuple[Page, list[str]]:
    """Provide the page after its script has run, and the console's messages."""
    path = folder / "report.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in plain(rows)))
    page = write_page_of_run(path)
    options = (*FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom")
    done = subprocess.run(
        [chromium, *options, page.resolve().as_uri()], capture_output=True, timeout=120, check=True
    )
    said = done.stderr.decode(errors="replace").splitlines()
    return Page(done.stdout.decode()), [line for line in said if re.search(r"CONSOLE", line)]


def test_model_with_a_wrong_op_is_drawn_at_once(chromium: str, tmp_path: Path) -> None:
    page, console = opened(chromium, rich_rows(), tmp_path)
    assert console == []
    (table,) = (found for found in page.all("table") if found.get("class") == "heat")
    assert table
    buttons = [found.get("aria-label") for found in page.all("button")]
    assert buttons == ["Nodes of layer 0", "Nodes of layer 1", "Nodes outside of all layers"]
    assert "cell wrong" in [found.get("class") for found in page.all("td")]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_model_runs_nothing(chromium: str, tmp_path: Path, text: str) -> None:
    page, console = opened(chromium, rich_rows(lambda usual: f"{usual}{text}"), tmp_path)
    usual, _ = opened(chromium, rich_rows(), tmp_path)
    assert console == []
    assert page.tags == usual.tags


def test_injected_script_is_refused(chromium: str, tmp_path: Path) -> None:
    """The security policy works: even if a text became a script element, it would not run."""
    path = tmp_path / "report.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in plain(rich_rows())))
    page = write_page_of_run(path)
    broken = page.read_text().replace("<main", "<script>document.title = 'taken'</script><main")
    page.write_text(broken)
    options = (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom")
    done = subprocess.run(
        [chromium, *options, page.resolve().as_uri()], capture_output=True, timeout=120, check=True
    )
    assert "Content Security Policy" in done.stderr.decode(errors="replace")
    assert "<title>taken" not in done.stdout.decode()
