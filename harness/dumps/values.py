"""The values of a dump's tensors."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from lockstep.harness.dumps.node_maps import Rule
from lockstep.harness.judging.stored import Bf16File
from lockstep.harness.records import Site
from lockstep.harness.sites import SITES


@dataclass(frozen=True, kw_only=True)
class HeldTensor:
    """A tensor in a file. `rule` is the matching rule of the map; None without a map."""

    path: Path
    key: str
    kind: str  # name of the type in safetensors
    rule: Rule | None = None


def values_of(
    held: Mapping[Site, HeldTensor], sizes: Mapping[str, int]
) -> dict[Site, NDArray[Any]]:
    """Return the values as the engine computed them. Each file is opened only once, because opening
    reads its header."""
    with ExitStack() as files:
        open_file = cache(lambda p: files.enter_context(safe_open(p, framework="numpy")))
        open_bf16 = cache(lambda p: files.enter_context(Bf16File(p)))

        def read(tensor: HeldTensor) -> NDArray[Any]:
            file = open_bf16(tensor.path) if tensor.kind == "BF16" else open_file(tensor.path)
            value: NDArray[Any] = file.get_tensor(tensor.key)
            return value

        return {site: as_computed(site, one, read(one), sizes) for site, one in held.items()}


def as_computed(
    site: Site, held: HeldTensor, value: NDArray[Any], sizes: Mapping[str, int]
) -> NDArray[Any]:
    """Return the values as float32, in llama.cpp's order of axes, without leading axes of size
    1."""
    info = SITES.get(site.name)  # nodes that only llama.cpp names are not in SITES
    while info and value.ndim > len(info.shape.split(",")) and value.shape[0] == 1:
        value = value[0]
    if held.rule is not None:
        try:
            value = held.rule.apply(value, sizes)
        except ValueError as error:
            raise ValueError(f"{held.key}: {error}") from error
    return value.astype(np.float32) if value.dtype.kind == "f" else value
