"""Defines the test cases of ggml's ops.

SOURCES and PARAMS list each op's inputs and parameters by the names that the cases use.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.node import PLAIN, Node, Operand
from lockstep.harness.synth.draws import integers, stream, uniform
from lockstep.harness.synth.generator import tensor_bytes

Array = NDArray[Any]
F32 = NDArray[np.float32]
NUMPY_TYPES = {np.dtype(dtype): name for name, dtype in PLAIN.items()}

GLU = ("REGLU", "GEGLU", "SWIGLU", "GEGLU_ERF", "GEGLU_QUICK")
# names of the sources of ggml's ops in order; other ops have `x`, or `a` and `b`
SOURCES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV", "CONCAT", "MUL_MAT", "CPY"), ("a", "b")),
    "ADD_ID": ("a", "rows", "ids"),
    "SET": ("a", "part"),
    "REPEAT": ("x", "like"),
    "GET_ROWS": ("table", "ids"),
    "SET_ROWS": ("rows", "ids", "before"),
    "IM2COL": ("kernel", "x"),
    "SOFT_MAX": ("x", "mask", "sinks"),
    **dict.fromkeys(("ROPE", "ROPE_BACK"), ("x", "positions", "factors")),
    **dict.fromkeys((*GLU, "SWIGLU_OAI", "SWIGLU_CLAMP"), ("gate", "up")),
    "MUL_MAT_ID": ("experts", "x", "ids"),
    "LIGHTNING_INDEXER": ("q", "k", "weights", "mask"),
    "FLASH_ATTN_EXT": ("q", "k", "v", "mask", "sinks"),
    "SSM_CONV": ("x", "kernel"),
    "SSM_SCAN": ("state", "x", "dt", "a", "b", "c", "ids"),
    "GATED_DELTA_NET": ("q", "k", "v", "g", "beta", "state"),
    "RWKV_WKV6": ("k", "v", "r", "first", "decay", "state"),
    "RWKV_WKV7": ("r", "w", "k", "v", "a", "b", "state"),
    "GATED_LINEAR_ATTN": ("k", "v", "q", "gate", "state"),
    "DSV4_HC_COMB": ("mixes", "scale", "base"),
    "DSV4_HC_PRE": ("x", "weights"),
    "DSV4_HC_POST": ("x", "residual", "post", "comb"),
    "ARANGE": (),
}
ANGLES = ("n_dims", "mode", "n_ctx", "n_ctx_orig")
FLOATS = ("freq_base", "freq_scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow")
ROPE: dict[str, int | float] = {
    **{name: i for i, name in enumerate(ANGLES, 1)},
    **{name: float(i) for i, name in enumerate(FLOATS, 5)},
    **{f"section_{i}": 11 + i for i in range(4)},
    "first_dim": 15,
}
NORM = {"eps": 0.0}
PAD: dict[str, int | float] = {
    f"{side}{i}": 2 * i + j for i in range(4) for j, side in enumerate(("before", "after"))
}
WINDOWS = ("stride", "stride_y", "padding", "padding_y", "dilation", "dilation_y", "images")
# index of a parameter in ggml's list: written as an integer for integers, and as a float such as
# 2.0 for floats
PARAMS: dict[str, Mapping[str, int | float]] = {
    "SCALE": {"scale": 0.0, "bias": 1.0},
    "CLAMP": {"min": 0.0, "max": 1.0},
    "FILL": {"value": 0.0},
    "ARANGE": {"start": 0.0, "stop": 1.0, "step": 2.0},
    "XIELU": {"alpha_n": 1.0, "alpha_p": 2.0, "beta": 3.0, "eps": 4.0},
    "NORM": NORM,
    "RMS_NORM": NORM,
    "L2_NORM": NORM,
    "GROUP_NORM": {"groups": 0, "eps": 1.0},
    "SOFT_MAX": {"scale": 0.0, "max_bias": 1.0},
    "ROPE": ROPE,
    "ROPE_BACK": ROPE,
    **{op: {"swapped": 1} for op in GLU},
    "SWIGLU_OAI": {"swapped": 1, "alpha": 2.0, "limit": 3.0},
    "SWIGLU_CLAMP": {"swapped": 1, "limit": 3.0},
    "ARGSORT": {"descending": 0},
    "CONCAT": {"dim": 0},
    "PAD": {**PAD, "round": 8},
    "SET": {"nb1": 0, "nb2": 1, "nb3": 2, "offset": 3},
    "IM2COL": {name: i for i, name in enumerate(WINDOWS)},
    "FLASH_ATTN_EXT": {"scale": 0.0, "max_bias": 1.0, "softcap": 2.0},
    "SSM_SCAN": {"snapshots": 0},
    "GATED_DELTA_NET": {"snapshots": 0},
    "GATED_LINEAR_ATTN": {"scale": 0.0},
    "DSV4_HC_COMB": {"eps": 0.0, "rounds": 1},
    "DSV4_HC_PRE": {"scale": 0.0, "gated": 1},
}


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """A tensor of a type that numpy lacks. raw: bytes; the last axis is the bytes of a row."""

    type: str
    raw: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """Call of an operation.

    shape, type: of the result, for ggml's ops; all shapes are in numpy's order. nb: strides in
    bytes, in ggml's order, of an input that is not contiguous. finding: an entry of
    harness/known/divergences.toml, if llama.cpp's result is wrong.
    """

    id: str
    inputs: Mapping[str, Array | Blocks]
    params: Mapping[str, int | float | str] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    type: str = "F32"
    nb: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    finding: str | None = None


class SeededInputs:
    """Seeded inputs: the name of a case and the earlier draws determine the numbers."""

    def __init__(self, op: str, seed: int) -> None:
        self.op, self.seed = op, seed

    def __call__(self, name: str, *shape: int, size: float = 1.0) -> F32:
        """Return uniformly distributed values with standard deviation `size`."""
        return uniform(stream(self.seed, f"ops.{self.op}.{name}"), prod(shape), size).reshape(shape)

    def ids(self, name: str, below: int, *shape: int) -> NDArray[np.int32]:
        found = integers(stream(self.seed, f"ops.{self.op}.{name}"), prod(shape), below)
        return found.reshape(shape).astype(np.int32)

    def blocks(self, name: str, kind: str, *shape: int, size: float = 0.3) -> Blocks:
        """Draw blocks of a weight type. shape: the shape in weights."""
        bits = stream(self.seed, f"ops.{self.op}.{name}")
        raw = np.frombuffer(b"".join(tensor_bytes(bits, kind, prod(shape), size)), np.uint8)
        return Blocks(type=kind, raw=raw.reshape(*shape[:-1], -1))


Maker = Callable[[str, SeededInputs], Iterator[Case]]
CASES: dict[str, list[Maker]] = {}


def cases(*ops: str) -> Callable[[Maker], Maker]:
    """Register a maker of cases for these operations; an operation may have several."""

    def add(maker: Maker) -> Maker:
        for op in ops:
            CASES.setdefault(op, []).append(maker)
        return maker

    return add


def four(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (4 - len(shape)) + tuple(shape)


def operand_of(name: str, value: Array | Blocks, nb: tuple[int, ...]) -> Operand:
    raw = value.raw if isinstance(value, Blocks) else value
    raw = raw.reshape(four(raw.shape))
    ne = tuple(reversed(raw.shape))
    kind = value.type if isinstance(value, Blocks) else NUMPY_TYPES[raw.dtype]
    if isinstance(value, Blocks):
        known = type_by_name(kind)
        ne = (ne[0] // known.bytes * known.block, *ne[1:])
    return Operand(name=name, type=kind, ne=ne, value=raw, nb=nb)


def node_of(op: str, case: Case) -> Node:
    """Return the case as a node of ggml's graphs.

    Raises KeyError for names that the op does not have.
    """
    names = SOURCES.get(op, ("x",))
    places = PARAMS.get(op, {})
    strange = {*case.inputs} - {*names} | {*case.params} - {*places}
    if strange:
        raise KeyError(f"{op} has no input or parameter named {sorted(strange)}")
    held = np.zeros(16, np.int32)
    for name, value in case.params.items():
        at = places[name]
        held[int(at)] = np.float32(value).view(np.int32) if isinstance(at, float) else int(value)
    sources = [
        operand_of(name, case.inputs[name], case.nb.get(name, ())) if name in case.inputs else None
        for name in names
    ]
    while sources and sources[-1] is None:
        sources.pop()
    shape = four(case.shape)
    return Node(
        step=0,
        ubatch=0,
        index=0,
        op=op,
        name=case.id,
        layer=None,
        type=case.type,
        ne=tuple(reversed(shape)),
        params=held,
        sources=tuple(sources),
        value=np.zeros(shape, PLAIN[case.type]),
    )
