"""Lenses: models whose logits show the decoded weights of another model's matrices.

A lens has as few layers as llama.cpp loads, and they add nothing. The bytes of the tested matrices
are its head, as rows of the model's width. Blocks are independent, so any run of blocks can be a
row. The embeddings are zero except for one input in every block, which is +a or -a. The last norm
turns these inputs into 127 * 2**-6, for any a. A block's largest value is then 127 times a power of
two. Every conversion of activations represents this value exactly: 8 bits with a scale in half or
single precision by block, superblock or row, F16, and BF16. So no rounding interferes.

A logit is the sum of one weight of each block. There are as many tokens as a block has weights, so
each weight shows once. The signs differ from block to block and from token to token, so that
exchanged blocks show as well. Half of the signs are positive, as a norm that subtracts the mean
needs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile, TensorInfo
from lockstep.engine.ops.build import Build, Convert
from lockstep.engine.ops.near import SMALLEST, U
from lockstep.engine.ops.products import added_up
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from lockstep.harness.blackbox import tied_lenses as tied
from lockstep.harness.blackbox import wide_lenses as wide
from lockstep.harness.blackbox.behind_the_head import as_logits, cap_of, scale_of
from lockstep.harness.blackbox.changes import Change, ones, zero
from lockstep.harness.blackbox.lens import (
    BLOCK,
    LARGEST_STEP,
    SIZE,
    Lens,
    Stretch,
    bytes_of,
    row_bytes,
)
from lockstep.harness.blackbox.parts import EMBEDDING, OUTPUT, OUTPUT_SCALE
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.blackbox.slices import SCALES, first_layers
from lockstep.harness.sites import ENDS_OF_HALVES, IN_A_LAYER, is_one_of
from lockstep.harness.suites.parts.small_scales import BLOCKS, has_half_scales
from lockstep.harness.synth.twin import CHUNK, KEPT

SUPERBLOCK = 256
NAMED = 4  # number of unseen tensors that the text names
OF_POSITIONS = ("position_embd", "token_types", "rel_b", "output.bias", "output_norm.bias")
OF_ONES = ("token_embd_norm", OUTPUT_SCALE)
# rounding errors of the norm (mean, root, two products, its weight, a scale) and of the end of a
# product
MORE = 24


def lenses_of(file: GgufFile, layers: int = 1) -> tuple[list[Lens], list[str]]:
    """Return lenses for the file's matrices, grouped by type, and texts that name each tensor
    without a lens and the reason. layers: the number of first layers in each lens."""
    embedding = file.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.ne) != 2:
        raise Unsupported(f"the file has no matrix {EMBEDDING}, so there are no lenses")
    width, vocabulary = embedding.ne
    by_type: dict[tuple[str, int], list[TensorInfo]] = {}
    left_out: dict[str, list[str]] = {}
    for info in file.tensors.values():
        if info.type.name in KEPT or len(info.ne) < 2:
            continue
        whole = width if width % info.type.block == 0 else wide.width_of(file, info.type.block)
        if not whole:
            why = f"rows of {width} are not a multiple of the {info.type.name} block"
            left_out.setdefault(why, []).append(info.name)
            continue
        if (period := period_of(info, whole)) > vocabulary:
            why = f"a lens needs {period} tokens, and the vocabulary has {vocabulary}"
            left_out.setdefault(why, []).append(info.name)
            continue
        by_type.setdefault((info.type.name, whole), []).append(info)
    of_file = partial(Lens, layers=layers, scale=scale_of(file), cap=cap_of(file))
    made: list[Lens] = []
    for (name, whole), same in by_type.items():
        period = period_of(same[0], whole)
        empty = of_file(type=name, width=whole, vocabulary=vocabulary, period=period, stretches=())
        made += fill_lenses(same, empty, small=not tied.is_tied(file))
    unseen = [f"{shorten_names(names)}: {why}" for why, names in left_out.items()]
    return tied.split(file, made, unseen) if tied.is_tied(file) else (made, unseen)


def shorten_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def period_of(info: TensorInfo, width: int) -> int:
    if info.type.block == SUPERBLOCK:
        return SUPERBLOCK
    return next(n for n in (BLOCK, 16, 8, 4, 2, 1) if width % n == 0)


def fill_lenses(
    tensors: Sequence[TensorInfo], empty: Lens, *, small: bool = False
) -> Iterator[Lens]:
    """Yield as few lenses as possible for the rows of one type. small: True to add some blocks with
    subnormal scales, if the type has half-precision scales."""
    lens, used = empty, 0
    parts = [(info, -(-info.n_elements // empty.width), False) for info in tensors]
    if small and has_half_scales(empty.type):
        largest = max(parts, key=lambda part: part[1])
        parts.append((largest[0], min(largest[1], rows_of_blocks(empty)), True))
    for info, left, of_small in parts:
        first = 0
        while left:
            rows = min(left, empty.vocabulary - used)
            stretch = Stretch(tensor=info.name, start=used, rows=rows, first=first, small=of_small)
            lens = replace(lens, stretches=(*lens.stretches, stretch))
            left, first, used = left - rows, first + rows * empty.width, used + rows
            if used == empty.vocabulary:
                yield lens
                lens, used = empty, 0
    if used:
        yield lens


def rows_of_blocks(lens: Lens) -> int:
    """Return how many rows the blocks with small scales need."""
    return -(-BLOCKS * WeightFormat.member(lens.type).weights // lens.width)


def recipe_of(file: GgufFile, lens: Lens) -> Recipe:
    """Return the lens's recipe. Raises Unsupported if the file's types are not the lens's type."""
    for stretch in lens.stretches:
        if file.tensors[stretch.tensor].type.name != lens.type:
            raise Unsupported(f"{stretch.tensor} does not have type {lens.type}")
    head, kind = EMBEDDING if lens.ids else OUTPUT, "F32" if lens.decoded else lens.type
    bytes_of_head = (head, (lens.width, lens.vocabulary), kind, head_of(file, lens))
    if wide.is_wide(file, lens):
        return wide.recipe_of(file, lens, bytes_of_head)
    recipe = first_layers(file, lens.layers)
    changes: dict[str, Change] = {}
    for name in recipe.names:
        inside = IN_A_LAYER.fullmatch(name)
        if name == last_norm_of(file):
            changes[name] = last_norm(lens)
        elif name.startswith(OF_ONES) or (inside and is_one_of(inside[2], SCALES)):
            changes[name] = zero if name.endswith("bias") else ones
        elif name.startswith(OF_POSITIONS) or (inside and is_one_of(inside[2], ENDS_OF_HALVES)):
            changes[name] = zero
    changes |= tied.changes_of(file, lens) if lens.ids else {EMBEDDING: embeddings(lens)}
    names = {new: old for new, old in recipe.names.items() if new not in (OUTPUT, head)}
    return replace(recipe, names=names, changes=changes, more=(bytes_of_head,))


