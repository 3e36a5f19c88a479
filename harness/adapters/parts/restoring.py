"""Defines the answer to `restore`, a question with many state files for one engine.

The question is `restore(blob, ends, sequence, then)`. The answer has the form of the answer to
`parse` (parsing.py). For each file, a digest identifies the engine's state afterwards. For an
accepted file the digest is a hash of the logits of `then`, or STUCK if these tokens are refused.
For a refused file the digest is CLEAN or CELLS_STAY.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

REFUSED_STATE = "other"  # one of the endings of `parse`; digest and reason tell more
CLEAN, STUCK, CELLS_STAY = 0, 0, 1
LEAST_HASH = 2


def digest_of_logits(logits: NDArray[np.float32]) -> int:
    """Return a hash of the bits that is different from all other digests."""
    raw = hashlib.blake2b(logits.tobytes(), digest_size=8).digest()
    return max(int.from_bytes(raw, "little"), LEAST_HASH)
