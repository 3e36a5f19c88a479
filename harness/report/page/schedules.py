"""A schedule of decode calls and cache operations, with the ubatches and cells of both engines."""

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.harness.report.page.verdicts import count_words

OPERATIONS = {
    "rm": "llama_memory_seq_rm: sequence {}, positions {} to {}",
    "cp": "llama_memory_seq_cp: sequence {} to {}, positions {} to {}",
    "keep": "llama_memory_seq_keep: sequence {}",
    "add": "llama_memory_seq_add: sequence {}, positions {} to {}, by {}",
    "div": "llama_memory_seq_div: sequence {}, positions {} to {}, by {}",
    "clear": "llama_memory_clear",
    "save": "save the state of sequence {}",
    "load": "restore into sequence {} what save {} kept",
}
MOST = 256  # tokens or cells in a row
SHOWN = ("code", "pos", "ubatches", "slots", "order")


def schedule_of(detail: Mapping[str, Any]) -> dict[str, Any] | None:
    given = detail.get("schedule")
    if given is None:
        return None
    sides = [
        {"who": who, **answer_of(detail[name])}
        for who, name in (("the oracle", "expected"), ("the engine under test", "actual"))
        if detail.get(name)
    ]
    shape = f"{given['n_ctx']} cells, ubatches of {count_words(given['n_ubatch'], 'token')}, "
    shape += f"{count_words(given['n_seq'], 'sequence')}, "
    shape += "one stream" if given["unified"] else "a stream each"
    steps = [step_of(step) for step in given["steps"]]
    return {"shape": shape, "steps": steps, "failing": detail.get("step", -1), "sides": sides}


def step_of(step: Sequence[Any]) -> dict[str, Any]:
    name, *rest = step
    if name == "decode":
        return {"text": "decode", "tokens": [chip(row) for row in rest[0][:MOST]]}
    return {"text": OPERATIONS.get(name, name).format(*rest), "tokens": []}


def chip(row: Sequence[Any]) -> dict[str, Any]:
    """Return the drawing of one token. A question mark stands for an unknown part."""
    token, pos, seqs, output = row[:4]
    owner = "?" if seqs is None else ",".join(map(str, seqs)) or "none"
    return {"token": token, "pos": "?" if pos is None else pos, "seqs": owner, "output": output}


def answer_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    ubatches = answer.get("ubatches") or []
    return {
        "code": answer.get("code"),
        "spans": [*enumerate(answer.get("pos") or [])],
        "ubatches": [ubatch_of(one) for one in ubatches],
        "cells": [cells_of(one) for one in answer.get("slots") or []],
        "unseen": [name for name in SHOWN if answer.get(name) is None],
    }


def ubatch_of(one: Sequence[Any]) -> dict[str, Any]:
    equal, sets, rows = one
    kind = {None: "", True: "equal split", False: "simple split"}[equal]
    return {"kind": kind, "sets": sets, "tokens": [chip(row) for row in rows[:MOST]]}


def cells_of(slot: Sequence[Any]) -> dict[str, Any]:
    """Return the drawing of the cells before an ubatch is placed."""
    window, stream, n, used, head, owners, positions = slot
    cells = [] if owners == "-" else list(zip(owners, positions.split(" "), strict=True))
    where = "window's cache" if window else "cache"
    text = f"{where}, stream {stream}: {used} of the first {n} cells in use, head at {head}"
    if not used:
        text = f"{where}, stream {stream}: empty, head at {head}"
    return {"text": text, "cells": cells[:MOST], "head": head}
