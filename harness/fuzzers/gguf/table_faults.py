"""The named ways in which alignment, tensor table and data are unusual or broken."""

from lockstep.engine.gguf.fields import ValueType as V
from lockstep.harness.fuzzers.draw import Draw
from lockstep.harness.fuzzers.gguf.draft import MOST_DATA, U32, U64, FileDraft, array, string
from lockstep.harness.fuzzers.gguf.faults import (
    ALIGNMENT,
    F32,
    I8,
    Q4_K,
    Q8_0,
    Q8_0_BYTES,
    Apply,
    each,
    fault,
    one_pair,
)

# --- alignment --------------------------------------------------------------------------------


def set_alignment(n: int) -> Apply:
    def apply(draft: FileDraft, draw: Draw) -> None:
        draft.put(ALIGNMENT, V.U32, U32.pack(n))
        draft.alignment = max(n, 1)
        draft.add(b"a", (3,), F32, 12)
        draft.add(b"b", (5,), F32, 20)

    return apply


each(
    {f"alignment-{n}": set_alignment(n) for n in (8, 16, 64, 4096)},
    "valid",
    "",
    "The alignment is a multiple of 8 by the format, and a power of two to every reader.",
)
each(
    {f"alignment-{n}": set_alignment(n) for n in (1, 2, 4)},
    "implementation-defined",
    "",
    "The format wants a multiple of 8; readers want a power of two.",
)
each(
    {f"alignment-{n}": set_alignment(n) for n in (24, 40)},
    "implementation-defined",
    "alignment",
    "A multiple of 8, as the format wants; readers want a power of two.",
)
each(
    {f"alignment-{n}": set_alignment(n) for n in (0, 3, 33)}
    | {"alignment-max": set_alignment(2**32 - 1)},
    "invalid",
    "alignment",
    "Neither a multiple of 8 nor a power of two; 0 divides by zero.",
)
each(
    {"alignment-u64": one_pair(ALIGNMENT, V.U64, U64.pack(32))}
    | {"alignment-i32": one_pair(ALIGNMENT, V.I32, U32.pack(32))}
    | {"alignment-string": one_pair(ALIGNMENT, V.STR, string(b"32"))}
    | {"alignment-array": one_pair(ALIGNMENT, V.ARR, array(V.U32, 1, U32.pack(32)))},
    "invalid",
    "alignment",
    "The alignment is a U32.",
)


@fault("alignment-2-31", "invalid", "data",
       "The data section would start at 2 GiB, and the file ends before that.")  # fmt: skip
def _(draft: FileDraft, draw: Draw) -> None:
    draft.rows.clear()
    draft.put(ALIGNMENT, V.U32, U32.pack(2**31))
    draft.add(b"a", (3,), F32, 12)


@fault("alignment-2-31-no-tensors", "valid", "", "Without tensors nothing is aligned.")
def _(draft: FileDraft, draw: Draw) -> None:
    draft.rows.clear()
    draft.put(ALIGNMENT, V.U32, U32.pack(2**31))


# --- tensor table -----------------------------------------------------------------------------


def add_named_tensor(name: bytes, name_length: int | None = None) -> Apply:
    def apply(draft: FileDraft, draw: Draw) -> None:
        draft.add(name, (1,), F32, 4).name_length = name_length

    return apply


fault("name-63", "valid", "", "The longest name that ggml holds.")(add_named_tensor(b"n" * 63))
each(
    {"name-64": add_named_tensor(b"n" * 64), "name-100": add_named_tensor(b"n" * 100)},
    "invalid",
    "name-long",
    "Names have at most 64 bytes by the format, and 63 to ggml, which keeps a NUL after them.",
)
fault(
    "name-empty",
    "implementation-defined",
    "name-empty",
    "The format does not forbid it and llama.cpp accepts it; nobody can ask for such a tensor.",
)(add_named_tensor(b""))
each(
    {"name-nul": add_named_tensor(b"n\0x"), "name-nul-alone": add_named_tensor(b"\0")},
    "invalid",
    "name-nul",
    "A C interface ends names at a NUL, so that two names become one.",
)
fault("name-not-utf8", "invalid", "name-utf8", "Names are strings, and strings are UTF-8.")(
    add_named_tensor(b"n\xff")
)
each(
    {
        "name-length-max": add_named_tensor(b"n", 2**64 - 1),
        "name-length-2-32": add_named_tensor(b"n", 2**32 + 1),
    },
    "invalid",
    "length",
    "A name is longer than the rest of the file.",
)


