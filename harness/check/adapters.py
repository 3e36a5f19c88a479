"""Checks that LoRA files and control vectors fit the model, and that llama.cpp uses them."""

from pathlib import Path

from lockstep.engine.adapters.control_vector import read_directions
from lockstep.engine.adapters.lora import A, Lora
from lockstep.engine.batch import Batch, encoded_first
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.hparams import Keys, architecture_name
from lockstep.harness.asking.facts import has_both
from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.graph.program import Program
from lockstep.harness.graph.record import record
from lockstep.harness.records import CONTROL_VECTOR, LORA, Settings

TOKENS = (0, 0)  # tokens of a run that shows the graph
NAMED = 4


def check_adapters(settings: Settings, path: Path) -> None:
    """Check that the adapter files fit the model. Raises EngineError or OSError for a file that is
    not an adapter of this model."""
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
