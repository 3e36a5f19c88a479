"""The vector width of a llama.cpp build, which determines the order of its additions."""


def lanes_of(build: str) -> int:
    """Return the number of float32 values in a vector register. build: llama.cpp's own system
    information."""
    on = {
        part.split("=")[0].strip()
        for part in build.replace("|", "\n").splitlines()
        if "= 1" in part
    }
    on |= {name.split(":")[-1].strip() for name in on}
    for feature, lanes in (("AVX512", 16), ("AVX2", 8), ("AVX", 8), ("NEON", 4), ("SSE3", 4)):
        if feature in on:
            return lanes
    return 1
