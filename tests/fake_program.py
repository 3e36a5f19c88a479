"""A program for Lockstep's protocol that misbehaves in the way its argument names."""

import json
import os
import sys
import time

WAY = sys.argv[1]
CAN = ["tokenize", "greedy", "generate", "logprobs", "logits", "dequantize"]
LISTS = {
    "lists texts": {"texts": [["YQ=="]], "logprobs": [["-inf"]]},
    "lists a value less": {"ids": [[1, 2]], "logprobs": [[-1]]},
    "lists an endless number": {"ids": [[1]], "logprobs": [[10**400]]},
    "lists words": {"ids": [[1]], "logprobs": [["much"]]},
    "lists no base64": {"texts": [["a!"]], "logprobs": [[-1]]},
    "lists a token twice": {"ids": [[1, 1]], "logprobs": [[-1, -1]]},
    "lists for nobody": {"ids": [], "logprobs": []},
}


LINES = {
    "sends no JSON": b"Segmentation fault (core dumped)\n",
    "sends a list": b"[1]\n",
    "answers the one before twice": b'{"id":1,"answer":{}}\n',
    "sends NaN": b'{"id":2,"answer":{"ids":[[NaN]]}}\n',
    "says a key twice": b'{"id":2,"answer":{"ids":[[1]]},"answer":{"ids":[[1]]}}\n',
    "has a text for its id": b'{"id":"2","answer":{"ids":[[1]]}}\n',
    "nests": b"[" * 100_000 + b"\n",
}


def introduction():
    said = {"protocol": 1, "engine": "fake", "version": "7", "can": CAN}
    changed = {
        "of another version": {"protocol": 2},
        "can more than there is": {"can": ["telepathy"]},
        "nameless": {"engine": ""},
        "shows a node without a name": {"can": ["logits", "trace"], "shows": ["embd", ""]},
        "follows no settings": {"settings": {"type_k": "F16", "type_v": "F16"}},
        "has strange settings": {"settings": {"n_ctx": "many"}},
        "stores keys in nothing": {"settings": {"type_k": "banana"}},
        "has no threads": {"settings": {"n_threads": 0}},
        "has very many threads": {"settings": {"n_threads": 513}},
        "names its settings": {"settings": {"name": "exact", "type_k": "Q8_0"}},
        "stores values as llama.cpp cannot": {"settings": {"type_v": "Q8_0"}},
        "steers the terminal": {"engine": "fake\x1b[2J"},
    }
    return said | changed.get(WAY, {})


def answer(question):
    """Return an answer's head, without its id, and its raw bytes."""
    if question["ask"] == "start" and WAY == "is silent":
        time.sleep(1000)
    if question["ask"] == "start" and WAY == "wants another model":
        return {"unsupported": "no model of this kind"}, b""
    if question["ask"] == "start" and WAY == "cannot load":
        return {"failed": "this model has a kind of tensor that is not implemented: Q4_K"}, b""
    if question["ask"] == "start":
        return {"answer": introduction()}, b""
    if question["ask"] == "greedy":
        return {"answer": {"ids": [1] * question["n"]}}, b""
    if question["ask"] == "generate":
        return {"answer": {"text": question["prompt"]}}, b""
    if question["ask"] == "logprobs":
        honest = {"ids": [[5, 1]] * len(question["prefixes"])}
        honest["logprobs"] = [[-0.5, -2]] * len(question["prefixes"])
        return {"answer": LISTS.get(WAY, honest)}, b""
    if question["ask"] == "dequantize":
        n = question["bytes"] // 34 * 32
        shape = [n, 1] if WAY == "has another shape" else [n]
        raw = bytes(8 * n if WAY == "writes doubles" else 4 * n)
        return {"answer": {}, "arrays": [["weights", "f32", shape]]}, raw
    refusals = {
        "refuses": {"refused": "no such words"},
        "does not support": {"unsupported": "not yet"},
        "fails": {"failed": "an exception\nin two lines"},
        "lacks the ids": {"answer": {}},
        "answers with a list": {"answer": []},
        "has a number for ids": {"answer": {"ids": 7}},
        "has texts for ids": {"answer": {"ids": [["a"]]}},
        "has fewer answers": {"answer": {"ids": []}},
        "says both": {"answer": {"ids": [[1]]}, "failed": "no"},
        "says nothing": {},
        "names one array twice": {"answer": {}, "arrays": [["a", "u8", [0]], ["a", "u8", [0]]]},
        "has a type of its own": {"answer": {}, "arrays": [["a", "f8", [1]]]},
        "announces ten gigabytes": {"answer": {}, "arrays": [["a", "u8", [10 << 30]]]},
        "counts badly": {"answer": {}, "arrays": [["a", "u8", [0]]], "bytes": 3},
    }
    return refusals.get(WAY, {"answer": {"ids": [[1, 2]]}}), b""


def main():
    if WAY == "prints first":
        sys.stdout.write("loading ... 100 %\n")
    out = sys.stdout.buffer
    if WAY == "uses the descriptor":
        sys.stdout.write("loading ... 100 %\n")
        out = os.fdopen(int(os.environ["LOCKSTEP_ANSWERS"]), "wb")
    while line := sys.stdin.buffer.readline():
        question = json.loads(line)
        sys.stdin.buffer.read(question["bytes"])
        head, raw = answer(question)
        if question["ask"] == "tokenize":
            misbehave(out)
        if WAY == "sends NaN at first":
            out.write(b'{"id":1,"answer":{"protocol":NaN}}\n')
        if WAY == "prints a dict":
            out.write(f"{ {'id': 1, **head} }\n".encode())
        number = 99 if WAY == "miscounts" and question["ask"] == "tokenize" else question["id"]
        out.write(json.dumps({"id": number, **head}).encode() + b"\n" + raw)
        out.flush()


def misbehave(out):
    if WAY == "dies":
        sys.exit("out of luck")
    if WAY == "is killed":
        os.kill(os.getpid(), 9)
    if WAY == "hangs":
        time.sleep(1000)
    if WAY == "takes memory":
        held = bytearray(8 << 30)
        held[::4096] = b"x" * len(held[::4096])
    while WAY == "writes on and on":
        out.write(b"x" * (1 << 20))
    out.write(LINES.get(WAY, b""))


main()
