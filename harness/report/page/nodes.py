"""The nodes of every model of a run, as data for the page's script.

All models share one list of texts. For each model the nodes are in execution order, in columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lockstep.harness.report.page.verdicts import Row

MOST = 60_000  # nodes in the drawing; if there are more, only the worst step of each name is drawn
COLUMNS = ("step", "layer", "name", "op", "reason", "share", "error", "err_in", "err_out", "worst")
TEXTS = {"name": "names", "op": "ops", "reason": "reasons"}
Node = dict[str, Any]  # a value for each column, and "wrong"


class Texts:
    """A list in which each text occurs once."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))


def node_data(verdicts: Sequence[Row]) -> dict[str, Any]:
    """Return `texts` and `models`, with an entry for each model and suite whose verdicts hold
    nodes."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in verdicts:
        if "by_node" in row["detail"]:
            groups.setdefault((row["suite"], row["case"]), []).append(row)
    nodes = {key: in_order(rows) for key, rows in groups.items()}
    every = sum(map(len, nodes.values()))
    if every > MOST:
        nodes = {key: worst_steps(rows) for key, rows in nodes.items()}
    texts = Texts()
    models = [
        {"suite": suite, "case": case, **columns(rows, texts), **found_at(suite, case, verdicts)}
        for (suite, case), rows in nodes.items()
        if rows
    ]
    return {"texts": [*texts.places], "models": models, "nodes": every, "folded": every > MOST}


def in_order(rows: Iterable[Row]) -> list[Node]:
    """Return the nodes of all verdicts on one model in execution order. The suite shadow has one
    verdict for each op."""
    found = [node for row in rows for node in nodes_of(row["detail"]["by_node"])]
    return sorted(found, key=lambda node: (node["step"], node["order"]))


def nodes_of(by_node: Mapping[str, Any]) -> Iterable[Node]:
    wrong = set(by_node["wrong"])
    for i, step in enumerate(by_node["step"]):
        node: Node = {"step": step, "order": by_node["order"][i], "wrong": i in wrong}
        for name in COLUMNS[1:]:
            value = by_node[name][i] if name in by_node else None
            node[name] = by_node[TEXTS[name]][value] if name in TEXTS else value
        yield node


def worst_steps(nodes: Sequence[Node]) -> list[Node]:
    best: dict[tuple[Any, ...], Node] = {}
    for node in nodes:
        key = node["layer"], node["name"], node["op"]
        if key not in best or rank(node) > rank(best[key]):
            best[key] = node
    return [*best.values()]


def rank(node: Node) -> tuple[bool, float]:
    share = node["share"]
    return node["wrong"], share if isinstance(share, int | float) else float("inf")


def columns(nodes: Sequence[Node], texts: Texts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in COLUMNS:
        values = [node[name] for node in nodes]
        if name in TEXTS:
            values = [texts.place(value) for value in values]
        if any(value is not None for value in values):
            found[name] = values
    found["wrong"] = [i for i, node in enumerate(nodes) if node["wrong"]]
    worst = max(nodes, key=rank)
    found["summary"] = {"nodes": len(nodes), "share": worst["share"], "op": worst["op"]}
    return found


def found_at(suite: str, case: str, verdicts: Sequence[Row]) -> dict[str, Any]:
    """Return the values at the worst element of each divergence, in a dict by step, layer and
    name."""
    found = {}
    for row in verdicts:
        d = row["detail"]
        if (row["suite"], row["case"], row["status"]) == (suite, case, "diverged") and "site" in d:
            key = f"{d['step']}/{'' if d['layer'] is None else d['layer']}/{d['site']}"
            found[key] = [d.get("actual"), d.get("expected"), d.get("allowed")]
    return {"found": found} if found else {}
