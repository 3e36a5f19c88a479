"""Tests the samplers of a server by a next token that is drawn many times, and by lists of
candidates if the server shows them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial

import numpy as np

from lockstep.engine.samplers.parts.ways import LLAMA_CPP, Accident, Ways
from lockstep.harness.records import DrawAnswer, DrawRequest
from lockstep.harness.samplers.cases import CHOOSING, CUTTING
from lockstep.harness.samplers.drawn import (
    LIMIT,
    SUSPICION,
    UNSEEN,
    DrawnDifference,
    Labels,
    NextToken,
    Stage,
    Unlikely,
    first_forbidden,
    judge_draws,
    judge_listed,
)
from lockstep.harness.samplers.drawn_cases import (
    DRAW,
    choose_chains,
    orders_for,
    stages_for,
)
from lockstep.harness.samplers.grammars import BAD_GRAMMARS, READING, grammar_stage
from lockstep.harness.samplers.later import (
    LATER_SUSPICION,
    LATER_TEXTS,
    LATER_TRIES,
    MORE_LATER_TEXTS,
    N_LATER,
    FindToken,
    TextTree,
    flat_chain,
)
from lockstep.harness.samplers.probabilities import F64

DRAWS, MORE_DRAWS = 60, 400  # draws for a chain, and new draws if their counts look suspicious
GRAMMAR_DRAWS = 30  # draws for each of many grammars
MAX_REQUESTS = 8000
MAX_LISTED = 1024
LIST_TRIES = 4  # seeds to try, because the answer has no list where the text ends
SEEDS, LEAST_SAME = 8, 6  # each seed is used twice; a draw close to a boundary may differ
LEAST_SPREAD = 0.2  # probability that two draws are equal by chance, at most
TEXTS, MORE_TOKENS = 6, 6  # texts for each grammar, and tokens after the first
# names of parts that are not samplers
ORDER, SEED, BAD, LATER = "order", "seed", "bad grammars", "tokens after the first"
NEVER_ASKED = ("greedy", "infill", *(set(CHOOSING) - {"greedy", "dist"}))

Ask = Callable[[DrawRequest], "DrawAnswer | NotSaid"]


@dataclass(frozen=True, kw_only=True)
class NotSaid:
    """The interface cannot express a chain, or the server refuses it."""

    why: str


class Result(Enum):
    RIGHT = "as the definition says"
    WRONG = "otherwise"
    IGNORED = "as without the sampler, which the interface does not promise"
    UNTOLD = "on these logits, no chain shows if the sampler has an effect"
    UNSAID = "the interface has no parameters for it"
    UNASKED = "not asked"


MAX_IGNORED = 4  # chains to try, because a weak effect may look like none
WORST = (Result.WRONG, Result.UNSAID, Result.IGNORED)


@dataclass(frozen=True, kw_only=True)
class ServedPart:
    """The result for one sampler, for the order of stages, or for seeds."""

    part: str
    result: Result
    lists: int = 0
    draws: int = 0
    why: str = ""
    chain: tuple[Stage, ...] = ()  # the last chain that was judged
    difference: DrawnDifference | None = None
    accidents: tuple[Accident, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JudgedChain:
    """The result for one chain. `accident` is the known mistake of llama.cpp that explains all
    differences, or None."""

    chain: tuple[Stage, ...]
    result: Result
    lists: int = 0
    draws: int = 0
    difference: DrawnDifference | None = None
    accident: Accident | None = None


@dataclass(kw_only=True)
class ServedRun:
    """Tests one part after the other. `prompt` is the prompt that the server gets. `find_token`
    gives the token after further tokens; None if later tokens cannot be tested."""

    token: NextToken
    labels: Labels
    prompt: tuple[int, ...] | bytes
    ask: Ask
    find_token: FindToken | None = None
    progress: Callable[[str], None] = field(default=lambda _: None)
    seed: int = 0
    requests: int = 0
    has_lists: bool = False

    def results(self) -> Iterator[ServedPart]:
        """Yield the results, first for the plain draw. If the plain draw is wrong, the other parts
        are not tested, because counts of draws would prove nothing."""
        self.has_lists = self.find_lists()
        plain = self.judge_part("dist", [(DRAW,)])
        yield plain
        if plain.result is Result.UNSAID or (plain.result is not Result.RIGHT and self.no_list):
            yield from (
                ServedPart(part=name, result=Result.UNASKED, why="the draw itself is wrong")
                for name in (*self.stages, ORDER, SEED, LATER)
            )
            return
        yield self.judge_seeds()
        right = dict[str, list[Stage]]()
        for name, stages in self.stages.items():
            found = self.judge_stage(name, [(stage,) for stage in stages])
            yield found
            if found.result is not Result.WRONG:
                right[name] = stages
            if name == "grammar" and found.result is Result.RIGHT:
                yield self.judge_bad_grammars()
        yield self.judge_stage(ORDER, list(orders_for(right)))
        yield self.judge_later_tokens(right)
        untold = {*CUTTING, *READING, *NEVER_ASKED} - {*self.stages}
        for name in sorted(untold):
            yield ServedPart(part=name, result=Result.UNASKED)

    @property
    def no_list(self) -> bool:
        return not self.has_lists

    @cached_property
    def stages(self) -> dict[str, list[Stage]]:
        return stages_for(self.token)

    @property
    def n_listed(self) -> int:
        return min(MAX_LISTED, len(self.token.row))

    def find_lists(self) -> bool:
        answer = self.ask_list([DRAW])
        return isinstance(answer, DrawAnswer) and answer.listed is not None

    def ask_list(self, chain: Sequence[Stage]) -> DrawAnswer | NotSaid:
        for _ in range(LIST_TRIES):
            answer = self.draw(chain, n_listed=self.n_listed)
            if isinstance(answer, NotSaid) or answer.listed is not None or answer.token is not None:
                break
        return answer

    def draw(
        self, chain: Sequence[Stage], *, n_listed: int = 0, more: int = 0
    ) -> DrawAnswer | NotSaid:
        self.requests += 1
        return self.draw_by(chain, self.seed + self.requests, n_listed, more)

    def draw_by(
        self, chain: Sequence[Stage], seed: int, n_listed: int = 0, more: int = 0
    ) -> DrawAnswer | NotSaid:
        request = DrawRequest(
            chain=tuple(chain),
            prompt=self.prompt,
            seed=seed % (1 << 31),  # some interfaces accept no larger seeds
            n_listed=n_listed,
            more=more,
        )
        return self.ask(request)

    # --- one part ---------------------------------------------------------------------------------

    def judge_stage(self, part: str, chains: list[tuple[Stage, ...]]) -> ServedPart:
        """Choose chains that the server accepts, and judge the server's answers to them."""
        if not chains:
            return ServedPart(
                part=part, result=Result.UNASKED, why="single stages are already wrong"
            )
        if self.requests >= MAX_REQUESTS:
            return ServedPart(part=part, result=Result.UNASKED, why="too many requests")
        # a server may list all candidates, including forbidden ones
        by_list = self.has_lists and part != "grammar"
        said = list[tuple[Stage, ...]]()
        why = ""
        for chain in chains:
            answer = self.draw([*chain, DRAW])
            if isinstance(answer, NotSaid):
                why = answer.why
            else:
                said.append(chain)
        if not said:
            return ServedPart(part=part, result=Result.UNSAID, why=why)
        chosen, is_told = choose_chains(self.token, self.labels, said, by_list=by_list)
        if not is_told:
            return ServedPart(part=part, result=Result.UNTOLD)
        return self.judge_part(part, [(*chain, DRAW) for chain in chosen])

    def judge_part(self, part: str, chains: Sequence[tuple[Stage, ...]]) -> ServedPart:
        judged = list[JudgedChain]()
        for chain in chains:
            self.progress(f"samplers of the server: {part}, {self.requests} requests so far")
            judged.append(found := self.judge_chain(part, chain))
            ignored = sum(each.result is Result.IGNORED for each in judged)
            if found.result not in (Result.RIGHT, Result.IGNORED) or ignored == MAX_IGNORED:
                break
        last = next((each for r in WORST for each in judged if each.result is r), judged[-1])
        accidents = {each.accident for each in judged if each.accident is not None}
        return ServedPart(
            part=part,
            result=last.result,
            lists=sum(each.lists for each in judged),
            draws=sum(each.draws for each in judged),
            chain=last.chain,
            difference=last.difference,
            accidents=tuple(sorted(accidents, key=lambda each: each.name)),
        )

    def judge_chain(self, part: str, chain: tuple[Stage, ...]) -> "JudgedChain":
        runs = self.token.runs(chain)
        if self.has_lists and part != "grammar":
            answer = self.ask_list(chain)
            if isinstance(answer, DrawAnswer) and (listed := answer.listed) is not None:
                judge = partial(judge_listed, listed, asked=self.n_listed)
                found = self.look_again(chain, judge(runs=runs), lambda runs: judge(runs=runs))
                found = replace(found, lists=1)
                if part != "dist" or found.difference:
                    return found
        drawn, promised = self.draw_many(chain, GRAMMAR_DRAWS if part == "grammar" else DRAWS)
        if not drawn:
            return JudgedChain(chain=chain, result=Result.UNSAID)
        off = judge_draws(drawn, runs, self.labels)
        if off is not None and off.log_p < SUSPICION and off.kind is not Unlikely.KEPT:
            drawn, promised = self.draw_many(chain, MORE_DRAWS)
            off = self.far_off(drawn, runs)
        off = off if off is not None and off.log_p < LIMIT else None
        if off is not None and not promised and self.is_ignored(chain, drawn):
            return JudgedChain(chain=chain, result=Result.IGNORED, draws=len(drawn))
        found = self.look_again(chain, off, partial(self.far_off, drawn))
        if part == "grammar" and found.result is Result.RIGHT:
            found = self.judge_texts(chain, found)
        return replace(found, draws=len(drawn))

    def judge_texts(self, chain: tuple[Stage, ...], found: "JudgedChain") -> "JudgedChain":
        """Generate texts, and look for a token that the grammar forbids."""
        for _ in range(TEXTS):
            answer = self.draw(chain, more=MORE_TOKENS)
            if isinstance(answer, NotSaid) or not isinstance(answer.token, int):
                continue
            text = (answer.token, *answer.more)
            forbidden = partial(first_forbidden, self.token, chain, text)
            if (token := forbidden()) is None:
                continue
            if (accident := find_accident(partial(permits_all, forbidden))) is not None:
                found = replace(found, accident=accident)
                continue
            off = DrawnDifference(
                kind=Unlikely.KEPT, tokens=(token,), low=0.0, high=0.0, actual=1.0, draws=1
            )
            return replace(found, result=Result.WRONG, difference=off)
        return found

    def judge_bad_grammars(self) -> ServedPart:
        """Ask for draws with invalid grammars, which every server must refuse."""
        taken = [
            mistake
            for mistake, text in BAD_GRAMMARS.items()
            if isinstance(self.draw([grammar_stage(text), DRAW]), DrawAnswer)
        ]
        result = Result.WRONG if taken else Result.RIGHT
        return ServedPart(part=BAD, result=result, why=", ".join(taken), draws=len(BAD_GRAMMARS))

    def judge_later_tokens(self, right: Collection[str]) -> ServedPart:
        """Sample short texts, which a draft must not change. `right` are the samplers of which
        nothing wrong is known."""
        chain = (*flat_chain(self.token), DRAW)
        if self.find_token is None or not {stage["sampler"] for stage in chain[:-1]} <= {*right}:
            return ServedPart(part=LATER, result=Result.UNASKED)
        unseen = np.flatnonzero(self.labels.of == UNSEEN)
        tree = TextTree(chain=chain, find_token=self.find_token, unseen=unseen)
        for n in (LATER_TEXTS, MORE_LATER_TEXTS):
            for i in range(n):
                self.progress(f"samplers of the server: {LATER}, {i} of {n} texts")
                answer = self.draw(chain, more=N_LATER)
                if isinstance(answer, DrawAnswer) and isinstance(answer.token, int):
                    tree.add((answer.token, *answer.more))
                # the interface does not show the ids of later tokens
                if i == LATER_TRIES and not tree.counts:
                    return ServedPart(part=LATER, result=Result.UNASKED)
            if not LATER_SUSPICION < tree.evidence <= -LIMIT:
                break
        draws = sum(n.total() for _, n, _ in tree.judged)
        if not draws:
            return ServedPart(part=LATER, result=Result.UNTOLD)
        off = tree.worst if tree.evidence > -LIMIT else None
        result = Result.RIGHT if off is None else Result.WRONG
        return ServedPart(part=LATER, result=result, draws=draws, chain=chain, difference=off)

    def far_off(self, drawn: Sequence[int], runs: F64) -> DrawnDifference | None:
        off = judge_draws(drawn, runs, self.labels)
        return off if off is not None and off.log_p < LIMIT else None

    def look_again(
        self,
        chain: tuple[Stage, ...],
        off: DrawnDifference | None,
        judge: Callable[[F64], DrawnDifference | None],
    ) -> "JudgedChain":
        """Look for a known mistake of llama.cpp that explains a difference; without a difference,
        do nothing."""
        accident = None
        if off is not None:
            accident = find_accident(lambda ways: judge(self.token.runs(chain, ways)) is None)
        if accident is not None:
            return JudgedChain(chain=chain, result=Result.RIGHT, accident=accident)
        result = Result.RIGHT if off is None else Result.WRONG
        return JudgedChain(chain=chain, result=result, difference=off)

    def draw_many(self, chain: Sequence[Stage], n: int) -> tuple[list[int], bool]:
        """Return the labels of n drawn tokens, and True if the interface guarantees the chain."""
        found, promised = list[int](), True
        for _ in range(n):
            answer = self.draw(chain)
            if isinstance(answer, NotSaid):
                break
            found.append(self.labels.label(answer.token))
            promised = promised and answer.promised
        return found, promised

    def is_ignored(self, chain: Sequence[Stage], drawn: Sequence[int]) -> bool:
        """Return True if the draws agree with the chain without its first stage."""
        runs: F64 = self.token.runs(chain[1:])
        if len(drawn) < MORE_DRAWS:
            drawn, _ = self.draw_many(chain, MORE_DRAWS)
        return self.far_off(drawn, runs) is None

    def judge_seeds(self) -> ServedPart:
        """Draw twice with each of some seeds. The same seed must give the same token, except near a
        boundary between tokens."""
        p = np.bincount(self.labels.of, self.token.probabilities(()))
        if (p**2).sum() > LEAST_SPREAD:
            return ServedPart(part=SEED, result=Result.UNTOLD)
        pairs = [[self.draw_by([DRAW], seed) for seed in range(1, SEEDS + 1)] for _ in range(2)]
        self.requests += 2 * SEEDS
        labels = [
            [self.labels.label(a.token) if isinstance(a, DrawAnswer) else -1 for a in answers]
            for answers in pairs
        ]
        same = sum(a == b for a, b in zip(*labels, strict=True))
        promised = all(a.promised for a in pairs[0] if isinstance(a, DrawAnswer))
        result = Result.WRONG if promised else Result.IGNORED
        result = Result.RIGHT if same >= LEAST_SAME else result
        return ServedPart(part=SEED, result=result, draws=2 * SEEDS)


def permits_all(forbidden: Callable[[Ways], int | None], ways: Ways) -> bool:
    return forbidden(ways) is None


def find_accident(holds: Callable[[Ways], bool]) -> Accident | None:
    """Return the mistake of llama.cpp that causes this answer; None if llama.cpp would answer
    differently."""
    every = frozenset(Accident)
    if not holds(replace(LLAMA_CPP, accidents=every)):
        return None
    for accident in Accident:
        if not holds(replace(LLAMA_CPP, accidents=every - {accident})):
            return accident
    return next((a for a in Accident if holds(replace(LLAMA_CPP, accidents=frozenset((a,))))), None)
