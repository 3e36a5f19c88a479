"""Engines with a mistake in a single layer. Mistakes in the catalogue's ops affect all layers.

There are three kinds. First, the engine reads one tensor of a layer wrongly in every model that
contains the tensor, as if the tensor were damaged in the file. Second, the engine reads this tensor
wrongly only where the layer has its original number, as if it repacked the tensor wrongly; a slice,
which numbers its layers anew, lacks the fault. Third, the layer with this number computes something
else.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.model import Model
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.trace import Probe
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.parts.replaced_methods import put
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.blackbox.slices import architecture, n_layers
from lockstep.harness.mutants.parts.mistakes import change_weights
from lockstep.harness.sites import IN_A_LAYER

IN_THE_FILE, BY_NAME, BY_NUMBER = "file", "name", "number"
PREFIX, SCALED = "one-layer", "scaled-by-1.001"
Rows = NDArray[np.uint8]  # (rows, bytes of a row)


@dataclass(frozen=True, kw_only=True)
class OneLayerFault:
    """A fault in one layer. `where` is a tensor without its layer, such as attn_q.weight, or the
    name of a node for a fault in the layer's computation."""

    way: str
    layer: int
    where: str
    change: str

    @property
    def engine(self) -> str:
        return f"{PREFIX}:{self.way}:{self.layer}:{self.where}:{self.change}"

    @property
    def tensor(self) -> str:
        return f"blk.{self.layer}.{self.where}"


def fault_named(engine: str) -> OneLayerFault:
    _, way, layer, where, change = engine.split(":")
    return OneLayerFault(way=way, layer=int(layer), where=where, change=change)


# --- changes to a tensor ------------------------------------------------------------------------


def scale_rows(rows: Rows, format: type[WeightFormat], head: int) -> None:
    """Enlarge all rows by a thousandth. If the scales have half precision, they are rounded."""
    blocks = rows.reshape(-1).view(format.layout)
    for name in {"x", "d", "m", "dmin"} & set(format.layout.names or ()):
        wide = blocks[name].astype(np.float32) * np.float32(1.001)
        blocks[name] = wide.astype(blocks[name].dtype)


def one_sign(rows: Rows, format: type[WeightFormat], head: int) -> None:
    """Flip a bit in the last code. In types without blocks, flip the sign of the largest number."""
    flat = rows.reshape(-1)
    if format.weights == 1:
        numbers = flat.view("<f4")
        at = int(np.abs(numbers).argmax())
        numbers[at] = -numbers[at]
    else:
        flat[-1] ^= 0x10


def rows_swapped(rows: Rows, format: type[WeightFormat], head: int) -> None:
    """Swap two neighbouring rows in the middle."""
    at = len(rows) // 2
    rows[[at, at + 1]] = rows[[at + 1, at]]


def head_permuted(rows: Rows, format: type[WeightFormat], head: int) -> None:
    """Reorder the rows of the second head, as if its permutation of pairs had not been undone."""
    own = rows[head : 2 * head].copy()
    rows[head : 2 * head] = np.concatenate([own[::2], own[1::2]])


CHANGES: Mapping[str, Callable[[Rows, type[WeightFormat], int], None]] = MappingProxyType(
    {
        SCALED: scale_rows,
        "one-sign": one_sign,
        "rows-swapped": rows_swapped,
        "head-permuted": head_permuted,
    }
)


