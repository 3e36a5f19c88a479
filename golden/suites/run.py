"""A run of any model: logits and chosen nodes, kept compactly, with the bound to allow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from engine.gguf_file import GgufFile
from golden.compact import Floor
from golden.honest import LOGITS, Matrices, Recorded, as_ggml, as_plain, recorded, unlucky
from golden.nodes import nodes_of
from golden.store import BrokenGolden
from golden.suites._run_compare import compared, same_ids
from golden.suites._run_form import batches_of, body_of, margins, names_of
from golden.suites.base import Asked, Golden, Source, Vectors, Verdicts, each
from golden.witnesses import other_runs
from harness.facts import ModelFacts, facts_of_model
from harness.noise import MORE_RUNS
from harness.records import Evaluation, Request, Verdict
from harness.suites.base import NoAnswer
from harness.synth.generator import integers, stream

TEXT = b"Once upon a time, in a town by the sea, there were 12 clocks; none of them told the time."
N_SEEDED = 24  # ids of the prompt of a model without a vocabulary
N_GREEDY = 16


class Run(Golden, name="run"):
    def make(self, source: Source, what: str) -> Vectors:
        """Raises NoAnswer if there are no logits and no nodes were asked for."""
        assert source.path is not None
        facts = facts_of_model(source.path)
        prompt = prompt_of(source, facts)
        greedy = first_guess(source, prompt)
        with GgufFile.open(source.path) as file:
            source.progress(f"{what}: recording llama.cpp's graph")
            found, ggml, greedy = truth(source, file, prompt, greedy)
            source.progress(f"{what}: the same without conversions of activations")
            ways = {"ggml": ggml, "plain": as_plain(found, file, source.settings)}
            floors = measured(source, found, file, ggml)
        row = {"model": source.model, "architecture": facts.architecture}
        body, tensors = body_of(prompt, greedy, ways, floors, source.seed)
        made = Vectors(document={**source.head("run"), **row, **body}, tensors=tensors)
        batches = batches_of(prompt, greedy)
        for who, matrices in other_runs(source, facts, batches, found):
            refuse_other(what, made, who, matrices)
        return made

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        document, tensors = vectors.document, vectors.tensors
        n_ids = len(document["prompt"]) + max(len(document["greedy"]) - 1, 0)
        if sum(document["batches"]) != n_ids:
            yield "the batches do not hold every id but the last"
        names = {key for row in document["shown"] for key in names_of(row["name"])}
        if names != set(tensors):
            odd = min(names ^ set(tensors))
            yield f"the tensor {odd!r} is missing, or of nothing that is shown"
            return
        for row in document["shown"]:
            for key in names_of(row["name"])[1:]:
                if len(tensors[key]) != row["rows"]:
                    yield f"the tensor {key!r} has not one row for each of {row['rows']}"
        n_prompt, greedy = len(document["prompt"]), document["greedy"]
        if greedy and tensors[f"{LOGITS}/ggml.ids"][n_prompt - 1 :, 0].tolist() != greedy:
            yield "the greedy ids are not those of the largest logits"
        if document["margins"] != margins(tensors, n_prompt, len(greedy)):
            yield "the margins are not those of the logits"

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        names = ("provenance", "model", "architecture", "prompt", "greedy", "margins", "batches")
        found = {name: vectors.document[name] for name in names}
        found |= {row["name"]: row for row in vectors.document["shown"]}
        return {**found, **vectors.tensors}

    def replay(self, vectors: Vectors, ask: Asked, verdict: Verdicts) -> Iterator[Verdict]:
        """What an engine does not answer is not compared, by name; the rest is."""
        document = vectors.document
        batches = batches_of(document["prompt"], document["greedy"])
        names = [row["name"] for row in document["shown"]]

        def logits() -> Iterator[Verdict]:
            answer: Evaluation = ask("evaluate", Request(batches=batches))
            yield compared(vectors, LOGITS, np.concatenate(answer.logits), verdict)

        def greedy() -> Iterator[Verdict]:
            ids = ask("greedy", document["prompt"], len(document["greedy"]))
            yield same_ids(vectors, ids, verdict)

        def nodes() -> Iterator[Verdict]:
            wanted = [name for name in names if name != LOGITS]
            found = nodes_of(ask.session, batches, wanted)
            for name in wanted:
                if name in found:
                    yield compared(vectors, name, found[name], verdict)
                else:
                    yield verdict("not-compared", f"{ask.engine} shows no node {name}")

        questions = [logits, greedy] if LOGITS in names else []
        questions += [nodes] if set(names) - {LOGITS} else []
        yield from each(verdict, *questions)


# --- making -------------------------------------------------------------------------------------


def prompt_of(source: Source, facts: ModelFacts) -> list[int]:
    """A text if the model has a vocabulary, or else seeded ids."""
    ids: list[int] = source.ask("tokenize", [TEXT])[0] if facts.has_vocabulary else []
    if ids:
        return list(ids)
    if not facts.n_vocab:
        raise NoAnswer("not-compared", "how many tokens there are is not in the file", {})
    drawn = integers(stream(source.seed, "golden.prompt"), N_SEEDED, facts.n_vocab)
    return [int(i) for i in drawn]


def first_guess(source: Source, prompt: Sequence[int]) -> list[int]:
    """The oracle's greedy ids. None if it has no logits to give and nodes were asked for."""
    try:
        return list(source.ask("greedy", list(prompt), N_GREEDY))
    except NoAnswer as error:
        if not source.nodes or error.status not in ("not-applicable", "not-compared"):
            raise
        source.progress(f"no logits: {error.summary}")
        return []


def truth(
    source: Source, file: GgufFile, prompt: Sequence[int], greedy: list[int]
) -> tuple[Recorded, Matrices, list[int]]:
    """Our own run along ids that are the argmax of our own logits: the oracle's are a guess, and
    may part at a tie."""
    for _ in range(N_GREEDY + 1):
        found = recorded(source.ask.session, batches_of(prompt, greedy), source.nodes)
        source.progress("our own run along that graph")
        ggml = as_ggml(found, file, source.settings)
        if not greedy:
            return found, {n: m for n, m in ggml.items() if n != LOGITS}, []
        own = [int(i) for i in ggml[LOGITS][len(prompt) - 1 :].argmax(axis=1)]
        if own == greedy:
            return found, ggml, greedy
        first = next(i for i in range(N_GREEDY) if own[i] != greedy[i])
        start = [*greedy[:first], own[first]]
        rest = N_GREEDY - len(start)
        greedy = start + (source.ask("greedy", [*prompt, *start], rest) if rest else [])
    raise BrokenGolden("the oracle's greedy ids are not those of our own run, at any step")


def measured(source: Source, found: Recorded, file: GgufFile, ggml: Matrices) -> dict[str, Floor]:
    floors = {name: Floor() for name in ggml}
    for i in range(MORE_RUNS):
        source.progress(f"noise of honest runs, {i + 1} of {MORE_RUNS}")
        moved = unlucky(found, file, source.settings, source.seed + i)
        for name, floor in floors.items():
            floor.widen(ggml[name], moved[name])
    return floors


def refuse_other(what: str, made: Vectors, who: str, matrices: Matrices) -> None:
    """No golden is written that the oracle, or an honest run of another kind, would fail."""
    verdict = Verdicts(suite="golden-run", case=what, repro="")
    for name, matrix in matrices.items():
        found = compared(made, name, matrix, verdict)
        if found.status != "agreed":
            raise BrokenGolden(
                f"no golden was made of {what}: {who} is not within the noise of our own run; "
                f"{found.summary}; `lockstep check` says which of them is wrong"
            )
