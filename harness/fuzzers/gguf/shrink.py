"""Shrinks a GGUF file that shows a finding: first its parts, then its bytes.

The parts are read tolerantly, because most of these files are broken. Anything that cannot be read
is the tail. One question tests many smaller files.
"""

import copy
from collections.abc import Callable, Iterator
from struct import error, unpack_from

from lockstep.engine.gguf.fields import SCALARS, ValueType, pad_to
from lockstep.engine.gguf.types import TYPES
from lockstep.harness.fuzzers.gguf.draft import (
    HEADER,
    MOST_DATA,
    FileDraft,
    KeyAndValue,
    TensorRow,
    array,
    string,
)
from lockstep.harness.fuzzers.shrink import shrink

Shows = Callable[[list[bytes]], list[bool]]
STR, ARR = int(ValueType.STR), int(ValueType.ARR)
SIZES = {int(kind): scalar.size for kind, scalar in SCALARS.items()}
AT_ONCE = 64
FINEST = 1024  # smallest share of a file that is removed at once
ALIGNMENT = b"general.alignment"


def shrink_file(raw: bytes, shows: Shows, most: int = 4000) -> bytes:
    """Return the smallest file found that `shows` accepts. most: the maximum cost of all files
    tried (see `cost_of`)."""
    budget = [most]

    def paid(files: list[bytes]) -> list[bool]:
        budget[0] -= cost_of(files)
        return shows(files)

    makers = (smaller_drafts, smaller_values, fewer_bytes)
    best = shrink(
        *(raw, makers, paid, size_of), budget=most, cost=cost_of, at_once=min(AT_ONCE, most)
    )
    return plainer(best, shows, budget)


def size_of(raw: bytes) -> tuple[int, bytes]:
    return len(raw), raw


def cost_of(batch: list[bytes]) -> int:
    """Return the cost of these files: 1 for each file, and 1 for each kilobyte of all. So large
    files are tried less often."""
    return len(batch) + sum(map(len, batch)) // 1024


# --- by parts ---------------------------------------------------------------------------------


def draft_of(raw: bytes) -> FileDraft | None:
    """Return a draft with exactly these bytes. Return None if not even the header can be read."""
    if len(raw) < HEADER.size:
        return None
    magic, version, n_rows, n_pairs = HEADER.unpack_from(raw)
    draft, at = FileDraft(magic=magic, version=version, n_rows=n_rows, n_pairs=n_pairs), HEADER.size
    try:
        while len(draft.pairs) < n_pairs:
            pair, at = pair_at(raw, at)
            draft.pairs.append(pair)
        offset = 0
        for pair in draft.pairs:
            if pair.key == ALIGNMENT and len(pair.value) == 4:
                draft.alignment = max(1, int.from_bytes(pair.value, "little"))
        while len(draft.rows) < n_rows:
            row, at = row_at(raw, at, offset)
            draft.rows.append(row)
            offset += pad_to(row.n_bytes, draft.alignment)
        if draft.rows:
            end = min(len(raw), at + min(-at % draft.alignment, MOST_DATA))
            draft.padding, draft.data, at = raw[at:end], raw[end:], len(raw)
            if not any(draft.padding) and end % draft.alignment == 0:
                draft.padding = None
    except (error, ValueError, RecursionError):
        if draft.rows:
            draft.padding = draft.data = b""
    draft.tail = raw[at:]
    return draft if draft.raw() == raw else None


def text_at(raw: bytes, at: int) -> tuple[bytes, int]:
    (n,) = unpack_from("<Q", raw, at)
    if n > len(raw) - at - 8:
        raise ValueError("no such string")
    return raw[at + 8 : at + 8 + n], at + 8 + n


def pair_at(raw: bytes, at: int) -> tuple[KeyAndValue, int]:
    key, at = text_at(raw, at)
    (kind,) = unpack_from("<I", raw, at)
    end = value_end(raw, at + 4, kind)
    return KeyAndValue(key, kind, raw[at + 4 : end]), end


def value_end(raw: bytes, at: int, kind: int) -> int:
    if kind == STR:
        return text_at(raw, at)[1]
    if kind != ARR:
        end = at + SIZES.get(kind, len(raw) + 1)
    else:
        element, n = unpack_from("<IQ", raw, at)
        end = at + 12
        if element in SIZES:
            end += n * SIZES[element]
        else:
            if n > len(raw):
                raise ValueError("no such array")
            for _ in range(n):
                end = value_end(raw, end, element)
    if end > len(raw):
        raise ValueError("no such value")
    return end


def row_at(raw: bytes, at: int, expected: int) -> tuple[TensorRow, int]:
    name, at = text_at(raw, at)
    (n_dims,) = unpack_from("<I", raw, at)
    if n_dims > 4:
        raise ValueError("no such shape")
    ne = unpack_from(f"<{n_dims}Q", raw, at + 4)
    at += 4 + 8 * n_dims
    kind, offset = unpack_from("<IQ", raw, at)
    size = bytes_of(ne, kind)
    return TensorRow(name, ne, kind, size, None if offset == expected else offset), at + 12


def bytes_of(ne: tuple[int, ...], kind: int) -> int:
    count = 1
    for extent in ne:
        count *= extent
    layout = TYPES.get(kind)
    return count // layout.block * layout.bytes if layout and count < 2**63 else 0


