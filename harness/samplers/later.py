"""Tests the tokens that a server samples after the first token of a text.

A draft (speculative decoding) lets an engine find several tokens at once. It must not change how
probable a text is. The texts here have few candidates for each token, so they form a small tree. At
each node of the tree, our samplers on the oracle's logits give the expected shares.

Source of the test: Ville's inequality. `log_evidence` is the logarithm of a bet against an honest
server. The capital of such a bet grows beyond 1 / a with a probability of at most a, whatever the
number of draws and nodes.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, lgamma, log

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.samplers.cases import single
from lockstep.harness.samplers.drawn import (
    FLOATS,
    DrawnDifference,
    NextToken,
    Stage,
    Unlikely,
    is_clear,
)
from lockstep.harness.samplers.probabilities import F64

KEPT = 2  # number of candidates for each token
N_LATER = 3  # tokens after the first: a tree with at most 15 nodes
LATER_TEXTS, MORE_LATER_TEXTS = 200, 1000  # more if the first texts look suspicious
LATER_TRIES = 4  # until one text has a second token
LATER_SUSPICION = -4.0  # evidence that asks for more texts; a quarter of honest servers reach it
SPREAD = log(2.0)  # largest difference between the logits of the two candidates for the first token
LEAST_TEXTS = 8  # texts at a node: fewer show little, and each node costs an evaluation
LOG_HALF = log(0.5)

Text = tuple[int, ...]
# argument: the tokens before; None: this token cannot be judged
FindToken = Callable[[Text], NextToken | None]


@dataclass(kw_only=True)
class TextTree:
    """The texts that a server sampled with a chain, counted at each node."""

    chain: tuple[Stage, ...]
    find_token: FindToken
    unseen: NDArray[np.int64]  # ids that the server does not show
    counts: dict[Text, Counter[int]] = field(default_factory=dict)
    runs: dict[Text, F64 | None] = field(default_factory=dict)  # results of NextToken.runs

    def add(self, text: Text) -> None:
        for n in range(1, len(text)):
            self.counts.setdefault(text[:n], Counter())[text[n]] += 1

    def runs_after(self, before: Text) -> F64 | None:
        """Return the probabilities of the honest runs; None if this node cannot be judged."""
        if before not in self.runs:
            token = self.find_token(before)
            runs = None if token is None else token.runs(self.chain)
            told = runs is not None and is_clear(runs) and not runs[:, self.unseen].any()
            self.runs[before] = runs if told else None
        return self.runs[before]

    @property
    def judged(self) -> list[tuple[Text, Counter[int], F64]]:
        """Return the nodes that are judged: the tokens before, the draws, the expected runs."""
        often = {text: n for text, n in self.counts.items() if n.total() >= LEAST_TEXTS}
        found = ((text, n, self.runs_after(text)) for text, n in often.items())
        return [(text, n, runs) for text, n, runs in found if runs is not None]

    @property
    def evidence(self) -> float:
        """Return the logarithm of the capital of a bet against the server."""
        return sum(log_evidence(n, runs) for _, n, runs in self.judged)

    @property
    def worst(self) -> DrawnDifference:
        """Return the difference at the node with the most evidence."""
        before, counts, runs = max(self.judged, key=lambda row: log_evidence(*row[1:]))
        low, high = runs.min(axis=0), runs.max(axis=0)
        excess = {token: n / counts.total() - float(high[token]) for token, n in counts.items()}
        token = max(excess, key=lambda token: excess[token])
        return DrawnDifference(
            kind=Unlikely.COUNT if high[token] else Unlikely.KEPT,
            tokens=(token,),
            low=float(low[token]),
            high=float(high[token]),
            actual=counts[token] / counts.total(),
            draws=counts.total(),
            log_p=-self.evidence,
            before=before,
        )


def log_evidence(counts: Counter[int], runs: F64) -> float:
    """Return the logarithm of the capital of a bet at one node, which begins with 1.

    Half of the capital stays. The other half bets on each token by its share among the earlier
    draws, where each candidate counts once from the beginning. An honest server draws a token with
    at most the probability `high`, so the capital cannot grow on average.
    """
    high = np.minimum(runs.max(axis=0) * (1 + FLOATS), 1.0)
    if any(high[token] == 0 for token in counts):
        return inf
    n, kinds = counts.total(), int((high > 0).sum())
    bet = lgamma(kinds) - lgamma(n + kinds)
    for token, count in counts.items():
        bet += lgamma(count + 1) - count * log(float(high[token]))
    return LOG_HALF + float(np.logaddexp(0.0, bet))


def flat_chain(token: NextToken) -> tuple[Stage, ...]:
    """Return a chain that keeps few candidates, and makes those of this token about as likely."""
    best = np.sort(token.row.astype(np.float64))[::-1][:KEPT]
    heat = max(1.0, float(best[0] - best[-1]) / SPREAD)
    return ({"sampler": "top_k", "k": KEPT}, {"sampler": "temp", "t": single(heat)})
