"""A question about samplers as one line of JSON, for commands that ask it again."""

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.engine.errors import EngineError
from lockstep.engine.samplers.parts.chain import make_chain
from lockstep.harness.check.check import BadInput
from lockstep.harness.protocol.sampling import describe_stage
from lockstep.harness.records import SampleRequest

MAX_CANDIDATES, MAX_TOKENS = 1 << 18, 1 << 16  # limits for all rows together
TEXTS = ("seq_breakers", "trigger_words", "trigger_patterns")
PLAIN_TEXTS = ("sampler", "grammar_str", "grammar_root")
SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def question_text(request: SampleRequest) -> str:
    """Return the question as JSON, with the protocol's names. Numbers that JSON lacks are texts."""
    body = {
        "chain": [describe_stage(stage) for stage in request.chain],
        "logits": [[plain(value) for value in row] for row in request.logits.tolist()],
        "accepted": [list(map(int, tokens)) for tokens in request.accepted],
        "prompt": list(map(int, request.prompt)),
    }
    return json.dumps(body, separators=(",", ":"), default=int)


def plain(value: float) -> float | str:
    """Return the shortest decimal number for this float32."""
    return repr(value) if not math.isfinite(value) else float(str(np.float32(value)))


def read_question(text: bytes) -> SampleRequest:
    """Return the question, without draws, from its JSON text. Raises BadInput."""
    try:
        body = json.loads(text)
        logits = np.array([[number(x) for x in row] for row in body["logits"]], np.float32)
        accepted = tuple(tuple(map(int, tokens)) for tokens in body["accepted"])
        chain = tuple(read_stage(stage) for stage in body["chain"])
        prompt = tuple(map(int, body.get("prompt", ())))
        if logits.ndim != 2 or not 0 < logits.size <= MAX_CANDIDATES or not chain:
            raise ValueError("expected logits in rows of equal length, and a chain with stages")
        if len(accepted) != len(logits) or sum(map(len, accepted)) > MAX_TOKENS:
            raise ValueError("expected the tokens before each row in accepted")
        make_chain(chain, logits.shape[1])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, EngineError) as error:
        raise BadInput(f"--question is not a question about samplers: {error!r}") from error
    draws = np.full((len(logits), len(chain)), np.nan)
    return SampleRequest(chain=chain, logits=logits, accepted=accepted, draws=draws, prompt=prompt)


def number(value: Any) -> float:
    return SPECIAL[value] if isinstance(value, str) else float(value)


def read_stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(stage)
    for name, value in found.items():
        if name in TEXTS:
            found[name] = tuple(base64.b64decode(text) for text in value)
        elif name == "biases":
            found[name] = tuple((int(t), number(b)) for t, b in value)
        elif name == "trigger_tokens":
            found[name] = tuple(map(int, value))
        elif name not in PLAIN_TEXTS:
            found[name] = value + 0  # raises TypeError for a value that is no number
    return found