@fault("name-twice", "invalid", "duplicate", "A name occurs once.")
def _(draft: FileDraft, draw: Draw) -> None:
    draft.add(b"twice", (8,), F32, 32)
    draft.add(b"twice", (8,), F32, 32)


@fault("name-twice-to-c", "invalid", "name-nul", "To a C interface these two are one name.")
def _(draft: FileDraft, draw: Draw) -> None:
    draft.add(b"twice\0a", (8,), F32, 32)
    draft.add(b"twice\0b", (8,), F32, 32)


def add_row(ne: tuple[int, ...], type: int = F32, n_bytes: int = 0) -> Apply:
    def apply(draft: FileDraft, draw: Draw) -> None:
        draft.add(b"s", ne, type, n_bytes)

    return apply


def dims(n: int, ne: tuple[int, ...] = (1,)) -> Apply:
    def apply(draft: FileDraft, draw: Draw) -> None:
        draft.add(b"d", ne, F32, 4).n_dims = n

    return apply


fault("dims-0", "valid", "", "A tensor without dimensions is one number.")(add_row((), F32, 4))
each(
    {"dims-5": dims(5, (1, 1, 1, 1, 1)), "dims-2-31": dims(2**31), "dims-max": dims(2**32 - 1)},
    "invalid",
    "dims",
    "ggml has at most four dimensions.",
)
each(
    {
        "dim-zero": add_row((0,)),
        "dim-zero-second": add_row((4, 0)),
        "dims-all-zero": add_row((0,) * 4),
    }
    | {"dim-zero-first": add_row((0, 4))},
    "implementation-defined",
    "",
    "A tensor without elements has no bytes; the readers let it be, and no model can use it.",
)
each(
    {"dim-negative": add_row((-1,)), "dim-negative-second": add_row((4, -4))}
    | {"dim-2-63": add_row((2**63,)), "dims-two-negative": add_row((-4, -4))},
    "invalid",
    "dims",
    "ggml counts in int64, where these are negative.",
)
each(
    {"product-2-64": add_row((2**32, 2**32)), "product-2-66": add_row((2**33, 2**33, 1))}
    | {"product-wraps-to-4": add_row((2**62, 4, 4)), "product-max": add_row((2**48 - 1,) * 4)},
    "invalid",
    "overflow",
    "More elements than an int64 counts.",
)
fault(
    "product-before-zero",
    "implementation-defined",
    "overflow",
    "The product of the first two is over int64, then a zero makes it 0.",
)(add_row((2**40, 2**40, 0)))
fault("product-after-zero", "implementation-defined", "", "A zero, then extents of any size.")(
    add_row((0, 2**40, 2**40))
)
fault(
    "product-around-zero",
    "implementation-defined",
    "",
    "A zero makes the product 0, but the other extents alone are over int64.",
)(add_row((2**40, 0, 2**40)))
each(
    {"bytes-f64-2-61": add_row((2**61,), 28), "bytes-f32-2-62": add_row((2**62,), F32)}
    | {"bytes-i64-2-62": add_row((2**62,), 27), "bytes-padded-2-64": add_row((2**62 - 1,), F32)},
    "invalid",
    "overflow",
    "More bytes than a uint64 counts; one of them only with its padding.",
)
each(
    {"bytes-i8-max": add_row((2**63 - 1,), I8), "bytes-f32-2-61": add_row((2**61,), F32)}
    | {"bytes-2-40": add_row((2**38,), F32), "bytes-2-31": add_row((2**29,), F32)},
    "invalid",
    "data",
    "The tensor would be longer than the file.",
)


@fault("nbytes-wraps-to-0", "invalid", "data",
       "ne[0] times the bytes of a block passes 2^64 before it is divided by the weights of a "
       "block, so that ggml_nbytes is 0 (ggml-org/llama.cpp, pull request 27200).")  # fmt: skip
def _(draft: FileDraft, draw: Draw) -> None:
    draft.add(b"wraps", (2**60,), Q4_K, 0)


@fault("nbytes-wraps-to-0-twice", "invalid", "overlap",
       "The same, with another tensor at the same offset after it.")  # fmt: skip
def _(draft: FileDraft, draw: Draw) -> None:
    draft.add(b"wraps", (2**60,), Q4_K, 0)
    draft.add(b"after", (8,), F32, 32)


