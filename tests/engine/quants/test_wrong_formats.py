"""Wrong engines for each weight format: every fault exists, or there is a reason why not.

tests/differential/test_wrong_weights.py runs every combination without such a reason against
llama.cpp.
"""

from lockstep.engine.quants.base import WeightFormat
from tests.all_types import FORMATS, NAMES, WITHOUT_PRODUCT
from tests.wrong_formats import (
    ACTIVATION_CASES,
    ACTIVATION_FAULTS,
    DECODER_CASES,
    DECODER_FAULTS,
    MISTAKES,
    NIBBLES,
    NO_NIBBLES,
    fields,
    why_not,
)

KINDS = (  # the columns of the table
    "nibbles swapped",
    "scale and minimum exchanged",
    "one code-book entry changed",
    "sign bit ignored",
    "block size off by one",
    "scale read as bf16",
    "high bits shifted by one",
    "activations truncated instead of rounded",
    "quantised with 1/128 and decoded with 1/127",
)
MADE = "x"
REASONS = {
    "p": {"llama.cpp has no product with it: golden vectors catch its faults"},
    "b": {"a number stands alone, without a block"},
    "n": {*NO_NIBBLES.values()},
    "m": {"it has no minimum"},
    "k": {"it has no code book"},
    "s": {"steps have no sign and minima are subtracted"},
    "h": {"its scales are bytes"},
    "t": {"no field holds high bits separately"},
    "f": {"activations stay float32"},
    "r": {"activations are rounded without a scale"},
}
TABLE = """
F32     b b b x b b b f f
F16     b b b x b b b x r
Q4_0    x m k x x x t x x
Q4_1    x x k x x x t x x
Q5_0    x m k x x x x x x
Q5_1    x x k x x x x x x
Q8_0    n m k x x x t x x
Q2_K    x x k s x x t x x
Q3_K    x m k x x x x x x
Q4_K    x x k s x x x x x
Q5_K    x x k s x x x x x
Q6_K    x m k x x x x x x
IQ2_XXS n m x x x x t x x
IQ2_XS  x m x x x x t x x
IQ3_XXS n m x x x x t x x
IQ1_S   n m x x x x x x x
IQ4_NL  x m x x x x t x x
IQ3_S   x m x x x x x x x
IQ2_S   x m x x x x x x x
IQ4_XS  x m x x x x x x x
I8      p p p p p p p p p
I16     p p p p p p p p p
I32     p p p p p p p p p
I64     p p p p p p p p p
F64     p p p p p p p p p
IQ1_M   x m x x x x x x x
BF16    b b b x b b b x r
TQ1_0   n m k x x x t x x
TQ2_0   x m k x x x t x x
MXFP4   x m x x x h t x x
NVFP4   x m x x x h t x x
Q1_0    x m k x x x t x x
Q2_0    x m k x x x t x x
"""


def cell(kind: type[WeightFormat], fault: str) -> str:
    why = why_not(kind, fault)
    return next((letter for letter, whys in REASONS.items() if why in whys), why or MADE)


def rows() -> list[str]:
    return [f"{kind.name:8}{' '.join(cell(kind, fault) for fault in KINDS)}" for kind in FORMATS]


def test_every_missing_fault_of_a_type_has_a_reason() -> None:
    assert rows() == TABLE.strip().splitlines()
    assert {*DECODER_FAULTS, *ACTIVATION_FAULTS} == {*KINDS}


def test_every_existing_fault_is_a_differential_test_case() -> None:
    made = {(kind.name, fault) for kind in FORMATS for fault in KINDS if cell(kind, fault) == MADE}
    assert {*DECODER_CASES, *ACTIVATION_CASES} == made
    assert len(DECODER_CASES) + len(ACTIVATION_CASES) == len(made)


def test_block_format_has_nibbles_or_a_reason() -> None:
    in_blocks = {kind.name for kind in FORMATS if kind.weights > 1}
    assert NIBBLES.keys() | NO_NIBBLES.keys() == in_blocks
    assert not NIBBLES.keys() & NO_NIBBLES.keys()
    assert all(NIBBLES[k.name] in fields(k) for k in FORMATS if k.name in NIBBLES)


def test_types_without_a_product_have_wrong_decoders_for_golden_vectors() -> None:
    assert {kind.name for kind in FORMATS} - {*NAMES} == {kind.name for kind in WITHOUT_PRODUCT}
    assert all(MISTAKES["sign ignored"][1](kind) for kind in WITHOUT_PRODUCT)
