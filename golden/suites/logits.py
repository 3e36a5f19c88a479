"""Vectors of logits of a prompt and of the greedy steps after it, with a tolerance."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import steps_of
from lockstep.engine.errors import Unsupported
from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.golden.store import BrokenGolden
from lockstep.golden.suites.base import (
    AskedEngine,
    Golden,
    Source,
    Vectors,
    Verdicts,
    difference,
    each,
    without_words,
)
from lockstep.harness.judging.compare import largest, mismatch_between, worst_distance
from lockstep.harness.judging.noise import noise_floor
from lockstep.harness.judging.tolerances import BY_BOUNDS, whole_run
from lockstep.harness.records import Evaluation, Request, Verdict
from lockstep.harness.suites.decode import PROMPT
from lockstep.harness.synth.generator import integers, stream

# number of lanes of the widest vectors, which round least, so that no CPU has a wider limit
LANES = 16
N_PROMPT, N_GREEDY = 24, 8  # tokens of a seeded model, whose text is meaningless
N_GREEDY_OF_TEXT = 32
LARGEST = 4 << 20  # bytes of one model's logits
ROWS = (
    "the first rows follow the tokens of the prompt, decoded as one batch; each later row follows "
    "one greedy token, decoded alone, the last of them excepted"
)


class GoldenLogits(Golden, name="logits"):
    def make(self, source: Source, what: str) -> Vectors:
        assert source.path is not None
        s = source.settings
        mirror = Mirror(s.n_threads, s.n_ctx, source.info.generic)
        with closing(Model(source.path, mirror, n_ctx=s.n_ctx, n_ubatch=s.n_ubatch)) as model:
            prompt, n = prompt_of(source, model)
            room = (len(prompt) + n) * model.graph.hparams.n_vocab * 4
            if room > LARGEST:
                raise BrokenGolden(
                    f"the logits of {what} would take {room:,} bytes; goldens are for small "
                    f"models (at most {LARGEST:,})"
                )
            source.progress(f"{what}: logits of {len(prompt) + n} tokens")
            greedy = source.ask("greedy", prompt, n)
            batches = steps_of(prompt, greedy)
            answer: Evaluation = source.ask("evaluate", Request(batches=batches))
            logits = np.concatenate(answer.logits)
            source.progress(f"{what}: noise of honest runs")
            noise = noise_floor(model, batches, s, lanes=LANES, seed=source.seed)
        tolerance = tolerance_of(rounded_up(noise.relative), logits)
        body = {
            "model": source.model,
            "prompt": prompt,
            "greedy": greedy,
            "rows": ROWS,
            "tolerance": tolerance,
        }
        return Vectors(
            document={**source.head("logits", build=True), **body}, tensors={"logits": logits}
        )

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        document, logits = vectors.document, vectors.tensors.get("logits")
        n_prompt, greedy = len(document["prompt"]), document["greedy"]
        if logits is None or logits.ndim != 2 or len(logits) != n_prompt + len(greedy) - 1:
            yield "there is no matrix 'logits' with a row for every id but the last"
            return
        if [int(i) for i in logits[n_prompt - 1 :].argmax(axis=1)] != greedy:
            yield "the greedy ids are not those of the largest logits"
        if max(document["prompt"] + greedy) >= logits.shape[1]:
            yield "an id is outside the vocabulary"
        right = tolerance_of(document["tolerance"]["noise"], logits)
        if without_words(document["tolerance"]) != without_words(right):
            yield "the tolerance does not follow from its noise and the largest logit"

    def why_outdated(self, held: Vectors, made: Vectors) -> str:
        """Explain why held vectors are outdated; "" if they can stay.

        Logits of another CPU may differ within the bound, and ids may differ after a tie.
        """
        found = difference(held, made, but=("greedy", "logits", "tolerance"))
        noise, was = (v.document["tolerance"]["noise"] for v in (made, held))
        if found or not as_measured_twice(noise, was):
            return found or f"the noise of honest runs is {noise:.1e}, was {was:.1e}"
        verdict = Verdicts(suite="golden-logits", case=held.document["model"]["name"], repro="")
        ids = same_ids(held, made.document["greedy"], verdict)
        if ids.status == "diverged":
            return ids.summary
        n = len(held.document["prompt"]) + ids.detail.get("step", len(made.document["greedy"]))
        rows = replace(held, tensors={"logits": held.tensors["logits"][:n]})
        logits = compare_logits(rows, made.tensors["logits"][:n], verdict)
        return logits.summary if logits.status == "diverged" else ""

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        names = ("provenance", "model", "prompt", "greedy", "tolerance")
        return {**{name: vectors.document[name] for name in names}, **vectors.tensors}

    def replay(self, vectors: Vectors, ask: AskedEngine, verdict: Verdicts) -> Iterator[Verdict]:
        document = vectors.document
        prompt, greedy = document["prompt"], document["greedy"]
        request = Request(batches=steps_of(prompt, greedy))

        def logits() -> Iterator[Verdict]:
            answer: Evaluation = ask("evaluate", request)
            yield compare_logits(vectors, np.concatenate(answer.logits), verdict)

        def ids() -> Iterator[Verdict]:
            yield same_ids(vectors, ask("greedy", prompt, len(greedy)), verdict)

        yield from each(verdict, logits, ids)


def prompt_of(source: Source, model: Model) -> tuple[list[int], int]:
    """Return the prompt and the number of greedy ids. The prompt is a text if the model has a
    vocabulary."""
    assert source.model is not None
    if source.model["recipe"] is None:
        try:
            model.tokenizer()
        except Unsupported:
            pass
        else:
            return list(source.ask("tokenize", [PROMPT])[0]), N_GREEDY_OF_TEXT
    bits = stream(source.seed, "golden.prompt")
    drawn = integers(bits, N_PROMPT, model.graph.hparams.n_vocab)
    return [int(i) for i in drawn], N_GREEDY


def rounded_up(x: float) -> float:
    """Round up to two digits, because the measurement is not more precise than that."""
    return float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(Decimal(x)))


def as_measured_twice(noise: float, was: float) -> bool:
    """Return True if the two measures, rounded to two digits, differ at most by one in the last
    digit."""
    digits, old = Context(prec=2), Decimal(str(was))
    return Decimal(str(noise)) in (old, digits.next_plus(old), digits.next_minus(old))


def tolerance_of(noise: float, logits: NDArray[np.float32]) -> dict[str, Any]:
    size = largest(logits)
    bound = whole_run(noise, size, BY_BOUNDS)
    return {
        "allowed": float(bound.allowed),
        "noise": noise,
        "largest_logit": size,
        "reason": bound.reason,
    }


def compare_logits(vectors: Vectors, got: F32, verdict: Verdicts) -> Verdict:
    held, tolerance = vectors.tensors["logits"], vectors.document["tolerance"]
    size, allowed = tolerance["largest_logit"], tolerance["allowed"]
    mismatch = mismatch_between(held, got, allowed)
    detail = {
        "worst_relative_to_largest_logit": worst_distance(held, got) / size,
        "allowed_relative": allowed / size,
        "largest_logit": size,
        "reason": tolerance["reason"],
        "tokens": len(held),
        "bit_exact": got.shape == held.shape and got.tobytes() == held.tobytes(),
    }
    if mismatch is None:
        text = (
            f"{len(held)} positions: worst {detail['worst_relative_to_largest_logit']:.1e} of the "
            f"largest logit (allowed {detail['allowed_relative']:.1e})"
        )
        if detail["bit_exact"]:
            text += ", bit for bit"
        return verdict("agreed", text, detail)
    if mismatch.kind != "value":
        return verdict("diverged", mismatch.detail or mismatch.kind, detail, key=mismatch.kind)
    row, token = mismatch.index
    detail |= {"index": [row, token], "expected": mismatch.expected, "actual": mismatch.actual}
    detail |= {"mismatched": mismatch.mismatched, "total": mismatch.total}
    text = (
        f"{mismatch.mismatched} of {mismatch.total} logits differ; worst at position {row}, token "
        f"{token}: {mismatch.actual:.9g}, expected {mismatch.expected:.9g}"
    )
    return verdict("diverged", text, detail, key="value")


def same_ids(vectors: Vectors, got: list[int], verdict: Verdicts) -> Verdict:
    want = vectors.document["greedy"]
    if len(got) != len(want):
        text = f"{len(got)} greedy ids, expected {len(want)}"
        return verdict("diverged", text, key="greedy/count")
    pairs = zip(want, got, strict=True)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if first is None:
        return verdict("agreed", f"{len(want)} greedy ids are the same")
    a, b = want[first], got[first]
    allowed = vectors.document["tolerance"]["allowed"]
    row = vectors.tensors["logits"][len(vectors.document["prompt"]) - 1 + first]
    margin = float(row[a]) - float(row[b]) if 0 <= b < len(row) else float("inf")
    detail = {"step": first, "expected": a, "actual": b, "margin": margin, "allowed": allowed}
    text = f"greedy id {first} is {b}, expected {a}; the two logits are {margin:.2g} apart"
    if margin <= 2 * allowed:
        text += ", a tie within the noise; the ids after it were not compared"
        return verdict("excused", text, detail)
    return verdict("diverged", text, detail, key="greedy/token")
