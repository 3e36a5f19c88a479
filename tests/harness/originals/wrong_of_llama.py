"""Wrong conversions of llama's keys and tensors. Each is an honest file with one mistake, and lists
the places that must be named.

`test_wrong_conversions.py` requires exactly these places. A row of `W` has a name, the
architecture, the change, the places, and the kind of difference if it is certain.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.originals.findings import DifferenceKind as Kind
from tests.harness.originals import checkpoints as ck
from tests.harness.originals.conversions import ENCODERS, Conversion, pairs

F32 = NDArray[np.float32]
Change = Callable[[Conversion], Any]
LAYER_PARTS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm")
LAYER_PARTS += ("ffn_gate", "ffn_up", "ffn_down")
Q, K, V = (f"blk.1.attn_{name}.weight" for name in "qkv")
OUT, GATE, UP, DOWN = (
    f"blk.2.{name}.weight" for name in ("attn_output", "ffn_gate", "ffn_up", "ffn_down")
)
EMBD, HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class WrongConversion:
    """A row of the table. `stored` is the type of the checkpoint, and `kind` is the type of the
    file's matrices."""

    name: str
    arch: str
    change: Change
    places: tuple[str, ...]
    how: Kind | None = None
    kind: str = "F32"
    stored: str = "BF16"
    detail: dict[str, Any] = field(default_factory=dict)  # expected facts of the first difference


def unpair(rows: F32, heads: int) -> F32:
    """Undo `pairs`."""
    split = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows.shape))


def swap_layers(c: Conversion) -> None:
    for part in LAYER_PARTS:
        c.swap(f"blk.0.{part}.weight", f"blk.1.{part}.weight")


def copy(c: Conversion, source: str, to: str) -> None:
    c.tensors[to] = c.tensors[source].copy()


def change_row(c: Conversion, name: str, row: int, factor: float) -> None:
    values = c.tensors[name].copy()
    values[row] *= np.float32(factor)
    c.tensors[name] = values


def flip_bit(c: Conversion, name: str) -> None:
    values = c.tensors[name].copy()
    values.view(np.uint32)[5, 7] ^= 1
    c.tensors[name] = values


def change_block(c: Conversion, name: str, block: int, at: int, step: int) -> None:
    """Add a number to one byte of a block in a quantised tensor. Byte 0 holds the lowest bits of
    the scale."""
    kind = c.kinds[name]
    raw = bytearray(ENCODERS[kind](c.tensors[name]))
    place = {"Q8_0": 34, "Q4_0": 18}[kind] * block + at
    raw[place] = (raw[place] + step) % 256
    c.raw[name] = bytes(raw)


def cut_to(bits: int, smallest: int) -> Callable[[F32], F32]:
    """Return a function that cuts values towards zero to this number of bits. `smallest` is the
    exponent of the smallest normal number."""

    def cut(values: F32) -> F32:
        exponents = np.maximum(np.frexp(values)[1] - 1, smallest) - bits
        return np.ldexp(np.trunc(np.ldexp(values, -exponents)), exponents)

    return cut


def rows_without(values: F32, row: int) -> F32:
    return np.concatenate([values[:row], values[row + 1 :], values[:1] * 0])


def through_bf16(values: F32) -> F32:
    return ck.stored(values, "BF16")[1]


