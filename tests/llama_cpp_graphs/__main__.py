"""Write the graphs of the running interpreter's version."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.engine.batch import Batch
from lockstep.harness.adapters.llama_cpp.lib import library
from lockstep.harness.adapters.llama_cpp.model import LlamaContext, LlamaModel
from lockstep.harness.records import DEFAULT, EXACT
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from tests.llama_cpp_graphs import GRAPHS, HERE, rows_of

SHAPE: dict[str, Any] = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_ff": 32, "n_vocab": 384}
MODELS: dict[str, dict[str, Any]] = {
    "dense": SHAPE,
    "flash": SHAPE,
    "experts": SHAPE | {"n_expert": 4, "n_expert_used": 2},
    "one expert": SHAPE | {"n_expert": 4, "n_expert_used": 1},
}


class Nodes:
    """An observer that requests nothing. Addresses are valid until the next graph."""

    def __init__(self) -> None:
        self.addresses: list[int] = []

    def wants(self, address: int) -> bool:
        self.addresses.append(address)
        return False

    def sees(self, address: int) -> None:
        """Do nothing, because no tensor was requested."""


def record(kind: str, path: Path) -> list[list[Any]]:
    write_llama(LlamaRecipe(**MODELS[kind]), path)
    settings = replace(DEFAULT if kind == "flash" else EXACT, n_threads=1)
    model = LlamaModel(library(), path, settings, vocab_only=False)
    context = LlamaContext(model, settings, traced=True)
    nodes = Nodes()
    context.observer = nodes
    context.decode(Batch.of([1, 2]))
    return list(rows_of(nodes.addresses, library().ggml))


def main(version: str) -> None:
    if library().number != version:
        raise SystemExit(f"this is llama-cpp-python {library().number}, not {version}")
    with tempfile.TemporaryDirectory() as folder:
        graphs = {kind: record(kind, Path(folder) / "model.gguf") for kind in GRAPHS}
    lines = [
        f"{json.dumps(kind)}: [\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]"
        for kind, rows in graphs.items()
    ]
    (HERE / f"{version}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1])
