"""`lockstep trace`: the named tensors of a run as safetensors, with an index."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from engine.batch import Batch
from engine.trace import SITES
from harness.check import BadInput, Plan, open_plan
from harness.children import Say
from harness.quick import answer
from harness.records import Evaluation, Request, Site
from harness.report.header import header, model_row


def dump_trace(plan: Plan, folder: Path, prompt: str | None, say: Say) -> None:
    """Says the number of tensors in the end. A prompt's text replaces the seeded tokens."""
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
        run: Evaluation = answer(
            context.subject, "evaluate", Request(batches=batches, capture=True)
        )
    finally:
        opened.close()
    assert run.trace is not None
    tensors = {key_of(r.site): np.ascontiguousarray(r.value) for r in run.trace.records}
    rows = [row_of(r.site, r.value) for r in run.trace.records]
    tokens = [batch.tokens.tolist() for batch in batches]
    index = header(
        f"lockstep trace {plan.command}",
        plan.seed,
        [model_row(plan.case, plan.model)],
        opened.engines[1:],
    ) | {"tokens": tokens, "tensors": rows}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "tensors.safetensors")
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    say(len(tensors))


def key_of(site: Site) -> str:
    return f"step{site.step}/{site}"


def row_of(site: Site, value: NDArray[Any]) -> dict[str, Any]:
    info = SITES.get(site.name)  # none of a node that llama.cpp alone has a name for
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
