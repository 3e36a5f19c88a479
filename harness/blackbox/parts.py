"""Parts of a slice that do nothing, or that are too simple to be wrong.

If two engines differ on a slice, and agree if a part is neutral, the fault is in that part.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile, TensorInfo
from lockstep.harness.blackbox.changes import (
    Change,
    constant,
    dealt_out,
    far_below,
    in_rows,
    one_hot,
    one_of,
    ones,
    only_columns,
    powers,
    reads_first,
    same_row,
    signs,
    sparse_signs,
    times,
    zero,
    zero_before,
)
from lockstep.harness.blackbox.slices import (
    EMBEDDINGS,
    is_values,
    number,
    what_adds,
    within,
    without,
)
from lockstep.harness.sites import ATTENTION_OUT, FFN_OUT, is_one_of
from lockstep.harness.synth.gguf_writer import Typed

EMBEDDING, OUTPUT, OUTPUT_NORM = "token_embd.weight", "output.weight", "output_norm.weight"
OUTPUT_SCALE = "output.scale"  # NVFP4 has this scale, with which products are multiplied
# factor on embeddings: relative to their squares, eps becomes a millionth of what it was
LARGER = 2.0**10
TINY = 2.0**-24  # size of embeddings: the smallest F16 number; its square vanishes beside one
QUIET = 2.0**-20  # size of logits: a cap changes them by less than a rounding error
POSITIONS, OUTPUT_NORM_BIAS = "position_embd.weight", "output_norm.bias"
ONE_TOKEN = "a single token"
BATCH = 34  # tokens, as many as in the other runs
ONE = (Batch.of([1]),)  # a single token at position 0 attends only to itself
STILL = 1e30  # rope.scaling.factor: all positions become so small that nothing is rotated
MOST_HEADS = 64
GATES = ("ffn_gate", "ffn_gate_exps")
PRE_NORMS = {"attn_norm", "ffn_norm"}
UP_AND_GATE = ("ffn_gate", "ffn_up")
SHARED = ("ffn_down_shexp", "ffn_down_chexps")
LOUD = 2.0**30  # a number of size one vanishes beside it, and its square does not overflow


@dataclass(frozen=True, kw_only=True)
class Neutral:
    """A slice with a neutral part. own_head: True to give a tied model a separate output matrix
    with the old embeddings; head: a tensor that gives this matrix its values instead."""

    changes: Mapping[str, Change] = field(default_factory=dict)
    keys: Mapping[str, Typed] = field(default_factory=dict)
    rows: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)  # see Recipe
    given: Sequence[Batch] = ()
    own_head: bool = False
    head: str = ""


Maker = Callable[[GgufFile, int], Neutral | None]  # returns None if the model lacks the part


def larger(file: GgufFile, layer: int) -> Neutral:
    """Scale all inputs of norms up by a power of two, which changes the result only through eps."""
    names, up = within(file, layer), times(LARGER)
    changes: dict[str, Change] = dict.fromkeys(what_begins(file), up)
    stems = {name: name[len("blk.0.") :].rsplit(".", 1)[0] for name in names if is_values(name)}
    among = set(stems.values())
    adds = what_adds(among)
    reads = {"inp_gate"}  # tensors that read the residual without a norm
    if "post_ffw_norm" in among and not among & PRE_NORMS:
        reads, adds = {*reads, *UP_AND_GATE}, {*adds, *FFN_OUT}
    changes |= {name: times(1 / LARGER) for name, stem in stems.items() if stem in reads}
    for name, stem in stems.items():
        if f"{stem}_norm" in among or stem in adds:  # such as attn_q if heads have a norm
            changes[name] = up
    return Neutral(changes={**changes, **for_the_table(file, 1 / LARGER)})


def what_begins(file: GgufFile) -> Sequence[str]:
    """Return the embedding tensors. They add up to the first layer's input, or to the input of a
    norm before that layer."""
    return [name for name in file.tensors if is_one_of(name, EMBEDDINGS)]


def smaller(file: GgufFile, layer: int) -> Neutral:
    """Make the squares of the embeddings about as large as eps, so that a wrong eps changes the
    result strongly."""
    small = dict.fromkeys(what_begins(file), times(1 / LARGER))
    return Neutral(changes={**small, **for_the_table(file, LARGER)})


def for_the_table(file: GgufFile, factor: float) -> Mapping[str, Change]:
    """Return changes to the last norm that compensate for scaled embeddings, if the embeddings are
    the output matrix too. In an architecture with a cap, logits a thousand times as large would all
    be at the cap."""
    names = {OUTPUT_NORM, OUTPUT_NORM_BIAS} & set(file.tensors)
    return {} if OUTPUT in file.tensors else dict.fromkeys(names, times(factor))


def experts_alike(file: GgufFile, layer: int) -> Neutral | None:
    """Make all experts equal to the first, so that the engine's choice of experts has no effect.
    Return None if the model has no experts."""
    own = [n for n in within(file, layer) if n.rsplit(".", 1)[0].endswith("_exps")]
    every = {n: file.tensors[n.replace("blk.0", f"blk.{layer}")].ne[-1] for n in own}
    rows = {name: np.zeros(n, np.int64) for name, n in every.items()}
    return Neutral(rows=rows) if rows else None


def experts_alike_and_loud(file: GgufFile, layer: int) -> Neutral | None:
    """Make all experts equal, and so large that everything else is negligible. The last norm then
    removes the sum of the token's expert weights."""
    alike = experts_alike(file, layer)
    changes = without(file, layer, SHARED)
    for name in within(file, layer):
        if name.startswith("blk.0.ffn_down_exps.") and is_values(name):
            changes[name] = times(LOUD)
    return replace(alike, changes=changes) if alike else None


