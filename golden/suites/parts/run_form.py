"""Contents of the document of a run, and the names of its stored tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.golden.compact import BLOCK, RULE, Floor, compact_logits, seeded_columns
from lockstep.golden.honest import LOGITS, Matrices
from lockstep.golden.store import Tensors
from lockstep.golden.suites.logits import rounded_up
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.noise import MORE_RUNS
from lockstep.harness.judging.tolerances import BY_BOUNDS, whole_run

WAYS = ("ggml", "plain")  # engines that round as llama.cpp does, and engines that do not
ALONE = 2  # greedy ids that are decoded one by one; earlier ids are decoded in one batch
ROWS = (
    "batch after batch on one cache, as `batches` has their lengths: the ids of the prompt, then "
    "the greedy ones but the last; a row of logits for each id, and the rows of a node as they "
    "come; if decoder_start is there, the first batch is the encoder's, without rows, and the "
    "decoder's ids begin with that one"
)


def body_of(
    prompt: Sequence[int],
    greedy: Sequence[int],
    decoder_start: int | None,
    ways: Mapping[str, Matrices],
    floors: Mapping[str, Floor],
    seed: int,
    about: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[dict[str, Any], Tensors]:
    """Return the document's part about the runs, and the tensors. about: more facts about a node,
    by name."""
    tensors: Tensors = {}
    for name in floors:
        tensors |= tensors_of(name, seed, {way: ways[way][name] for way in WAYS})
    body = {
        "prompt": list(prompt),
        "greedy": list(greedy),
        "decoder_start": decoder_start,
        "margins": margins(tensors, len(greedy)),
        "batches": [len(batch) for batch in batches_of(prompt, greedy, decoder_start)],
        "rows": ROWS,
        "block": BLOCK,
        "rule": RULE,
        "shown": [
            {**row_of(name, ways["ggml"][name], floor), **(about or {}).get(name, {})}
            for name, floor in floors.items()
        ],
    }
    return body, tensors


def batches_of(
    prompt: Sequence[int], greedy: Sequence[int], decoder_start: int | None
) -> tuple[Batch, ...]:
    """Return a batch for the prompt, a batch for most greedy ids, and a batch for each remaining
    id. decoder_start: the decoder's first token, if an encoder reads the prompt."""
    ids = list(greedy[:-1])
    together = max(len(ids) - ALONE, 0)
    parts = [ids[:together], *([token] for token in ids[together:])]
    parts.insert(0, list(prompt) if decoder_start is None else [decoder_start])
    found = [] if decoder_start is None else [Batch.to_encode(Batch.of(prompt))]
    start = 0
    for part in parts:
        if part:
            found.append(Batch.of(part, start=start))
            start += len(part)
    return tuple(found)


def batches_of_document(document: Mapping[str, Any]) -> tuple[Batch, ...]:
    return batches_of(document["prompt"], document["greedy"], document["decoder_start"])


def row_of(name: str, matrix: F32, floor: Floor) -> dict[str, Any]:
    size = largest(matrix)
    if not np.isfinite([floor.value, floor.sums, floor.moments]).all():
        text = f"honest runs overflow in {name}, so that no limit can be given"
        raise NoAnswer("not-compared", text, {})
    noise = rounded_up(floor.value / size) if floor.value else 0.0
    bound = whole_run(noise, size, BY_BOUNDS)
    return {
        "name": name,
        "rows": len(matrix),
        "width": matrix.shape[1],
        "largest": size,
        "noise": noise,
        "runs": MORE_RUNS,
        "allowed": {
            "values": float(bound.allowed),
            "sums": 2 * rounded_up(floor.sums),
            "moments": 2 * rounded_up(floor.moments),
        },
        "reason": f"{bound.reason}; sums and moments: twice how far those of the same runs were",
    }


def names_of(name: str) -> list[str]:
    parts = ("ids", "top", "columns", "sums", "moments")
    return [f"{name}/columns", *(f"{name}/{way}.{part}" for way in WAYS for part in parts)]


def tensors_of(name: str, seed: int, ways: Mapping[str, F32]) -> Tensors:
    columns = seeded_columns(seed, name, ways["ggml"].shape[1])
    found: Tensors = {f"{name}/columns": columns}
    for way, matrix in ways.items():
        found |= {f"{name}/{way}.{part}": x for part, x in compact_logits(matrix, columns).items()}
    return found


def margins(tensors: Tensors, n_greedy: int) -> list[float]:
    """Return the distance of each greedy id's logit from the second largest logit."""
    if not n_greedy:
        return []
    top = tensors[f"{LOGITS}/ggml.top"][-n_greedy:].astype(np.float64)
    return [float(x) for x in top[:, 0] - top[:, min(1, top.shape[1] - 1)]]
