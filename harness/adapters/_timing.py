"""How long decoding takes: what the adapters that answer `time_dequantize` share."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Piece = tuple[NDArray[np.uint8], NDArray[np.float32]]


def best_of(work: Callable[[], object], seconds: float) -> float:
    """Seconds of the quickest call among those that fit; the first warms up and does not count."""
    work()
    best, until = float("inf"), time.perf_counter() + seconds
    while True:
        started = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - started)
        if now >= until:
            return best


def best_of_pieces(decode: Callable[[Piece], object], pieces: list[Piece], seconds: float) -> float:
    """The same, with the first piece decoded here and the others at the same time in threads."""
    if len(pieces) == 1:
        return best_of(lambda: decode(pieces[0]), seconds)
    with ThreadPoolExecutor(len(pieces) - 1) as pool:

        def work() -> None:
            others = [pool.submit(decode, piece) for piece in pieces[1:]]
            decode(pieces[0])
            for other in others:
                other.result()

        return best_of(work, seconds)


def pieces_of(raw: NDArray[np.uint8], block: tuple[int, int], threads: int) -> list[Piece]:
    """Equal runs of whole blocks with room for their weights. block: (bytes, weights)."""
    raw = np.ascontiguousarray(raw, np.uint8).reshape(-1)
    blocks = raw.size // block[0]
    out = np.zeros(blocks * block[1], np.float32)  # written once: no page is new while timing
    cuts = pairwise(blocks * i // threads for i in range(threads + 1))
    return [(raw[a * block[0] : b * block[0]], out[a * block[1] : b * block[1]]) for a, b in cuts]