W = WrongConversion
LLAMA = (
    W("q-in-order", "llama", lambda c: c.change(Q, lambda a: unpair(a, 4)), (Q,), Kind.order),
    W("k-in-order", "llama", lambda c: c.change(K, lambda a: unpair(a, 2)), (K,), Kind.order),
    W("q-paired-twice", "llama", lambda c: c.change(Q, lambda a: pairs(a, 4)), (Q,), Kind.order),
    W(
        "k-paired-by-heads-of-q",
        "llama",
        lambda c: c.change(K, lambda a: pairs(unpair(a, 2), 4)),
        (K,),
        Kind.order,
        detail={"heads": 4},
    ),
    W(
        "layers-swapped",
        "llama",
        swap_layers,
        tuple(f"blk.{n}.{part}.weight" for n in (0, 1) for part in LAYER_PARTS),
        Kind.holds,
    ),
    W(
        "layer-doubled",
        "llama",
        lambda c: copy(c, "blk.2.attn_q.weight", Q),
        (Q,),
        Kind.holds,
        detail={"layer": 1, "holds": "blk.2.attn_q.weight"},
    ),
    W("gate-and-up", "llama", lambda c: c.swap(GATE, UP), (GATE, UP), Kind.holds),
    W("k-and-v", "llama", lambda c: c.swap(K, V), (K, V)),
    W("rope-base", "llama", lambda c: c.set("rope.freq_base", 1e4), ("llama.rope.freq_base",)),
    W(
        "rope-factor-missing",
        "llama",
        lambda c: c.drop("rope.scaling.factor"),
        ("llama.rope.scaling.factor",),
        Kind.missing,
    ),
    W(
        "rope-type",
        "llama",
        lambda c: c.set("rope.scaling.type", "none"),
        ("llama.rope.scaling.type",),
    ),
    W(
        "epsilon",
        "llama",
        lambda c: c.set("attention.layer_norm_rms_epsilon", 1e-6),
        ("llama.attention.layer_norm_rms_epsilon",),
    ),
    W(
        "epsilon-missing",
        "llama",
        lambda c: c.drop("attention.layer_norm_rms_epsilon"),
        ("llama.attention.layer_norm_rms_epsilon",),
        Kind.missing,
    ),
    W(
        "heads-of-keys",
        "llama",
        lambda c: c.set("attention.head_count_kv", 4),
        ("llama.attention.head_count_kv",),
    ),
    W(
        "heads-of-keys-missing",
        "llama",
        lambda c: c.drop("attention.head_count_kv"),
        ("llama.attention.head_count_kv",),
    ),
    W("layers", "llama", lambda c: c.set("block_count", 2), ("llama.block_count",)),
    W("context", "llama", lambda c: c.set("context_length", 64), ("llama.context_length",)),
    W(
        "rotated-part",
        "llama",
        lambda c: c.set("rope.dimension_count", 8),
        ("llama.rope.dimension_count",),
    ),
    W("head-missing", "llama", lambda c: c.tensors.pop(HEAD), (HEAD,), Kind.missing),
    W("head-tied", "llama", lambda c: copy(c, EMBD, HEAD), (HEAD,), Kind.holds),
    W("head-zeros", "llama", lambda c: c.change(HEAD, np.zeros_like), (HEAD,), Kind.zeros),
    W(
        "embeddings-shifted",
        "llama",
        lambda c: c.change(EMBD, lambda a: np.roll(a, 1, axis=0)),
        (EMBD,),
        Kind.shifted,
    ),
    W(
        "row-lost",
        "llama",
        lambda c: c.change(DOWN, lambda a: rows_without(a, 60)),
        (DOWN,),
        Kind.rows,
        detail={"row": 60},
    ),
    W(
        "row-zero",
        "llama",
        lambda c: change_row(c, DOWN, 9, 0),
        (DOWN,),
        Kind.rows,
        detail={"row": 9, "rows": 1},
    ),
    W(
        "norm-of-another-layer",
        "llama",
        lambda c: copy(c, "blk.0.attn_norm.weight", "blk.2.attn_norm.weight"),
        ("blk.2.attn_norm.weight",),
        Kind.holds,
    ),
    W(
        "norm-missing",
        "llama",
        lambda c: c.tensors.pop("output_norm.weight"),
        ("output_norm.weight",),
    ),
    W("square-transposed", "llama", lambda c: c.change(OUT, np.transpose), (OUT,), Kind.transposed),
    W(
        "matrix-transposed",
        "llama",
        lambda c: c.change(DOWN, np.transpose),
        (DOWN,),
        Kind.transposed,
    ),
    W(
        "bit-flipped",
        "llama",
        lambda c: flip_bit(c, DOWN),
        (DOWN,),
        Kind.rows,
        detail={"row": 5, "column": 7, "elements": 1},
    ),
    W(
        "cut-to-f16",
        "llama",
        lambda c: c.change(DOWN, cut_to(10, -14)),
        (DOWN,),
        Kind.truncated,
        kind="F16",
        stored="F32",
    ),
    W(
        "cut-to-bf16",
        "llama",
        lambda c: c.change(DOWN, cut_to(7, -126)),
        (DOWN,),
        Kind.truncated,
        kind="BF16",
        stored="F32",
    ),
    W(
        "f16-by-way-of-bf16",
        "llama",
        lambda c: c.change(DOWN, through_bf16),
        (DOWN,),
        Kind.narrowed,
        kind="F16",
        stored="F32",
    ),
    W(
        "scale-off-by-one",
        "llama",
        lambda c: change_block(c, DOWN, 70, 0, 1),
        (DOWN,),
        Kind.blocks,
        kind="Q8_0",
        detail={"row": 23, "blocks": 1},
    ),
    W(
        "scale-of-4-bits-off-by-one",
        "llama",
        lambda c: change_block(c, DOWN, 70, 0, 1),
        (DOWN,),
        Kind.blocks,
        kind="Q4_0",
        detail={"row": 23, "blocks": 1},
    ),
    W(
        "code-off-by-two",
        "llama",
        lambda c: change_block(c, DOWN, 71, 9, 2),
        (DOWN,),
        kind="Q8_0",
        detail={"row": 23},
    ),
    W(
        "quantised-after-scaling",
        "llama",
        lambda c: c.change(DOWN, lambda a: a * np.float32(1.03)),
        (DOWN,),
        Kind.scaled,
        kind="Q4_0",
    ),
    W(
        "quantised-of-another-layer",
        "llama",
        lambda c: copy(c, "blk.0.ffn_down.weight", DOWN),
        (DOWN,),
        Kind.holds,
        kind="Q4_0",
    ),
    W(
        "quantised-k-in-order",
        "llama",
        lambda c: c.change(K, lambda a: unpair(a, 2)),
        (K,),
        Kind.order,
        kind="Q4_0",
    ),
    W(
        "tensor-too-many",
        "llama",
        lambda c: (
            copy(c, "blk.0.attn_norm.weight", "rope_freqs.weight")
            or c.kinds.update({"rope_freqs.weight": "F32"})
        ),
        ("rope_freqs.weight",),
        Kind.unexpected,
    ),
)