each(
    {f"type-{n}": add_row((256,), n, 32) for n in (4, 5, 31, 32, 33, 36, 37, 38, 43, 100)}
    | {"type-2-31": add_row((256,), 2**31, 32), "type-max": add_row((256,), 2**32 - 1, 32)},
    "invalid",
    "type",
    "No such type of tensor, or one that was removed from ggml.",
)
each(
    {"block-partial": add_row((31,), Q8_0, Q8_0_BYTES), "block-33": add_row((33,), Q8_0, 68)}
    | {"block-rows": add_row((16, 2), Q8_0, Q8_0_BYTES), "block-scalar": add_row((), Q8_0, 34)}
    | {"block-k-128": add_row((128,), Q4_K, 144)},
    "invalid",
    "block",
    "A row is a whole number of blocks.",
)

# --- offsets and data -------------------------------------------------------------------------


def second_at(offset: int) -> Apply:
    def apply(draft: FileDraft, draw: Draw) -> None:
        draft.rows.clear()
        draft.add(b"first", (16,), F32, 64)
        draft.add(b"second", (16,), F32, 64).offset = offset

    return apply


def only_at(offset: int) -> Apply:
    def apply(draft: FileDraft, draw: Draw) -> None:
        draft.rows.clear()
        draft.add(b"only", (16,), F32, 64).offset = offset
        draft.data = bytes(256)

    return apply


each(
    {"offset-1": only_at(1), "offset-unaligned": second_at(68), "offset-16": second_at(80)}
    | {"offset-unaligned-max": second_at(2**64 - 1)},
    "invalid",
    "misaligned",
    "An offset is a multiple of the alignment.",
)
each(
    {"overlap-whole": second_at(0), "overlap-half": second_at(32)},
    "invalid",
    "overlap",
    "Two tensors share bytes.",
)
each(
    {"gap-first": only_at(32), "gap": second_at(96), "offset-2-63": second_at(2**63)}
    | {"offset-wraps": second_at(2**64 - 64), "offset-2-32": second_at(2**32 + 64)},
    "invalid",
    "gap",
    "Tensors lie one after the other; 2^64 - 64 wraps around to before the data.",
)


@fault("order-reversed", "implementation-defined", "gap",
       "The tensors lie in another order than in the table. The format allows it, llama.cpp and we "
       "do not.")  # fmt: skip
def _(draft: FileDraft, draw: Draw) -> None:
    draft.rows.clear()
    draft.add(b"first", (16,), F32, 64).offset = 64
    draft.add(b"second", (16,), F32, 64).offset = 0


def one_tensor(cut: int, tail: bytes = b"") -> Apply:
    def apply(draft: FileDraft, draw: Draw) -> None:
        draft.rows.clear()
        draft.add(b"t", (3,), F32, 12)
        draft.cut, draft.tail = cut, tail

    return apply


each(
    {"data-missing": one_tensor(32), "data-one-short": one_tensor(21)},
    "invalid",
    "data",
    "The file ends before its last tensor does.",
)


@fault("data-section-missing", "invalid", "data", "The file ends with the tensor table.")
def _(draft: FileDraft, draw: Draw) -> None:
    draft.rows.clear()
    draft.add(b"t", (3,), F32, 12)
    draft.padding = draft.data = b""
    if len(draft.tables()) % draft.alignment == 0:  # there is no padding to omit
        draft.rows[0].name = b"tt"


fault(
    "last-padding-missing",
    "implementation-defined",
    "",
    "Nothing follows that would need the padding; llama.cpp wants it when it reads the data.",
)(one_tensor(20))
fault("bytes-after-the-data", "valid", "", "What follows the last tensor is nobody's business.")(
    one_tensor(0, b"more")
)


@fault("padding-not-zero", "valid", "", "Padding should be zero, and nobody reads it.")
def _(draft: FileDraft, draw: Draw) -> None:
    draft.rows.clear()
    draft.add(b"t", (3,), F32, 12)
    draft.padding = b"\xff" * min(-len(draft.tables()) % draft.alignment, MOST_DATA)
    draft.data = bytes(12) + b"\xff" * 20


@fault("empty-tensor-between", "implementation-defined", "",
       "A tensor without elements shares its offset with the next one.")  # fmt: skip
def _(draft: FileDraft, draw: Draw) -> None:
    draft.add(b"e1", (0, 7), F32, 0)
    draft.add(b"e2", (8,), F32, 32)
