"""Sampler vectors: chains, logits and draws, and the right list after every stage.

The lists follow our definition. They are written only if llama.cpp's lists agree, and if no
decision is so close that another way to compute could decide differently.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.ops.functions import exp, log, power
from lockstep.engine.samplers.base import DrawingSampler, SamplerVocabulary
from lockstep.engine.samplers.parts.candidates import F32, CandidateList, F
from lockstep.engine.samplers.parts.chain import make_chain
from lockstep.engine.samplers.parts.vocabulary import TokenizerWords
from lockstep.engine.samplers.parts.ways import Ways
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.golden.store import BrokenGolden
from lockstep.golden.suites.base import AskedEngine, Case, Golden, Source, Vectors, Verdicts
from lockstep.golden.suites.parts.sampler_bounds import ErrorBound, learn_more
from lockstep.golden.suites.parts.sampler_cases import SAMPLERS, SamplerSpec, draw_row, has_ties
from lockstep.golden.suites.parts.sampler_chains import CHAINS
from lockstep.golden.suites.parts.sampler_compare import (
    COMPARE,
    EXACT_DIGITS,
    TOLERANCE,
    request_of,
    row_differences,
    write_numbers,
)
from lockstep.golden.suites.parts.sampler_margins import margin_of, softmax, walk
from lockstep.harness.adapters.parts.sampled_lists import split_lists
from lockstep.harness.records import SampleAnswer, SampleRequest, Verdict
from lockstep.harness.samplers.asking import ask_every_stage
from lockstep.harness.synth.draws import stream

CLEAR = 4 * TOLERANCE  # least distance of each decision from another decision
# largest slope of a decision's numbers by a logit; typical has it, with an entropy below 7
SLOPE = 16
TRIES = 4000  # rows and seeds to try until all decisions are clear
DOCUMENTS = {**SAMPLERS, **CHAINS}
READING = ("dry", "infill")  # documents with cases that read a vocabulary


class GoldenSamplers(Golden, name="samplers"):
    def make(self, source: Source, what: str) -> Vectors:
        """Make the vectors of a sampler, or of a group of chains."""
        source.progress(f"{what}: lists of samplers")
        words = words_of(source) if what in READING else None
        rows = [make_case(spec, source.seed, words) for spec in DOCUMENTS[what]]
        body: Case = {
            "group": what,
            "compare": COMPARE,
            "tolerance": TOLERANCE,
            "clear": CLEAR,
            "cases": rows,
        }
        if what in READING:
            body["model"] = dict(source.model or {})
        vectors = Vectors(document={**source.head("samplers"), **body})
        for case, text in self.differences(vectors, source.ask):
            raise BrokenGolden(f"{what}, {case}: {source.ask.engine} is off: {text}")
        return vectors

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        rows = vectors.document["cases"]
        if len({row["id"] for row in rows}) != len(rows):
            yield "two cases have the same id"
        for case in rows:
            for row in case["rows"]:
                if len(row["stages"]) != len(case["chain"]):
                    yield f"{case['id']} has lists of {len(row['stages'])} stages"
                for stage in row["stages"]:
                    if not len(stage["ids"]) == len(stage["p"]) == len(stage["logits"]):
                        yield f"{case['id']} has a list whose columns are not equally long"

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        document = vectors.document
        head = ("provenance", "group", "compare", "tolerance", "clear")
        return {key: document[key] for key in head} | {c["id"]: c for c in document["cases"]}

    def differences(self, vectors: Vectors, ask: AskedEngine) -> Iterator[tuple[str, str]]:
        """Yield the cases with a wrong answer, each with the difference. Raises NoAnswer."""

        def sample(request: SampleRequest) -> SampleAnswer:
            found: SampleAnswer = ask("sample", request)
            return found

        for case in vectors.document["cases"]:
            answer = ask_every_stage(sample, request_of(case))
            for row, lists in zip(case["rows"], split_lists(answer), strict=True):
                text = row_differences(case["chain"], row, lists)
                if text:
                    yield case["id"], text
                    break

    def replay(self, vectors: Vectors, ask: AskedEngine, verdict: Verdicts) -> Iterator[Verdict]:
        group, n = vectors.document["group"], len(vectors.document["cases"])
        wrong = list(self.differences(vectors, ask))
        if not wrong:
            yield verdict("agreed", f"{group}: {n} cases")
            return
        name, text = wrong[0]
        detail = {"wrong": [case for case, _ in wrong]}
        summary = f"{group}, {name}: {text}; {len(wrong)} of {n} cases are wrong"
        yield verdict("diverged", summary, detail, key=f"list/{group}")


def words_of(source: Source) -> SamplerVocabulary:
    if source.path is None:
        raise BrokenGolden("these samplers read a vocabulary, but no model was given")
    return TokenizerWords(tokenizer_of(open_model(source.path).metadata))


@dataclass(frozen=True, kw_only=True)
class SameBitsWays(Ways):
    """The definition's choices, with functions that give the same bits on every CPU."""

    def _function(self, name: str, exact: Any, x: F32) -> F32:
        wide = np.asarray(x, np.float64)
        found = exp(wide) if name == "expf" else log(wide)
        return np.asarray(found / log(2.0) if name == "log2f" else found, F)

    def pow(self, a: Any, b: Any) -> np.float32:
        return F(power(float(a), float(b)))


