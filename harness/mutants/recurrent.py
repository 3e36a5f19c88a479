"""Mistakes in recurrent state: convolutions, the scan of mamba, the carried state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.architectures.step import Step
from lockstep.engine.batch import Batch
from lockstep.engine.memory.recurrent import Recurrent, StateView
from lockstep.engine.model import Model
from lockstep.engine.ops.near import F64
from lockstep.engine.ops.reference import round_once
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.adapters.parts.replaced_methods import put
from lockstep.harness.mutants.parts.mistakes import Mistake, Op

AFTER = "the prompt is understood, but generated tokens are not"
NONSENSE = "text is nonsense from the first token on"
DRIFTS = "the longer the text, the less it remembers"
Arrays = tuple[NDArray[Any], ...]
CONV = "model.layers.{}.conv.conv"
# layer 0 is an attention layer
LFM2: dict[str, Any] = {"shows_on": "arch:lfm2", "site": CONV, "layer": 1}


class WrongState(Mistake):
    """A fault in mamba between two norms. No tensor there has a name, so its place is the layer's
    output."""

    group = "recurrent"
    effect = AFTER
    shows_on = "arch:mamba"
    site = "l_out"


# --- carried states -----------------------------------------------------------------------------


class WrongRead(WrongState):
    """A wrong read of a state. `read` changes its arrays, each (sets, ...). The first array belongs
    to the convolution, with the newest token last."""

    def states_read(self, view: StateView, right: Callable[[], Arrays]) -> Arrays:
        return self.read(*right())

    def read(self, tail: F32, *rest: F32) -> Arrays:
        raise NotImplementedError


class NotCarried(WrongRead, name="mutant:state-not-carried"):
    mistake = "every batch begins with an empty state"

    def read(self, *state: F32) -> Arrays:
        return tuple(map(np.zeros_like, state))


NotCarried.add_fault(
    "state-not-carried-lfm2", "every batch of lfm2 begins with an empty convolution", **LFM2
)


class NotKeptBetweenCalls(WrongState, name="mutant:state-not-kept-between-calls"):
    """An engine that keeps its state from ubatch to ubatch, but not from call to call."""

    mistake = "every call begins with empty states"
    layer = None
    site = "logits"

    def change(self, model: Model) -> None:
        put(model, "decode", self.decode)

    def decode(self, right: Op, batch: Batch, memory: Recurrent, *args: Any, **options: Any) -> F32:
        empty = memory.empty().numbers
        for state in memory.states.values():
            state.numbers = dict(empty)
        return right(batch, memory, *args, **options)


class ConvolutionLate(WrongRead, name="mutant:conv-state-one-late"):
    mistake = "the newest token is not in the convolution's state"

    def read(self, tail: F32, *rest: F32) -> Arrays:
        return np.concatenate([np.zeros_like(tail[..., :1]), tail[..., :-1]], axis=-1), *rest


ConvolutionLate.add_fault(
    "conv-state-one-late-lfm2",
    "the convolution's state of lfm2 lacks the newest token",
    **LFM2,
)
WrongRead.add_fault(
    "conv-state-backwards",
    "the convolution's state is kept with the newest token first",
    read=lambda self, tail, *rest: (tail[..., ::-1].copy(), *rest),
)


class TailOfFew(WrongState, name="mutant:conv-state-of-few"):
    """An engine that is right for single tokens, which have their own kernel, and for large
    batches."""

    mistake = "after a batch shorter than the convolution's state, the state is the batch and zeros"

    def graph_convolve(self, right: Op, layer: int, x: F32, tail: F32) -> Any:
        out, kept = right(layer, x, tail)
        n = len(x) // len(tail)
        if 1 < n < kept.shape[-1]:
            kept = kept.copy()
            kept[..., :-n] = 0
        return out, kept


class StateShared(WrongRead, name="mutant:state-shared-by-sequences"):
    """An engine whose sequences share one state. No op is wrong if there is only one sequence."""

    mistake = "all sequences of a batch continue from the state of the first"
    effect = "users of one server get each other's text"
    site = "logits"
    layer = None

    def read(self, *state: F32) -> Arrays:
        return tuple(np.broadcast_to(array[:1], array.shape) for array in state)


StateShared.add_fault(
    "state-shared-by-sequences-lfm2",
    "all sequences of an lfm2 batch continue from the convolution of the first",
    shows_on="arch:lfm2",
)
WrongState.add_fault(
    "state-f16",
    "the state is stored in F16",
    DRIFTS,
    states_store=lambda self, view, right, *numbers: right(*map(in_half, numbers)),
)


def in_half(x: F32) -> F32:
    return x.astype(np.float16).astype(np.float32)


# --- the convolution ----------------------------------------------------------------------------


class NotActive(WrongState, name="mutant:conv-silu-missing"):
    mistake = "the result of the convolution does not go through SiLU"
    effect = NONSENSE

    def graph_convolve(self, right: Op, layer: int, x: F32, tail: F32) -> Any:
        _, kept = right(layer, x, tail)
        n, weight = len(x) // len(tail), self.loaded.graph.tensors.in_layer
        rows = x.reshape(len(tail), n, -1).transpose(0, 2, 1)
        rows = np.concatenate([tail, rows], axis=-1).astype(np.float64)
        kernel = weight(layer, "ssm_conv1d.weight").values()
        seen = [rows[..., i : i + n] * kernel[:, i, None] for i in range(kernel.shape[1])]
        out = np.sum(seen, axis=0).transpose(0, 2, 1).reshape(x.shape)
        return round_once(out + weight(layer, "ssm_conv1d.bias").values()), kept


class Kernel(WrongState):
    """An engine that reads the convolution's weights in another order."""

    effect = NONSENSE
    tensor = "ssm_conv1d.weight"

    def change(self, model: Model) -> None:
        put(model.graph.tensors, "in_layer", self.in_layer)

    def in_layer(self, right: Callable[..., Weight], layer: int, name: str) -> Weight:
        weight = right(layer, name)
        if name != self.tensor:
            return weight
        raw = np.ascontiguousarray(self.other(weight.values())).view(np.uint8).reshape(-1)
        return replace(weight, raw=raw)

    def other(self, kernel: F32) -> F32:
        return kernel[:, ::-1]


