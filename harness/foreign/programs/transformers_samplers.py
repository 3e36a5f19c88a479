"""Logits processors of transformers, one for each sampler. Removed candidates get minus infinity.

A stage is constructed as transformers' `generate` constructs it. torch makes the random choice, and
accepts no draw from outside.
"""

import numpy as np
import torch
from answering import Unsupported
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)


def least(s):
    return {"min_tokens_to_keep": max(s["min_keep"], 1)}


def repetition(s):
    if s["penalty_freq"] or s["penalty_present"]:
        raise Unsupported("penalties of frequency and presence")
    repeat = s["penalty_repeat"]
    return RepetitionPenaltyLogitsProcessor(repeat) if repeat != 1 else None


def bias(s):
    tokens = [token for token, _ in s["biases"]]
    if len({*tokens}) < len(tokens):
        raise Unsupported("two biases of one token")
    return SequenceBiasLogitsProcessor([[[token], float(number)] for token, number in s["biases"]])


MAKERS = {  # the processor that `generate` makes for a stage; None if it makes none
    "temp": lambda s: TemperatureLogitsWarper(s["t"]) if s["t"] != 1 else None,
    "top_k": lambda s: TopKLogitsWarper(s["k"]) if s["k"] else None,
    "top_p": lambda s: TopPLogitsWarper(s["p"], **least(s)) if s["p"] < 1 else None,
    "min_p": lambda s: MinPLogitsWarper(s["p"], **least(s)),
    "typical": lambda s: TypicalLogitsWarper(s["p"], **least(s)) if s["p"] < 1 else None,
    "penalties": repetition,
    "logit_bias": bias,
    "greedy": lambda s: None,
}


def make_stage(said):
    if said["sampler"] not in MAKERS:
        raise Unsupported(f"no sampler {said['sampler']}")
    try:
        return MAKERS[said["sampler"]](said)
    except ValueError as error:
        raise Unsupported(str(error)) from error


def window(said, seen):
    """Return the ids that a processor gets: (1, tokens)."""
    last = said.get("penalty_last_n", 0)
    return torch.tensor([seen[-last:] if last > 0 else []], dtype=torch.long)


@torch.no_grad()
def sample(question, given):
    chain, seen, lists, selected = question["chain"], [], [], []
    stages = [make_stage(said) for said in chain]
    for row, accepted in zip(given["logits"], question["accepted"], strict=True):
        seen += accepted
        scores = torch.from_numpy(row.copy())[None]
        for said, stage in zip(chain, stages, strict=True):
            if stage is not None:
                scores = stage(window(said, seen), scores)
            is_last = said["sampler"] == "greedy"
            selected.append(int(scores.argmax(dim=-1)) if is_last else -1)
            lists.append(scores[0].numpy().copy())
    kept = [np.flatnonzero(each > -np.inf) for each in lists]
    shape = len(given["logits"]), len(chain)
    return {}, {
        "sizes": np.array([len(each) for each in kept], np.int32).reshape(shape),
        "selected": np.array(selected, np.int32).reshape(shape),
        "ids": np.concatenate(kept).astype(np.int32),
        "logits": np.concatenate([each[at] for each, at in zip(lists, kept, strict=True)]),
    }
