"""The example engine with saved sessions (the questions save and load). MODE: right, or a mistake.

`memory` writes an empty file and keeps the session in the process. An engine with one of CHANGES
offers no logits outside sessions.
"""

import sys
from pathlib import Path

import numpy as np

EXAMPLE = Path(__file__).parents[1] / "src/lockstep/harness/examples/engine.py"
held = {"__name__": "example"}
exec(compile(EXAMPLE.read_text().rpartition("main()")[0], EXAMPLE, "exec"), held)
without_sessions, kept = held["answer"], {}
noise = np.random.default_rng()
MODE = sys.argv[1]
CHANGES = {
    "jitter": lambda row: row * noise.normal(1, 1e-7, row.shape),
    "noise": lambda row: row + noise.normal(0, 5, row.shape),
    "nan": lambda row: row * np.nan,
    "zero": lambda row: row * 0,
    "reversed": lambda row: row[:, ::-1],
}


def run(model, batches, caches):
    rows = [model.decode(b, caches, lambda node, value: value, "") for b in batches]
    return [CHANGES.get(MODE, np.asarray)(row) for row in rows]


def write(question, caches):
    some = np.full(len(caches[0][3]), True)
    if question["sequence"] is not None:
        some = caches[0][3] == question["sequence"]
    with open(question["path"], "wb") as file:
        np.savez(file, *(array[some] for cache in caches for array in cache))


def answer(question, given, model):
    ask, path = question["ask"], question.get("path")
    if ask == "start":
        said, arrays = without_sessions(question, given, model)
        return {**said, "can": ["save", "load"] + ["logits"] * (MODE not in CHANGES)}, arrays
    if ask == "save":
        caches = [None] * model.layers
        run(model, question["batches"], caches)
        if MODE == "memory":
            kept[path] = list(caches)
            Path(path).write_bytes(b"")
        else:
            write(question, caches)
    elif ask == "load":
        if MODE == "memory":
            caches = kept.get(path, [None] * model.layers)
        else:
            arrays = list(np.load(path).values())
            caches = [arrays[i : i + 4] for i in range(0, len(arrays), 4)]
    else:
        return without_sessions(question, given, model)
    return {}, {f"logits{i}": rows for i, rows in enumerate(run(model, question["then"], caches))}


held["answer"] = answer
held["main"]()
