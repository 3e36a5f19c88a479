"""Dumps stored in half precision."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def bits_of_bf16(value: NDArray[Any], *, cut: bool = False) -> NDArray[np.uint32]:
    """Return the bits of values rounded to BF16, to the nearest, ties to even, as libraries do.
    cut: drop the lower half instead of rounding."""
    bits = value.astype(np.float32).view(np.uint32)
    up = np.uint32(0) if cut else np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.where(np.isfinite(value), bits + up, bits) >> np.uint32(16)


def as_bf16(value: NDArray[Any]) -> NDArray[np.float32]:
    return (bits_of_bf16(value) << np.uint32(16)).view(np.float32)


def write_bf16(path: Path, tensors: Mapping[str, NDArray[Any]], *, cut: bool = False) -> None:
    """Write tensors as BF16 to a safetensors file by hand, because numpy does not support BF16."""
    head: dict[str, Any] = {}
    data = b""
    for key, value in tensors.items():
        raw = bits_of_bf16(value, cut=cut).astype("<u2").tobytes()
        ends = [len(data), len(data) + len(raw)]
        head[key] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": ends}
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
