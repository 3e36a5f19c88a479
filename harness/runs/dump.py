"""`lockstep trace`: writes the named tensors of a run as safetensors, with an index."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from lockstep.engine.batch import Batch
from lockstep.engine.node import Node
from lockstep.harness.asking.session import Session
from lockstep.harness.check.check import BadInput, Plan, open_plan
from lockstep.harness.context.suite import lacks, no_answer
from lockstep.harness.graph.program import Program
from lockstep.harness.graph.record import record
from lockstep.harness.graph.wiring import sites_of
from lockstep.harness.parallel.children import Say
from lockstep.harness.records import (
    Answered,
    Evaluation,
    Request,
    Site,
    TensorRecord,
    Trace,
    Unanswerable,
)
from lockstep.harness.report.header import header, model_row
from lockstep.harness.report.jsonl import plain
from lockstep.harness.runs.quick import answer
from lockstep.harness.shadow.nodes import capture
from lockstep.harness.sites import SITES

COMMAND = "lockstep trace"
INDEX, TENSORS = "index.json", "tensors.safetensors"


def dump_trace(plan: Plan, folder: Path, prompt: str | None, say: Say) -> None:
    """Write a dump of a run, and report how many tensors it holds. A prompt replaces the seeded
    tokens."""
    check_folder(folder)
    opened = open_plan(plan, say)
    try:
        context = opened.context
        if context.facts.no_run:
            raise BadInput(f"{plan.model}: {context.facts.no_run}, so there is nothing to run")
        batches = context.batches
        if prompt is not None:
            raw = prompt.encode("utf-8", "surrogateescape")
            batches = (Batch.of(answer(context.subject, "tokenize", [raw])[0]),)
        say("running")
        trace = trace_run(context.subject, batches)
    finally:
        opened.close()
    tensors = {key_of(r.site): np.ascontiguousarray(r.value) for r in trace.records}
    rows = [row_of(r.site, r.value) for r in trace.records]
    tokens = [batch.tokens.tolist() for batch in batches]
    index = header(
        f"{COMMAND} {plan.command}",
        plan.seed,
        [model_row(plan.case, plan.model)],
        opened.engines[1:],
    ) | {"tokens": tokens, "tensors": rows}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / TENSORS)
    (folder / INDEX).write_text(json.dumps(plain(index), indent=1) + "\n")
    # the engine may be a replay that stands for the reference
    say((len(tensors), opened.engines[1].engine))


def check_folder(folder: Path) -> None:
    """Check the output folder before a long run. Raises BadInput if the path is not a folder, or if
    it contains another program's files with the same names."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is not a folder: name one for the tensors")
    there = [name for name in (INDEX, TENSORS) if (folder / name).exists()]
    if there and not is_ours(folder / INDEX):
        files = " and ".join(there)
        text = f"{folder} holds {files}, which {COMMAND} did not write and would overwrite"
        raise BadInput(f"{text}: name another folder")


def is_ours(index: Path) -> bool:
    try:
        said = json.loads(index.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    command = said.get("command") if isinstance(said, dict) else None
    return isinstance(command, str) and command.startswith(COMMAND)


def trace_run(session: Session, batches: Sequence[Batch]) -> Trace:
    """Trace a run: a run for embeddings if the model has no logits. If harness.sites does not know
    this model's nodes, trace every node of llama.cpp's graph."""
    request = Request(batches=tuple(batches), capture=True)
    outcome = session.ask("evaluate", request)
    if lacks(outcome):
        request = replace(request, embeddings=True)
    elif isinstance(outcome, Unanswerable):
        found = record(session, batches)
        if isinstance(found, Program):
            return capture_run(session, batches, found)
    run: Evaluation = answer(session, "evaluate", request)
    assert run.trace is not None
    return run.trace


def capture_run(session: Session, batches: Sequence[Batch], program: Program) -> Trace:
    """Capture a run, with the site names that a replay uses."""
    sites, records = sites_of(program), []

    def keep(node: Node) -> None:
        site = sites[node.place]
        records.append(TensorRecord(site=site, value=node.value.copy()))

    outcome = capture(session, keep, batches)
    if not isinstance(outcome, Answered):
        raise no_answer(session.name, "capture", outcome)
    return Trace(engine=session.name, records=tuple(records))


def key_of(site: Site) -> str:
    return f"step{site.step}/{site}"


def row_of(site: Site, value: NDArray[Any]) -> dict[str, Any]:
    info = SITES.get(site.name)  # nodes that only llama.cpp names are not in SITES
    return {
        "key": key_of(site),
        "step": site.step,
        "layer": site.layer,
        "site": site.name,
        "op": info.op if info else "",
        "axes": info.shape if info else "",
        "shape": list(value.shape),
        "dtype": str(value.dtype),
    }
