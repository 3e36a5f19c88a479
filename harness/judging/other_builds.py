"""Results of ggml on other processors than the oracle's. They are honest too, and have their own
bounds.

A program that contains ggml for several processors may give such results, whatever build of
llama.cpp is installed here.
"""

from collections.abc import Collection
from dataclasses import replace

from lockstep.engine.activations.base import AMX, HALVES
from lockstep.engine.ops.build import Build


def other_builds(build: Build, ops: Collection[str]) -> list[Build]:
    """Return builds that compute these ops differently.

    One build has no AMX, and converts the activations for F16 weights to F16. With AMX they stay as
    they are, as in any engine that converts nothing. Another build has half-precision attention if
    this build adds in float32, or the reverse.
    """
    ways = [build]
    if AMX in build.generic and "MUL_MAT" in ops:
        ways.append(without_amx(build))
    if "FLASH_ATTN_EXT" in ops:
        ways += [in_halves_or_not(way) for way in ways]
    return ways[1:]


def without_amx(build: Build) -> Build:
    """Return the build without AMX. A single op that llama.cpp computes alone has no AMX either,
    because its matrix is not laid out for AMX."""
    return replace(build, generic=tuple(name for name in build.generic if name != AMX))


def in_halves_or_not(build: Build) -> Build:
    others = tuple(name for name in build.generic if name != HALVES)
    return replace(build, generic=others if HALVES in build.generic else (*others, HALVES))
