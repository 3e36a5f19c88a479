"""Engines that add LoRA files or control vectors wrongly. Without an adapter they are right.

`check --lora` and `check --control-vector` must find them. Self-tests of graphs do not include
them.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.adapters.lora import LOOKED_UP, LowRank
from lockstep.engine.model import Model
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.trace import Probe
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.parts.replaced_methods import put
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.mutants.parts.wrong_samplers import module_of_caller
from lockstep.harness.records import CONTROL_VECTOR, LORA, AdapterFile

Change = Callable[[Model], None]
Files = Callable[[tuple[AdapterFile, ...]], tuple[AdapterFile, ...]]
Pairs = dict[str, list[LowRank]]
WRONG_ADAPTERS: dict[str, "type[WrongAdapter]"] = {}


class WrongAdapter(Reference):
    """The reference with a model whose adapters are changed after reading."""

    group: ClassVar[str] = "adapters"
    mistake: ClassVar[str]
    site: ClassVar[str]  # the first wrong node in some layer; "" if any node may be the first
    change: ClassVar[tuple[Change, ...]]
    files: ClassVar[Files] = tuple

    def make_model(self) -> Model:
        settings = self.settings
        self.settings = replace(settings, adapters=type(self).files(settings.adapters))
        try:
            model = super().make_model()
        finally:
            self.settings = settings
        for change in self.change:
            change(model)
        return model

    @classmethod
    def add_fault(cls, name: str, mistake: str, site: str, *change: Change, **held: Any) -> None:
        """Register an engine. `held` may contain `files`, a function that returns the adapter files
        with their scales."""
        held |= {"__module__": module_of_caller(), "mistake": mistake, "site": site}
        held |= {"change": change}
        found: type[Self] = type(name, (cls,), held, name=f"mutant:{name}")
        WRONG_ADAPTERS[f"mutant:{name}"] = found


def each_pair(change: Callable[[LowRank], LowRank]) -> Change:
    """Return a change that applies to every pair of every file."""

    def changed(model: Model) -> None:
        for pairs in tables_of(model):
            for name, held in pairs.items():
                pairs[name] = [change(pair) for pair in held]

    return changed


def each_table(change: Callable[[Pairs], Pairs]) -> Change:
    def changed(model: Model) -> None:
        for pairs in tables_of(model):
            found = change(pairs)
            pairs.clear()
            pairs.update(found)

    return changed


def tables_of(model: Model) -> Iterator[Pairs]:
    if model.lora is not None:
        yield from (model.lora.multiplied, model.lora.looked_up)


def scaled(factor: Callable[[LowRank], float]) -> Change:
    return each_pair(lambda pair: replace(pair, scale=pair.scale * factor(pair)))


def rank_of(pair: LowRank) -> int:
    return pair.b.shape[-1]


def with_values(weight: Weight, values: NDArray[Any]) -> Weight:
    """Return a weight of the same shape with these values in F32."""
    raw = np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(-1)
    return Weight(weight.name, WeightFormat.member("F32"), values.shape, raw)


def cut_to_bf16(value: float) -> float:
    bits = np.float32(value).view(np.uint32) & np.uint32(0xFFFF0000)
    return float(bits.view(np.float32))


def swap_factors(pair: LowRank) -> LowRank:
    """Multiply by the transposed product where the matrix is square."""
    if pair.a.shape[-1] != pair.b.shape[-2] or len(pair.a.shape) > 2:
        return pair
    a, b = pair.a.values(), pair.b.values()
    return replace(pair, a=with_values(pair.a, b.T), b=with_values(pair.b, a.T))


def read_by_columns(weight: Weight) -> Weight:
    values = weight.values()
    turned = np.swapaxes(values, -1, -2).reshape(values.shape)
    return with_values(weight, turned)


def without_last(pair: LowRank) -> LowRank:
    """Drop the last component of the rank."""
    values = pair.b.values().copy()
    values[..., -1] = 0
    return replace(pair, b=with_values(pair.b, values))


def without(names: str) -> Callable[[Pairs], Pairs]:
    """Return a change that removes the tensors whose names match a pattern."""
    pattern = re.compile(names)
    return lambda pairs: {name: pairs[name] for name in pairs if not pattern.match(name)}


def all_at_one(kind: str) -> Files:
    """Return a function that reads all files of this kind with scale 1."""

    def files(given: tuple[AdapterFile, ...]) -> tuple[AdapterFile, ...]:
        return tuple(replace(each, scale=1.0) if each.kind == kind else each for each in given)

    return files


def one_layer_late(pairs: Pairs) -> Pairs:
    moved = {}
    for name, held in pairs.items():
        block, dot, rest = name.removeprefix("blk.").partition(".")
        if name.startswith("blk."):
            moved[f"blk.{int(block) + 1}{dot}{rest}"] = held
        else:
            moved[name] = held
    return moved


def keys_for_values(pairs: Pairs) -> Pairs:
    """Use the pairs of attn_k as the pairs of attn_v."""
    keys = {name.replace("attn_v", "attn_k"): name for name in pairs if "attn_v" in name}
    return pairs | {value: pairs[key] for key, value in keys.items() if key in pairs}


def directions(change: Callable[[dict[int, F32]], dict[int, F32]]) -> Change:
    def changed(model: Model) -> None:
        model.directions = change(model.directions)

    return changed


def only_last_token(model: Model) -> None:
    """Apply the control vector only to the last row of each batch."""

    def compute(
        right: Callable[..., F32], ubatch: Any, views: Any, probe: Probe, ops: Any = None
    ) -> F32:
        directions = model.directions

        def steered(name: str, layer: int | None, value: NDArray[Any]) -> NDArray[Any]:
            if name == "l_out" and layer is not None and layer in directions:
                value = value.copy()
                value[-1] += directions[layer]
            return probe(name, layer, value)

        model.directions = {}
        try:
            return right(ubatch, views, steered, ops)
        finally:
            model.directions = directions

    put(model, "compute", compute)


fault = partial(WrongAdapter.add_fault)
QUERY, EMBEDDING, LAYER = "Qcur", "embd", "l_out"

fault("lora-alpha-ignored", "alpha / rank is left out", QUERY, scaled(lambda p: rank_of(p) / 8))
fault("lora-rank-ignored", "alpha is not divided by the rank", QUERY, scaled(rank_of))
fault("lora-scale-squared", "the scale is applied twice", QUERY, scaled(lambda pair: pair.scale))
fault(
    "lora-scale-ignored",
    "the requested scale is not used",
    QUERY,
    files=all_at_one(LORA),
)
fault(
    "lora-sign-lost",
    "a negative scale adds",
    QUERY,
    each_pair(lambda p: replace(p, scale=abs(p.scale))),
)
fault("lora-added-twice", "each pair is added twice", QUERY, scaled(lambda _: 2.0))
fault(
    "lora-factors-swapped",
    "A and B are exchanged in square matrices",
    QUERY,
    each_pair(swap_factors),
)
fault(
    "lora-a-by-columns",
    "A is read with its axes exchanged",
    QUERY,
    each_pair(lambda pair: replace(pair, a=read_by_columns(pair.a))),
)
fault(
    "lora-b-by-columns",
    "B is read with its axes exchanged",
    QUERY,
    each_pair(lambda pair: replace(pair, b=read_by_columns(pair.b))),
)
fault("lora-rank-cut", "the last component of the rank is dropped", QUERY, each_pair(without_last))
fault("lora-layer-late", "pairs are added one layer later", QUERY, each_table(one_layer_late))
fault("lora-first-layer-plain", "layer 0 has no pairs", QUERY, each_table(without(r"blk\.0\.")))
fault(
    "lora-attention-only",
    "feed-forward matrices have no pairs",
    "ffn_gate",
    each_table(without(r"blk\.\d+\.ffn_")),
)
fault(
    "lora-down-plain",
    "ffn_down has no pairs",
    "ffn_out",
    each_table(without(r"blk\.\d+\.ffn_down")),
)
fault("lora-keys-for-values", "pairs of K are added to V", "Vcur", each_table(keys_for_values))
fault(
    "lora-head-plain",
    "the output head has no pair",
    "result_output",
    each_table(without(r"output\.")),
)
fault(
    "lora-embedding-plain", "the embedding has no pair", EMBEDDING, each_table(without(LOOKED_UP))
)
fault(
    "lora-last-file-alone",
    "if there are several files, only the last one is used",
    QUERY,
    files=lambda given: given[-1:],
)
fault(
    "lora-first-scale-for-all",
    "all files have the scale of the first",
    QUERY,
    files=lambda given: tuple(replace(each, scale=given[0].scale) for each in given),
)
fault(
    "lora-in-bf16",
    "B (A x) is scaled by a factor cut to BF16",
    QUERY,
    each_pair(lambda pair: replace(pair, scale=cut_to_bf16(pair.scale))),
)
fault(
    "vector-layer-early",
    "direction N is added to layer N - 1",
    LAYER,
    directions(lambda held: {layer - 1: vector for layer, vector in held.items()}),
)
fault(
    "vector-strength-ignored",
    "the strength is not used",
    LAYER,
    files=all_at_one(CONTROL_VECTOR),
)
fault(
    "vector-normalised",
    "directions are scaled to length 1",
    LAYER,
    directions(lambda held: {n: v / np.linalg.norm(v) for n, v in held.items()}),
)
fault(
    "vector-last-layer-plain",
    "the last layer has no direction",
    LAYER,
    directions(lambda held: {n: v for n, v in held.items() if n != max(held)}),
)
fault(
    "vector-last-token-alone", "only the last token of a batch is steered", LAYER, only_last_token
)
