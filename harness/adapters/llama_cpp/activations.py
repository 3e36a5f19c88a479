"""llama.cpp's conversions of activations, tested with values that are hard to round."""

import ctypes
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.activations.base import AMX, GENERIC, HALVES, VARIANTS, ActivationFormat
from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import F32
from lockstep.engine.registry import import_members
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.llama_cpp import op
from lockstep.harness.adapters.llama_cpp.lib import I64, Library, P, library
from lockstep.harness.records import EngineInfo, Settings

BLOCK = 256  # weights of the longest block
# The graph of HEADLESS multiplies by the embedding table, which is not stored for AMX. Other graphs
# use a second tensor of the same name.
HEADLESS, EMBEDDINGS = ("bitnet",), "token_embd.weight"
WITH_AMX = "AMX_INT8 = 1"  # text with which llama.cpp describes a build
# numbers of x86-64, the only processor with AMX
ARCH_PRCTL, REQUEST_PERMISSION, TILES = 158, 0x1023, 18


class CpuTraits(ctypes.Structure):
    """The beginning of `struct ggml_type_traits_cpu`, as far as we read it."""

    _fields_ = (
        ("from_float", ctypes.CFUNCTYPE(None, P, P, I64)),
        ("vec_dot", P),
        ("vec_dot_type", ctypes.c_int),
    )


class Activations(Adapter, name="llama.cpp activations"):
    """An adapter that only describes the build. `build` names the matching variants of each
    format."""

    isolated = True

    def describe(self) -> EngineInfo:
        lib = library()
        import_members("lockstep.engine.activations")
        formats = sorted(ActivationFormat.family.values(), key=lambda kind: kind.type_id)
        return EngineInfo(
            engine=self.name,
            version=lib.version,
            build=" | ".join(f"{kind.name}: {' '.join(agreeing(lib, kind))}" for kind in formats),
            settings=self.settings,
        )


def agreeing(lib: Library, kind: type[ActivationFormat]) -> list[str]:
    """Return the variants of our conversion that reproduce the library's bytes."""
    if kind.name == "F32" and not cpu_traits(lib, kind.type_id).from_float:
        # 0.3.8 has no such function for F32, and leaves the values as they are
        return list(VARIANTS)
    x = hard_to_round()
    theirs = convert_by_library(lib, kind, x).tobytes()
    return [name for name in VARIANTS if kind.quantise(x, name).tobytes() == theirs]


def conversions(
    lib: Library, build: str, settings: Settings, model: Path | None
) -> tuple[str, ...]:
    """Return the value of Build.generic for the library with these settings."""
    amx = tiles(lib, build, settings)
    if amx and architecture(model) in HEADLESS:
        amx += (EMBEDDINGS,)
    return (*generic_formats(lib), *amx, *halves(lib, settings))


def architecture(model: Path | None) -> str:
    """Return the architecture's name; "" if it cannot be read, because the engine that loads the
    file reports the error."""
    with suppress(EngineError, OSError, KeyError):
        if model is not None:
            with GgufFile.open(model) as file:
                return str(file.metadata["general.architecture"].data)
    return ""


@cache
def generic_formats(lib: Library) -> tuple[str, ...]:
    """Return the formats that the library rounds like ggml's generic C code, not like its x86
    code."""
    if not hasattr(lib.ggml, "ggml_get_type_traits_cpu"):
        return ()  # the version is too old
    import_members("lockstep.engine.activations")
    kinds = ActivationFormat.family.values()
    return tuple(sorted(kind.name for kind in kinds if agreeing(lib, kind) == [GENERIC]))


def tiles(lib: Library, build: str, settings: Settings) -> tuple[str, ...]:
    """Return (AMX,) if llama.cpp lays out weights for AMX. The build must have AMX, and the system
    must permit it, as in `ggml_amx_init`."""
    repacks = settings.repack or not lib.repacking_is_a_choice
    if not repacks or WITH_AMX not in build or sys.platform != "linux":
        return ()
    permitted = ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILES) == 0
    return (AMX,) if permitted else ()


def halves(lib: Library, settings: Settings) -> tuple[str, ...]:
    """Return (HALVES,) if flash attention scales and adds F16 values in half precision. The library
    does not say so. This function therefore runs it on two cells, the second with a weight of
    exp(-1)."""
    if not settings.flash_attn or lib.number != op.WRITTEN_FOR:
        return ()
    from lockstep.engine.ops.flash_mirror import STEP
    from lockstep.engine.ops.ggml.attention import call

    v = np.zeros((2, 1, STEP), np.float16)
    v[1] = (1 + np.arange(STEP) / 1024)[None]
    q = np.zeros((1, 1, STEP), np.float32)
    k = np.zeros((2, 1, STEP), np.float16)
    q[..., 0], k[1, 0, 0] = 1, -1
    found = op.compute(lib, call(q, k, v, 1.0, np.ones((1, 2), np.bool_), 0.0, None), 1)
    weight = np.exp(np.float32(-1))
    sums = found.reshape(-1) * (1 + weight)
    in_floats = (v[1, 0].astype(np.float32) * weight).astype(np.float16)
    in_halves = v[1, 0] * weight.astype(np.float16)
    off = (float(np.abs(sums - x.astype(np.float32)).max()) for x in (in_floats, in_halves))
    return (HALVES,) if next(off) > next(off) else ()


def hard_to_round() -> F32:
    """Return values that are ties in each format, and values of all sizes with inexact scales."""
    bits = Philox(key=8).random_raw(64 * BLOCK)
    signed = (bits >> np.uint64(40)).astype(np.int64) - (1 << 23)
    steps = (signed[: 32 * BLOCK] % 509 - 254).astype(np.float32).reshape(-1, 32) / 2
    steps[:, 5] = 127  # the largest value makes steps of 1, so that every other value is a tie
    spread = np.float32(2.0) ** (np.arange(32 * BLOCK) // 32 % 24 - 12).astype(np.float32)
    sizes = signed[32 * BLOCK :].astype(np.float32) * np.float32(2.0**-23) * spread
    halves = signed[:BLOCK].astype(np.float32) // 4096 * 2 + 2049  # halfway between two F16 numbers
    brains = (((bits[:BLOCK] % 256 + 0x3F00) << np.uint64(16)) | np.uint64(0x8000)).astype("<u4")
    return np.concatenate([steps.reshape(-1), sizes, halves, brains.view(np.float32)])


def convert_by_library(lib: Library, kind: type[ActivationFormat], x: F32) -> NDArray[np.uint8]:
    """Return the bytes that the library's `from_float` makes from x."""
    x = np.ascontiguousarray(x, np.float32)
    out = np.zeros(x.size // kind.block * kind.layout.itemsize, np.uint8)
    cpu_traits(lib, kind.type_id).from_float(x.ctypes.data, out.ctypes.data, x.size)
    return out


def cpu_traits(lib: Library, type_id: int) -> CpuTraits:
    find = lib.ggml.ggml_get_type_traits_cpu
    find.restype, find.argtypes = ctypes.POINTER(CpuTraits), (ctypes.c_int,)
    traits: CpuTraits = find(type_id).contents
    return traits
