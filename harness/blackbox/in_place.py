"""Models in which every layer's matrices keep their places and stored types.

A slice renames its layer, a lens renames its matrices, and the F32 twin changes their type. None of
these models shows a fault in one tensor of one layer, such as a wrongly repacked copy. In a whole
run honest engines differ by more than such a fault. So this model keeps all names and layers, and
only a large vocabulary is cut. In each layer one matrix of attention and one of the FFN keep the
file's own bytes. The layer's other matrices carry their sums straight to the logits.

- eps is so large that norms divide by its root, for any input, so that scales stay visible.
- Every fourth element of an embedding is +X or -X, and the others are zero. After a norm these are
  +-127 * 2**-6, which every conversion of activations represents exactly (lenses.py).
- A layer adds less than a millionth of X, and only to the other elements, which are all that the
  head reads. So the next layers see the same activations, up to this millionth.
- Each layer writes to its own elements, through a generated matrix. A stored attn_output or
  ffn_down writes to all elements instead, so each token lets only one layer add something.

The model shows a fault in the scale of a tensor, but not in the scale of every block, because only
HOT inputs are nonzero. Lenses test the blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Philox

from lockstep.engine.batch import Batch
from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.harness.blackbox.behind_the_head import cap_of
from lockstep.harness.blackbox.changes import Change, constant, ones, zero
from lockstep.harness.blackbox.lens import LARGEST_STEP
from lockstep.harness.blackbox.parts import EMBEDDING, OUTPUT, OUTPUT_NORM, OUTPUT_SCALE
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import architecture, n_layers, number
from lockstep.harness.sites import IN_A_LAYER
from lockstep.harness.synth.twin import CHUNK

# architectures whose layers have exactly these tensors and no other ops
ARCHITECTURES = (
    *("llama", "mistral3", "smollm3", "qwen2", "qwen3", "gemma3", "ernie4_5", "exaone"),
    *("hunyuan-dense", "internlm2", "xverse"),
)
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
NORMS = ("attn_norm", "ffn_norm")
# norms of heads, and norms after each half of a layer; they change nothing here
NORMS_BESIDE = ("attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm")
EPS = "attention.layer_norm_rms_epsilon"
ROOT = 2.0**34  # factor on eps
X = 2.0**22  # factor on embeddings: their mean square is at most 2^-24 of eps, half an ulp
EVERY = 4  # one in so many elements may be read; the others are written
HOT = 16  # number of nonzero elements that a stored matrix reads; limits grow with this number
HOT_INSIDE = 8  # the same for ffn_down
TOKENS = 8
ADDED = 64  # number of elements that are added up at the end of a layer
OPEN = 64.0  # gives a gate of 127, which is never rounded; silu and gelu make 0 of -127
CHOSEN = 256.0  # a score that is so large that the exponentials of the other scores are zero
SCORE = 2.0  # size of queries and keys where these decide the result
SIZE = 2.0**-3  # size of the added values
MOST = 12.0  # limit for the power of two by which written values are scaled to fit into F16


@dataclass(frozen=True, kw_only=True)
class LookInPlace:
    """A test of matrices at their places, with the stored matrix of each half-layer, "" for
    none."""

    attention: str
    ffn: str
    by_token: bool = False

    @property
    def words(self) -> str:
        return " and ".join(filter(None, (self.attention, self.ffn))) or "token_embd"


EMBEDDINGS = LookInPlace(attention="", ffn="")  # reads stored rows; no layer adds to them
LOOKS = (
    EMBEDDINGS,  # first, because an engine with another eps differs here
    LookInPlace(attention="attn_v", ffn="ffn_up"),
    LookInPlace(attention="attn_q", ffn="ffn_gate"),
    LookInPlace(attention="attn_k", ffn=""),
    LookInPlace(attention="attn_output", ffn="ffn_down", by_token=True),
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of the residual stream, which defines the use of each element."""

    width: int
    layers: int
    vocabulary: int
    head: int  # number of elements of a head
    hidden: int  # width of the FFN
    inside: int  # width of the input of attn_output
    times_embedding: float  # factor on embeddings
    cap: float  # cap of logits; 0: none
    sizes: Mapping[str, float]  # by matrix: root mean square of the weights

    def read(self, look: LookInPlace) -> list[int]:
        """Return the elements of the initial residual that layers read. The first of these elements
        is the same for all tokens."""
        few = max(1, self.width // EVERY // HOT)
        return list(range(0, self.width, EVERY if look.by_token else EVERY * few))

    @property
    def free(self) -> list[int]:
        return [i for i in range(self.width) if i % EVERY]

    def own(self, layer: int, half: int) -> list[int]:
        """Return the elements that a half-layer writes. half: 0 for attention, 1 for FFN."""
        return self.free[2 * layer + half :: 2 * self.layers]

    def switch(self, layer: int, half: int) -> int:
        """Return the element that is positive only in the token of this half-layer."""
        return EVERY * (1 + 2 * layer + half)

    def times(self, size: float, layer: int, matrix: str, terms: float) -> float:
        """Return the power of two that scales a sum of `terms` weights to about `size`."""
        return power(size / (self.sizes[f"blk.{layer}.{matrix}.weight"] * terms**0.5 or size))

    def tokens(self, look: LookInPlace) -> int:
        return 2 * self.layers if look.by_token else TOKENS

    def every(self, matrix: str) -> list[str]:
        """Return the names of this matrix in all layers."""
        if EMBEDDING.startswith(matrix):
            return [EMBEDDING]
        return [f"blk.{layer}.{matrix}.weight" for layer in range(self.layers)]

    def tensor(self, look: LookInPlace, token: int, logit: int) -> str:
        """Return the stored tensor that determines this logit; "" if there is none."""
        if look is EMBEDDINGS:
            return EMBEDDING
        number = token if look.by_token else logit % len(self.free) % (2 * self.layers)
        layer, half = divmod(number, 2)
        own = (look.attention, look.ffn)[half]
        return f"blk.{layer}.{own}.weight" if own else ""


def layout_of(file: GgufFile) -> Layout:
    """Return the layout of the probe model. Raises Unsupported if the file allows none."""
    arch, embedding = architecture(file), file.tensors.get(EMBEDDING)
    if arch not in ARCHITECTURES or embedding is None or f"{arch}.{EPS}" not in file.metadata:
        raise Unsupported(f"{arch}: its layers have matrices that cannot be tested in place")
    known = {*MATRICES, *NORMS, *NORMS_BESIDE}
    for name in file.tensors:
        inside = IN_A_LAYER.fullmatch(name)
        if inside and inside[2].rsplit(".", 1)[0] not in known:
            raise Unsupported(f"{name}: this op does not occur in a model of matrices only")
    width, vocabulary = embedding.ne
    n, heads = n_layers(file), number(file, "attention.head_count", 1)
    head = number(file, "attention.key_length", width // heads)
    found = Layout(
        width=width,
        layers=n,
        vocabulary=vocabulary,
        head=head,
        hidden=number(file, "feed_forward_length"),
        inside=head * heads,
        times_embedding=width**0.5 if arch == "gemma3" else 1.0,
        cap=cap_of(file),
        sizes={name: size_of(file, name) * scale_of(file, name) for name in file.tensors},
    )
    for name, inputs in (("attn_output", found.inside), ("ffn_down", found.hidden)):
        if any(file.tensors[own].ne[0] != inputs for own in found.every(name)):
            raise Unsupported(f"{name}: its width differs between layers")
    if width // EVERY < 2 * n + 1 or vocabulary < 2 * max(n, TOKENS):
        raise Unsupported(f"{n} layers of width {width}: too few elements for all layers")
    return found


def power(factor: float) -> float:
    """Return the nearest power of two with a limited exponent; 1 if `factor` is 0 or infinite."""
    exponent = np.log2(factor) if 0 < factor < np.inf else 0.0
    return float(2.0 ** np.rint(np.clip(exponent, -MOST, MOST)))


def size_of(file: GgufFile, name: str) -> float:
    """Return the root mean square of a tensor's values, decoded a few megabytes at a time."""
    info, raw = file.tensors[name], file.raw(name)
    format, step, total = WeightFormat.member(info.type.name), CHUNK // info.type.block, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(raw), step * info.type.bytes):
            part = format.dequantize(raw[start : start + step * info.type.bytes])
            total += float(np.sum(np.square(part, dtype=np.float64)))
    file.release()
    return float(np.sqrt(total / max(1, info.n_elements)))


def scale_of(file: GgufFile, name: str) -> float:
    """Return the factor of a matrix's products, which NVFP4 stores; 1 if there is none."""
    beside = f"{name.removesuffix('.weight')}.scale"
    return size_of(file, beside) if beside in file.tensors else 1.0


def batch_of(layout: Layout, look: LookInPlace) -> Batch:
    return Batch.of(list(range(layout.tokens(look))))


def recipe_of(file: GgufFile, layout: Layout, look: LookInPlace) -> Recipe:
    root, shown = ROOT, layout.free
    changes: dict[str, Change] = {EMBEDDING: embeddings(layout, look)}
    if look is EMBEDDINGS:
        changes, shown = {}, list(range(layout.width))
        root = ROOT / X * power(layout.sizes[EMBEDDING] * layout.times_embedding)
    changes |= {OUTPUT: reads_in_turn(shown), OUTPUT_NORM: constant(root)}
    for name in file.tensors:
        inside = IN_A_LAYER.fullmatch(name)
        stem, _, end = inside[2].rpartition(".") if inside else ("", "", "")
        if stem in NORMS:
            changes[name] = zero if look is EMBEDDINGS else constant(LARGEST_STEP * ROOT / X)
        elif stem in NORMS_BESIDE:
            changes[name] = constant(ROOT)
        elif end == "bias":
            changes[name] = zero
        elif end == "scale" and stem not in (look.attention, look.ffn):
            changes[name] = ones
    for layer in range(layout.layers):
        own = {**attention(layout, layer, look), **feed_forward(layout, layer, look)}
        changes |= {f"blk.{layer}.{stem}.weight": change for stem, change in own.items()}
    changes |= dict.fromkeys(file.tensors.keys() & {OUTPUT_SCALE}, ones)
    names = {name: name for name in file.tensors} | {OUTPUT: file_head(file)}
    eps = {f"{architecture(file)}.{EPS}": ("F32", root**2)}
    return Recipe(names=names, keys=eps, changes=changes, stored=frozenset(names))


def file_head(file: GgufFile) -> str:
    return OUTPUT if OUTPUT in file.tensors else EMBEDDING


def attention(layout: Layout, layer: int, look: LookInPlace) -> Mapping[str, Change]:
    """Return the changes to attention's tensors, except for the stored tensor."""
    if look.by_token:
        return one_token_sees_itself(layout, layer)
    if not look.attention:
        return {"attn_output": zero}
    into, some = layout.own(layer, 0), some_of(layout.inside, layer)
    each = -(-len(some) // len(into))  # number of elements that are added up
    read = layout.read(look)
    if look.attention == "attn_v":  # every token attends equally to all tokens
        size = layout.times(SIZE, layer, "attn_v", LARGEST_STEP**2 * len(read) * each)
        return {"attn_q": zero, "attn_output": writes(into, some, size)}
    other = "attn_k" if look.attention == "attn_q" else "attn_q"
    size = layout.times(SCORE, layer, look.attention, LARGEST_STEP**4 * len(read))
    return {
        other: selects(read[1:], layer, size),
        "attn_v": selects(read[1:], 2 * layer),
        "attn_output": writes(into, some, 4 * SIZE / each),
    }


def one_token_sees_itself(layout: Layout, layer: int) -> Mapping[str, Change]:
    """Return changes by which this layer's token sees only itself. Other tokens see all tokens but
    this one, and have values of zero."""
    switch, heads = layout.switch(layer, 0), layout.inside // layout.head
    strong = CHOSEN * layout.head**0.5 / (2 * LARGEST_STEP**2)
    value = layout.times(SIZE, layer, "attn_output", (2 * LARGEST_STEP) ** 2 * heads)
    return {
        "attn_q": last_of_heads({switch: strong}, layout.head),
        "attn_k": last_of_heads({switch: 1.0, 0: 1.0}, layout.head),
        "attn_v": sparse({switch: value / 2, 0: value / 2}, layout.head, layer),
    }


def feed_forward(layout: Layout, layer: int, look: LookInPlace) -> Mapping[str, Change]:
    into, some = layout.own(layer, 1), some_of(layout.hidden, layer)
    each = -(-len(some) // len(into))
    terms = LARGEST_STEP**2 * len(layout.read(look)) * each
    if look.ffn == "ffn_up":
        size = layout.times(SIZE, layer, "ffn_up", 128**2 * terms)
        return {"ffn_gate": only(some, {0: OPEN}), "ffn_down": writes(into, some, size)}
    if look.ffn == "ffn_gate":
        size = layout.times(SIZE, layer, "ffn_gate", terms)
        return {"ffn_up": only(some, {0: 1.0}), "ffn_down": writes(into, some, size)}
    if look.ffn == "ffn_down":
        value = layout.times(SIZE, layer, "ffn_down", (128 * LARGEST_STEP) ** 2 * HOT_INSIDE)
        gate = reads({layout.switch(layer, 1): OPEN})
        every = max(1, layout.hidden // HOT_INSIDE)
        return {"ffn_gate": gate, "ffn_up": sparse({0: value}, every, layer)}
    return {"ffn_down": zero}


# --- changes ----------------------------------------------------------------------------------


def embeddings(layout: Layout, look: LookInPlace) -> Change:
    """Return a change to seeded signs. With `by_token`, only a token's own switch is positive."""
    n, read = layout.tokens(look), layout.read(look)

    def change(rows: F32, start: int) -> F32:
        found = np.zeros_like(rows)
        for row, token in zip(found, range(start, min(start + len(rows), n)), strict=False):
            found_signs = signs(token, len(read))
            if look.by_token:
                found_signs[1 : 1 + 2 * layout.layers] = -1
                found_signs[1 + token] = 1
            found_signs[0] = 1
            row[read] = X / layout.times_embedding * found_signs
        return found

    return change


def signs(key: int, n: int) -> F32:
    bits = Philox(key=key).random_raw(n) >> np.uint64(63)
    return np.where(bits, 1, -1).astype(np.float32)


def reads_in_turn(shown: Sequence[int]) -> Change:
    """Return a change after which each row of an output matrix reads one of these elements."""
    elements = np.array(shown)

    def change(rows: F32, start: int) -> F32:
        found = np.zeros_like(rows)
        at = np.arange(len(rows))
        found[at, elements[(start + at) % len(elements)]] = 1
        return found

    return change


def some_of(n: int, layer: int) -> list[int]:
    """Return seeded indices below n, different for each layer."""
    order = np.argsort(Philox(key=layer).random_raw(n), kind="stable")
    return sorted(int(i) for i in order[:ADDED])


def writes(dims: Sequence[int], columns: Sequence[int], value: float) -> Change:
    """Return a change that writes only to these elements, each from different columns."""

    def change(rows: F32, start: int) -> F32:
        found = np.zeros_like(rows)
        for first, row in enumerate(dims):
            if start <= row < start + len(rows):
                found[row - start, columns[first :: len(dims)]] = value
        return found

    return change


def reads(columns: Mapping[int, float]) -> Change:
    """Return a change that sets these columns to these values, and others to zero."""

    def change(rows: F32, start: int) -> F32:
        found = np.zeros_like(rows)
        for column, value in columns.items():
            found[:, column] = value
        return found

    return change


def only(numbers: Sequence[int], columns: Mapping[int, float]) -> Change:
    """Return a change after which only these rows read the columns. All other rows are zero."""

    def change(rows: F32, start: int) -> F32:
        at = np.isin(start + np.arange(len(rows)), numbers)
        found: F32 = reads(columns)(rows, start) * at[:, None]
        return found

    return change


def selects(columns: Sequence[int], shift: int, value: float = 1.0) -> Change:
    """Return a change after which each row reads one column, beginning at `shift`."""

    def change(rows: F32, start: int) -> F32:
        found = np.zeros_like(rows)
        at = np.arange(len(rows))
        found[at, np.array(columns)[(start + at + shift) % len(columns)]] = value
        return found

    return change


def last_of_heads(columns: Mapping[int, float], head: int) -> Change:
    """Return a change after which only each head's last row, rotated least, reads the columns."""

    def change(rows: F32, start: int) -> F32:
        at = (start + np.arange(len(rows))) % head == head - 1
        found: F32 = reads(columns)(rows, start) * at[:, None]
        return found

    return change


def sparse(columns: Mapping[int, float], every: int, seed: int) -> Change:
    """Return a change to a sparse matrix in which one row in `every` reads the columns, with a
    sign."""

    def change(rows: F32, start: int) -> F32:
        numbers = start + np.arange(len(rows))
        some = signs(seed, start + len(rows))[start:] * (numbers % every == 0)
        found: F32 = reads(columns)(rows, start) * some[:, None]
        return found

    return change