Kernel.add_fault("conv-kernel-backwards", "the kernel's first weight goes to the newest token")
Kernel.add_fault(
    "conv-kernel-backwards-lfm2",
    "the first weight of the kernel of lfm2 goes to the newest token",
    **LFM2,
    tensor="shortconv.conv.weight",
)


class KernelTransposed(Kernel, name="mutant:conv-kernel-transposed"):
    mistake = "the kernel is read as if it were stored token by token"
    source = "sglang #36864"

    def other(self, kernel: F32) -> F32:
        return kernel.reshape(kernel.shape[::-1]).T


KernelTransposed.add_fault(
    "conv-kernel-transposed-lfm2",
    "the kernel of lfm2 is read as if it were stored token by token",
    **LFM2,
    tensor="shortconv.conv.weight",
)


class GatesOfLfm2(WrongState, name="mutant:conv-gates-exchanged"):
    mistake = "the gates before and after the convolution of lfm2 are exchanged"
    effect = NONSENSE
    shows_on = "arch:lfm2"
    site = CONV
    layer = 1

    def graph_linear(self, right: Op, step: Step, layer: int, site: str, x: F32, name: str) -> F32:
        out = right(step, layer, site, x, name)
        if not name.endswith("in_proj"):
            return out
        b, c, h = np.split(out, 3, axis=1)
        return np.concatenate([c, b, h], axis=1)


Kernel.add_fault(
    "conv-bias-missing",
    "the convolution's bias is not added",
    tensor="ssm_conv1d.bias",
    other=lambda self, kernel: np.zeros_like(kernel),
)


# --- the scan -----------------------------------------------------------------------------------


