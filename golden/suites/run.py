"""Vectors of a run of any model: logits and chosen nodes in compact form, with tolerances."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.golden.compact import Floor
from lockstep.golden.early import early_nodes
from lockstep.golden.honest import (
    EMBEDDINGS,
    LOGITS,
    Matrices,
    Recorded,
    as_ggml,
    as_plain,
    record_graph,
    unlucky,
)
from lockstep.golden.shown import Wanted, ask_outputs, names_in_traces, nodes_of
from lockstep.golden.store import BrokenGolden
from lockstep.golden.suites.base import AskedEngine, Golden, Source, Vectors, Verdicts, each
from lockstep.golden.suites.parts.run_compare import compare_ways, same_ids
from lockstep.golden.suites.parts.run_form import (
    batches_of,
    batches_of_document,
    body_of,
    margins,
    names_of,
)
from lockstep.golden.witnesses import other_runs
from lockstep.harness.asking.facts import ModelFacts, facts_of_model
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.judging.noise import MORE_RUNS
from lockstep.harness.records import Status, Verdict
from lockstep.harness.synth.generator import integers, stream

TEXT = b"Once upon a time, in a town by the sea, there were 12 clocks; none of them told the time."
MOST = 256  # number of ids in a prompt
N_SEEDED = 24  # number of ids in the prompt of a model without a vocabulary
N_GREEDY = 16


class GoldenRun(Golden, name="run"):
    def make(self, source: Source, what: str) -> Vectors:
        """Make the vectors of a run. Raises NoAnswer if there are neither logits nor embeddings."""
        assert source.path is not None
        facts = facts_of_model(source.path)
        prompt, start = prompt_of(source, facts), facts.decoder_start
        greedy = first_guess(source, prompt)
        with GgufFile.open(source.path) as file:
            source.progress(f"{what}: recording llama.cpp's graph")
            result = LOGITS if greedy else EMBEDDINGS
            source, about = with_early_nodes(source, batches_of(prompt, greedy, start), result)
            found, ggml, greedy = truth(source, file, prompt, greedy, start)
            source.progress(f"{what}: our run without conversions of activations")
            ways = {"ggml": ggml, "plain": as_plain(found, file, source.settings)}
            floors = measure_floors(source, found, file, ggml)
        row = {"model": source.model, "architecture": facts.architecture}
        body, tensors = body_of(prompt, greedy, start, ways, floors, source.seed, about)
        made = Vectors(document={**source.head("run"), **row, **body}, tensors=tensors)
        batches = batches_of(prompt, greedy, start)
        for who, matrices in other_runs(source, facts, batches, found):
            refuse_other(what, made, who, matrices)
        return made

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        document, tensors = vectors.document, vectors.tensors
        if document["batches"] != [len(batch) for batch in batches_of_document(document)]:
            yield "the batches are not those of the prompt and the greedy ids"
        names = {key for row in document["shown"] for key in names_of(row["name"])}
        if names != set(tensors):
            odd = min(names ^ set(tensors))
            yield f"the tensor {odd!r} is missing, or belongs to nothing that is shown"
            return
        for row in document["shown"]:
            for key in names_of(row["name"])[1:]:
                if len(tensors[key]) != row["rows"]:
                    yield f"the tensor {key!r} does not have {row['rows']} rows"
        greedy = document["greedy"]
        if greedy and tensors[f"{LOGITS}/ggml.ids"][-len(greedy) :, 0].tolist() != greedy:
            yield "the greedy ids are not those of the largest logits"
        if document["margins"] != margins(tensors, len(greedy)):
            yield "the margins are not those of the logits"

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        names = ("provenance", "model", "architecture", "prompt", "greedy", "margins", "batches")
        found = {name: vectors.document[name] for name in names}
        found |= {row["name"]: row for row in vectors.document["shown"]}
        return {**found, **vectors.tensors}

    def replay(self, vectors: Vectors, ask: AskedEngine, verdict: Verdicts) -> Iterator[Verdict]:
        """Compare the engine's answers; questions without an answer are listed as not compared."""
        document = vectors.document
        batches = batches_of_document(document)
        result, *_ = (row["name"] for row in document["shown"])
        wanted = [Wanted.of(row) for row in document["shown"][1:]]

        def rows() -> Iterator[Verdict]:
            got = np.concatenate(ask_outputs(ask, result, batches))
            yield compare_ways(vectors, result, got, verdict)

        def greedy() -> Iterator[Verdict]:
            ids = ask("greedy", document["prompt"], len(document["greedy"]))
            yield same_ids(vectors, ids, verdict)

        def nodes() -> Iterator[Verdict]:
            found = shown_of(ask, batches, result, wanted)
            for node in wanted:
                if node.name in found:
                    yield compare_ways(vectors, node.name, found[node.name], verdict)
                else:
                    missing: Status = "not-compared" if node.asked else "not-applicable"
                    yield verdict(missing, f"{ask.engine} shows no node {node.name}")

        questions = [rows, greedy] if result == LOGITS else [rows]
        yield from each(verdict, *questions, *([nodes] if wanted else []))