def shared_muted(file: GgufFile, layer: int) -> Neutral | None:
    changes = without(file, layer, SHARED)
    return Neutral(changes=changes) if changes else None


def norms_of_ones(file: GgufFile, layer: int) -> Neutral:
    names = [n for n in (*within(file, layer), *file.tensors) if "_norm" in n and of_slice(n)]
    return Neutral(changes={n: ones if n.endswith("weight") else zero for n in names})


def norms_of_one_number(file: GgufFile, layer: int) -> Neutral | None:
    """Set all weights and biases of norms to one, so that exchanging a weight and a bias has no
    effect. Return None if norms have no biases."""
    names = norms_of_ones(file, layer).changes
    both = any(name.endswith("bias") for name in names)
    return Neutral(changes=dict.fromkeys(names, ones)) if both else None


def norms_do_nothing(file: GgufFile, layer: int) -> Neutral:
    """Make norms do nothing. Embeddings of +1 and -1 have norm one, weights are one, and eps is too
    small to change a float32 number."""
    weights = norms_of_ones(file, layer).changes
    changes = {**weights, **rows_alone(file, signs(1 / scale_of_embeddings(file)))}
    return Neutral(changes=changes, keys=eps_of(file, 2.0**-40), own_head=True)


def rows_alone(file: GgufFile, change: Change) -> Mapping[str, Change]:
    """Return changes to the token embeddings, without learned positions."""
    return {EMBEDDING: change} | ({POSITIONS: zero} if POSITIONS in file.tensors else {})


def nothing_to_norm(file: GgufFile, layer: int) -> Neutral:
    """Make the embeddings tiny and eps one, so that norms divide any input by one."""
    weights = norms_of_ones(file, layer).changes
    changes = {**weights, **rows_alone(file, signs(TINY / scale_of_embeddings(file)))}
    return Neutral(changes=changes, keys=eps_of(file, 1.0), own_head=True)


def norms_of_one_bit(file: GgufFile, layer: int) -> Neutral | None:
    """Make norms give powers of two, so that rounding them has no effect. Return None if the width
    is not a multiple of 32."""
    if number(file, "embedding_length", 1) % 32:
        return None
    rows = sparse_signs(LARGER, centred=is_centred(file))
    weights = norms_of_ones(file, layer).changes
    return Neutral(changes={**weights, **rows_alone(file, rows)}, own_head=True)


def nothing_but_the_head(file: GgufFile, layer: int) -> Neutral:
    """Give the output matrix the same input for every token, so that only the matrix can differ.

    The input is the bias of a norm whose weights are zero. Without a bias, it is a row of equal
    numbers, which no norm changes.
    """
    if OUTPUT_NORM_BIAS in file.tensors:
        return Neutral(changes={OUTPUT_NORM: zero, OUTPUT_NORM_BIAS: ones}, own_head=True)
    before = nothing_to_norm(file, layer)
    row = constant(TINY / scale_of_embeddings(file))
    return replace(before, changes={**before.changes, **rows_alone(file, row)})


