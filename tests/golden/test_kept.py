"""Vectors whose last bits depend on the CPU: when they stay, and when they are rewritten."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lockstep.golden.load import load_vectors
from lockstep.golden.manifest import read_manifest
from lockstep.golden.store import DEFAULT_ROOT
from lockstep.golden.suites.base import Vectors
from lockstep.golden.suites.logits import GoldenLogits
from lockstep.golden.write import Made, held_or_made

ENTRIES = {entry.path: entry for entry in read_manifest(DEFAULT_ROOT)}
LOGITS, DOT, OPS = "logits/f32", "dot/q4_k", "ops/silu"
Change = Callable[[dict[str, Any], dict[str, Any]], None]


def held(path: str) -> Vectors:
    return load_vectors(DEFAULT_ROOT, ENTRIES[f"{path}.json"], ENTRIES)


def made(path: str, change: Change) -> Made:
    """Return vectors as if made on another CPU; `change` edits the document and the tensors."""
    found = held(path)
    document = {key: value for key, value in found.document.items() if key != "tensors"}
    provenance = document["provenance"]
    oracle = dict(provenance["oracle"])
    if "build" in oracle:
        oracle["build"] = "CPU : NEON = 1"
    document["provenance"] = {**provenance, "oracle": oracle}
    tensors = {name: value.copy() for name, value in found.tensors.items()}
    change(document, tensors)
    vectors = Vectors(document=document, tensors=tensors)
    return Made(path=path, kind=path.split("/")[0], vectors=vectors, model=None)


def regenerated(path: str, change: Change) -> tuple[bool, list[str]]:
    """Return whether the bytes on the disk stay, and the messages."""
    said: list[str] = []
    new = made(path, change)
    kept = held_or_made(DEFAULT_ROOT, list(ENTRIES.values()), new, said.append)
    assert kept.vectors is new.vectors or kept.vectors.document == held(path).document
    return kept.vectors is not new.vectors, said


def moved(share: float) -> Change:
    """Return a change that moves one logit by this share of its limit."""

    def change(document: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["logits"][3, 5] += share * document["tolerance"]["allowed"]

    return change


def tie(margin: float) -> Change:
    """Return a change that replaces the second greedy id by an id whose logit is about `margin`
    lower, and changes all later logits."""

    def change(document: dict[str, Any], tensors: dict[str, Any]) -> None:
        greedy, at = list(document["greedy"]), len(document["prompt"])
        row = held(LOGITS).tensors["logits"][at]
        away = np.abs(row[greedy[1]] - row - margin)
        greedy[1] = int(away.argmin())
        document["greedy"] = greedy
        tensors["logits"][at + 1 :] += 1

    return change


def noise(value: float) -> Change:
    def change(document: dict[str, Any], tensors: dict[str, Any]) -> None:
        document["tolerance"] = {**document["tolerance"], "noise": value}

    return change


def product(share: float) -> Change:
    def change(document: dict[str, Any], tensors: dict[str, Any]) -> None:
        to = tensors["expected"] + np.float32(share) * tensors["allowed"]
        tensors["llama_cpp"] = to.astype(np.float32)

    return change


def next_bit(name: str) -> Change:
    def change(document: dict[str, Any], tensors: dict[str, Any]) -> None:
        flat = tensors[name].reshape(-1)
        flat[0] = np.nextafter(flat[0], flat.dtype.type(np.inf))

    return change


def edited(key: str, value: object) -> Change:
    def change(document: dict[str, Any], tensors: dict[str, Any]) -> None:
        document[key] = value

    return change


@pytest.mark.parametrize(
    ("path", "change"),
    [
        *((LOGITS, moved(0.0)), (LOGITS, moved(0.9)), (LOGITS, moved(-0.9))),
        *((LOGITS, noise(8.1e-6)), (LOGITS, noise(7.9e-6)), (DOT, product(0.9))),
        (OPS, edited("kind", "ops")),
        (DOT, edited("reason", "in other words")),
    ],
)
def test_other_words_and_answers_within_the_bound_change_no_byte(path: str, change: Change) -> None:
    assert regenerated(path, change) == (True, [])


@pytest.mark.parametrize(
    ("path", "change", "why"),
    [
        (LOGITS, moved(1.1), "1 of 11904 logits differ; worst at position 3, token 5"),
        (LOGITS, moved(np.nan), "1 of 11904 logits differ"),
        (LOGITS, tie(1.0), "greedy id 1 is"),
        (LOGITS, edited("prompt", [1] * 24), "'prompt' differs"),
        (LOGITS, edited("greedy", [1]), "1 greedy ids, expected 8"),
        (LOGITS, noise(8.2e-6), "the noise of honest runs is 8.2e-06, was 8.0e-06"),
        (DOT, product(1.1), "the oracle's product is out of bound at"),
        (DOT, next_bit("expected"), "'expected' differs"),
        (DOT, next_bit("allowed"), "'allowed' differs"),
        (DOT, next_bit("activations"), "'activations' differs"),
        (OPS, next_bit("length-33/y.plain"), "'length-33/y.plain' differs"),
    ],
)
def test_changed_question_or_answer_is_rewritten_and_reported(
    path: str, change: Change, why: str
) -> None:
    kept, said = regenerated(path, change)
    assert not kept
    assert len(said) == 1
    assert said[0].startswith(f"{path} is written anew: ")
    assert why in said[0]


def test_tokens_after_a_tie_within_the_bound_are_not_compared() -> None:
    """Two logits of the row before the token get close values, so that either id may win."""
    found = held(LOGITS)
    at, greedy = len(found.document["prompt"]), found.document["greedy"]
    logits = found.tensors["logits"].copy()
    other = int(np.argsort(logits[at])[-2])
    logits[at, other] = logits[at, greedy[1]] - found.document["tolerance"]["allowed"]
    beside = replace(found, tensors={"logits": logits})
    after = logits.copy()
    after[at + 1 :] += 1
    document = {**found.document, "greedy": [greedy[0], other, *greedy[2:]]}
    new = Vectors(document=document, tensors={"logits": after})
    assert GoldenLogits().why_outdated(beside, new) == ""
    after[at, 0] += 1
    assert "1 of" in GoldenLogits().why_outdated(beside, new)


def test_broken_or_missing_vectors_are_rewritten() -> None:
    new = made(DOT, product(0.0))
    said: list[str] = []
    entry = replace(ENTRIES[f"{DOT}.json"], sha256="0" * 64)
    assert held_or_made(DEFAULT_ROOT, [entry], new, said.append) is new
    assert "changed by hand" in said[0]
    assert held_or_made(DEFAULT_ROOT, [], new, said.append) is new
    assert len(said) == 1
