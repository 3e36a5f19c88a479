"""Checks that LoRA files and control vectors fit the model, and that llama.cpp uses them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from lockstep.engine.adapters.control_vector import read_directions
from lockstep.engine.adapters.factors import float32_factor
from lockstep.engine.adapters.lora import A, Lora
from lockstep.engine.batch import Batch, encoded_first
from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.hparams import Keys, architecture_name
from lockstep.harness.asking.facts import has_both
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.graph.program import Program
from lockstep.harness.graph.record import record
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import CONTROL_VECTOR, LORA, AdapterFile, Request, Settings

TOKENS = (0, 0)  # tokens of a run that shows the graph
NAMED = 4


def check_effect(context: Context) -> None:
    """Check that each adapter moves the oracle's logits by more than their limit. Raises NoAnswer
    if one does not, because an engine that ignores this adapter would agree."""
    for each in context.settings.adapters:
        try:
            moved, allowed = effect_of(context, each)
        except NoAnswer:  # the suites report it
            return
        if not moved > allowed:
            text = (
                f"{each.path} moves the logits of {context.oracle.name} by {moved:.1g} of the "
                f"largest logit, and the limit is {allowed:.1g}: an engine that ignores the file "
                "would agree, so nothing can be compared. Give it a larger scale, or omit it"
            )
            raise NoAnswer("not-compared", text, {"moved": moved, "allowed": allowed})


def effect_of(context: Context, adapter: AdapterFile) -> tuple[float, float]:
    """Return the largest difference between the oracle's logits with and without the adapter, and
    the limit of differences, as shares of the largest logit. Raises NoAnswer."""
    request = Request(batches=context.batches)
    rest = tuple(each for each in context.settings.adapters if each is not adapter)
    settings = replace(context.settings, adapters=rest)
    with context.runner.open(context.oracle.name, context.model, settings) as without:
        runs = [context.ask(engine, "evaluate", request) for engine in (context.oracle, without)]
    logits, others = (np.concatenate(run.logits) for run in runs)
    moved = worst_distance(logits, others) / (largest(logits) or 1.0)
    return moved, float(whole_run(context.noise.relative, 1.0).allowed)


def check_adapters(settings: Settings, path: Path) -> None:
    """Check that the adapter files fit the model. Raises EngineError or OSError for a file that is
    not an adapter of this model, or has no effect with its scale."""
    for each in settings.adapters:
        if not float32_factor(each.scale, f"{each.path}: the scale"):
            raise InvalidModel(f"{each.path}: the scale is {each.scale:g}, so it has no effect")
    with open_model(path) as file:
        Lora(settings.files_of(LORA), file).close()
        if vectors := settings.files_of(CONTROL_VECTOR):
            keys = Keys(file.metadata, architecture_name(file.metadata))
            n_layer, width = keys.positive("block_count"), keys.positive("embedding_length")
            read_directions(vectors, n_layer=n_layer, width=width)


def check_used(llama_cpp: Session, settings: Settings, path: Path) -> None:
    """Check that llama.cpp uses all pairs of a LoRA file. Raises NoAnswer if it does not, because
    llama.cpp gives no warning, and an engine that uses all pairs would be accused."""
    if not settings.files_of(LORA):
        return
    with open_model(path) as file:
        lora = Lora(settings.files_of(LORA), file)
        lora.close()
        batches = encoded_first([Batch.of(TOKENS)], has_both(file.tensors))
    program = record(llama_cpp, batches)
    if not isinstance(program, Program):
        return
    read = {root.name for graph in program.graphs for root in graph.roots}
    unused = [n for n in (*lora.multiplied, *lora.looked_up) if n + A not in read]
    if unused:
        some = ", ".join(unused[:NAMED]) + (" ..." if len(unused) > NAMED else "")
        text = (
            f"llama.cpp loads the LoRA file and does not use its pairs for {len(unused)} tensors: "
            f"{some}. Nothing can be compared with them; remove them from the file"
        )
        raise NoAnswer("not-compared", text, {"unused_pairs": unused})