def quiet_logits(file: GgufFile, layer: int) -> Neutral | None:
    """Make logits so small that a cap has no effect on them. All other values are the same, or
    smaller by a power of two, which does not change the rounding."""
    names = {OUTPUT_NORM, OUTPUT_NORM_BIAS} & set(file.tensors)
    return Neutral(changes=dict.fromkeys(names, times(QUIET))) if names else None


def eps_of(file: GgufFile, value: float) -> Mapping[str, Typed]:
    ends = ("layer_norm_rms_epsilon", "layer_norm_epsilon")
    return {key: ("F32", value) for key in file.metadata if key.endswith(ends)}


def is_centred(file: GgufFile) -> bool:
    """Return True if norms subtract the mean."""
    return not any(key.endswith("rms_epsilon") for key in file.metadata)


def scale_of_embeddings(file: GgufFile) -> float:
    return float(number(file, "embedding_length", 1) ** 0.5) if is_scaled(file) else 1.0


def no_bias(file: GgufFile, layer: int) -> Neutral | None:
    names = [n for n in within(file, layer) if n.endswith(".bias") and "_norm" not in n]
    return Neutral(changes=dict.fromkeys(names, zero)) if names else None


def one_bias(tensor: str) -> Maker:
    """Return a maker that sets only this bias to zero. tensor: attn_q, ffn_up and the like."""

    def make(file: GgufFile, layer: int) -> Neutral | None:
        names = [n for n in within(file, layer) if n.endswith(f".{tensor}.bias")]
        return Neutral(changes=dict.fromkeys(names, zero)) if names else None

    return make


def position_0(file: GgufFile, layer: int) -> Neutral:
    return Neutral(given=ONE)


def in_one_batch(file: GgufFile, layer: int) -> Neutral:
    """Leave the model unchanged, and put all tokens into one batch."""
    n = min(BATCH, file.tensors[EMBEDDING].ne[1] - 1)
    return Neutral(given=(Batch.of(range(1, n + 1)),))


def no_scores(file: GgufFile, layer: int) -> Neutral | None:
    """Make all scores equal, with queries of zero, so that each visible key gets the same
    weight."""
    names, changes = set(within(file, layer)), dict[str, Change]()
    fused = file.tensors.get(f"blk.{layer}.attn_qkv.weight")
    queries = fused.ne[1] - 2 * rows_of_keys(file) if fused else 0
    for end in ("weight", "bias"):
        changes |= dict.fromkeys(names & {f"blk.0.attn_q.{end}", f"blk.0.attn_q_b.{end}"}, zero)
        changes |= dict.fromkeys(names & {f"blk.0.attn_qkv.{end}"}, zero_before(queries))
    return Neutral(changes=changes) if changes else None


def no_sinks(file: GgufFile, layer: int) -> Neutral | None:
    """Set the sinks so far below all scores that they get no weight."""
    name = "blk.0.attn_sinks.weight"
    return Neutral(changes={name: far_below}) if name in within(file, layer) else None


def no_rotation(file: GgufFile, layer: int) -> Neutral | None:
    arch = str(file.metadata["general.architecture"].data)
    if number(file, "rope.freq_base") is None and number(file, "rope.dimension_count") is None:
        return None
    keys: dict[str, Typed] = {f"{arch}.rope.scaling.type": ("STR", "linear")}
    return Neutral(keys=keys | {f"{arch}.rope.scaling.factor": ("F32", STILL)})


def plain(*stems: str, period: int = 0, alike: bool = False, few: bool = False) -> Maker:
    """Return a maker that makes matrices of a half-layer so simple that no product can be wrong.
    Its first matrices read one input, its last matrix reads each element once, and its norm has no
    effect. stems: the matrices; period: as in `reads_first`; alike: True to make the gate equal to
    the up matrix; few: True if the down matrix reads only the first half of its input."""

    key = 0 if alike else 1

    def make(file: GgufFile, layer: int) -> Neutral | None:
        names = {n: n[len("blk.0.") :].rpartition(".")[::2] for n in within(file, layer)}
        own = [n for n, (stem, end) in names.items() if stem in stems and end == "weight"]
        if not own:
            return None
        sources = {n: file.tensors[n.replace("blk.0", f"blk.{layer}")] for n in own}
        changes = {n: simple(file, source, period, key, few) for n, source in sources.items()}
        before = norms_do_nothing(file, layer)
        return replace(before, changes={**before.changes, **changes})

    return make


