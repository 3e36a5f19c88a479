"""grammar_lazy_patterns: a grammar that starts at a match of a regular expression, or at a
token."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.engine.samplers.parts.triggers import TriggeredGrammar


@dataclass(kw_only=True)
class GrammarLazyPatterns(TriggeredGrammar, name="grammar_lazy_patterns"):
    trigger_patterns: Sequence[bytes]

    @property
    def patterns(self) -> Sequence[bytes]:
        return self.trigger_patterns
