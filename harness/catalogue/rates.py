"""The results of a whole catalogue in a compact form. README.md and reports/TRUST.md build their
tables from these results."""

import json
from collections.abc import Sequence
from typing import Any

from lockstep.harness.catalogue.fixed_limits import LIMITS
from lockstep.harness.catalogue.table import lines, summary
from lockstep.harness.catalogue.trial import SeenInView, Trial
from lockstep.harness.catalogue.views import VIEWS

BEGIN, END = "<!-- catalogue: begin -->\n", "<!-- catalogue: end -->\n"
PAGES = {"README.md": summary, "reports/TRUST.md": lines}  # page -> function that writes its part


def write_rates(found: Sequence[Trial]) -> str:
    """Return a JSON line for each engine and model. Seeds of an honest engine with equal results
    share a line."""
    rows: dict[str, dict[str, Any]] = {}
    for trial in sorted(found, key=lambda t: (t.honest, t.family, t.engine, t.model, t.preset)):
        row = short(trial)
        rows.setdefault(json.dumps(row), row).setdefault("seeds", []).append(trial.seed)
    for row in rows.values():
        row["seeds"].sort()
    return "[\n" + ",\n".join(map(json.dumps, rows.values())) + "\n]\n"


def short(trial: Trial) -> dict[str, Any]:
    """Return the compact form of a trial. Its `first` lists, for each view, the suite that found
    the engine: "" if no suite did, null if nothing was compared."""
    row: dict[str, Any] = {"engine": trial.engine, "family": trial.family, "model": trial.model}
    if trial.honest:
        row["preset"] = trial.preset
    seen = [trial.views[view.name] for view in VIEWS]
    row["first"] = [(one.suite if one.caught else "") if one.compared else None for one in seen]
    row["passes"] = [int(trial.passes[limit]) for limit in LIMITS]
    row["found"] = trial.found
    if not (trial.honest or trial.op_right):
        row |= {"expected": trial.expected, "layer_right": trial.layer_right}
    return row


def read(text: str) -> list[Trial]:
    rows: list[dict[str, Any]] = json.loads(text)
    return [trial_of({**row, "seed": seed}) for row in rows for seed in row.pop("seeds")]


def trial_of(row: dict[str, Any]) -> Trial:
    first, passes = row.pop("first"), row.pop("passes")
    placed = "expected" not in row
    seen = [SeenInView(caught=bool(s), compared=s is not None, suite=s or "") for s in first]
    rest = {"expected": row["found"], "layer_right": True, **row}
    return Trial(
        mistake="",
        effect="",
        source="",
        views=dict(zip((view.name for view in VIEWS), seen, strict=True)),
        passes=dict(zip(LIMITS, map(bool, passes), strict=True)),
        op_right=placed,
        **rest,
    )


def with_tables(page: str, text: str, found: Sequence[Trial]) -> str:
    """Return the text of a page with a new table between its two comments."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return before + BEGIN + "\n".join(PAGES[page](found)).rstrip() + "\n" + END + after