Kernel.add_fault(
    "dt-bias-missing",
    "the bias of the step dt is not added",
    DRIFTS,
    tensor="ssm_dt.bias",
    other=lambda self, kernel: np.zeros_like(kernel),
)
Kernel.add_fault(
    "ssm-d-missing",
    "the term D, which bypasses the state, is left out",
    "text is fluent but off topic",
    tensor="ssm_d",
    other=lambda self, kernel: np.zeros_like(kernel),
)
Kernel.add_fault(
    "ssm-a-exp-twice",
    "-exp is applied to ssm_a, which already holds -exp(A_log)",
    DRIFTS,
    source="candle #3838",
    tensor="ssm_a",
    other=lambda self, kernel: -np.exp(kernel),
)
Kernel.add_fault(
    "ssm-a-not-negated",
    "the decay has the wrong sign, so that the state grows",
    "text ends in NaN after some tokens",
    tensor="ssm_a",
    other=lambda self, kernel: -kernel,
)
Kernel.add_fault(
    "ssm-a-transposed",
    "ssm_a is read as (d_state, d_inner)",
    source="sglang #36864",
    tensor="ssm_a",
    other=lambda self, kernel: kernel.reshape(kernel.shape[::-1]).T,
)


class Scan(WrongState):
    """The scan in a few lines, so that a subclass can make one line wrong."""

    effect = DRIFTS

    def graph_scan(self, right: Op, layer: int, *args: F32) -> tuple[F32, F32]:
        x, dt, b, c, state = (array.astype(np.float64) for array in args)
        sets = len(state)
        a = self.loaded.graph.tensors.in_layer(layer, "ssm_a").values().astype(np.float64)
        rows = [array.reshape(sets, len(x) // sets, -1) for array in (x, dt, b, c)]
        outs = []
        for t in range(rows[0].shape[1]):
            x_t, dt_t, b_t, c_t = (row[:, t] for row in rows)
            after = self.next(state, a, x_t, self.step(dt_t), b_t)
            outs.append((self.seen(state, after) * c_t[:, None, :]).sum(axis=-1))
            state = after
        return round_once(np.stack(outs, axis=1).reshape(x.shape)), round_once(state)

    def step(self, dt: F64) -> F64:
        return np.logaddexp(0, dt)

    def next(self, state: F64, a: F64, x: F64, dt: F64, b: F64) -> F64:
        kept: F64 = state * np.exp(dt[..., None] * a)
        return kept + (dt * x)[..., None] * b[:, None, :]

    def seen(self, before: F64, after: F64) -> F64:
        return after


Scan.add_fault(
    "dt-softplus-missing",
    "the step dt is used without softplus",
    step=lambda self, dt: dt,
)
Scan.add_fault(
    "ssm-state-before",
    "the output is read from the state before the token",
    seen=lambda self, before, after: before,
)


class ZeroOrderHold(Scan, name="mutant:ssm-zero-order-hold"):
    """An engine with the discretisation of the paper. The training code uses Euler's method."""

    mistake = "the input of the state is held constant over the step, instead of multiplied by it"

    def next(self, state: F64, a: F64, x: F64, dt: F64, b: F64) -> F64:
        decay: F64 = np.exp(dt[..., None] * a)
        return state * decay + (decay - 1) / a * x[..., None] * b[:, None, :]


WrongState.add_fault(
    "ssm-b-and-c-exchanged",
    "the vectors that write and read the state are exchanged",
    NONSENSE,
    graph_scan=lambda self, right, layer, x, dt, b, c, state: right(layer, x, dt, c, b, state),
)


class StepLast(WrongState, name="mutant:ssm-x-order"):
    mistake = "the result of ssm_x is read as B, C and dt, but dt comes first"
    effect = NONSENSE

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        if not weight.name.endswith("ssm_x.weight"):
            return out
        hp: Any = self.loaded.graph.hparams
        return np.roll(out, hp.dt_rank, axis=1)


class StateHalvesExchanged(WrongState, name="mutant:ssm-in-halves-exchanged"):
    mistake = "the mixed values and their gate are exchanged"
    effect = NONSENSE

    def linear(self, right: Op, x: F32, weight: Weight) -> F32:
        out = right(x, weight)
        is_both = weight.name.endswith("ssm_in.weight")
        return np.roll(out, out.shape[1] // 2, axis=1) if is_both else out


WrongState.add_fault(
    "ssm-gate-without-silu",
    "the gate is multiplied in without SiLU",
    NONSENSE,
    swiglu=lambda self, right, gate, up: gate * up,
)
