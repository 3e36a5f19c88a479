"""Parts of a model that only long texts show, with replacement keys for short texts."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lockstep.engine.gguf.file import GgufFile, Value, ValueType
from lockstep.harness.blackbox.slices import NO_END, WINDOW, architecture, number
from lockstep.harness.synth.gguf_writer import Typed

Keys = Mapping[str, Typed | Value]
# tokens: the prompt is three times as long. It is no power of two, which would hide an error of one
# token, and it is even, because a symmetric window has half on each side.
SHORT = 10
UNSAID = {"gemma2": 4096}  # windows of files without the key, as the first files were
FIXED = {"llama4": 8192}  # lengths of chunks that engines use whatever the file says, except for 0
ORIGINAL = "rope.scaling.original_context_length"
ATTN_FACTOR = "rope.scaling.attn_factor"
# types that can hold NO_END
WIDE = (ValueType.U32, ValueType.I32, ValueType.U64, ValueType.I64)
FEW = 4  # tokens of the original context; one token would give a logarithm of 0 as a divisor
LARGEST = (1 << 31) - 1  # tokens: positions are signed 32-bit integers
LONGER = 32  # ratio of both contexts: Phi-3 has 131,072 / 4,096, and the prompt needs less
ROUNDED = 1e-5  # relative error of a factor that a converter wrote as F32


@dataclass(frozen=True, kw_only=True)
class OnlyInLong:
    """Keys whose effect only long texts show. short: values whose effect a few tokens show; hidden:
    values whose effect no text shows; nearly: the values of a slightly wrong engine; of_cells: True
    if a larger context shows the effect for any text."""

    name: str
    what: str  # description of the question, with the keys `short`
    length: int  # tokens of the unchanged model
    short: Keys
    hidden: Keys
    nearly: Keys
    nearly_what: str
    of_cells: bool = False


def merge_keys(every: Iterable[Keys]) -> Keys:
    return {key: value for keys in every for key, value in keys.items()}


def only_in_long(file: GgufFile) -> Iterator[OnlyInLong]:
    for find in (window, long_factors, temperature):
        if found := find(file):
            yield found


def tokens_in(file: GgufFile, key: str, unsaid: int = 0) -> int:
    """Return the value of an architecture's key in tokens; 0 if llama.cpp rejects the value.
    unsaid: the value if the key is missing. Keys of other architectures are not read, so they may
    be anything."""
    found = file.metadata.get(f"{architecture(file)}.{key}")
    if found is None:
        return unsaid
    return int(found.data) if found.type in WIDE and found.data > 0 else 0


def window(file: GgufFile) -> OnlyInLong | None:
    arch = architecture(file)
    key = f"{arch}.{WINDOW}"
    n = tokens_in(file, WINDOW, UNSAID.get(arch, 0))
    kind = file.metadata[key].type if key in file.metadata else "U32"
    if not n:
        return None
    return OnlyInLong(
        name=f"its window of {n} tokens",
        what=f"a window of {SHORT} tokens instead of {n}",
        length=n,
        short={key: (kind, SHORT)},
        hidden={key: (kind, NO_END)},
        nearly={key: (kind, SHORT - 1)},
        nearly_what="a window that is one token shorter",
    )


def fixed_window(file: GgufFile) -> int:
    """Return the architecture's fixed window in tokens, which no key can change; 0 if it has no
    fixed window."""
    arch = architecture(file)
    found = file.metadata.get(f"{arch}.{WINDOW}")
    return 0 if found is not None and found.data == 0 else FIXED.get(arch, 0)


def long_factors(file: GgufFile) -> OnlyInLong | None:
    """Return the part for the rope factors of long contexts; None if the model has none, or if no
    short text shows them. llama.cpp uses these factors if the context has more tokens than the
    original context. Other engines use them if the text has more tokens."""
    arch = architecture(file)
    n_train = tokens_in(file, "context_length")
    original = tokens_in(file, ORIGINAL, n_train)
    if "rope_factors_long.weight" not in file.tensors or not original:
        return None
    if number(file, "rope.scaling.type", "none") == "yarn":
        # yarn's ramp depends on the original context, and would end within a few tokens
        return None
    longer, keys = n_train / original, dict[str, Typed | Value]()
    if math.isclose(
        number(file, ATTN_FACTOR, 1.0), growth_of_rotations(longer, original), rel_tol=ROUNDED
    ):
        # an engine may read this factor, or compute it from both lengths, as the published code
        # does
        longer = LONGER
        keys[f"{arch}.{ATTN_FACTOR}"] = ("F32", growth_of_rotations(longer, FEW))
    context = max(FEW * LONGER, round(longer * FEW))
    keys[f"{arch}.context_length"] = ("U32", min(context, LARGEST))
    hidden: Keys = {**keys, f"{arch}.{ORIGINAL}": ("U32", NO_END)}
    return OnlyInLong(
        name=f"its original context of {original} tokens",
        what=f"an original context of {FEW} tokens instead of {original}",
        length=original,
        short={**keys, f"{arch}.{ORIGINAL}": ("U32", FEW)},
        hidden=hidden,
        nearly=hidden,
        nearly_what="using the factors of short contexts",
        of_cells=True,
    )


def growth_of_rotations(longer: float, original: int) -> float:
    """Return the factor that scales rotated elements, as in transformers'
    _compute_longrope_parameters. longer: the new context divided by the original context; original:
    the number of tokens in the original context."""
    if longer <= 1 or original <= 1:  # an original context of one token would be a division by zero
        return 1.0
    return math.sqrt(1 + math.log(longer) / math.log(original))


def temperature(file: GgufFile) -> OnlyInLong | None:
    key = "attention.temperature_length"
    n = tokens_in(file, key)
    if not n:
        return None
    full = f"{architecture(file)}.{key}"
    hidden: Keys = {full: (file.metadata[full].type, NO_END)}
    return OnlyInLong(
        name=f"its temperature_length of {n} tokens",
        what=f"attention scaled every {SHORT} tokens instead of every {n}",
        length=n,
        short={full: (file.metadata[full].type, SHORT)},
        hidden=hidden,
        nearly=hidden,
        nearly_what="attention without scaling",
    )
