"""grammar_lazy: a grammar that starts at a trigger word or at a trigger token."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.engine.samplers.parts.triggers import TriggeredGrammar


@dataclass(kw_only=True)
class GrammarLazy(TriggeredGrammar, name="grammar_lazy"):
    trigger_words: Sequence[bytes]

    @property
    def patterns(self) -> Sequence[bytes]:
        words = b"|".join(map(re.escape, self.trigger_words))
        return (b"(" + words + b")",) if self.trigger_words else ()