SAME_BITS = SameBitsWays()

# --- making a case --------------------------------------------------------------------------------


class Unclear(Exception):
    """Error: a decision on this row is too close."""


def make_case(spec: SamplerSpec, seed: int, words: SamplerVocabulary | None) -> Case:
    """Return the case with the first rows and seeds for which every decision is clear."""
    for attempt in range(1, TRIES):
        try:
            return try_case(spec, seed, attempt, words)
        except Unclear:
            continue
    raise BrokenGolden(f"no row of {spec.id} is clear of every threshold")


def try_case(spec: SamplerSpec, seed: int, attempt: int, words: SamplerVocabulary | None) -> Case:
    bits = stream(seed, f"golden.samplers {spec.id} {attempt}")
    n = len(words.pieces) if spec.only and words is not None else spec.n
    stages = [
        {**stage, "seed": attempt} if "seed" in stage else dict(stage) for stage in spec.chain
    ]
    chain = make_chain(stages, n, words, SAME_BITS)
    told, rows, learnt = list(spec.told), [], [0.0] * len(stages)
    for _ in range(spec.rows):
        logits = draw_row(spec.kind, bits, len(spec.only) or n)
        if spec.kind != "flat" and has_ties(logits):
            raise Unclear
        if spec.only:
            logits = spread(logits, spec.only, n)
        for token in told:
            chain.accept(token)
        c, found, bound = CandidateList.of_logits(logits), [], ErrorBound()
        for i, sampler in enumerate(chain.samplers):
            with np.errstate(all="ignore"):
                held, after = sampler.clone(), sampler.apply(c)
            before = bound.logit
            off = bound.pass_stage(held, c, after, learnt[i])
            learnt[i] += learn_more(held, c, after)
            if off > TOLERANCE or margin_of(held, c, after) < max(CLEAR, SLOPE * before):
                raise Unclear
            found.append(show_stage(held, after, spec))
            c = after
        shown = write_numbers(logits, EXACT_DIGITS)
        rows.append({"accepted": told, "logits": shown, "stages": found})
        told = [c.token] if c.token >= 0 else []
    case: Case = {"id": spec.id, "chain": [plain_stage(stage) for stage in stages], "rows": rows}
    case["prompt"] = list(spec.prompt)
    if spec.only and words is not None:
        case["vocabulary"] = vocabulary_of(spec, words)
    return case


def spread(logits: F32, only: Sequence[int], n: int) -> F32:
    row = np.full(n, -np.inf, F)
    row[list(only)] = logits
    return row


def show_stage(sampler: Any, after: CandidateList, spec: SamplerSpec) -> Case:
    """Return the finite candidates in order, the draw, and the possible selections."""
    there = np.isfinite(after.logits) if sampler.name != "infill" else after.p > 0
    c = after.take(np.flatnonzero(there))
    p = softmax(c.logits) if sampler.name != "infill" else c.p / c.p.sum(dtype=np.float64)
    shown: Case = {"ids": c.ids.tolist(), "logits": write_numbers(c.logits), "p": write_numbers(p)}
    if isinstance(sampler, DrawingSampler) and sampler.draw is not None:
        shown["draw"] = sampler.draw
    if after.selected < 0:
        return shown
    token = after.token
    chosen = dict.fromkeys(("listed", "by_id", "by_logit"), token)
    if "draw" in shown:
        if not spec.reach[0] <= shown["draw"] <= spec.reach[1] and spec.rows == 1:
            raise Unclear
        stable = np.argsort(-c.logits, kind="stable")
        orders = (np.arange(len(c)), np.argsort(c.ids), stable)
        walks = [walk(p, order, shown["draw"]) for order in orders]
        if min(clear for _, clear in walks) < CLEAR:
            raise Unclear
        chosen = {k: int(c.ids[at]) for k, (at, _) in zip(chosen, walks, strict=True)}
        if chosen["listed"] != token or (spec.rows > 1 and len({*chosen.values()}) > 1):
            raise Unclear
    return {**shown, "selected": chosen}


def plain_stage(stage: Mapping[str, Any]) -> Case:
    """Return the stage as JSON: texts as texts, minus infinity as null."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, tuple | list):
            return [plain(each) for each in value]
        return None if value == -np.inf else value

    return {name: plain(value) for name, value in stage.items()}


def vocabulary_of(spec: SamplerSpec, words: SamplerVocabulary) -> Case:
    """Return the part of a vocabulary that samplers need for a case's tokens."""
    tokens = sorted({*spec.only, *spec.told})
    breakers = [text for stage in spec.chain for text in stage.get("seq_breakers", ())]
    return {
        "pieces": {str(token): words.pieces[token].decode() for token in tokens},
        "ends": sorted(words.ends),
        "end_of_turn": words.end_of_turn,
        "breaking": [t for t in tokens if any(text in words.words[t] for text in breakers)],
    }