def wrong_bytes(fault: OneLayerFault, weight: Weight, heads: int) -> NDArray[np.uint8]:
    """Return the weight's bytes with the fault. `heads` is the number of heads in the weight's
    rows."""
    found = weight.raw.copy()
    n = 1 if len(weight.shape) == 1 else weight.shape[-2]
    CHANGES[fault.change](found.reshape(n, -1), weight.format, n // heads)
    return found


def heads_in(file: GgufFile, where: str) -> int:
    arch = str(file.metadata["general.architecture"].data)
    key = "head_count_kv" if where.startswith("attn_k") else "head_count"
    found = file.metadata[f"{arch}.attention.{key}"].data
    return int(found if isinstance(found, int) else found[0])


# --- changes to a layer's results ---------------------------------------------------------------


class Spoilt:
    """A probe that changes one node of a layer, and so all later results."""

    def __init__(self, inner: Probe, fault: OneLayerFault) -> None:
        self.inner, self.fault = inner, fault
        self.before: dict[str, NDArray[Any]] = {}  # values of this layer by name of the node

    def __call__(self, name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
        if layer == self.fault.layer:
            if name == self.fault.where:
                value = RESULTS[self.fault.change](value, self.before)
            self.before[name] = value
        return self.inner(name, layer, value)


def not_turned(value: F32, before: Mapping[str, F32]) -> F32:
    """Return the queries from before their rotation."""
    found = before.get("Qcur_normed", before.get("Qcur"))
    assert found is not None
    turned: F32 = found.reshape(value.shape)
    return turned


def last_head_lost(value: F32, before: Mapping[str, F32]) -> F32:
    found = value.copy()
    found[:, -(value.shape[1] // len(before["kq"])) :] = 0
    return found


def all_alike(value: F32, before: Mapping[str, F32]) -> F32:
    """Return equal attention weights for all visible cells."""
    seen = value > 0
    shares: F32 = (seen / np.maximum(seen.sum(axis=-1, keepdims=True), 1)).astype(np.float32)
    return shares


def never_negative(value: F32, before: Mapping[str, F32]) -> F32:
    return np.maximum(value, np.float32(0))


def a_hundredth_more(value: F32, before: Mapping[str, F32]) -> F32:
    return (value * np.float32(1.01)).astype(np.float32)


RESULTS: Mapping[str, Callable[[F32, Mapping[str, F32]], F32]] = MappingProxyType(
    {
        "not-turned": not_turned,
        "last-head-lost": last_head_lost,
        "all-alike": all_alike,
        "never-negative": never_negative,
        "a-hundredth-more": a_hundredth_more,
    }
)


# --- engines ------------------------------------------------------------------------------------


class WrongInOneLayer(Reference):
    """A wrong engine that is made from a fault. It has no registered name."""

    fault: OneLayerFault

    def make_model(self) -> Model:
        model = super().make_model()
        if self.fault.way == BY_NAME:
            change_weights(model, self.weight)
        if self.fault.way == BY_NUMBER:
            put(model, "decode", self.decode)
        return model

    def weight(self, right: Callable[[str], Weight], name: str) -> Weight:
        found = right(name)
        if name != self.fault.tensor:
            return found
        raw = wrong_bytes(self.fault, found, heads_in(self.file, self.fault.where))
        return Weight(name, found.format, found.shape, raw)

    def decode(
        self, right: Callable[..., F32], batch: Any, memory: Any, probe: Probe, **options: Any
    ) -> F32:
        return right(batch, memory, Spoilt(probe, self.fault), **options)


def engine_with(fault: OneLayerFault) -> type[Reference]:
    return type("Made", (WrongInOneLayer,), {"fault": fault})


def damaged_file(fault: OneLayerFault, model: Path, folder: Path) -> Path:
    """Write a copy of the model with the fault, and return its path."""
    path = folder / "damaged.gguf"
    shutil.copy(model, path)
    with GgufFile.open(model) as file:
        info = file.tensors[fault.tensor]
        format = WeightFormat.member(info.type.name)
        weight = Weight(fault.tensor, format, info.shape, file.raw(fault.tensor))
        raw = wrong_bytes(fault, weight, heads_in(file, fault.where))
        with path.open("r+b") as out:
            out.seek(file.data_offset + info.offset)
            out.write(raw.tobytes())
    return path


# --- list of faults -----------------------------------------------------------------------------


def faults_of(path: Path, seed: int) -> Iterator[OneLayerFault]:
    """Yield every applicable change for each tensor, in a seeded layer."""
    with GgufFile.open(path) as file:
        names = {f[2]: i for n, i in file.tensors.items() if (f := IN_A_LAYER.fullmatch(n))}
        layers = n_layers(file)
        arch = architecture(file)
    raw = iter(Philox(key=seed).random_raw(1000))
    for where, info in names.items():
        for change in CHANGES:
            vector = len(info.ne) == 1
            if vector and change in ("rows-swapped", "head-permuted"):
                continue
            if change == "head-permuted" and not (arch in QUERIES and where in TURNED):
                continue
            for way in (IN_THE_FILE, BY_NAME):
                layer = int(next(raw) >> np.uint64(33)) % layers
                yield OneLayerFault(way=way, layer=layer, where=where, change=change)
    for where, change in nodes_of(arch):
        layer = int(next(raw) >> np.uint64(33)) % layers
        yield OneLayerFault(way=BY_NUMBER, layer=layer, where=where, change=change)


def nodes_of(arch: str) -> Iterator[tuple[str, str]]:
    yield from OF_NODES
    yield ACTIVATIONS.get(arch, "ffn_swiglu"), "never-negative"
    if arch in QUERIES:
        yield "Qcur_rope", "not-turned"


TURNED = ("attn_q.weight", "attn_k.weight")
# architectures in whose graphs queries are separate nodes
QUERIES = ("llama", "qwen2", "qwen3", "gemma3")
ACTIVATIONS = {"gemma3": "ffn_geglu", "gpt2": "ffn_gelu"}
OF_NODES = (
    ("attn_norm", "a-hundredth-more"),
    ("kq_soft_max", "all-alike"),
    ("kqv_out", "last-head-lost"),
    ("ffn_out", "a-hundredth-more"),
)
