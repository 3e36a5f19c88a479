"""Lenses for architectures with a tied output matrix, such as gemma2.

In such an architecture the tested bytes are also the embeddings, so the inputs of the head cannot
be chosen. The FFN computes them from the embeddings instead. Each tested token has a gate that
opens only for this token. Each gate multiplies a column of ffn_down with the same inputs as in
other lenses, so large that the embedding is negligible. The layer's matrices are F32, so
conversions do not interfere. The gates' inputs are known from the oracle's bytes.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.near import U
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from lockstep.harness.blackbox.changes import Change, constant, ones
from lockstep.harness.blackbox.lens import LARGEST_STEP, Lens, bytes_of, row_bytes
from lockstep.harness.blackbox.slices import architecture, number, within

# llama.cpp refuses an output.weight for these architectures
ARCHITECTURES = ("bitnet", "cohere2", "command-r", "gemma", "gemma2", "openelm", "plm")
OPEN = 128.0  # size of gates: silu, gelu and relu leave it unchanged, and make its negative zero
SURE = OPEN / 2  # with all rounding errors, gates are larger than this
COLD = 2.0**-40  # largest size of embeddings relative to what the FFN adds
MOST = 2.0**50  # largest value that the FFN adds: float32 holds its square, and the sum of squares
SEEDS = 8  # number of random choices of tokens
UP, GATE, DOWN = "blk.0.ffn_up.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_down.weight"


def is_tied(file: GgufFile) -> bool:
    return architecture(file) in ARCHITECTURES and UP in file.tensors


def split(
    file: GgufFile, lenses: Sequence[Lens], left_out: Sequence[str]
) -> tuple[list[Lens], list[str]]:
    """Split lenses so that the gates suffice for their tokens. Return the split lenses, and the
    reasons why some types have no lens. Each gate needs an input that it can distinguish."""
    room = min(file.tensors[UP].ne[0] // 2, file.tensors[UP].ne[1])
    found, unseen = [], list(left_out)
    for lens in lenses:
        try:
            for first in range(0, lens.period, room):
                ids = tokens_of(file, lens, min(room, lens.period - first))
                found.append(replace(lens, ids=ids, first=first))
        except Unsupported as error:
            unseen.append(str(error))
    return found, unseen


def of_embeddings(lens: Lens, weight: Weight) -> NDArray[np.float64]:
    """Return the largest amount that embeddings add to each row's logit, (rows,)."""
    kept = WeightFormat.member(lens.type).dequantize(weight.raw).reshape(weight.shape)
    found: NDArray[np.float64] = np.abs(kept, dtype=np.float64).sum(axis=1)
    return found * (COLD * LARGEST_STEP)


def tokens_of(file: GgufFile, lens: Lens, n: int) -> tuple[int, ...]:
    """Return n tokens whose rows the gates can distinguish. Raises Unsupported if fewer tokens can
    be distinguished."""
    used = sum(stretch.rows for stretch in lens.stretches)
    for seed in range(SEEDS if used >= n else 0):
        order = np.argsort(Philox(key=seed).random_raw(used), kind="stable")
        ids = tuple(int(i) for i in np.sort(order[:n]))
        if are_apart(read_by_gates(file, lens, ids)):
            return ids
    raise Unsupported(f"{lens.type}: gates cannot distinguish {n} rows of {used}")


def are_apart(x: NDArray[np.float64]) -> bool:
    """Return True if the gates distinguish the tokens. x: the gates' inputs, (tokens, width)."""
    try:
        gates = gates_of(x).astype(np.float64)
    except np.linalg.LinAlgError:
        return False
    found = np.where(np.eye(len(x)), x @ gates.T, -x @ gates.T)
    lost = x.shape[1] * U * (np.abs(x) @ np.abs(gates).T)
    return bool((found - lost > SURE).all())  # False for NaN


def rows_of(file: GgufFile, lens: Lens, ids: Sequence[int]) -> NDArray[np.float64]:
    """Return the rows of these tokens in the lens, (tokens, width)."""
    format, size = WeightFormat.member(lens.type), row_bytes(lens)
    found = np.zeros((len(ids), lens.width))
    for stretch in lens.stretches:
        raw = bytes_of(file, lens, stretch)
        for row, token in zip(found, ids, strict=True):
            at = token - stretch.start
            if 0 <= at < len(raw) // size:  # later rows may be padding of zeros
                row[:] = format.dequantize(raw[at * size : (at + 1) * size])
    return found


def read_by_gates(file: GgufFile, lens: Lens, ids: Sequence[int]) -> NDArray[np.float64]:
    """Return the gates' inputs, (tokens, width). The inputs come from a norm that may subtract the
    mean."""
    with np.errstate(all="ignore"):
        rows = rows_of(file, lens, ids)
        squares = np.mean(rows**2, axis=1, keepdims=True)
        found: NDArray[np.float64] = rows - rows.mean(axis=1, keepdims=True)
        found /= np.sqrt(squares + eps(file))
    return found


def eps(file: GgufFile) -> float:
    keys = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
    return float(next(filter(None, (number(file, key) for key in keys)), 0.0))


def gates_of(x: NDArray[np.float64]) -> F32:
    """Return the gates, (tokens, width). Each gate is open for its token and closed for all
    others."""
    wanted = OPEN * (2 * np.eye(len(x)) - 1)
    found: F32 = (wanted @ np.linalg.solve(x @ x.T, x)).astype(np.float32)
    return found


def changes_of(file: GgufFile, lens: Lens) -> dict[str, Change]:
    """Return the changes to a layer whose attention adds nothing. The tokens come from the oracle's
    file, and the subject's file may have other rows. Raises Unsupported if gates cannot distinguish
    these rows."""
    read = read_by_gates(file, lens, lens.ids)
    if not are_apart(read):
        raise Unsupported(
            f"{lens.type}: gates cannot distinguish the rows that they distinguish in the "
            "oracle's file"
        )
    gates = gates_of(read)
    largest = float(np.abs(rows_of(file, lens, lens.ids)).max()) * lens.width**0.5
    hot = 2.0 ** np.ceil(np.log2(largest / COLD))
    if not hot < MOST:
        raise Unsupported(f"{lens.type}: its rows are too large ({largest:.1e})")
    changes: dict[str, Change] = {UP: first_rows(gates), DOWN: columns(lens, hot / OPEN**2)}
    for name in within(file, 0):
        stem, _, end = name[len("blk.0.") :].rpartition(".")
        if name == GATE:
            changes[name] = first_rows(gates)
        elif stem == "post_ffw_norm":
            changes[name] = constant(hot)
        elif stem == "ffn_sub_norm":
            changes[name] = constant(OPEN**2)
        elif end == "scale" or stem.endswith("_norm"):
            changes[name] = ones
    return changes


def first_rows(values: F32) -> Change:
    def change(rows: F32, start: int) -> F32:
        found = np.zeros_like(rows)
        some = values[start : start + len(rows)]
        found[: len(some)] = some
        return found

    return change


def columns(lens: Lens, size: float) -> Change:
    """Return a change that writes a column for each gate, with the inputs that the output matrix
    reads."""
    numbers = range(lens.first, lens.first + len(lens.ids))
    inputs = (size * lens.inputs(numbers)).astype(np.float32).T  # (width, tokens)

    def change(rows: F32, start: int) -> F32:
        found = np.zeros_like(rows)
        found[:, : inputs.shape[1]] = inputs[start : start + len(rows)]
        return found

    return change
