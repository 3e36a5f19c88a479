"""A golden run without a model: random logits, and answers of honest and wrong engines."""

from typing import Any

import numpy as np

from lockstep.engine.quants.base import F32
from lockstep.golden.compact import BLOCK, Floor
from lockstep.golden.honest import LOGITS
from lockstep.golden.suites.base import Vectors
from lockstep.golden.suites.parts.run_form import body_of

WIDTH = 700
PROMPT, N_GREEDY = [5, 9, 600, 3], 6
ROWS = len(PROMPT) + N_GREEDY - 1
DRAWN = np.random.default_rng(11).normal(size=(ROWS, WIDTH)).astype(np.float32)
GREEDY = [int(i) for i in DRAWN[len(PROMPT) - 1 :].argmax(axis=1)]
PLAIN = (DRAWN * np.float32(1.0003)).astype(np.float32)
NOISE = 1e-5  # error of each logit; honest errors cancel in sums
SETTINGS = {
    "name": "exact",
    "type_k": "F32",
    "type_v": "F32",
    "flash_attn": False,
    "repack": False,
    "n_threads": 1,
    "n_ctx": 512,
    "n_ubatch": 512,
}
CHANGES = {  # value: True if such an engine is honest
    "nothing": True,
    "honest errors": True,
    "no conversions": True,
    "a wrong scale": False,
    "swapped columns": False,
    "a late row": False,
    "one large value": False,
    "a block of zeros": False,
    "NaN": False,
}


def small_run(**nodes: F32) -> Vectors:
    floor = Floor(value=NOISE, sums=NOISE * BLOCK**0.5, moments=NOISE * BLOCK**1.5)
    ways = {"ggml": {LOGITS: DRAWN, **nodes}, "plain": {LOGITS: PLAIN, **nodes}}
    body, tensors = body_of(PROMPT, GREEDY, None, ways, {n: floor for n in ways["ggml"]}, 1)
    model = {"name": "none", "sha256": "0" * 64, "bytes": 0, "recipe": None}
    oracle = {"engine": "llama.cpp", "version": "0"}
    head: dict[str, Any] = {
        "kind": "run",
        "format": 1,
        "provenance": {"generator": "a test", "oracle": oracle, "settings": SETTINGS, "seed": 1},
        "model": model,
        "architecture": "none",
    }
    return Vectors(document={**head, **body}, tensors=tensors)


def changed(name: str) -> F32:
    """Return the logits of an engine with the named property."""
    m = DRAWN.copy()
    small = int(np.abs(m[2, :BLOCK]).argmin())
    if name == "honest errors":
        m += np.random.default_rng(2).uniform(-NOISE, NOISE, m.shape).astype(np.float32)
    elif name == "no conversions":
        m = PLAIN.copy()
    elif name == "a wrong scale":
        m *= np.float32(1.001)
    elif name == "swapped columns":
        m[:, [300, 301]] = m[:, [301, 300]]
    elif name == "a late row":
        m[4] = m[3]
    elif name == "one large value":
        m[2, small] = 9
    elif name == "a block of zeros":
        m[1, 512:] = 0
    elif name == "NaN":
        m[2, small] = np.nan
    return m
