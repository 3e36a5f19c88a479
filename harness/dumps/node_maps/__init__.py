"""Maps from an engine's own names of tensors to llama.cpp's names of nodes.

    [nodes]
    "model.embed_tokens" = "embd"
    "model.layers.{layer}.self_attn.q_proj" = { node = "Qcur-{layer}", rows = "halves" }
    "attention.{layer}.query" = { node = "Qcur_rope-{layer}", axes = [1, 0, 2] }

{layer} stands for a number, and * stands for any text. The first matching pattern applies. Tensors
without a matching pattern are not compared. A node has llama.cpp's name. Write "Qcur ADD-{layer}"
if llama.cpp gives several nodes one name, and "inp_norm-0" if only one layer has the node. rows =
"halves" is for engines that rotate element i of a head with element i + n/2 (as Hugging Face does),
while llama.cpp rotates neighbours. `axes` is the permutation of the tensor's axes that gives
llama.cpp's order, without leading axes of size 1. `architectures = ["llama"]` above the table
limits the map to files of these architectures.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.choices import choices
from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.regular_file import read_regular

LARGEST = 1 << 20  # bytes of a map file
MOST_STARS = 2
LONGEST_NAME = 500
# Limit on names times patterns. A hundred layers with thirty names each need 10^5 with the maps
# here. A try takes at most tens of microseconds, so the limit is half a minute.
MOST_TRIES = 1_000_000
LAYER = "{layer}"
# Names of nodes as in llama.cpp's graph. Nodes of one name are distinguished by their op and a
# number, as in norm RMS_NORM 2-{layer}. A node may belong to only one layer, as inp_norm-0.
NODE = re.compile(r"[\w.]{1,64}( [A-Z][A-Z_0-9]{0,30})?( [0-9]{1,3})?(-(\{layer\}|[0-9]{1,6}))?")
STEP, NUMBER = re.compile(r"^step[0-9]+/"), re.compile(r"(?<![A-Za-z0-9])[0-9]+")
HEADS = {"Qcur": "heads", "Kcur": "kv_heads", "Qcur_rope": "heads", "Kcur_rope": "kv_heads"}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of a map. `node` is a name, which contains {layer} if each layer has this node."""

    pattern: re.Pattern[str]
    node: str
    halves: bool = False
    axes: tuple[int, ...] = ()

    def apply(self, value: NDArray[Any], sizes: Mapping[str, int]) -> NDArray[Any]:
        """Return the tensor in llama.cpp's layout. `sizes` holds the sizes of the model's axes.
        Raises ValueError if the sizes do not fit."""
        if self.axes:
            value = np.transpose(value, self.axes)
        if self.halves:
            value = neighbours(value, sizes.get(HEADS[self.node.partition("-")[0]], 0))
        return np.ascontiguousarray(value)


def neighbours(value: NDArray[Any], n_head: int) -> NDArray[Any]:
    """Interleave the halves of each head, so that elements i and i + n/2 are neighbours."""
    width = value[0].size if len(value) else 0
    if not n_head or width % (2 * n_head):
        raise ValueError(f"{width} rows cannot be split into {n_head} heads of two halves")
    halves = value.reshape(len(value), n_head, 2, -1)  # (tokens, heads, halves, head_dim / 2)
    return np.swapaxes(halves, 2, 3).reshape(value.shape)


@dataclass(frozen=True, kw_only=True)
class NodeMap:
    name: str
    rules: tuple[Rule, ...]
    architectures: tuple[str, ...] = ()  # architectures with these names; empty: any
    known: dict[str, tuple[str, Rule] | None] = field(default_factory=dict, compare=False)

    def find(self, name: str) -> tuple[str, Rule] | None:
        """Return the node, such as attn_norm-3, and the rule that matches the name; None if no rule
        matches.

        Raises InvalidModel if the map and the dump need too many comparisons.
        """
        if name not in self.known:
            if (len(self.known) + 1) * len(self.rules) > MOST_TRIES:
                raise InvalidModel(
                    f"{self.name}: {len(self.rules)} patterns for more than "
                    f"{len(self.known)} names need too many tries (at most {MOST_TRIES})"
                )
            self.known[name] = self.looked_up(name)
        return self.known[name]

    def looked_up(self, name: str) -> tuple[str, Rule] | None:
        for rule in self.rules if len(name) <= LONGEST_NAME else ():
            if match := rule.pattern.fullmatch(name):
                layer = match.groupdict().get("layer") or ""
                return rule.node.replace(LAYER, layer.lstrip("0") or "0"), rule
        return None