def smaller_drafts(raw: bytes) -> Iterator[bytes]:
    """Yield files without some pairs, without some rows, or with less data, padding or tail."""
    draft = draft_of(raw)
    if draft is None:
        return
    for size in halves(len(draft.pairs)):
        for at in range(0, len(draft.pairs), size):
            smaller = copy.deepcopy(draft)
            del smaller.pairs[at : at + size]
            yield from restore_counts(smaller, draft)
    for size in halves(len(draft.rows)):
        for at in range(0, len(draft.rows), size):
            smaller = copy.deepcopy(draft)
            del smaller.rows[at : at + size]
            yield from restore_counts(smaller, draft)
    for field in ("tail", "data", "padding"):
        held = getattr(draft, field)
        for size in halves(len(held or b"")):
            smaller = copy.copy(draft)
            setattr(smaller, field, held[:-size])
            yield smaller.raw()
    yield from with_fewer_claims(draft)


def with_fewer_claims(draft: FileDraft) -> Iterator[bytes]:
    """Yield files that claim at most one entry more than can be read, and have less unreadable data
    at the end."""
    for more_pairs, n_rows in ((1, 0), (0, len(draft.rows) + 1), (0, len(draft.rows))):
        smaller = copy.copy(draft)
        smaller.n_pairs, smaller.n_rows = len(draft.pairs) + more_pairs, n_rows
        if n_rows < len(draft.rows):
            continue
        for size in halves(len(draft.tail)):
            smaller.tail = draft.tail[:-size]
            yield smaller.raw()


def restore_counts(smaller: FileDraft, draft: FileDraft) -> Iterator[bytes]:
    """Yield files with the old counts, and with counts that differ from the true counts by as much
    as before."""
    yield smaller.raw()
    for name, held in (("n_rows", "rows"), ("n_pairs", "pairs")):
        gone = len(getattr(draft, held)) - len(getattr(smaller, held))
        setattr(smaller, name, max(0, getattr(draft, name) - gone))
    yield smaller.raw()
    if smaller.rows:
        smaller.data, smaller.padding = None, None
        yield smaller.raw()
    else:
        smaller.padding = smaller.data = b""
        yield smaller.raw()


def halves(n: int) -> Iterator[int]:
    """Yield n, n / 2, n / 4, ..., 1."""
    while n > 0:
        yield n
        n //= 2


def smaller_values(raw: bytes) -> Iterator[bytes]:
    """Yield files with shorter keys, names, strings and arrays, and with smaller tensors."""
    draft = draft_of(raw)
    if draft is None:
        return
    for at, pair in enumerate(draft.pairs):
        for changed in smaller_pairs(pair):
            smaller = copy.copy(draft)
            smaller.pairs = [*draft.pairs[:at], changed, *draft.pairs[at + 1 :]]
            yield from with_data(smaller)
    for at, row in enumerate(draft.rows):
        for other in smaller_rows(row):
            smaller = copy.copy(draft)
            smaller.rows = [*draft.rows[:at], other, *draft.rows[at + 1 :]]
            yield from with_data(smaller)


def with_data(draft: FileDraft) -> Iterator[bytes]:
    yield draft.raw()
    if draft.rows:
        draft.data, draft.padding = None, None
        yield draft.raw()


def smaller_pairs(pair: KeyAndValue) -> Iterator[KeyAndValue]:
    for n in halves(len(pair.key) - 1):
        yield KeyAndValue(pair.key[n:], pair.type, pair.value)
        yield KeyAndValue(pair.key[:-n], pair.type, pair.value)
    yield KeyAndValue(pair.key, int(ValueType.U8), b"\0")
    if pair.type == STR:
        text = pair.value[8:]
        for n in halves(len(text)):
            yield KeyAndValue(pair.key, STR, string(text[n:]))
    if pair.type == ARR:
        element, n = unpack_from("<IQ", pair.value)
        size = SIZES.get(element, 0)
        for less in halves(n if size else 0):
            yield KeyAndValue(
                pair.key, ARR, array(element, n - less, pair.value[12 + less * size :])
            )
        yield KeyAndValue(pair.key, ARR, array(element, 0))


def smaller_rows(row: TensorRow) -> Iterator[TensorRow]:
    for n in halves(len(row.name) - 1):
        yield TensorRow(row.name[n:], row.ne, row.type, row.n_bytes, row.offset)
    for at in range(len(row.ne)):
        ne = row.ne[:at] + row.ne[at + 1 :]
        yield TensorRow(row.name, ne, row.type, bytes_of(ne, row.type), row.offset)
    for kind, extent in ((row.type, TYPES[row.type].block if row.type in TYPES else 1), (0, 1)):
        ne = (extent, *row.ne[1:])
        yield TensorRow(row.name, ne, kind, bytes_of(ne, kind), row.offset)


# --- by bytes ---------------------------------------------------------------------------------


def fewer_bytes(raw: bytes) -> Iterator[bytes]:
    """Yield shorter files. Single bytes are removed only from short files.

    A file that stays long is usually one long text whose length matters.
    """
    for size in halves(len(raw)):
        if size * FINEST < len(raw):
            return
        step = max(1, size // 2)
        for at in range(0, len(raw), step):
            yield raw[:at] + raw[at + size :]


def plainer(raw: bytes, shows: Shows, budget: list[int]) -> bytes:
    """Return the file with as many bytes as possible set to zero. Each byte is tried alone first.
    The bytes that may be zero are then set to zero one after the other."""
    places = [at for at, byte in enumerate(raw) if byte and at >= 4][:256]
    tries = [raw[:at] + b"\0" + raw[at + 1 :] for at in places]
    if not tries or budget[0] < 2 * cost_of(tries):
        return raw
    budget[0] -= cost_of(tries)
    free = [at for at, yes in zip(places, shows(tries), strict=True) if yes]
    for at in free:
        candidate = raw[:at] + b"\0" + raw[at + 1 :]
        budget[0] -= cost_of([candidate])
        if shows([candidate])[0]:
            raw = candidate
    return raw
