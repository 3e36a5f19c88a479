"""Computes the expected distribution of the next token that a server draws, and tests lists and
counts of draws exactly.

The expected distribution comes from our samplers on the oracle's logits. The server's logits may
differ from these by the noise of honest runs. Therefore each chain runs many times on logits that
are changed by this noise. Some runs move the logits above a rank up and all others down, because
cuts depend on ranks. Other runs move logits at random. Candidates that differ between these runs
are not judged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from math import exp, inf, lgamma, log, log1p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32
from lockstep.engine.samplers.base import SamplerVocabulary
from lockstep.engine.samplers.grammar import Grammar
from lockstep.engine.samplers.parts.candidates import CandidateList
from lockstep.engine.samplers.parts.chain import Chain, make_chain
from lockstep.engine.samplers.parts.ways import DEFINITION, Ways
from lockstep.harness.samplers.probabilities import F64

Stage = Mapping[str, Any]
UNSEEN = 0  # label of tokens that a server does not show, such as ends of text
# numbers of highest logits that move up while the others move down
TURNS = (1, 2, 3, 4, 6, 8, 12, 16)
RANDOM_RUNS = 6  # each is used with its opposite too
ROOM = 2.0  # factor on the noise: one logit may move up while all others move down
# relative error of float32 probabilities, and of parameters that are rounded to float32
FLOATS = 1e-4
LISTED = 1e-3  # relative error of probabilities that a server writes as text
LEAST = 1e-9  # absolute error of such probabilities, unless the server rounds them
DECIMALS = (3, 4, 5, 6)  # decimals to which servers round
TOP_LABELS = 24
MAX_MADE = 256  # number of chains in the cache
ALPHA = 1e-9  # probability that one run accuses an honest server
MAX_TESTS = 10_000  # tests in one run
LIMIT = log(ALPHA / MAX_TESTS)
SUSPICION = log(1e-4)  # probability of a test's result from which more draws are made


class Unlikely(Enum):
    """Faults that a right sampler never shows, or shows only with a tiny probability."""

    KEPT = "a candidate that the chain forbids"
    DROPPED = "a candidate is missing"
    P = "another probability"
    COUNT = "drawn too often or too rarely"


@dataclass(frozen=True, kw_only=True)
class DrawnDifference:
    """The worst difference in a list, or in counted draws."""

    kind: Unlikely
    tokens: tuple[int, ...]  # tokens whose probabilities are added, the likeliest first
    low: float  # least probability that an honest server may have
    high: float
    actual: float  # the server's probability, or the share of draws
    draws: int = 0  # number of draws; 0 for a difference in a list
    log_p: float = -inf  # logarithm of the probability that an honest server differs as much
    before: tuple[int, ...] = ()  # tokens that the server sampled before


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels by which a server shows tokens: ids, or texts that several tokens may share."""

    of: NDArray[np.int64]  # (vocabulary,)
    names: Mapping[int | bytes, int]

    @classmethod
    def by_id(cls, n_vocab: int, unseen: Sequence[int]) -> "Labels":
        of = np.arange(1, n_vocab + 1)
        of[[*unseen]] = UNSEEN
        return cls(of=of, names={token: int(label) for token, label in enumerate(of)})

    @classmethod
    def by_text(cls, pieces: Sequence[bytes], unseen: Sequence[int]) -> "Labels":
        """Label tokens by their text without surrounding spaces, because some servers drop such
        spaces. `pieces` are the bytes of all tokens."""
        names: dict[int | bytes, int] = {b"": UNSEEN}
        of = np.zeros(len(pieces), np.int64)
        for token, piece in enumerate(pieces):
            text = plain_text(piece)
            of[token] = names.setdefault(text, len(names)) if text else UNSEEN
        of[[*unseen]] = UNSEEN
        return cls(of=of, names=names)

    def label(self, token: int | bytes | None) -> int:
        key = plain_text(token) if isinstance(token, bytes) else token
        return self.names.get(key, UNSEEN) if key is not None else UNSEEN


