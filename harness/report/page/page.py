"""Draws the page of a run: a single file. Its security policy allows only its own script to run."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lockstep.harness.records import BOTH
from lockstep.harness.report.page import texts
from lockstep.harness.report.page.facts import facts_of, in_short
from lockstep.harness.report.page.figures import agreeing_with_charts, charts_of, figures_of
from lockstep.harness.report.page.nodes import node_data
from lockstep.harness.report.page.verdicts import (
    LOUD,
    PLACES,
    QUIET,
    RowsOfRun,
    by_case,
    causes_of,
    command_of,
    count_words,
    parts_of,
    place_of,
    sentence,
    slices_of,
    suites_of,
)
from lockstep.harness.report.text import MARKS

NAME = "report.html"
MOST_ROWS = 6000  # verdicts in the list; if there are more, passed verdicts are only counted
SIGNS = {"agreed": "✓", "diverged": "✗", "excused": "≈", "not-compared": "?"}
SIGNS |= {
    "not-applicable": "–",
    "crashed": "!",
    "timed-out": "!",
    "malformed": "!",
    "internal": "!",
}


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("lockstep.harness.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=texts.finalize,
    )
    made.filters |= {"number": texts.number, "of_limit": texts.of_limit, "exact": texts.exact}
    made.filters |= {"name": texts.short_name, "data": texts.data_block, "counted": count_words}
    made.filters |= {"paths": texts.paths, "long": texts.long, "whole": texts.whole}
    made.filters["in_short"] = in_short
    made.globals |= {"MARKS": MARKS, "SIGNS": SIGNS, "BOTH": BOTH, "PLACES": PLACES}
    made.globals |= {
        "figures_of": figures_of,
        "facts_of": facts_of,
        "in_short": in_short,
        "parts_of": parts_of,
        "place_of": place_of,
    }
    return made


def page_of(run: RowsOfRun) -> str:
    """Return the page of one run."""
    causes = causes_of(run.verdicts, LOUD)
    listed, charted = run.verdicts, agreeing_with_charts(run.verdicts)
    if len(listed) > MOST_ROWS:
        listed = [row for row in listed if row["status"] not in QUIET]
    return render_page(
        "run.html",
        run=run,
        title=f"Lockstep: {run.header['command'][:100]}",
        sentence=sentence(run, causes),
        command=command_of(run),
        causes=causes,
        excused=causes_of(run.verdicts, ("excused",)),
        slices=slices_of(run.verdicts),
        suites=suites_of(run.verdicts),
        statuses=[*run.counts],
        models=[*by_case(listed)],
        left_out=len(run.verdicts) - len(listed),
        charts=[*charts_of(charted)],
        charted=len(charted),
        bisections=[r for r in run.verdicts if "bisection" in r["detail"] and r["status"] in QUIET],
        nodes=node_data(run.verdicts),
    )


def undrawn(error: Exception) -> str:
    """Return a page that says why the page of the run could not be drawn."""
    return render_page("undrawn.html", title="Lockstep", error=f"{type(error).__name__}: {error}")


def render_page(template: str, **values: Any) -> str:
    style, script = (source(name) for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src '{hash_text(style)}'; script-src '{hash_text(script)}'; "
    )
    policy += "base-uri 'none'; form-action 'none'"
    page = environment().get_template(template)
    return page.render(style=Markup(style), script=Markup(script), policy=policy, **values)


def load_templates() -> None:
    """Load the templates in advance, because compiling them takes longer than drawing a page."""
    for name in ("base.html", "figures.html", "run.html"):
        environment().get_template(name)


def source(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def hash_text(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
