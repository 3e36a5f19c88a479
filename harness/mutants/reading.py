"""Mistakes in reading files: ignored keys, confused tensors, wrong offsets."""

from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.engine.gguf.fields import DEFAULT_ALIGNMENT, pad_to
from lockstep.engine.model import Model
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.parts.mistakes import Mistake, Read, as_weight
from lockstep.harness.records import FileSummary

NOISE = "noise from the first token on"


class Misread(Mistake):
    group = "reading"


Misread.add_fault(
    "rope-base-ignored",
    "rope.freq_base is not read, and 10000 is used",
    "text drifts with the length of the prompt",
    shows_on="arch:qwen3",
    site="Qcur_rope",
    numbers=lambda self, hparams: replace(hparams, rope_freq_base=10000.0),
)
Misread.add_fault(
    "rope-factor-ignored",
    "rope.scaling.factor is parsed but never used",
    "text drifts past a few thousand tokens",
    source="mlxcel #1355",
    shows_on="q4_0",
    site="Qcur_rope",
    numbers=lambda self, hparams: replace(hparams, rope_freq_scale=1.0),
)
Misread.add_fault(
    "rope-factors-ignored",
    "rope_freqs.weight is not read",
    "text drifts past a few thousand tokens",
    shows_on="bf16",
    site="Qcur_rope",
    graph_rope_params=lambda self, right, layer=0: replace(right(layer), factors=None),
)
Misread.add_fault(
    "key-length-ignored",
    "scores are scaled by n_embd / n_head, whatever attention.key_length says",
    "attention is too sharp or too flat",
    source="candle #3917",
    shows_on="q4_0",
    site="kq_soft_max",
    soft_max=lambda self, right, x, scale, visible: right(
        x, 0.25 if visible is not None else scale, visible
    ),
)
Misread.add_fault(
    "layer-norm-eps-default",
    "attention.layer_norm_epsilon is not read, and 1e-12 is used",
    "no effect that a reader sees",
    shows_on="arch:gpt2",
    site="attn_norm",
    numbers=lambda self, hparams: replace(hparams, f_norm_eps=1e-12),
)
Misread.add_fault(
    "last-layer-skipped",
    "the model runs one layer fewer than block_count",
    "text is worse",
    site="attn_norm",
    layer=1,
    numbers=lambda self, hparams: replace(hparams, n_layer=1),
)


class OtherTensor(Misread):
    """An engine that reads one tensor instead of another. `other` returns the name of the tensor to
    read."""

    effect = NOISE

    def taken(self, read: Read, name: str) -> Weight:
        return read(self.other(name))

    def other(self, name: str) -> str:
        raise NotImplementedError


def exchange(name: str, first: str, second: str) -> str:
    """Return the name with the part `first` replaced by `second`, or the reverse."""
    if first in name:
        return name.replace(first, second)
    return name.replace(second, first)


OtherTensor.add_fault(
    "tensors-by-order",
    "tensors are found by their order, so keys and values are exchanged",
    site="Kcur",
    other=lambda self, name: exchange(name, "attn_k.", "attn_v."),
)
OtherTensor.add_fault(
    "gate-and-up-by-order",
    "the tensors of gate and up are exchanged",
    site="ffn_up",
    other=lambda self, name: exchange(name, "ffn_gate.", "ffn_up."),
)
OtherTensor.add_fault(
    "first-layer-twice",
    "names lack the layer's number: all layers use the tensors of the first",
    "text is worse",
    site="attn_norm",
    layer=1,
    other=lambda self, name: name.replace("blk.1.", "blk.0."),
)
OtherTensor.add_fault(
    "norms-exchanged",
    "attn_norm and ffn_norm have each other's tensors",
    "text is worse",
    site="attn_norm",
    other=lambda self, name: exchange(name, "attn_norm.", "ffn_norm."),
)
OtherTensor.add_fault(
    "bias-for-weight",
    "biases overwrite the slots of weights of the same shape",
    source="imp #690",
    shows_on="arch:gpt2",
    site="attn_norm",
    other=lambda self, name: name.replace("norm.weight", "norm.bias"),
)