def simple(file: GgufFile, source: TensorInfo, period: int, key: int, few: bool) -> Change:
    """Return a simple change to a matrix, the same for each expert. In a joint matrix of queries,
    keys and values, it changes only the values. key: the seed for a gate."""
    stem, ne = source.name.split(".")[2], source.ne
    if few and stem in FFN_OUT:
        return each_expert(one_of(ne[0] // 2), ne)
    if stem in ATTENTION_OUT + FFN_OUT:
        return each_expert(dealt_out(ne[1]), ne)
    if stem == "attn_qkv":
        return in_rows(ne[1] - rows_of_keys(file), reads_first(period))
    return reads_first(period or ne[1], key=key if stem in GATES else 0)


def each_expert(change: Change, ne: Sequence[int]) -> Change:
    """Return a change that applies to each expert separately, with rows counted from 0."""
    if len(ne) < 3:
        return change
    return lambda rows, start: np.concatenate(
        [change(rows[i : i + 1], (start + i) % ne[1]) for i in range(len(rows))]
    )


def rows_of_keys(file: GgufFile) -> int:
    """Return the number of rows of the keys, which is also the number of rows of the values."""
    heads = number(file, "attention.head_count", 1)
    width = number(file, "attention.key_length", number(file, "embedding_length", 1) // heads)
    return int(number(file, "attention.head_count_kv", heads) * width)


def one_head(head: int) -> Maker:
    def make(file: GgufFile, layer: int) -> Neutral | None:
        name, n = "blk.0.attn_output.weight", number(file, "attention.head_count", 0)
        if name not in within(file, layer) or not n:
            return None
        width = file.tensors[name.replace("blk.0", f"blk.{layer}")].ne[0] // n
        return Neutral(changes={name: only_columns(head * width, (head + 1) * width)})

    return make


def heads_of(file: GgufFile, layer: int) -> Iterator[tuple[int, Maker]]:
    n = number(file, "attention.head_count", 0)
    by_layer = file.metadata.get(
        f"{file.metadata['general.architecture'].data}.attention.head_count"
    )
    if by_layer is not None and by_layer.element is not None:
        n = by_layer.data[layer]
    for head in range(min(int(n), MOST_HEADS)):
        yield head, one_head(head)


def one_row(file: GgufFile, layer: int) -> Neutral:
    """Make all rows of the embeddings equal, so that reading the wrong row has no effect."""
    return Neutral(changes={EMBEDDING: same_row}, own_head=True)


def no_positions(file: GgufFile, layer: int) -> Neutral | None:
    return Neutral(changes={POSITIONS: zero}) if POSITIONS in file.tensors else None


def simple_rows(file: GgufFile, layer: int) -> Neutral:
    """Make embeddings that every type can represent. The next norm still scales them."""
    return Neutral(changes=rows_alone(file, powers), own_head=True)


def tied_head(file: GgufFile, layer: int) -> Neutral | None:
    """Use the embeddings as the head, although the file has a separate output matrix. Return None
    if the file has no separate output matrix."""
    if OUTPUT not in file.tensors or file.tensors[OUTPUT].ne != file.tensors[EMBEDDING].ne:
        return None
    return Neutral(own_head=True, head=EMBEDDING)


def head_apart(file: GgufFile, layer: int) -> Neutral | None:
    """Give the model a separate output matrix with the same values. Return None if it already has
    one."""
    return None if OUTPUT in file.tensors else Neutral(own_head=True)


def plain_head(file: GgufFile, layer: int) -> Neutral | None:
    """Make each logit one result of the last norm."""
    return Neutral(changes={OUTPUT: one_hot}, own_head=True)


def off(parts: Sequence[str]) -> Maker:
    return lambda file, layer: Neutral(changes=without(file, layer, parts))


def of_slice(name: str) -> bool:
    return name.startswith(("blk.0.", "output_norm", "token_embd_norm"))


def is_scaled(file: GgufFile) -> bool:
    """Return True if embeddings are multiplied by the root of their width before the first
    layer."""
    return str(file.metadata["general.architecture"].data).startswith("gemma")
