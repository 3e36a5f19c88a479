"""The protocol's question about samplers. It contains a chain and rows of logits, and the answer
contains lists of candidates."""

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lockstep.harness.protocol.frames import Message
from lockstep.harness.records import SampleAnswer, SampleRequest


def send_sample(request: SampleRequest) -> Message:
    head = {
        "ask": "sample",
        "chain": [describe_stage(stage) for stage in request.chain],
        "accepted": [list(map(int, tokens)) for tokens in request.accepted],
        "prompt": list(map(int, request.prompt)),
    }
    return Message(head=head, arrays={"logits": request.logits, "draws": request.draws})


def describe_stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stage as a dict, in which the sampler's name comes first. This order helps
    programs without a JSON library."""
    named = {"sampler": stage["sampler"], **stage}
    return {name: plain_value(value) for name, value in named.items()}


def plain_value(value: Any) -> Any:
    """Return the value as JSON: texts in base64, infinities as texts."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple | list):
        return [plain_value(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def read_sample(answer: Message) -> SampleAnswer:
    arrays = answer.arrays
    p = arrays["p"] if "p" in arrays else np.full(arrays["ids"].shape, np.nan, np.float32)
    return SampleAnswer(
        sizes=arrays["sizes"],
        selected=arrays["selected"],
        ids=arrays["ids"],
        logits=arrays["logits"],
        p=p,
    )
