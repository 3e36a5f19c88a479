"""A model made of another model's first layers, which runs in seconds instead of minutes.

Each layer must stay unchanged. A layer's role may depend on the number of layers, so llama.cpp's
graphs of both files are compared op by op.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from lockstep.engine.errors import EngineError, InvalidModel, Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.harness.blackbox.long_texts import merge_keys, only_in_long
from lockstep.harness.blackbox.rewriting import Recipe, rewrite
from lockstep.harness.blackbox.roles import Node, graph_of, mask_of, role_of
from lockstep.harness.blackbox.slices import first_layers, n_layers
from lockstep.harness.check.check import LLAMA_CPP
from lockstep.harness.context.runner import Runner
from lockstep.harness.graph.program import Graph
from lockstep.harness.processes.limits import MEMORY
from lockstep.harness.records import EXACT
from lockstep.harness.sites import IN_A_LAYER
from lockstep.harness.synth.gguf_writer import check_output

FACTORS = ("rope_freqs.weight",)  # tensors that all layers share
Role: TypeAlias = tuple[Node, ...]
# the nodes of the layer, and the number of its mask in the order of first use
Layer: TypeAlias = tuple[Role, int]


@dataclass(frozen=True, kw_only=True)
class FirstLayers:
    n: int
    of: int
    # number of layers that contain each kind of layer, and each tensor in each of its types
    enough: int


def write_first_layers(
    model: Path,
    n: int,
    output: Path,
    progress: Callable[[str], None] = lambda _: None,
    *,
    short: bool = False,
) -> FirstLayers:
    """Write a model of the first n layers.

    short: True to write the keys of `long_texts` as well, and then the model may keep all its
    layers. Raises EngineError or OSError, and then leaves an existing file unchanged. Memory use is
    bounded, as in `rewrite`.
    """
    with open_model(model) as file:
        total = n_layers(file)
        if not 0 < n < total + short:
            raise InvalidModel(
                f"{model} has {total} layers: keep at least 1 and at most {total - 1 + short}"
            )
        check_output(output, model)
        begins = list(only_in_long(file)) if short else []
        if short and not begins:
            raise Unsupported(f"{model} has no window or other part that only long texts show")
        keys = merge_keys(each.short for each in begins)
        # an existing file stays until the new file is complete, and a neighbouring name may belong
        # to the user
        with TemporaryDirectory(prefix=".lockstep-", dir=output.absolute().parent) as folder:
            progress("reading the kind of each layer from llama.cpp's graph")
            graph = graph_in(model)
            every = layers_in(graph, total)
            enough = max(enough_of(every), enough_types(file, total))
            made = Path(folder) / output.name
            progress(f"writing {n} of {total} layers")
            rewrite(file, without_unread(first_layers(file, n, keys), graph, n), made)
            try:
                check_alike(every, roles_in(made, n))
            except Unsupported as error:
                more = f"; --layers {enough} has one of each kind" if n < enough < total else ""
                raise Unsupported(f"{error}{more}") from error
            made.replace(output)
        return FirstLayers(n=n, of=total, enough=enough)


def graph_in(model: Path) -> Graph:
    try:
        with Runner(memory_limit=MEMORY).open(LLAMA_CPP, model, EXACT) as session:
            return graph_of(session)
    except EngineError as error:
        raise Unsupported(f"{model.name}: {error}") from error


def roles_in(model: Path, n: int) -> list[Layer]:
    return layers_in(graph_in(model), n)


def layers_in(graph: Graph, n: int) -> list[Layer]:
    """Return each layer's role and the number of its mask. Masks are counted from 0, in the order
    in which layers first use them."""
    masks = [mask_of(graph, layer) for layer in range(n)]
    numbers = {mask: number for number, mask in enumerate(dict.fromkeys(masks))}
    return [(telling(role_of(graph, layer)), numbers[masks[layer]]) for layer in range(n)]


def without_unread(recipe: Recipe, graph: Graph, n: int) -> Recipe:
    """Drop the rope factors that none of the first n layers reads. gemma4 has them for layers
    without a window, and llama.cpp refuses a file with tensors that no layer asks for."""
    nodes = [node for layer in range(n) for node in role_of(graph, layer)]
    read = {name for _, _, _, *reads in nodes for _, name, _ in reads}
    names = {k: v for k, v in recipe.names.items() if v not in FACTORS or v in read}
    return replace(recipe, names=names)


def telling(role: tuple[Node, ...]) -> Role:
    """Return a layer's nodes that may depend on the number of layers, without sizes. Nodes that
    read weights outside the layers are omitted, as are nodes with neither parameters nor named
    inputs, such as sums."""
    found = []
    for op, parameters, _, *reads in role:
        named = [(kind, name) for kind, name, _ in reads if kind != "computed"]
        if all(name.startswith("blk.") for kind, name in named if kind == "weight"):
            found.append((op, parameters, *named))
    return tuple(sorted(node for node in found if any(node[1]) or len(node) > 2))


def check_alike(every: list[Layer], kept: list[Layer]) -> None:
    """Check that the kept layers equal those of the whole model. The last kept layer may lack nodes
    that read neither a weight nor an input, but may have no new nodes. Raises Unsupported if the
    layers differ."""
    last = len(kept) - 1
    for layer, (role, mask) in enumerate(kept):
        full, sees = every[layer]
        alike = role == full
        if layer == last:
            alike = by_name(role) == by_name(full) and set(role) <= {*full, *every[-1][0]}
        if not alike or mask != sees:
            text = f"layer {layer} changes in a model of {len(kept)} layers"
            raise Unsupported(f"{text}: choose a different number of layers")


def by_name(role: Role) -> list[Node]:
    """Return the nodes that read a weight or an input."""
    return [node for node in role if len(node) > 2]


def enough_of(every: list[Layer]) -> int:
    """Return the smallest number of first layers that includes a layer of each kind."""
    kinds = [(by_name(role), mask) for role, mask in every]
    return 1 + max(map(kinds.index, kinds))


def enough_types(file: GgufFile, n: int) -> int:
    """Return the smallest number of first layers in which each tensor occurs in each of its
    types."""
    first: dict[tuple[str, str], int] = {}
    for name, info in file.tensors.items():
        inside = IN_A_LAYER.fullmatch(name)
        if inside and (layer := int(inside[1])) < n:
            kind = inside[2], info.type.name
            first[kind] = min(layer, first.get(kind, layer))
    return 1 + max(first.values(), default=0)
