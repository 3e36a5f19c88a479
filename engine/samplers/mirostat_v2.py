"""mirostat_v2: keeps candidates with a surprise up to mu, which adapts to the surprise of chosen
tokens.
"""

from dataclasses import dataclass

import numpy as np

from lockstep.engine.samplers.parts.candidates import F32
from lockstep.engine.samplers.parts.learning import LearningSampler


@dataclass(kw_only=True)
class MirostatV2(LearningSampler, name="mirostat_v2"):
    def size(self, p: F32) -> int:
        """Return the number of candidates to keep. p: (candidates,), sorted."""
        over = np.flatnonzero(-self.ways.log2(p) > self.mu)
        return max(int(over[0]) if len(over) else len(p), 1)