def last_norm_of(file: GgufFile) -> str:
    """Return the name of the last norm. lfm2 uses a different name."""
    names = ("output_norm.weight", "token_embd_norm.weight")
    return next((name for name in names if name in file.tensors), "")


def embeddings(lens: Lens) -> Change:
    def change(rows: F32, start: int) -> F32:
        found = np.zeros_like(rows)
        some = lens.embeddings(start, start + len(rows))
        found[: len(some)] = SIZE * some
        return found

    return change


def last_norm(lens: Lens) -> Change:
    """Return the change that sets the last norm's weights. One in `period` of the norm's inputs is
    nonzero, so the norm alone makes these inputs the root of `period`."""
    return lambda rows, start: np.full_like(rows, LARGEST_STEP / lens.period**0.5)


def head_of(file: GgufFile, lens: Lens) -> Iterator[bytes]:
    """Yield the head's bytes, as stored or decoded to F32. Zero bytes, which are zeros in every
    type, fill each tensor's last row and the unused last rows."""
    format, size, used = WeightFormat.member(lens.type), row_bytes(lens), 0
    step, each = max(1, CHUNK // size) * size, 4 * lens.width if lens.decoded else size
    for stretch in lens.stretches:
        raw, left = bytes_of(file, lens, stretch), stretch.rows * each
        for start in range(0, len(raw), step):
            part = raw[start : start + step]
            chunk = (format.dequantize(part) if lens.decoded else part).tobytes()
            left -= len(chunk)
            yield chunk
        yield bytes(left)
        used += stretch.rows
        file.release()
    yield bytes((lens.vocabulary - used) * each)


def expected_of(
    file: GgufFile,
    lens: Lens,
    inputs: NDArray[np.float64],
    lanes: int,
    to: Convert | None = None,
) -> Iterator[tuple[slice, NDArray[np.float64], NDArray[np.float64]]]:
    """Yield ranges of the lens's rows, with their expected logits and the error of an honest
    engine. to: the format that the engine rounds decoded weights to.

    Each part of each term is rounded at most once, and the terms are added in some order. The
    inputs contain the roundings of the last norm, which adds up as many squares.
    """
    format, size = WeightFormat.member(lens.type), row_bytes(lens)
    roundings = (2 * lens.hot + MORE) * U
    for stretch in lens.stretches:
        raw = bytes_of(file, lens, stretch)
        step = max(1, CHUNK // lens.width)
        for start in range(0, stretch.rows, step):
            part = raw[start * size : min(start + step, stretch.rows) * size]
            part = np.concatenate([part, np.zeros(-len(part) % size, np.uint8)])
            shape = len(part) // size, lens.width
            weight = Weight(stretch.tensor, format, shape, part)
            with np.errstate(all="ignore"):
                weight = weight if to is None else round_weight(weight, to)
                value, sizes = added_up(inputs, None, weight, Build(lanes=lanes), np.float64)
                allowed = roundings * sizes + lens.hot * SMALLEST
                if lens.ids:
                    allowed += tied.of_embeddings(lens, weight)
            rows = slice(stretch.start + start, stretch.start + start + shape[0])
            yield rows, *as_logits(lens.scale, lens.cap, value, allowed)
        file.release()


def round_weight(weight: Weight, to: Convert) -> Weight:
    """Return the decoded weights as an F32 matrix, with each weight rounded by `to`."""
    found = to(weight.rows(0, weight.shape[0])).astype("<f4")
    raw = found.reshape(-1).view(np.uint8)
    return Weight(weight.name, WeightFormat.member("F32"), weight.shape, raw)
