"""infill: words and end-of-generation tokens, for text that fills a gap."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import NotInModel
from lockstep.engine.samplers.base import ReadingSampler
from lockstep.engine.samplers.parts.candidates import CandidateList, F

LEAST = F(0.2)  # least probability of a word in the first step


@dataclass(kw_only=True)
class Infill(ReadingSampler, name="infill"):
    def apply(self, c: CandidateList) -> CandidateList:
        """Keep only end-of-generation tokens if they are likely. Else merge words with a common
        beginning, and remove unlikely words.
        """
        c = self.ways.softmax(c, sort=True)
        ends = self.find_ends(c)
        p_end, p_text = self.ways.total(c.p[ends]), self.ways.total(c.p[~ends])
        if F(3) * p_end * F(len(c)) > p_text:
            return self.normalise(c.take(np.flatnonzero(ends)))
        c = self.merge(c)
        kept = c.take(np.flatnonzero(~(c.p < LEAST) | ends))
        words = int(np.count_nonzero(~self.find_ends(kept)))
        if not words:
            return self.end(kept if len(kept) else c)
        c = self.normalise(kept)
        least = F(1.0 / (words + 1))
        return self.normalise(c.take(np.flatnonzero(~(c.p < least) | self.find_ends(c))))

    def find_ends(self, c: CandidateList) -> NDArray[np.bool_]:
        ends = self.known.ends
        return np.array([token in ends for token in c.ids.tolist()], np.bool_)

    def normalise(self, c: CandidateList) -> CandidateList:
        return c.change(p=np.asarray(c.p / self.ways.total(c.p), F))

    def merge(self, c: CandidateList) -> CandidateList:
        """Merge two tokens if one is a prefix of the other: the likelier token gets both
        probabilities."""
        logits, p = c.logits.copy(), c.p.copy()
        pieces = [self.known.pieces[token] for token in c.ids.tolist()]
        for i, head in enumerate(pieces):
            for j, word in enumerate(pieces if head else ()):
                if logits[i] == -np.inf:
                    break
                if i == j or logits[j] == -np.inf or not word.startswith(head):
                    continue
                kept, lost = (j, i) if p[j] > p[i] else (i, j)
                p[kept] += p[lost]
                logits[lost], p[lost] = F(-np.inf), F(0)
        return c.change(logits=logits, p=p)

    def end(self, c: CandidateList) -> CandidateList:
        """Return a list of one candidate, the end of a turn."""
        token = self.known.end_of_turn
        if token is None:
            raise NotInModel(
                "infill needs a token that ends a turn or a text, but the model has none"
            )
        first = c.take(slice(1))
        return first.change(ids=np.array([token], np.int32), logits=np.ones(1, F))
