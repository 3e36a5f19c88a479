"""Common parts of the Python programs: frames of PROTOCOL.md, and the rules for one sequence.

This module runs in the engine's own environment, which has the standard library and numpy but not
Lockstep. Answers go to the descriptor that Lockstep offers, because the engines' libraries print to
standard output.
"""

import base64
import json
import os
import sys
import traceback

import numpy as np

TYPES = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "i32": "<i4", "i64": "<i8", "u8": "u1"}
NAMES = {np.dtype(code): name for name, code in TYPES.items()}


class Unsupported(Exception):
    """Error: the engine does not support this question, so Lockstep does not compare it."""


class Refused(Exception):
    """Error: the engine does not accept the input. Lockstep compares this refusal with the oracle's
    answer."""


def serve(start):
    """Serve the protocol. start(model, settings) returns the engine's description and a dict
    {question: function}. settings["adapters"] holds the adapter files to add, of the kinds that the
    engine supports.

    A function takes the question and its arrays, and returns the answer and its arrays.
    """
    asked = sys.stdin.buffer
    answers = {}
    with os.fdopen(int(os.environ["LOCKSTEP_ANSWERS"]), "wb") as out:
        while line := asked.readline():
            question = json.loads(line)
            given = {name: read(asked, kind, shape) for name, kind, shape in question["arrays"]}
            ending, arrays = "answer", {}
            try:
                if question["ask"] == "start":
                    settings = {**question["settings"], "adapters": question.get("adapters", [])}
                    said, answers = start(question["model"], settings)
                    answer = {"protocol": 1, "can": list(answers), **said}
                else:
                    answer, arrays = answers[question["ask"]](question, given)
            except Unsupported as error:
                ending, answer = "unsupported", str(error)
            except Refused as error:
                ending, answer = "refused", str(error)
            except Exception as error:
                traceback.print_exc()  # goes to the log
                ending, answer = "failed", f"{type(error).__name__}: {error}"
            write(out, {"id": question["id"], ending: answer}, arrays)


def later(load, *names):
    """Return a function for each named method of a model. The first call loads the model. If
    loading fails, the answer is the error."""
    loaded = []

    def answer(name):
        def ask(question, given):
            loaded[:] = loaded or [load()]
            return getattr(loaded[0], name)(question, given)

        return ask

    return {name: answer(name) for name in names}


def read(file, kind, shape):
    dtype = np.dtype(TYPES[kind])
    raw = file.read(dtype.itemsize * int(np.prod(shape)))
    return np.frombuffer(raw, dtype).reshape(shape)


def write(out, head, arrays):
    arrays = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    head["arrays"] = [[name, NAMES[a.dtype], list(a.shape)] for name, a in arrays.items()]
    out.write(json.dumps(head).encode() + b"\n")
    for value in arrays.values():
        out.write(value.tobytes())
    out.flush()


# --- runs -----------------------------------------------------------------------------------------


def steps(batches):
    """Yield (ids, position of the first id, wanted rows) for each step of a single sequence. Raises
    Unsupported for other batches."""
    done = 0
    for batch in batches:
        if batch["encoder"] or len({*batch["sequences"]}) > 1:
            raise Unsupported("an encoder, or several sequences")
        if batch["positions"] != list(range(done, done + len(batch["tokens"]))):
            raise Unsupported("positions that are not consecutive")
        yield batch["tokens"], done, np.array(batch["outputs"], bool)
        done += len(batch["tokens"])


def rows_of(decode, question):
    """Answer `logits` for an engine without a trace. decode(ids, start) returns (tokens,
    vocabulary), and start 0 clears the cache."""
    rows = [decode(ids, at)[wanted] for ids, at, wanted in steps(question["batches"])]
    return {}, {f"logits{i}": np.asarray(r, np.float32) for i, r in enumerate(rows)}


def greedy_ids(decode, question):
    """Answer `greedy`: the argmax of each row of logits, and the lowest id if several logits are
    equal."""
    row = decode(question["prompt"], 0)[-1]
    ids, at = [int(np.argmax(row))], len(question["prompt"])
    while len(ids) < question["n"]:
        row = decode(ids[-1:], at)[-1]
        ids.append(int(np.argmax(row)))
        at += 1
    return {"ids": ids}, {}


def wanted_rows(node, value, wanted, last_layer):
    """Drop the rows that llama.cpp drops after the last layer's attention: the rows of tokens
    without output."""
    name, _, layer = node.rpartition("-")
    behind = name.startswith(("ffn_", "l_out")) and layer == str(last_layer)
    return value[wanted] if behind or node.startswith("result_") else value


# --- text -----------------------------------------------------------------------------------------


def texts(question):
    return [base64.b64decode(text).decode() for text in question["texts"]]


def encode_answer(pieces):
    """Encode the answer to `detokenize`. The pieces are texts or bytes."""
    raw = (piece.encode() if isinstance(piece, str) else piece for piece in pieces)
    return {"texts": [base64.b64encode(piece).decode() for piece in raw]}, {}
