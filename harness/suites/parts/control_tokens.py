"""Control tokens: does an engine choose a control token if it is the likeliest?

Text seldom ends within a few tokens. Some engines never choose control tokens. Others never choose
an id that they use as a marker, such as the first or the last id, whatever its type. The same
prompts test whether an engine reads other prompts: an engine that caches the first prompt may
confuse it with another prompt, or with the beginning of another prompt.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.further_runs import (
    PROMPT,
    ROWS,
    LeftOut,
    batches_behind,
    many_ids,
    n_cells,
)
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.tolerances import between_two
from lockstep.harness.records import (
    Answered,
    Evaluation,
    Rejected,
    Request,
    Status,
    Unanswerable,
    Verdict,
)
from lockstep.harness.suites.parts.oracles_logits import (
    WRONG_ORACLE,
    is_honest,
    nearly_chosen,
    other_choice,
    whole_truth,
)
from lockstep.harness.suites.parts.whole_runs import is_oracle_wrong

TYPES = "tokenizer.ggml.token_type"
UNKNOWN, CONTROL = 2, 3  # values of llama_token_type
# tokens at the beginning that are replaced; an engine that drops the beginning loses as many
TURNED = PROMPT // 2
MOST = 4  # number of tokens to ask for; each is a prompt of hundreds of tokens
OTHER_PROMPTS = "the same token after other prompts"
CONTROL_TOKENS = "the same control tokens, first and last token"
KEYS = {OTHER_PROMPTS: "other prompt", CONTROL_TOKENS: "control token"}
NOT_KNOWN = {
    OTHER_PROMPTS: "reading of other prompts was not compared: after one of them",
    CONTROL_TOKENS: "the choice of control tokens was not compared: where one is likeliest",
}
NONE = {
    OTHER_PROMPTS: "reading of other prompts and the choice of control tokens were not compared: "
    "no token is a clear choice after any of {} seeded beginnings",
    CONTROL_TOKENS: "the choice of control tokens was not compared: none is a clear choice after "
    "any of {} seeded beginnings",
}
WORDS = {OTHER_PROMPTS: "the token", CONTROL_TOKENS: "a control token"}
TOO_NEAR = "noise decides"
HONEST = "honest engines of another design choose the same"

Ids = NDArray[np.intp]


def control_token(context: Context, first: int, *, may_refuse: bool = False) -> Iterator[Verdict]:
    """Yield verdicts on a few prompts after which a control token is by far the oracle's likeliest
    token, and on other prompts. first: the length of the prompt that was asked first; may_refuse:
    True if the subject may refuse any of these prompts."""
    controls = ids_of_control(context)
    ends = lengths_asked(context, first)
    if context.facts.decoder_start is not None or not ends:
        return
    every = many_ids(context, ends[-1])
    whole = batches_behind(context, every, ends)
    run: Evaluation = context.ask(context.oracle, "evaluate", Request(batches=whole))
    logits = np.concatenate(run.logits)
    turned = batches_behind(context, [*every[:TURNED][::-1], *every[TURNED:]], ends)
    run = context.ask(context.oracle, "evaluate", Request(batches=turned))
    telling = np.concatenate(run.logits).argmax(axis=1) != logits.argmax(axis=1)
    allowed = between_two(context.noise.relative, logits)
    likeliest = np.union1d(controls, [0, logits.shape[1] - 1])
    asked = {
        OTHER_PROMPTS: other_prompts(clear_places(logits, allowed), telling, ends, first),
        CONTROL_TOKENS: firsts_of(logits, likeliest, allowed)[:MOST],
    }
    none = [text.format(len(ends)) for what, text in NONE.items() if not asked[what]][:1]
    same: dict[str, list[str]] = {}
    unclear, left = "", dict[Status, Verdict]()
    for what, at in ((what, at) for what, places in asked.items() for at in places):
        wanted, ids = int(logits[at].argmax()), every[: ends[at]]
        outcome = context.subject.ask("greedy", ids, 1)
        if isinstance(outcome, Unanswerable | Rejected) and (may_refuse or len(ids) > first):
            one = LeftOut.of(f"{WORDS[what]} after {len(ids)} seeded tokens", outcome)
            if not may_refuse and shows_logits_behind(context, ids):
                why = f"{one.why}, though the engine shows logits after these tokens"
                one = LeftOut(status="not-compared", why=why)
            left.setdefault(one.status, one.verdict(context, "decode"))
            continue
        (said,) = context.answer(context.subject, "greedy", outcome)
        if said == wanted:
            same.setdefault(what, []).append(f"{wanted} after {len(ids)}")
            continue
        if is_oracle_wrong(context, whole, logits, whole_truth(context, whole)):
            yield context.verdict("decode", "not-compared", WRONG_ORACLE)
            return
        batches, rows = batches_behind(context, ids, ends[: at + 1]), logits[: at + 1]
        found = another(context, batches, rows, said, what, is_control=wanted in controls)
        if found.status == "diverged":
            yield found
            return
        unclear = found.summary
    parts = [f"{what}: {', '.join(tokens)} seeded tokens" for what, tokens in same.items()]
    chosen = {int(logits[at].argmax()) for at in asked[CONTROL_TOKENS]}
    if chosen and (unseen := sorted({0, logits.shape[1] - 1} - chosen)):
        parts.append(
            f"{' and '.join(map(str, unseen))} not asked, because they are nowhere a clear choice"
        )
    parts += [*none, unclear] if unclear else none
    if parts:
        status: Status = "agreed" if same else "not-applicable"
        yield context.verdict("decode", status, "; ".join(parts))
    yield from left.values()


def shows_logits_behind(context: Context, ids: list[int]) -> bool:
    """Return True if the engine shows logits after these ids, which proves that its context has
    room for them."""
    request = Request(batches=(Batch.for_next(ids),))
    return isinstance(context.subject.ask("evaluate", request), Answered)


def lengths_asked(context: Context, first: int) -> list[int]:
    """Return the lengths of the prefixes whose next tokens are searched. For a large vocabulary,
    return only as many lengths as fit in memory: some from `first` on, some from PROMPT on, and
    then the shortest."""
    n, room = n_cells(context) - 1, ROWS // max(1, context.facts.n_vocab)
    if n <= room:
        return [*range(1, n + 1)]
    each = (room + 2) // 3
    wanted = [*range(first, first + each), *range(PROMPT, PROMPT + each), *range(1, n + 1)]
    return sorted(list(dict.fromkeys(end for end in wanted if end <= n))[:room])


def another(
    context: Context,
    batches: Sequence[Batch],
    logits: F32,
    said: int,
    asked: str,
    *,
    is_control: bool,
) -> Verdict:
    """Return the verdict on a token that the engine chose instead of the likeliest. batches: the
    batches up to the end of the prompt, with one output for each row of `logits`; asked: the reason
    for the prompt."""
    row, n = logits[-1], len(batches[-1])
    what = "control token" if is_control else "token"
    # this run has its own noise, because two experts may be nearly equally likely here
    allowed = between_two(context.noise_on(batches), row)
    text, detail = other_choice(row, said, allowed, f"{what} ")
    if not detail["margin"] > allowed:
        return context.verdict("decode", "not-applicable", f"{NOT_KNOWN[asked]}, {TOO_NEAR}")
    if is_honest(context, batches, partial(nearly_chosen, [said], first=-1)):
        return context.verdict("decode", "not-applicable", f"{NOT_KNOWN[asked]}, {HONEST}")
    text = f"after the first {n} seeded tokens {text}"
    detail["asked"] = f"{what} {detail['expected']} after {n} seeded tokens"
    return context.verdict("decode", "diverged", text, detail, key=("decode", KEYS[asked]))


def ids_of_control(context: Context) -> Ids:
    if TYPES not in context.file.metadata:
        return np.zeros(0, np.intp)
    types = np.asarray(context.file.metadata[TYPES].data)
    return np.flatnonzero((types == UNKNOWN) | (types == CONTROL))


def firsts_of(logits: F32, wanted: Ids, allowed: float) -> list[int]:
    """Return for each wanted token the first row in which it is the largest by more than
    `allowed`."""
    best = logits.argmax(axis=1)
    clear = clear_places(logits, allowed)
    clear = clear[np.isin(best[clear], wanted)]
    return sorted(int(clear[at]) for at in np.unique(best[clear], return_index=True)[1])


def other_prompts(
    clear: Ids, telling: NDArray[np.bool_], ends: Sequence[int], first: int
) -> list[int]:
    """Return the places of other prompts to ask. One prompt is at least as long as the first, to
    find a cache that is looked up by length. The second prompt has more tokens than a tile or a
    small ubatch, and if possible its next token depends on its beginning. If no clear place is long
    enough, the last clear place is used. ends: as in `lengths_asked`."""
    if not len(clear):
        return []
    long = [at for at in clear.tolist() if ends[at] >= PROMPT]
    short = [at for at in clear.tolist() if ends[at] >= first]
    long = [at for at in long if telling[at]] or long
    return sorted({some[0] if some else int(clear[-1]) for some in (short, long)})


def clear_places(logits: F32, allowed: float) -> Ids:
    """Return the places at which one token is likelier than any other by more than `allowed`."""
    if not np.isfinite(logits).all() or logits.shape[1] < 2:
        return np.zeros(0, np.intp)
    first, second = np.partition(logits, (-2, -1), axis=1)[:, :-3:-1].T
    return np.flatnonzero(first - second > allowed)
