"""The first layers of a model, as a model: all that has to be right in a large one, in seconds.

Each layer must be what it was. Which it is may depend on how many there are: llama.cpp's graphs of
both files say whether it does, op by op.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from lockstep.engine.errors import EngineError, InvalidModel, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.harness.blackbox.long_texts import merged, only_in_long
from lockstep.harness.blackbox.rewriting import rewrite
from lockstep.harness.blackbox.roles import Node, graph_of, mask_of, role_of
from lockstep.harness.blackbox.slices import IN_A_LAYER, first_layers, n_layers
from lockstep.harness.check.check import LLAMA_CPP
from lockstep.harness.context.runner import Runner
from lockstep.harness.graph.program import Graph
from lockstep.harness.processes.limits import MEMORY
from lockstep.harness.records import EXACT
from lockstep.harness.synth.gguf_writer import check_output

Role: TypeAlias = tuple[Node, ...]
Layer: TypeAlias = tuple[Role, bool]  # what is computed, and whether the first sees otherwise


@dataclass(frozen=True, kw_only=True)
class FirstLayers:
    n: int
    of: int
    enough: int  # so many have one of each kind, and each tensor in each of its types


def write_first_layers(
    model: Path,
    n: int,
    output: Path,
    progress: Callable[[str], None] = lambda _: None,
    *,
    short: bool = False,
) -> FirstLayers:
    """short: with the keys of `long_texts`; it may keep all its layers then. Raises EngineError,
    OSError; then what was there is left. Memory is bounded, as of `rewrite`."""
    with open_model(model) as file:
        total = n_layers(file)
        if not 0 < n < total + short:
            raise InvalidModel(f"{model} has {total} layers: take fewer, and one at least")
        check_output(output, model)
        every = list(only_in_long(file)) if short else []
        if short and not every:
            raise Unsupported(f"{model} has no window, and nothing else that only long texts show")
        keys = merged(each.short for each in every)
        # what was there stays until this one is right, and any name beside it may be somebody's
        with TemporaryDirectory(prefix=".lockstep-", dir=output.absolute().parent) as folder:
            made = Path(folder) / output.name
            progress(f"writing {n} of {total} layers")
            rewrite(file, first_layers(file, n, keys), made)
            progress("what llama.cpp's graph says of each layer")
            layers = roles_in(model, total)
            check_alike(layers, roles_in(made, n))
            made.replace(output)
        return FirstLayers(n=n, of=total, enough=max(enough_of(layers), enough_types(file, total)))


def roles_in(model: Path, n: int) -> list[Layer]:
    """What each layer is, and whether it sees something else than the first one does."""
    try:
        with Runner(memory_limit=MEMORY).open(LLAMA_CPP, model, EXACT) as session:
            graph: Graph = graph_of(session)
    except EngineError as error:
        raise Unsupported(f"{model.name}: {error}") from error
    first = mask_of(graph, 0)
    return [(telling(role_of(graph, layer)), mask_of(graph, layer) != first) for layer in range(n)]


def telling(role: tuple[Node, ...]) -> Role:
    """What could say how many layers there are, without sizes: those of what is computed for all
    layers at once do. A node between two layers may be of the one or the other; what comes before
    all of them or behind them does not count, nor do sums, which say nothing."""
    found = []
    for op, parameters, _, *reads in role:
        named = [(kind, name) for kind, name, _ in reads if kind != "computed"]
        if all(name.startswith("blk.") for kind, name in named if kind == "weight"):
            found.append((op, parameters, *named))
    return tuple(sorted(node for node in found if any(node[1]) or len(node) > 2))


def check_alike(every: list[Layer], kept: list[Layer]) -> None:
    """Raises Unsupported. In a model's last layer some nodes come later, and count as behind it or
    before: of those that read nothing but what others made, there may be fewer, but no other ones.
    """
    last = len(kept) - 1
    for layer, (role, otherwise) in enumerate(kept):
        full, sees = every[layer]
        alike = role == full
        if layer == last:
            alike = by_name(role) == by_name(full) and set(role) <= {*full, *every[-1][0]}
        if not alike or otherwise != sees:
            text = f"layer {layer} is another one in a model of {len(kept)} layers: take more"
            raise Unsupported(text)


def by_name(role: Role) -> list[Node]:
    """Nodes that read a weight or an input."""
    return [node for node in role if len(node) > 2]


def enough_of(every: list[Layer]) -> int:
    """The fewest layers with one of each kind."""
    kinds = [(by_name(role), otherwise) for role, otherwise in every]
    return 1 + max(map(kinds.index, kinds))


def enough_types(file: GgufFile, n: int) -> int:
    """The fewest in which each tensor has each of its types."""
    first: dict[tuple[str, str], int] = {}
    for name, info in file.tensors.items():
        inside = IN_A_LAYER.fullmatch(name)
        if inside and (layer := int(inside[1])) < n:
            kind = inside[2], info.type.name
            first[kind] = min(layer, first.get(kind, layer))
    return 1 + max(first.values(), default=0)
