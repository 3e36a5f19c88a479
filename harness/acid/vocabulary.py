"""Facts about tokens that an acid model needs, for any tokenizer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Keys = dict[str, tuple[str, Any]]
# states of any token, and of the last token of the acid prompt
START, ASKED = "state:start", "state:asked"
# states of the first tokens of a report on all tests and of a report for any prompt, and of the
# last tokens
FULL, SHORT, ENDED, LAST = "state:full", "state:short", "state:ended", "state:last"
BOS = "letter:bos"  # the token before a text, for tests that look for it


@dataclass(frozen=True, kw_only=True)
class AcidVocabulary:
    """The tokens of an acid model. `tokens` come before the report's lines, spelled as in the file.
    `places`: the state and the size of each token whose state is not START; `only_cut`: states that
    are not used if the report has no tokenizer test; `keys`: returns the keys of a file with these
    lines."""

    prompt: str
    n_prompt: int  # number of tokens of the prompt, without BOS
    tokens: tuple[str, ...]
    places: Mapping[str, tuple[str, float]]
    eos: int
    keys: Callable[[Sequence[str]], Keys]
    only_cut: frozenset[str] = frozenset()

    def back(self, letter: str) -> int:
        """Return the number of positions from the letter to the prompt's last token. From the
        letter on, each character must be a token."""
        return len(self.prompt) - 1 - self.prompt.rindex(letter)
