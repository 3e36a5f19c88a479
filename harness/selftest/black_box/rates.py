"""Counts of engines that were bisected by their logits alone, and the rates that the project
promises."""

from collections.abc import Iterator, Sequence

from lockstep.harness.selftest.black_box.trials import BlackBoxRow

LAYER, PART = 0.97, 0.85  # shares that are promised
HEAD = ("model", "engines", "differ", "layer", "all", "part", "seconds")
COUNTED = ("layer", "layers", "part")
SHOWN = 3  # parts of an answer that are shown


def counts(row: BlackBoxRow) -> bool:
    """Return True if the engine diverged, because only then the black box must name a fault."""
    return row.status == "diverged"


def share(rows: Sequence[BlackBoxRow], what: str) -> float:
    return sum(bool(getattr(row, what)) for row in rows) / len(rows)


def is_kept(rows: Sequence[BlackBoxRow]) -> bool:
    some = [row for row in rows if counts(row)]
    return bool(some) and share(some, "layer") >= LAYER and share(some, "part") >= PART


def lines(rows: Sequence[BlackBoxRow]) -> Iterator[str]:
    yield "".join(f"{cell:>12}" if i else f"{cell:<18}" for i, cell in enumerate(HEAD))
    for model in sorted({row.model for row in rows}):
        yield line_of(model, [row for row in rows if row.model == model])
    yield line_of("all", rows)
    hidden = [row for row in rows if row.status == "agreed" and row.wrong]
    seen, layer = (sum(bool(getattr(row, what)) for row in hidden) for what in ("seen", "layer"))
    yield f"engines wrong in one layer whose logits agree on the whole model: {len(hidden)}"
    yield f"  of these engines, {seen} are noticed, and {layer} with the right layer"
    for row in rows:
        if counts(row) and not (row.layers and row.part):
            yield describe_miss(row)
        elif row.status not in ("agreed", "diverged"):
            yield f"{row.engine} on {row.model}: {row.status}"


def line_of(name: str, rows: Sequence[BlackBoxRow]) -> str:
    some = [row for row in rows if counts(row)]
    numbers = [sum(bool(getattr(row, what)) for row in some) for what in COUNTED]
    seconds = sum(row.seconds for row in rows) / max(1, len(rows))
    cells = [len(rows), len(some), *numbers, f"{seconds:.1f}"]
    return f"{name:<18}" + "".join(f"{cell:>12}" for cell in cells)


def describe_miss(row: BlackBoxRow) -> str:
    what = ", ".join(name for name in COUNTED if not getattr(row, name))
    said = "; ".join(f"{layer}: {part}" for layer, part in row.said[:SHOWN]) or "nothing"
    wrong = row.wrong[0] if row.wrong else "-"
    return f"{row.engine} on {row.model}: not {what}: wrong {wrong}, said {said}"
