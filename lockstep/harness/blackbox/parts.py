"""Parts of a slice that are made to do nothing, or nothing that can be done wrong.

If two engines differ on a slice and agree where a part is neutral, the fault lies in that part.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lockstep.engine.batch import Batch
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.blackbox.changes import (
    Change,
    far_below,
    one_hot,
    ones,
    only_columns,
    reads_first,
    same_row,
    signs,
    times,
    zero,
)
from lockstep.harness.blackbox.slices import number, what_adds, within, without
from lockstep.harness.synth.gguf_writer import Typed

EMBEDDING, OUTPUT, OUTPUT_NORM = "token_embd.weight", "output.weight", "output_norm.weight"
LARGER = 2.0**10  # eps is then a millionth of what it was beside the squares
OPEN = 100.0  # a gate at which silu, gelu, relu and the sigmoid's product are all the gate itself
ONE = (Batch.of([1]),)  # a single token: at position 0 there is one thing to attend to
STILL = 1e30  # rope.scaling.factor: positions become so small that nothing is turned
MOST_HEADS = 64


@dataclass(frozen=True, kw_only=True)
class Neutral:
    """A slice with a part made neutral. own_head: the head is a matrix of its own, with the values
    of the embeddings before they are changed, where both are one: not all architectures can."""

    changes: Mapping[str, Change] = field(default_factory=dict)
    keys: Mapping[str, Typed] = field(default_factory=dict)
    given: Sequence[Batch] = ()
    own_head: bool = False


Maker = Callable[[GgufFile, int], Neutral | None]  # None: the model has no such part


def larger(file: GgufFile, layer: int) -> Neutral:
    """All that norms read, a power of two times as large: the result is the same but for eps."""
    names, up = within(file, layer), times(LARGER)
    changes: dict[str, Change] = {EMBEDDING: up}
    stems = {name: name[len("blk.0.") :].rsplit(".", 1)[0] for name in names}
    adds = what_adds(set(stems.values()))
    for name, stem in stems.items():
        normed = f"{stem}_norm" in stems.values()  # attn_q, whose heads have a norm
        if normed or stem in adds:
            changes[name] = up
    return Neutral(changes=changes)


def smaller(file: GgufFile, layer: int) -> Neutral:
    """Embeddings whose squares are about as large as eps: a wrong one changes everything."""
    return Neutral(changes={EMBEDDING: times(1 / LARGER)})


def norms_of_ones(file: GgufFile, layer: int) -> Neutral | None:
    names = [n for n in (*within(file, layer), *file.tensors) if "_norm" in n and of_slice(n)]
    return Neutral(changes={n: ones if n.endswith("weight") else zero for n in names})


def norms_do_nothing(file: GgufFile, layer: int) -> Neutral | None:
    """Embeddings of +1 and -1 have a norm of one already, and weights of one leave it."""
    scaled = number(file, "embedding_length", 1) ** 0.5 if is_scaled(file) else 1.0
    plain = norms_of_ones(file, layer)
    assert plain is not None
    return Neutral(changes={**plain.changes, EMBEDDING: signs(1 / scaled)}, own_head=True)


def no_bias(file: GgufFile, layer: int) -> Neutral | None:
    names = [n for n in within(file, layer) if n.endswith(".bias") and "_norm" not in n]
    return Neutral(changes=dict.fromkeys(names, zero)) if names else None


def position_0(file: GgufFile, layer: int) -> Neutral:
    return Neutral(given=ONE)


def no_scores(file: GgufFile, layer: int) -> Neutral | None:
    """Queries of zeros see all that they may see alike."""
    names = set(within(file, layer)) & {f"blk.0.attn_q.{end}" for end in ("weight", "bias")}
    names |= set(within(file, layer)) & {"blk.0.attn_q_b.weight"}
    return Neutral(changes=dict.fromkeys(names, zero)) if names else None


def no_sinks(file: GgufFile, layer: int) -> Neutral | None:
    """So far below all scores that they take nothing."""
    name = "blk.0.attn_sinks.weight"
    return Neutral(changes={name: far_below}) if name in within(file, layer) else None


def no_rotation(file: GgufFile, layer: int) -> Neutral | None:
    arch = str(file.metadata["general.architecture"].data)
    if number(file, "rope.freq_base") is None and number(file, "rope.dimension_count") is None:
        return None
    keys: dict[str, Typed] = {f"{arch}.rope.scaling.type": ("STR", "linear")}
    return Neutral(keys=keys | {f"{arch}.rope.scaling.factor": ("F32", STILL)})


def open_gate(file: GgufFile, layer: int) -> Neutral | None:
    return reading_first(file, layer, "ffn_gate", OPEN)


def up_of_one(file: GgufFile, layer: int) -> Neutral | None:
    return reading_first(file, layer, "ffn_up", 1.0)


def reading_first(file: GgufFile, layer: int, stem: str, value: float) -> Neutral | None:
    """One of two branches is the same number everywhere."""
    names = within(file, layer)
    pair = [n for n in names if n in (f"blk.0.{stem}.weight", f"blk.0.{stem}_exps.weight")]
    if not pair or not any("ffn_gate." in n or "ffn_gate_exps." in n for n in names):
        return None
    before = norms_do_nothing(file, layer)
    assert before is not None
    changes = {**before.changes, **dict.fromkeys(pair, reads_first(value))}
    return replace(before, changes=changes)


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
    """Whatever row of the embeddings is read, it is the same."""
    return Neutral(changes={EMBEDDING: same_row}, own_head=True)


def plain_head(file: GgufFile, layer: int) -> Neutral | None:
    """Logits are the last norm's results, in turn."""
    return Neutral(changes={OUTPUT: one_hot}, own_head=True)


def off(parts: Sequence[str]) -> Maker:
    return lambda file, layer: Neutral(changes=without(file, layer, parts))


def of_slice(name: str) -> bool:
    return name.startswith(("blk.0.", "output_norm", "token_embd_norm"))


def is_scaled(file: GgufFile) -> bool:
    """Whether embeddings are multiplied by the root of their width before the first layer."""
    return str(file.metadata["general.architecture"].data).startswith("gemma")