def ready() -> list[str]:
    """Return the names of the maps that come with Lockstep."""
    return sorted(p.name.removesuffix(".toml") for p in files(__package__).iterdir() if is_map(p))


def is_map(path: Any) -> bool:
    return str(path.name).endswith(".toml")


def read_map(name: str, folder: Path = Path()) -> NodeMap:
    """Read a map that comes with Lockstep, or a file in the folder. Raises InvalidModel if the map
    is missing or malformed."""
    known = ready()
    if name in known:
        return map_of(name, (files(__package__) / f"{name}.toml").read_bytes())
    path = folder / name
    try:
        return map_of(str(path), read_regular(path, LARGEST))
    except OSError as error:
        text = f"{path}: {error.strerror or error}; ready maps {choices(name, known)}"
        raise InvalidModel(text) from error


def map_of(name: str, raw: bytes) -> NodeMap:
    try:
        said = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{name}: not TOML: {error}") from error
    nodes, of = said.get("nodes"), said.get("architectures", [])
    good = {"nodes"} <= said.keys() <= {"nodes", "architectures"}
    if not good or type(nodes) is not dict or not nodes:
        raise InvalidModel(f'{name}: expected one table [nodes], of "PATTERN" = "NODE"')
    if type(of) is not list or not all(type(each) is str for each in of):
        raise InvalidModel(f"{name}: architectures must be a list of texts")
    rules = tuple(rule_of(name, *row) for row in nodes.items())
    return NodeMap(name=name, rules=rules, architectures=tuple(of))


def rule_of(name: str, pattern: str, said: Any) -> Rule:
    where = f"{name}: {pattern!r}"
    row = {"node": said} if type(said) is str else said
    if type(row) is not dict or not {"node"} <= row.keys() <= {"node", "rows", "axes"}:
        raise InvalidModel(f"{where}: expected a node, or a table of node, rows and axes")
    node, axes = row["node"], row.get("axes", [])
    check_node(where, pattern, node)
    if row.get("rows", "halves") != "halves" or ("rows" in row and base_of(node) not in HEADS):
        known = ", ".join(HEADS)
        raise InvalidModel(f'{where}: rows may be "halves", for nodes {known}')
    if type(axes) is not list or sorted(map(str, axes)) != [str(i) for i in range(len(axes))]:
        raise InvalidModel(f"{where}: axes must be an order such as [1, 0, 2], got {axes!r:.60}")
    return Rule(pattern=regex(where, pattern), node=node, halves="rows" in row, axes=tuple(axes))


def base_of(node: str) -> str:
    return node.partition("-")[0]


def check_node(where: str, pattern: str, node: Any) -> None:
    if type(node) is not str or not NODE.fullmatch(node):
        raise InvalidModel(f"{where}: expected a node such as attn_norm-{LAYER}, got {node!r:.80}")
    if (LAYER in node) is not (LAYER in pattern):
        raise InvalidModel(f"{where}: use {LAYER} in both the name and the node, or in neither")


def regex(where: str, pattern: str) -> re.Pattern[str]:
    if pattern.count("*") > MOST_STARS or pattern.count(LAYER) > 1:
        raise InvalidModel(f"{where}: at most {MOST_STARS} * and one {LAYER}")
    layer = r"(?<![0-9])(?P<layer>[0-9]{1,6})(?![0-9])"  # must not be part of a longer number
    first, *parts = re.escape(pattern).replace(re.escape(LAYER), layer).split(r"\*")
    # text between two stars is matched at its first occurrence only, so that each name is read a
    # few times, and not once for each position
    between = [f"(?>.*?{part})" for part in parts[:-1]]
    return re.compile(first + "".join(between) + "".join(f".*{part}" for part in parts[-1:]))


def not_found(names: Sequence[str]) -> str:
    """Return some of the names that no pattern matches."""
    few = ", ".join(name[:80] for name in names[:4])
    return f"{few}, and {len(names) - 4} more" if len(names) > 4 else few


def fits_none(names: Sequence[str]) -> str:
    """Return a sentence that lists the names without a matching pattern. Names that differ only in
    batch or layer are listed once."""
    alike = dict.fromkeys(NUMBER.sub("*", STEP.sub("", name)) for name in names)
    return f"no pattern of the map matches {not_found([*alike])}"
