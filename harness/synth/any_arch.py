"""Tiny seeded models of any architecture: llama.cpp names the tensors, and Lockstep draws the
weights.

llama.cpp gets `metadata` and lists the tensors that it would read, with their sizes
(`Adapter.name_tensors`). Then `write_variant` draws the weights and writes the file. The bytes
depend only on the variant, the seed, the weight type and llama.cpp's list of tensors.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType

from numpy.random import Philox

from lockstep.engine.choices import choices
from lockstep.engine.errors import InvalidModel, Unsupported
from lockstep.engine.gguf.types import type_by_name
from lockstep.harness.records import TensorSummary
from lockstep.harness.synth.generator import stream, tensor_bytes
from lockstep.harness.synth.gguf_writer import gguf_bytes, write_gguf
from lockstep.harness.synth.llama import Lazy, TensorRow
from lockstep.harness.synth.published import Draw, published_draw
from lockstep.harness.synth.variant_extras import (
    BOTH,
    DENSE_ONLY,
    EXTRAS,
    FUSED,
    LEFT_OUT,
    MOE_ONLY,
    READ,
    SIZES,
    SPLIT,
)
from lockstep.harness.synth.variants import Keys, Sizes, common, experts
from lockstep.harness.synth.vocabularies import (
    LAST,
    NO_SPACE_BEFORE,
    USUAL,
    check_kind,
    vocabulary_keys,
)

MOE = "-moe"  # ends the name of the form with experts, if an architecture has both forms
# architectures that llama.cpp cannot build or decode from metadata alone
IMPOSSIBLE: Mapping[str, str] = MappingProxyType(
    {
        "clip": "llama.cpp loads it only as a companion of another model",
        "gptj": "llama.cpp knows the name, but has no graph for it",
        "gemma4-assistant": "it decodes on the cache of another model",
        "eagle3": "it decodes on the layers of another model",
        "dflash": "it decodes on the layers of another model",
    }
)
# Weights that llama.cpp does not multiply by, or only in F32. They have float types in all
# variants. The two large matrices of a scan are quantised in published files.
FLOATS = re.compile(
    r"norm|bias|ffn_gate_inp|position|token_types|conv|ssm_(?!in\.|out\.)|time_mix_|lora_|rel_b"
    r"|altup_[cr]|altup_pred|rope_freqs|sinks|exp_probs|hc_|indexer|\.scale|layer_out|posnet|ple|router"
    r"|laurel|per_layer|nextn"
)
SIGMA = 0.1
# size of the first layer's input in models whose head is the embedding table, relative to one
TIED = 0.24
# models of this kind that multiply embeddings by sqrt(n_embd)
SCALED = frozenset({"gemma", "gemma2"})


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An architecture, in its dense form or with experts."""

    arch: str
    moe: bool
    changed: tuple[tuple[str, int], ...] = ()  # keys with other U32 values than the table's
    sizes: tuple[tuple[str, int], ...] = ()  # fields of `Sizes` with other values than the table's
    vocab: str = ""  # kind of vocabulary (harness.synth.vocabularies); "": none
    vocab_pre: str = ""  # another pre-tokenizer than the usual one of this kind
    complete: bool = False  # True: with tensors that llama.cpp reads but real files lack

    @property
    def name(self) -> str:
        return self.arch + MOE if self.moe and self.arch in BOTH else self.arch


def variants() -> dict[str, Variant]:
    """Return every variant by name, without the variants that cannot be written."""
    forms = [(arch, False) for arch in (*DENSE_ONLY, *BOTH)]
    forms += [(arch, True) for arch in (*MOE_ONLY, *BOTH)]
    made = (Variant(arch=arch, moe=moe) for arch, moe in sorted(forms) if arch not in IMPOSSIBLE)
    return {variant.name: variant for variant in made}


def variant_named(name: str) -> Variant:
    """Return the variant. Raises Unsupported, with the reason or the known names, if there is
    none."""
    known = variants()
    if name in IMPOSSIBLE:
        raise Unsupported(f"synth cannot make {name!r}: {IMPOSSIBLE[name]}")
    if name not in known:
        raise Unsupported(f"synth has no architecture {name!r} {choices(name, known)}")
    return known[name]


