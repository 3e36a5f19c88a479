"""A sampler in Lockstep's protocol, with numpy alone: temperature, cuts, penalties, one choice.

lockstep smoke -- python sampler.py
lockstep check model.gguf --suite samplers --engine "python sampler.py"
"""

import json
import sys
from collections import Counter

import numpy as np


def softmax(logits):
    e = np.exp(logits - logits.max())
    return e / e.sum()


def cut(ids, logits, kept):
    return ids[kept], logits[kept]


def largest_first(logits):
    return np.argsort(-logits, kind="stable")


def top_k(s, ids, logits, seen):
    return cut(ids, logits, largest_first(logits)[: s["k"] if s["k"] > 0 else None])


def top_p(s, ids, logits, seen):
    order = largest_first(logits)
    before = np.cumsum(softmax(logits)[order]) < s["p"]
    n = max(int(before.sum()) + 1, s["min_keep"]) if s["p"] < 1 else len(ids)
    return cut(ids, logits, order[:n])


def min_p(s, ids, logits, seen):
    order = largest_first(logits)
    enough = logits >= logits.max() + np.log(s["p"]) if s["p"] > 0 else logits >= -np.inf
    return cut(ids, logits, order[: max(int(enough.sum()), s["min_keep"])])


def temp(s, ids, logits, seen):
    if s["t"] > 0:
        return ids, logits / s["t"]
    return ids, np.where(np.arange(len(ids)) == logits.argmax(), logits, -np.inf)


def penalties(s, ids, logits, seen):
    counts = Counter(seen[-s["penalty_last_n"] :]) if s["penalty_last_n"] > 0 else {}
    n = np.array([counts.get(i, 0) for i in ids.tolist()])
    repeat = s["penalty_repeat"]
    moved = np.where(logits <= 0, logits * repeat, logits / repeat)
    moved = moved - n * s["penalty_freq"] - s["penalty_present"]
    return ids, np.where(n > 0, moved, logits)


def logit_bias(s, ids, logits, seen):
    for token, bias in s["biases"]:
        logits = np.where(ids == token, logits + float(bias), logits)
    return ids, logits


def keep_all(s, ids, logits, seen):
    return ids, logits


STAGES = {f.__name__: f for f in (top_k, top_p, min_p, temp, penalties, logit_bias)}
STAGES |= {"greedy": keep_all, "dist": keep_all}


def choose(stage, logits, draw):
    """Return the index that is selected; None: this stage selects nothing."""
    if stage["sampler"] == "greedy":
        return int(logits.argmax())
    if stage["sampler"] == "dist":
        return int(min(np.searchsorted(np.cumsum(softmax(logits)), draw), len(logits) - 1))
    return None


def sample(question, arrays):
    if unknown := {s["sampler"] for s in question["chain"]} - STAGES.keys():
        raise NotImplementedError(", ".join(sorted(unknown)))
    lists, selected, seen = [], [], []
    for row, draws, accepted in zip(arrays["logits"], arrays["draws"], question["accepted"]):
        seen += accepted
        ids, logits = np.arange(len(row)), row.astype(np.float64)
        for stage, draw in zip(question["chain"], draws):
            ids, logits = STAGES[stage["sampler"]](stage, ids, logits, seen)
            place = choose(stage, logits, draw)
            selected.append(-1 if place is None else ids[place])
            lists.append((ids, logits, softmax(logits)))
    shape = arrays["draws"].shape
    sizes = np.array([len(each[0]) for each in lists], "<i4").reshape(shape)
    found = {"sizes": sizes, "selected": np.array(selected, "<i4").reshape(shape)}
    for name, kind, part in (("ids", "<i4", 0), ("logits", "<f4", 1), ("p", "<f4", 2)):
        found[name] = np.concatenate([each[part] for each in lists]).astype(kind)
    return found


def answer(question, arrays):
    if question["ask"] == "start":
        return {"protocol": 1, "engine": "sampler", "version": "1", "can": ["sample"]}, {}
    return {}, sample(question, arrays)


KINDS = {"f32": "<f4", "f64": "<f8"}


def main():
    while line := sys.stdin.buffer.readline():
        question, arrays = json.loads(line), {}
        for name, kind, shape in question["arrays"]:
            size = np.dtype(KINDS[kind]).itemsize * int(np.prod(shape))
            raw = sys.stdin.buffer.read(size)
            arrays[name] = np.frombuffer(raw, KINDS[kind]).reshape(shape)
        head, found = {"id": question["id"]}, {}
        try:
            head["answer"], found = answer(question, arrays)
        except NotImplementedError as error:
            head["unsupported"] = f"no sampler {error}"
        except Exception as error:
            head["failed"] = repr(error)
        names = {"<i4": "i32", "<f4": "f32"}
        head["arrays"] = [[n, names[a.dtype.str], list(a.shape)] for n, a in found.items()]
        raw = b"".join(a.tobytes() for a in found.values())
        sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + raw)
        sys.stdout.buffer.flush()


np.seterr(all="ignore")
main()