def plain_text(piece: bytes) -> bytes:
    """Return a text without surrounding spaces; b"" if the text contains incomplete characters."""
    try:
        return piece.decode().strip().replace("\ufffd", "").encode()
    except UnicodeDecodeError:
        return b""


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """The logits from which a server draws, and the data that its samplers use."""

    row: F32  # (vocabulary,)
    noise: float  # limit for the error of an honest logit
    accepted: tuple[int, ...]  # the prompt, which penalties count
    words: SamplerVocabulary | None = None
    made: dict[tuple[str, Ways], Chain] = field(default_factory=dict, repr=False, compare=False)

    def probabilities(
        self, chain: Sequence[Stage], row: F32 | None = None, ways: Ways = DEFINITION
    ) -> F64:
        """Return the probability of each token after the stages before the draw."""
        row = self.row if row is None else row
        made, whole = self.chain_of(chain, ways).clone(), CandidateList.of_logits(row)
        left = made.apply(whole)[-1] if made.samplers else whole
        return share_out(left, len(row))

    def chain_of(self, chain: Sequence[Stage], ways: Ways) -> Chain:
        """Return the stages before the draw, after they have accepted the prompt. Grammars are
        parsed once."""
        key = repr(chain), ways
        if key not in self.made:
            stages = [stage for stage in chain if stage["sampler"] != "dist"]
            made = make_chain(stages, len(self.row), self.words, ways)
            for sampler in made.samplers:
                if isinstance(sampler, Grammar):
                    sampler.find_allowed()  # clones share the result
                    continue
                for token in self.accepted:
                    sampler.accept(token)
            if len(self.made) >= MAX_MADE:
                self.made.clear()
            self.made[key] = made
        return self.made[key]

    @cached_property
    def rows(self) -> list[F32]:
        """Return the logits of all runs. The first run has no noise."""
        rng = np.random.default_rng(0)
        chance = [rng.choice((-1, 1), len(self.row)) for _ in range(RANDOM_RUNS)]
        return [self.row, *self.move([*self.turn(self.order), *chance])]

    @cached_property
    def order(self) -> NDArray[np.int64]:
        return np.argsort(-self.row, kind="stable")

    def turn(self, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return arrays of signs. In each array, the signs of the first logits by rank are up, and
        all other signs are down."""
        n, rank = len(order), np.argsort(order, kind="stable")
        return [np.where(rank < turn, 1, -1) for turn in TURNS if turn < n]

    def move(self, signs: Sequence[NDArray[np.int64]]) -> list[F32]:
        """Return the logits for each array of signs, moved up or down by the noise."""
        step = ROOM * self.noise
        return [np.asarray(self.row + s * step, np.float32) for r in signs for s in (r, -r)]

    def runs(self, chain: Sequence[Stage], ways: Ways = DEFINITION) -> F64:
        """Return the probabilities of all runs: (runs, vocabulary). If the chain changes the ranks
        of likely tokens, as penalties do, logits also go up by the new ranks."""
        rows, most = self.rows, TURNS[-1]
        order = np.argsort(-self.probabilities(chain), kind="stable")
        if not np.array_equal(order[:most], self.order[:most]):
            rows = [*rows, *self.move(self.turn(order))]
        return np.stack([self.probabilities(chain, row, ways) for row in rows])


def is_clear(runs: F64) -> bool:
    """Return True if all runs keep the same candidates. If not, a server may keep a set that no run
    keeps, so only candidates that all runs or no runs keep are judged."""
    return bool(((runs > 0) == (runs[0] > 0)).all())


def first_forbidden(
    token: NextToken, chain: Sequence[Stage], text: Sequence[int], ways: Ways = DEFINITION
) -> int | None:
    """Return the first token of a generated text that the chain forbids."""
    made = token.chain_of(chain, ways).clone()
    for each in text:
        left = made.apply(CandidateList.of_logits(token.row))[-1]
        if not np.isfinite(left.logits[left.ids == each]).any():
            return each
        made.accept(each)
    return None


def share_out(left: CandidateList, n: int) -> F64:
    found = np.zeros(n)
    if len(left) and np.isfinite(left.logits.max()):
        weights = np.exp(left.logits.astype(np.float64) - float(left.logits.max()))
        found[left.ids] = weights / weights.sum()
    return found


# --- lists ----------------------------------------------------------------------------------------


def judge_listed(
    listed: Sequence[tuple[int | bytes, float]], runs: F64, asked: int
) -> DrawnDifference | None:
    """Return the worst difference of a list with ids; None if nothing differs. `asked` is the
    requested number of candidates."""
    low, high = runs.min(axis=0), runs.max(axis=0)
    shown = {token: p for token, p in listed if isinstance(token, int) and p > 0}
    at = np.array([*shown], np.int64)
    p = np.array([*shown.values()])
    least = next((10.0**-d for d in DECIMALS if np.array_equal(p, p.round(d))), LEAST)
    strange = (high[at] == 0) & (p > least)
    if strange.any():
        return difference(Unlikely.KEPT, at[strange], p[strange], low, high)
    ends = float(p.min()) if len(at) >= asked else 0.0
    gone = np.flatnonzero((low * (1 - LISTED) > ends + least) & ~np.isin(np.arange(len(low)), at))
    if len(gone):
        return difference(Unlikely.DROPPED, gone, np.zeros(len(gone)), low, high)
    if not is_clear(runs):
        return None
    below = low[at] * (1 - LISTED) - least - p
    above = p - high[at] * (1 + LISTED) - least
    far = np.maximum(below, above)
    if len(at) and far.max() > 0:
        worst = [int(far.argmax())]
        return difference(Unlikely.P, at[worst], p[worst], low, high)
    return None


def difference(
    kind: Unlikely, tokens: NDArray[np.int64], p: F64, low: F64, high: F64
) -> DrawnDifference:
    worst = int(np.argmax(np.maximum(p, low[tokens])))
    token = int(tokens[worst])
    return DrawnDifference(
        kind=kind,
        tokens=(token,),
        low=float(low[token]),
        high=float(high[token]),
        actual=float(p[worst]),
    )


# --- counted draws --------------------------------------------------------------------------------


def judge_draws(drawn: Sequence[int], runs: F64, labels: Labels) -> DrawnDifference | None:
    """Return the least likely difference over all sums of labels; None if nothing differs. `drawn`
    are the labels of the draws."""
    n_labels = int(labels.of.max()) + 1
    sums = [np.bincount(labels.of, run, n_labels).astype(np.float64) for run in runs]
    p = np.stack(sums)
    counts = np.bincount(np.array(drawn, np.int64), minlength=n_labels)
    n, found = len(drawn), list[DrawnDifference]()
    never = np.flatnonzero(p.max(axis=0) == 0)
    if counts[never].any():
        seen = never[counts[never] > 0]
        return of_labels(Unlikely.KEPT, seen, labels, (0.0, 0.0), counts[seen].sum() / n, n, -inf)
    for members in sums_of_labels(p[0]) if is_clear(p) else ():
        share = p[:, members].sum(axis=1)
        low, high = float(share.min()) * (1 - FLOATS), min(1.0, float(share.max()) * (1 + FLOATS))
        count = int(counts[members].sum())
        log_p = log_tail(n, count, low, high)
        kind = Unlikely.DROPPED if not count else Unlikely.COUNT
        found.append(of_labels(kind, members, labels, (low, high), count / n, n, log_p))
    return min(found, key=lambda each: each.log_p, default=None)


def of_labels(
    kind: Unlikely,
    members: NDArray[np.int64],
    labels: Labels,
    bounds: tuple[float, float],
    actual: float,
    n: int,
    log_p: float,
) -> DrawnDifference:
    tokens = np.flatnonzero(np.isin(labels.of, members[:4]))[:8]
    return DrawnDifference(
        kind=kind,
        tokens=tuple(map(int, tokens)),
        low=bounds[0],
        high=bounds[1],
        actual=float(actual),
        draws=n,
        log_p=log_p,
    )


def sums_of_labels(p: F64) -> list[NDArray[np.int64]]:
    """Return groups of labels: each likely label alone, and growing groups of the most likely
    labels. `p` has the shape (labels,)."""
    order = np.argsort(-p, kind="stable")
    alone = [order[i : i + 1] for i in range(min(TOP_LABELS, len(order)))]
    sizes = [2**i for i in range(1, 20) if 2**i < len(order)]
    return [*alone, *(order[:n] for n in sizes)]


def log_tail(n: int, count: int, low: float, high: float) -> float:
    """Return the logarithm of the binomial probability of a count that deviates at least as much.
    Return 0 if the count does not deviate."""
    if count > n * high:
        return log_sum([log_binomial(n, k, high) for k in range(count, n + 1)])
    if count < n * low:
        return log_sum([log_binomial(n, k, low) for k in range(count + 1)])
    return 0.0


def log_binomial(n: int, k: int, p: float) -> float:
    if p <= 0.0 or p >= 1.0:
        return 0.0 if k == (0 if p <= 0.0 else n) else -inf
    ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    return ways + k * log(p) + (n - k) * log1p(-p)


def log_sum(logs: Sequence[float]) -> float:
    most = max(logs)
    return most if most == -inf else min(0.0, most + log(sum(exp(x - most) for x in logs)))


def total_variation(p: F64, q: F64) -> float:
    return float(np.abs(p - q).sum() / 2)


def largest_change(p: F64, q: F64, least: float = 1e-6) -> float:
    """Return the largest relative change of a probability, among the probabilities that a list
    shows."""
    larger = np.maximum(p, q)
    shown = larger > least
    return float((np.abs(p - q)[shown] / larger[shown]).max(initial=0.0))
