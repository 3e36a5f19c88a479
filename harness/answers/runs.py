"""Checks of answers about runs of a model: logits, traces, nodes of a graph, schedules."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.harness.answers.base import (
    Facts,
    MalformedAnswer,
    expect_array,
    expect_many,
    expect_plain,
    expect_record,
    expect_size,
    expect_type,
)
from lockstep.harness.records import (
    Captured,
    Evaluation,
    Nodes,
    Request,
    Site,
    TensorRecord,
    Trace,
)

STEP = {"code", "pos", "ubatches", "slots", "order", "logits"}
# widths of two-dimensional columns; others are flat
WIDTHS = {"ne": 4, "nb": 4, "params": 16, "name": 64, "weight": 64, "root_name": 64}


def check_evaluate(value: Any, facts: Facts, request: Request) -> None:
    expect_type(value, Evaluation, "the run")
    check_outputs = check_embed if request.embeddings else check_logits
    check_outputs(value.logits, facts, request.batches)
    if not request.capture:
        expect_type(value.trace, type(None), "a trace that was not asked for")
        return
    expect_record(value.trace, Trace, "the trace")
    if not value.trace.records:
        raise MalformedAnswer("the trace", "at least one site", value.trace.records)
    check_sites(value.trace, len(request.batches))


def check_logits(value: Any, facts: Facts, batches: Sequence[Batch]) -> None:
    """Check that each batch's logits have the shape (outputs, vocabulary). NaN is allowed."""
    expect_batches(value, batches, "the logits")
    n_vocab = facts.n_vocab
    for i, (logits, batch) in enumerate(zip(value, batches, strict=True)):
        outputs = int(np.count_nonzero(batch.outputs))
        expect_array(logits, np.float32, (outputs, n_vocab), f"the logits of batch {i}")
        n_vocab = logits.shape[1]


def check_save(
    value: Any, facts: Facts, batches: Sequence[Batch], then: Sequence[Batch], *_: Any
) -> None:
    check_logits(value, facts, then)


def check_load(value: Any, facts: Facts, path: str, then: Sequence[Batch], *_: Any) -> None:
    check_logits(value, facts, then)


def check_guide(value: Any, facts: Facts, batches: Sequence[Batch], *_: Any) -> None:
    check_logits(value, facts, batches)


def check_embed(value: Any, facts: Facts, batches: Sequence[Batch]) -> None:
    """Check that the answer has one row for each token, or one for each sequence, and that all rows
    have the same width."""
    expect_batches(value, batches, "the embeddings")
    width = None
    for i, (rows, batch) in enumerate(zip(value, batches, strict=True)):
        where = f"the embeddings of batch {i}"
        expect_array(rows, np.float32, (None, width), where)
        sizes = {len(batch), len(np.unique(batch.seq_ids))}
        if len(rows) not in sizes:
            raise MalformedAnswer(f"the rows of {where}", " or ".join(map(str, sizes)), len(rows))
        width = rows.shape[1]


def expect_batches(value: Any, batches: Sequence[Batch], where: str) -> None:
    expect_type(value, tuple, where)
    if len(value) != len(batches):
        raise MalformedAnswer(where, f"answers for {len(batches)} batches", value)


def check_sites(trace: Trace, steps: int) -> None:
    """Raise MalformedAnswer if a record, its step or its array is wrong, or if a site appears
    twice. A later comparison with the model's graph checks names and shapes."""
    seen: set[Site] = set()
    for record in trace.records:
        expect_record(record, TensorRecord, "a record of the trace")
        check_step(record.site, steps)
        expect_array(record.value, None, record.value.shape, f"{record.site}")
        if record.site in seen:
            where = f"{record.site} of step {record.site.step}"
            raise MalformedAnswer(where, "each site once", "a repeated site")
        seen.add(record.site)


def check_step(site: Any, steps: int) -> None:
    expect_record(site, Site, "a site of the trace")
    if not 0 <= site.step < steps:
        raise MalformedAnswer(f"the step of {site.name}", f"0 to {steps - 1}", site.step)


# --- a graph, node by node ----------------------------------------------------------------------


def check_capture(value: Any, *_: Any, **__: Any) -> None:
    expect_record(value, Captured, "the captured values")
    for name in ("nodes", "views"):
        expect_size(getattr(value, name), name)
    if value.honest is not None:
        expect_array(value.honest, None, value.honest.shape, "the values that a fault replaced")


def check_nodes(value: Any, facts: Facts, batches: Sequence[Batch], *_: Any, **__: Any) -> None:
    """Check that all columns of one piece of a capture have the same length. `harness.shadow.nodes`
    checks each row."""
    expect_record(value, Nodes, "a piece of the graph")
    rows = len(value.place)
    for name in Nodes.__slots__:
        if name in ("ops", "types", "data"):
            continue
        column, width = getattr(value, name), WIDTHS.get(name)
        shape = (rows,) if width is None else (rows, width)
        if column.shape != shape:
            raise MalformedAnswer(f"the column {name}", f"shape {shape}", column)
    if value.data.ndim != 1:
        raise MalformedAnswer("the column data", "bytes in a row", value.data)
    if rows and not 0 <= value.step.min() <= value.step.max() < len(batches):
        wrong = next(step for step in value.step.tolist() if not 0 <= step < len(batches))
        raise MalformedAnswer("the column step", f"0 to {len(batches) - 1}", wrong)


# --- schedules ------------------------------------------------------------------------------------


def check_schedule(value: Any, facts: Facts, plan: Mapping[str, Any]) -> None:
    steps = plan["steps"]
    expect_many(value, len(steps), "steps", "the schedule")
    for i, step in enumerate(value):
        expect_type(step, dict, f"step {i}")
        if step.keys() != STEP:
            raise MalformedAnswer(f"step {i}", ", ".join(sorted(STEP)), step)
        expect_type(step["code"], int, f"the code of step {i}")
        for name in ("pos", "ubatches", "slots", "order"):
            if step[name] is not None:
                expect_type(step[name], list, f"{name} of step {i}")
                expect_plain(step[name], f"{name} of step {i}")
        if step["logits"] is not None:
            expect_array(step["logits"], np.float32, (None, None), f"the logits of step {i}")