def shown_of(
    ask: AskedEngine, batches: Sequence[Batch], result: str, wanted: Sequence[Wanted]
) -> Matrices:
    """Return the values of the wanted nodes that the engine shows. Raises NoAnswer if the engine
    shows no node that the user asked for."""
    try:
        return nodes_of(ask.session, batches, result, wanted)
    except Unsupported:  # another graph; the outputs show this
        return {}
    except NoAnswer as error:
        if error.status != "not-compared" or any(node.asked for node in wanted):
            raise
        return {}


# --- making -------------------------------------------------------------------------------------


def prompt_of(source: Source, facts: ModelFacts) -> list[int]:
    """Return the ids of a text if the model has a vocabulary, else seeded ids. The prompt is no
    longer than the model's positions allow."""
    most = max(facts.n_positions - N_GREEDY, 1) if facts.n_positions else MOST
    ids: list[int] = source.ask("tokenize", [TEXT])[0] if facts.has_vocabulary else []
    if ids:
        return list(ids[:most])
    if not facts.n_vocab:
        raise NoAnswer("not-compared", "the file does not say how many tokens there are", {})
    drawn = integers(stream(source.seed, "golden.prompt"), N_SEEDED, facts.n_vocab)
    return [int(i) for i in drawn[:most]]


def first_guess(source: Source, prompt: Sequence[int]) -> list[int]:
    """Return the oracle's greedy ids; none for a model without logits."""
    try:
        return list(source.ask("greedy", list(prompt), N_GREEDY))
    except NoAnswer as error:
        if error.status != "not-applicable":
            raise
        source.progress(error.summary)
        return []


def with_early_nodes(
    source: Source, batches: Sequence[Batch], result: str
) -> tuple[Source, dict[str, dict[str, Any]]]:
    """Return a source that also keeps early nodes, and the document's facts about each node."""
    program = record_graph(source.ask.session, batches, result).program
    early = [name for name in early_nodes(program) if name not in source.nodes]
    nodes = (*source.nodes, *early)
    also = names_in_traces(program)
    about = {name: {"asked": name not in early, "also": also.get(name, [])} for name in nodes}
    return replace(source, nodes=nodes), about


def truth(
    source: Source, file: GgufFile, prompt: Sequence[int], greedy: list[int], start: int | None
) -> tuple[Recorded, Matrices, list[int]]:
    """Run the recorded graph with our ops on greedy ids that are the argmax of our logits.
    `greedy`, the oracle's ids, is a first guess, which may differ after a tie."""
    result = LOGITS if greedy else EMBEDDINGS
    for _ in range(N_GREEDY + 1):
        batches = batches_of(prompt, greedy, start)
        found = record_graph(source.ask.session, batches, result, source.nodes)
        source.progress("our own run of that graph")
        ggml = as_ggml(found, file, source.settings)
        own = [int(i) for i in ggml[result][-N_GREEDY:].argmax(axis=1)] if greedy else []
        if own == greedy:
            return found, ggml, greedy
        greedy = greedy_after(source, prompt, greedy, own, start)
    raise BrokenGolden("the oracle's greedy ids are not those of our own run, at any step")


def greedy_after(
    source: Source, prompt: Sequence[int], greedy: list[int], own: list[int], start: int | None
) -> list[int]:
    """Return our own ids up to the first difference, and the oracle's greedy ids after them."""
    first = next(i for i in range(N_GREEDY) if own[i] != greedy[i])
    known = own[: first + 1]
    rest = N_GREEDY - len(known)
    if start is not None or not rest:  # a decoder's text is not continued
        return known + own[first + 1 :]
    return known + list(source.ask("greedy", [*prompt, *known], rest))


def measure_floors(
    source: Source, found: Recorded, file: GgufFile, ggml: Matrices
) -> dict[str, Floor]:
    floors = {name: Floor() for name in ggml}
    for i in range(MORE_RUNS):
        source.progress(f"noise of honest runs, {i + 1} of {MORE_RUNS}")
        moved = unlucky(found, file, source.settings, source.seed + i)
        for name, floor in floors.items():
            floor.widen(ggml[name], moved[name])
    return floors


def refuse_other(what: str, made: Vectors, who: str, matrices: Matrices) -> None:
    """Check a golden before it is written. Raises BrokenGolden if the given run, of the oracle or
    another honest engine, would fail the golden."""
    verdict = Verdicts(suite="golden-run", case=what, repro="")
    for name, matrix in matrices.items():
        found = compare_ways(made, name, matrix, verdict)
        if found.status != "agreed":
            raise BrokenGolden(
                f"no golden was made of {what}: {who} is not within the noise of our own run; "
                f"{found.summary}; `lockstep check` says which of them is wrong"
            )