def with_vocabulary(variant: Variant, n_vocab: int) -> Variant:
    """Return the variant with the kind of vocabulary that published models of its architecture
    have, if this kind is known. `n_vocab` is the vocabulary's size; 0 means no vocabulary."""
    if not n_vocab or variant.arch not in USUAL:
        return variant
    kind, pre = USUAL[variant.arch]
    sizes = tuple({**dict(variant.sizes), "n_vocab": n_vocab}.items())
    return replace(variant, vocab=kind, vocab_pre=pre, sizes=sizes)


def metadata(variant: Variant) -> Keys:
    """Return all the keys of the file."""
    sizes = replace(SIZES.get(variant.arch, Sizes()), **dict(variant.sizes))
    check(variant, sizes)
    keys = common(sizes)
    if variant.moe:
        keys.update(experts(sizes))
    if variant.arch in EXTRAS:
        keys.update(EXTRAS[variant.arch](sizes))
    if variant.arch in READ and not variant.complete:
        keys = {key: keys[key] for key in READ[variant.arch]}
    keys["general.architecture"] = ("STR", variant.arch)
    keys["tokenizer.ggml.model"] = ("STR", "no_vocab")
    keys.update({key: ("U32", value) for key, value in variant.changed})
    keys = {variant.arch + k if k.startswith(".") else k: v for k, v in keys.items()}
    return dict(sorted(keys.items(), key=lambda item: item[0] != "general.architecture"))


def check(variant: Variant, sizes: Sizes) -> None:
    """Refuse metadata that would crash llama.cpp. Raises InvalidModel."""
    if sizes.n_embd % sizes.n_head:
        raise InvalidModel(f"n_embd is {sizes.n_embd}; expected a multiple of {sizes.n_head} heads")
    if sizes.n_head % sizes.kv_heads:
        raise InvalidModel(f"{sizes.n_head} heads are not a multiple of {sizes.kv_heads} KV heads")
    if sizes.n_expert_used > sizes.n_expert:
        raise InvalidModel(f"{sizes.n_expert_used} of {sizes.n_expert} experts cannot be used")
    if variant.vocab:
        check_kind(variant.vocab, sizes.n_vocab)


def metadata_bytes(variant: Variant) -> bytes:
    """Return the metadata as a GGUF file without tensors. This file is sent to llama.cpp, which
    lists the tensors."""
    return gguf_bytes(metadata(variant))


def write_variant(
    variant: Variant,
    tensors: Sequence[TensorSummary],
    path: Path,
    *,
    seed: int = 0,
    quant: str = "F32",
    insist: bool = False,
) -> list[str]:
    """Write a variant of an architecture. `tensors` are the tensors that llama.cpp lists for
    `metadata_bytes`. `quant` is the type of the variant's matrices.

    Return the names of matrices that stay F32, because their rows are not whole blocks. If `insist`
    is True, raise InvalidModel if all matrices stay F32.
    """
    keys: Keys = {
        **metadata(variant),
        "general.name": ("STR", f"lockstep synth {variant.name} {quant} seed {seed}"),
    }
    if variant.vocab:
        n_vocab = keys[f"{variant.arch}.vocab_size"][1]
        last = LAST.get(variant.arch, "")
        keys |= vocabulary_keys(variant.vocab, n_vocab, seed, variant.vocab_pre, last)
        if variant.arch in NO_SPACE_BEFORE:
            keys["tokenizer.ggml.add_space_prefix"] = ("BOOL", False)
    lacks = None if variant.complete else LEFT_OUT.get(variant.arch)
    kept = [t for t in tensors if lacks is None or not re.search(lacks, t.name)]
    if variant.arch in FUSED and not variant.complete:
        kept = list(fuse_matrices(kept))
    if variant.arch in SPLIT and not variant.complete:
        kept = [part for tensor in kept for part in halves(tensor)]
    chosen = [tensor for tensor in kept if has_choice(tensor)]
    left = [tensor.name for tensor in chosen if type_of(tensor, quant) != quant]
    if insist and len(left) == len(chosen):
        text = f"{quant} needs rows whose length is a multiple of {type_by_name(quant).block}"
        lengths = ", ".join(map(str, sorted({tensor.ne[0] for tensor in chosen})))
        raise InvalidModel(f"{text}; the matrices of {variant.arch} have rows of {lengths}")
    writes = f"{variant.arch}.pooling_type" not in keys  # True: the model has logits
    size = embedding_size(variant.arch, kept) if writes else 1.0
    rows = {tensor.name: row(tensor, variant.arch, seed, quant, size) for tensor in kept}
    write_gguf(path, keys, rows.values())
    return left


