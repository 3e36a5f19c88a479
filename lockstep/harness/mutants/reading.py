"""Files read wrongly: keys that are ignored, tensors taken for others, bytes from elsewhere."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.engine.gguf.fields import DEFAULT_ALIGNMENT, padded
from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import Bools
from lockstep.engine.quants.base import F32
from lockstep.engine.weights import Weight
from lockstep.harness.mutants.parts.changed import as_weight, change_weights, set_hparams
from lockstep.harness.mutants.parts.mistakes import Mistake
from lockstep.harness.records import FileSummary

Read = Callable[[str], Weight]


class BaseIgnored(Mistake, name="mutant:rope-base-ignored"):
    mistake = "rope.freq_base is not read, and 10000 taken"
    group = "reading"
    effect = "text drifts with the length of the prompt"
    shows_on = "arch:qwen3"
    site = "Qcur_rope"

    def change(self, model: Model) -> None:
        set_hparams(model, rope_freq_base=10000.0)


class ScalingIgnored(Mistake, name="mutant:rope-factor-ignored"):
    mistake = "rope.scaling.factor is parsed and never used"
    group = "reading"
    effect = "text drifts past a few thousand tokens"
    source = "mlxcel #1355"
    shows_on = "q4_0"
    site = "Qcur_rope"

    def change(self, model: Model) -> None:
        set_hparams(model, rope_freq_scale=1.0)


class FactorsIgnored(Mistake, name="mutant:rope-factors-ignored"):
    mistake = "rope_freqs.weight is not read"
    group = "reading"
    effect = "text drifts past a few thousand tokens"
    shows_on = "bf16"
    site = "Qcur_rope"

    def change(self, model: Model) -> None:
        right = model.graph.rope_params
        model.graph.rope_params = (  # type: ignore[method-assign]
            lambda layer=0: replace(right(layer), factors=None)  # type: ignore[type-var]
        )


class KeyLengthIgnored(Mistake, name="mutant:key-length-ignored"):
    mistake = "scores are scaled by n_embd / n_head, whatever attention.key_length says"
    group = "reading"
    effect = "attention is too sharp or too flat"
    source = "candle #3917"
    shows_on = "q4_0"
    site = "kq_soft_max"

    class ops(Mirror):
        def soft_max(self, x: F32, scale: float, visible: Bools | None) -> F32:
            return super().soft_max(x, 0.25 if visible is not None else scale, visible)

    def change(self, model: Model) -> None:
        pass


class EpsDefault(Mistake, name="mutant:layer-norm-eps-default"):
    mistake = "attention.layer_norm_epsilon is not read, and 1e-12 taken"
    group = "reading"
    effect = "nothing that a reader sees"
    shows_on = "arch:gpt2"
    site = "attn_norm"

    def change(self, model: Model) -> None:
        set_hparams(model, f_norm_eps=1e-12)


class LastLayerSkipped(Mistake, name="mutant:last-layer-skipped"):
    mistake = "one layer fewer than block_count says is run"
    group = "reading"
    effect = "text is worse"
    site = "attn_norm"
    layer = 1

    def change(self, model: Model) -> None:
        set_hparams(model, n_layer=1)


class Taken(Mistake):
    """`other`: the tensor that is taken for another, by its name."""

    group = "reading"

    def change(self, model: Model) -> None:
        def changed(read: Read, name: str) -> Weight:
            return self.taken(read, name)

        change_weights(model, changed)

    def taken(self, read: Read, name: str) -> Weight:
        return read(self.other(name))

    def other(self, name: str) -> str:
        raise NotImplementedError


class KeyTypeForValues(Taken, name="mutant:tensors-by-order"):
    mistake = "tensors are found by their order, and keys and values have another than expected"
    effect = "noise from the first token on"
    site = "Kcur"

    def other(self, name: str) -> str:
        names = {"attn_k.": "attn_v.", "attn_v.": "attn_k."}
        return next((name.replace(a, b) for a, b in names.items() if a in name), name)


class GateForUp(Taken, name="mutant:gate-and-up-by-order"):
    mistake = "the tensors of gate and up are exchanged"
    effect = "noise from the first token on"
    site = "ffn_up"

    def other(self, name: str) -> str:
        names = {"ffn_gate.": "ffn_up.", "ffn_up.": "ffn_gate."}
        return next((name.replace(a, b) for a, b in names.items() if a in name), name)


class FirstLayerTwice(Taken, name="mutant:first-layer-twice"):
    mistake = "the number of the layer is not put into names: all have the first one's tensors"
    effect = "text is worse"
    site = "attn_norm"
    layer = 1

    def other(self, name: str) -> str:
        return name.replace("blk.1.", "blk.0.")


class NormsExchanged(Taken, name="mutant:norms-exchanged"):
    mistake = "attn_norm and ffn_norm have each other's tensors"
    effect = "text is worse"
    site = "attn_norm"

    def other(self, name: str) -> str:
        names = {"attn_norm.": "ffn_norm.", "ffn_norm.": "attn_norm."}
        return next((name.replace(a, b) for a, b in names.items() if a in name), name)


class BiasForWeight(Taken, name="mutant:bias-for-weight"):
    mistake = "biases overwrite the slots of weights of their shape"
    effect = "noise from the first token on"
    source = "imp #690"
    shows_on = "arch:gpt2"
    site = "attn_norm"

    def other(self, name: str) -> str:
        return name.replace("norm.weight", "norm.bias")


class ProjectionUnpermuted(Taken, name="mutant:rows-unpermuted"):
    mistake = "rows of queries and keys are put back in an order that Qwen2's files never had"
    effect = "word salad behind a few tokens"
    source = "tensai #37"
    shows_on = "arch:qwen2"
    site = "Qcur"

    def taken(self, read: Read, name: str) -> Weight:
        weight = read(name)
        if not name.endswith(("attn_q.weight", "attn_k.weight")):
            return weight
        heads = weight.values().reshape(-1, 2, 16, weight.shape[-1])
        return as_weight(weight, heads.swapaxes(1, 2).reshape(weight.shape))


class NotPadded(Taken, name="mutant:data-not-padded"):
    mistake = "the start of the data is not rounded up to the alignment"
    effect = "noise or NaN"
    site = "embd"
    layer = None

    def taken(self, read: Read, name: str) -> Weight:
        weight = read(name)
        raw = np.concatenate([np.zeros(8, np.uint8), weight.raw[:-8]])
        return replace(weight, raw=raw)


class AlignmentIgnored(Mistake, name="mutant:alignment-ignored"):
    mistake = "general.alignment is not read, and tensor data begins as if it were 32"
    group = "reading"
    effect = "noise or NaN"
    shows_on = "aligned"
    site = "embd"
    layer = None

    def change(self, model: Model) -> None:
        model.file.data_offset = padded(model.file.header_end, DEFAULT_ALIGNMENT)
        model.graph.tensors.weights.found.clear()  # looked up where the data really begins


class TypeOfFirst(Taken, name="mutant:halves-of-other-order"):
    mistake = "halves are read with their first byte on top"
    effect = "noise or NaN"
    shows_on = "arch:llama:F16"
    site = "embd"
    layer = None

    def taken(self, read: Read, name: str) -> Weight:
        weight = read(name)
        if weight.format.name != "F16":
            return weight
        return replace(weight, raw=weight.raw.reshape(-1, 2)[:, ::-1].reshape(-1).copy())


class TableOfTied(Taken, name="mutant:tied-head-zero"):
    mistake = "a head that is tied is expected in the file, and stays zero where it is not"
    effect = "all tokens are equally likely"
    shows_on = "f16"
    site = "result_output"
    layer = None

    def change(self, model: Model) -> None:
        weight = model.graph.head()
        empty = as_weight(weight, weight.values() * np.float32(0))
        model.graph.head = lambda: empty  # type: ignore[method-assign]


class WrongSummary(Mistake):
    """What is said of the file is wrong, and the model is right."""

    group = "reading"
    site = "metadata"
    layer = None

    def change(self, model: Model) -> None:
        pass

    def metadata(self) -> FileSummary:
        return self.misread(super().metadata())

    def misread(self, right: FileSummary) -> FileSummary:
        values = {key: self.value(kind, value) for key, (kind, value) in right.metadata.items()}
        return replace(right, metadata={k: (right.metadata[k][0], v) for k, v in values.items()})

    def value(self, kind: str, value: Any) -> Any:
        return value


class ArraysCut(WrongSummary, name="mutant:arrays-cut"):
    mistake = "of arrays the first 256 elements are kept"
    effect = "a vocabulary without words"

    def value(self, kind: str, value: Any) -> Any:
        return value[:256] if kind.startswith("ARR") else value


class FloatsShort(WrongSummary, name="mutant:floats-of-six-digits"):
    mistake = "floats of metadata are kept with six digits"
    effect = "nothing that a reader sees"

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
