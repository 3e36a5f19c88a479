"""Results of ggml on other processors than the oracle's: also honest, with their own bounds.
Programs with ggml for several processors produce them, for any build of llama.cpp here."""

from collections.abc import Collection
from dataclasses import replace

from lockstep.engine.activations.base import AMX, HALVES
from lockstep.engine.ops.build import Build


def other_builds(build: Build, ops: Collection[str]) -> list[Build]:
    """Return builds that compute these ops differently.

    One has no AMX: with it activations stay as they are before F16, as in any engine that converts
    nothing. Another has attention in halves if this build adds in floats, or the other way round.
    """
    ways = [build]
    if AMX in build.generic and "MUL_MAT" in ops:
        ways.append(without_amx(build))
    if "FLASH_ATTN_EXT" in ops:
        ways += [in_halves_or_not(way) for way in ways]
    return ways[1:]


def without_amx(build: Build) -> Build:
    """Return the build without AMX, even for an op that llama.cpp computes alone, whose matrix
    needs no layout."""
    return replace(build, generic=tuple(name for name in build.generic if name != AMX))


def in_halves_or_not(build: Build) -> Build:
    others = tuple(name for name in build.generic if name != HALVES)
    return replace(build, generic=others if HALVES in build.generic else (*others, HALVES))