def fuse_matrices(tensors: Sequence[TensorSummary]) -> Iterator[TensorSummary]:
    """Yield the tensors, with one fused matrix instead of queries, keys and values."""
    by_name = {tensor.name: tensor for tensor in tensors}
    for tensor in tensors:
        part = re.fullmatch(r"(blk\.\d+\.attn_)([qkv])(\.weight)", tensor.name)
        if part is None:
            yield tensor
        elif part[2] == "q":
            parts = [by_name[part[1] + each + part[3]] for each in "qkv"]
            ne = (tensor.ne[0], sum(each.ne[1] for each in parts))
            yield replace(tensor, name=f"{part[1]}qkv{part[3]}", ne=ne)


def halves(tensor: TensorSummary) -> Iterator[TensorSummary]:
    """Yield separate tensors for the experts' gates and ups, which llama.cpp lists as one
    tensor."""
    if "gate_up_exps" not in tensor.name:
        yield tensor
        return
    columns, rows, *rest = tensor.ne
    for name in ("gate_exps", "up_exps"):
        ne = (columns, rows // 2, *rest)
        yield replace(tensor, name=tensor.name.replace("gate_up_exps", name), ne=ne)


def embedding_size(arch: str, tensors: Sequence[TensorSummary]) -> float:
    """Return the standard deviation of embeddings. If tied embeddings were as large as the output
    of layers, the model would repeat each token, and text would show no fault."""
    by_name = {tensor.name: tensor for tensor in tensors}
    if "output.weight" in by_name or "token_embd.weight" not in by_name:
        return 1.0
    width = by_name["token_embd.weight"].ne[0]
    return TIED / width**0.5 if arch in SCALED else TIED


def row(tensor: TensorSummary, arch: str, seed: int, quant: str, embedded: float) -> TensorRow:
    """Return a row of the tensor table. `embedded` is the standard deviation of embeddings."""
    kind, draw = type_of(tensor, quant), published_draw(tensor.name, arch)
    bits = partial(stream, seed, tensor.name)
    return tensor.name, tensor.ne, kind, Lazy(lambda: weights(tensor, kind, bits(), draw, embedded))


def has_choice(tensor: TensorSummary) -> bool:
    """Return True if the tensor is a matrix that may have any type with which llama.cpp
    multiplies."""
    matrix = len(tensor.ne) > 1 and tensor.name.endswith(".weight")
    return matrix and tensor.type == "F32" and not FLOATS.search(tensor.name)


def type_of(tensor: TensorSummary, quant: str) -> str:
    """Return the type of a tensor: `quant` for a matrix whose rows are whole blocks of this
    type."""
    if not has_choice(tensor):
        return tensor.type
    return quant if tensor.ne[0] % type_by_name(quant).block == 0 else "F32"


def weights(
    tensor: TensorSummary, kind: str, bits: Philox, draw: Draw | None, embedded: float
) -> Iterator[bytes]:
    """Yield weights that keep activations near one. A tensor with its own range gets values from
    that range. `embedded` is the standard deviation of embeddings."""
    n, name = prod(tensor.ne), tensor.name
    if draw is not None:
        yield draw(bits, n, tensor.ne[0]).astype("<f4").tobytes()
    else:
        fan = tensor.ne[0] if len(tensor.ne) > 1 else 1 / SIGMA**2
        sigma = embedded if name.startswith("token_embd.") else fan**-0.5
        yield from tensor_bytes(bits, kind, n, sigma)
