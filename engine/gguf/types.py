"""The types a tensor can have: ggml's ids, names and block sizes.

The ids are those of `enum ggml_type` in ggml/include/ggml.h, the sizes those of the blocks in
ggml/src/ggml-common.h, both in llama-cpp-python 0.3.36.
"""

from dataclasses import dataclass

from lockstep.engine.choices import choices
from lockstep.engine.errors import Unsupported


@dataclass(frozen=True, slots=True)
class TensorType:
    """Storage of a row of weights: blocks of `block` weights in `bytes` bytes each."""

    id: int
    name: str  # name in ggml.h, without GGML_TYPE_
    block: int
    bytes: int


_ROWS = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
)

TYPES: dict[int, TensorType] = {row[0]: TensorType(*row) for row in _ROWS}

REMOVED: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

TYPE_COUNT = 43  # GGML_TYPE_COUNT: the first id that is unknown to ggml

_BY_NAME = {kind.name: kind for kind in TYPES.values()}
_REMOVED_IDS = {name: id for id, name in REMOVED.items()}


def type_by_id(id: int) -> TensorType:
    """Return the type with this id. Raises Unsupported if it is unknown or was removed from
    ggml."""
    kind = TYPES.get(id)
    if kind is None:
        if id in REMOVED:
            raise Unsupported(f"tensor type {id} ({REMOVED[id]}) was removed from ggml")
        raise Unsupported(f"no tensor type has the id {id}; ids go from 0 to {TYPE_COUNT - 1}")
    return kind


def type_by_name(name: str) -> TensorType:
    """Return the type with this name. Raises Unsupported if it is unknown or was removed from ggml;
    case matters."""
    kind = _BY_NAME.get(name)
    if kind is None:
        if name in _REMOVED_IDS:
            raise Unsupported(f"tensor type {name} ({_REMOVED_IDS[name]}) was removed from ggml")
        known = (kind.name for kind in TYPES.values())
        raise Unsupported(f"no tensor type is named {name!r} {choices(name, known)}")
    return kind