class ProjectionUnpermuted(Misread, name="mutant:rows-unpermuted"):
    mistake = "rows of queries and keys are put back in an order that Qwen2's files never had"
    effect = "word salad after a few tokens"
    source = "tensai #37"
    shows_on = "arch:qwen2"
    site = "Qcur"

    def taken(self, read: Read, name: str) -> Weight:
        weight = read(name)
        if not name.endswith(("attn_q.weight", "attn_k.weight")):
            return weight
        heads = weight.values().reshape(-1, 2, 16, weight.shape[-1])
        return as_weight(weight, heads.swapaxes(1, 2).reshape(weight.shape))


class NotPadded(Misread, name="mutant:data-not-padded"):
    mistake = "the start of the data is not rounded up to the alignment"
    effect = "noise or NaN"
    site = "embd"
    layer = None

    def taken(self, read: Read, name: str) -> Weight:
        weight = read(name)
        return replace(weight, raw=np.concatenate([np.zeros(8, np.uint8), weight.raw[:-8]]))


class AlignmentIgnored(Misread, name="mutant:alignment-ignored"):
    mistake = "general.alignment is not read, and tensor data begins as if it were 32"
    effect = "noise or NaN"
    shows_on = "aligned"
    site = "embd"
    layer = None

    def change(self, model: Model) -> None:
        model.file.data_offset = pad_to(model.file.header_end, DEFAULT_ALIGNMENT)
        model.graph.tensors.weights.found.clear()  # tensors are read at their real offset


class TypeOfFirst(Misread, name="mutant:halves-of-other-order"):
    mistake = "halves are read as big-endian"
    effect = "noise or NaN"
    shows_on = "arch:llama:F16"
    site = "embd"
    layer = None

    def taken(self, read: Read, name: str) -> Weight:
        weight = read(name)
        if weight.format.name != "F16":
            return weight
        return replace(weight, raw=weight.raw.reshape(-1, 2)[:, ::-1].reshape(-1).copy())


Misread.add_fault(
    "tied-head-zero",
    "a tied head is expected in the file, and stays zero if it is absent",
    "all tokens are equally likely",
    shows_on="f16",
    site="result_output",
    layer=None,
    graph_head=lambda self, right: as_weight(right(), right().values() * np.float32(0)),
)


class WrongSummary(Misread):
    """A wrong summary of the file. The model itself is read correctly."""

    site = "metadata"
    layer = None

    def metadata(self) -> FileSummary:
        return self.misread(super().metadata())

    def misread(self, right: FileSummary) -> FileSummary:
        values = {key: self.value(kind, value) for key, (kind, value) in right.metadata.items()}
        return replace(right, metadata={k: (right.metadata[k][0], v) for k, v in values.items()})

    def value(self, kind: str, value: Any) -> Any:
        return value


WrongSummary.add_fault(
    "arrays-cut",
    "only the first 256 elements of arrays are kept",
    "a vocabulary without words",
    value=lambda self, kind, value: value[:256] if kind.startswith("ARR") else value,
)


class FloatsShort(WrongSummary, name="mutant:floats-of-six-digits"):
    mistake = "floats of metadata are stored with six digits"
    effect = "no effect that a reader sees"

    def value(self, kind: str, value: Any) -> Any:
        rounded = [float(f"{v:.5e}") for v in value] if kind == "ARR[F32]" else value
        return float(f"{value:.5e}") if kind == "F32" else rounded


class SignsLost(WrongSummary, name="mutant:signed-as-unsigned"):
    mistake = "signed numbers of metadata are read without their sign"
    effect = "scores of tokens are right, types are not"

    def value(self, kind: str, value: Any) -> Any:
        if kind.startswith("ARR[F32"):
            return [abs(v) if isinstance(v, float) else v for v in value]
        return value


class ShapesReversed(WrongSummary, name="mutant:shapes-reversed"):
    mistake = "sizes of tensors are listed slowest first"
    effect = "matrices that are not square cannot be multiplied"

    def misread(self, right: FileSummary) -> FileSummary:
        tensors = tuple(replace(t, ne=t.ne[::-1]) for t in right.tensors)
        return replace(right, tensors=tensors)
