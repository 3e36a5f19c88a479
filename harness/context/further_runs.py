"""Runs for cases that a prompt and single tokens do not cover. Batches have few rows, many rows, or
whole tiles of rows. Batches of several tokens come when the cache is already filled, up to its last
cell. Ids come from the whole vocabulary. Other sequences join later, and some prompts are almost
equal to the previous prompt.

Both engines run them too, and are compared with each other and with an honest run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Philox

from lockstep.engine.batch import Batch, encoded_first
from lockstep.harness.asking.facts import is_small as is_small
from lockstep.harness.asking.facts import size_of as size_of
from lockstep.harness.context.runs import Run
from lockstep.harness.context.suite import FIRST_ROW, NO_MEMORY, Context
from lockstep.harness.records import Busy, Rejected, Status, Unanswerable, Verdict

PROMPT = 67  # whole tiles of 4, 8, 16, 32 or 64 rows, and a remainder
LARGE = 259  # the same, and more rows than a byte can count
# rows and cells without a remainder; the next token then needs a tile and one cell more
WHOLE = 128
# whole tiles of 8 or 16 rows and each remainder, for which an engine often has several kernels:
# first the remainder of two kernels (4 + 1), then of three (4 + 2 + 1); PROMPT and LARGE leave
# three rows (2 + 1)
RESTS = (21, 22, 23, 20, 18, 17)
# batches of few rows, which often have other kernels than batches of many rows
FEW = (2, 3, 4, 6, 7, 8, 1)
SILENT = 6  # number of tokens of the batch without an output; later tokens see them all the same
FILLED = 5  # tokens of the first small batch on a filled cache
CELLS = 300  # at least; llama.cpp's caches grow by 256
DEPTH = 16  # length as a multiple of the prompt: a prompt of 32 tokens fills the whole cache
LONGER = (PROMPT, 261)  # lengths of prefixes in tokens
# Kernels for a single token divide the cells into parts, often of 256, and caches grow by as many.
# In the batches above, only several tokens together reach the beginning of the next part.
ON_THE_EDGE = (255, 1, 1, 1)
ROWS = 1 << 20  # logits of a batch with an output for every token
ALONE = 14  # number of single tokens of a large model
# The other tokens of a large model are decoded in small batches of these sizes. Kernels for few
# rows and for remainders may depend on the layer, for example if only some layers are on a GPU, and
# only the first layers of a large model get all sizes. No batch is larger than engines for small
# batches accept.
TOGETHER = (3, 5, 7, 16, 16)
PLACES = (  # (sequence, position) of each token of each batch
    [(0, i) for i in range(9)],
    [(0, 9), (0, 10), (0, 11), *((1, i) for i in range(5))],
    [(1, 5), (0, 12), (1, 6), (0, 13)],
    [(1, 7), (1, 8)],
    # an engine that keeps only one bit of the sequence id takes this sequence for the first
    [(2, 0), (2, 1), (0, 14), (2, 2)],
    # a single token, as in most generation; its position is not the number of all cached tokens
    [(1, 9)],
    [(2, 3)],
)
EDGES = (0, 127, 128, 255, 256, 32767, 32768, 65535, 65536)  # ids at the limits of narrow integers


def further_runs(context: Context) -> Iterator[Run]:
    both = context.facts.decoder_start is not None
    n = n_cells(context)
    if n > sum(FEW) + FILLED:
        sizes = batch_sizes(n)
        batches = encoded_first(filling(context, sizes), both)
        yield Run(
            words=f"for {n} tokens in batches of {', '.join(map(str, sizes))}", batches=batches
        )
    if not both and sum(map(len, PLACES)) <= context.settings.n_ctx:
        yield Run(words="with two sequences that come later", batches=join_sequences(context))
    if not both and n >= sum(ON_THE_EDGE):
        yield on_the_edge(context)
    if not both and context.n_tokens > 2:
        if context.facts.n_vocab > 1:
            yield from almost_the_same(context)
        # all other runs begin with several tokens, and an empty cache may have other kernels for
        # one row
        alone = Batch.of(context.batches[0].tokens[:1].tolist())
        yield Run(words="for the first token alone", batches=(alone,), known=True)


def on_the_edge(context: Context) -> Run:
    first, *alone = ON_THE_EDGE
    ids = many_ids(context, sum(ON_THE_EDGE))
    prompt = Batch.of(ids[:first])
    prompt.outputs[:-1] = False
    behind = (Batch.of(ids[at : at + 1], start=at) for at in range(first, first + len(alone)))
    words = f"for {len(alone)} tokens one by one after {first}"
    return Run(words=words, batches=(prompt, *behind), known=True)


def almost_the_same(context: Context) -> Iterator[Run]:
    """Yield the usual run with one token changed, to find wrong hits of a prompt cache. An engine
    may look up a cached run by its size, its beginning, its end or another part."""
    first, *rest = context.batches
    places = {len(first) - 1: "last", len(first) // 2: "middle", 0: "first"}
    for at, words in reversed(places.items()):
        ids = first.tokens.tolist()
        ids[at] = (ids[at] + 1) % context.facts.n_vocab
        batches = (Batch.of(ids), *rest)
        more = f"with another {words} token"
        yield Run(words=more, batches=batches, usual=True, known=True)


def ids_of_narrow_integers(context: Context) -> Run:
    """Return a run with ids at the limits of narrow integers. It is for a model whose other runs,
    made with its first layers, do not use such ids."""
    words, ids = "for ids where narrow integers end", narrow_ids(context.facts.n_vocab)
    return Run(words=words, batches=(Batch.of(ids),), usual=True, known=True)


def some_at_once(context: Context) -> Run:
    """Return a run of seeded tokens, with the batch sizes that `decode` uses for a large model. It
    is for engines that `decode` does not ask, and for locating a fault."""
    sizes = (min(context.n_tokens, ALONE), *TOGETHER)
    ids, batches, at = many_ids(context, sum(sizes)), [], 0
    for size in sizes:
        batches.append(Batch.of(ids[at : at + size], start=at))
        at += size
    words = f"for {at} tokens in batches of {', '.join(map(str, sizes))}"
    return Run(words=words, batches=tuple(batches), known=True)


def narrow_ids(n_vocab: int) -> list[int]:
    return list(dict.fromkeys([n_vocab - 1, *(token for token in EDGES if token < n_vocab)]))


def n_cells(context: Context) -> int:
    """Return the number of positions that the runs use, which every engine must have. A short
    prompt or a large model needs fewer."""
    n = min(context.settings.n_ctx, DEPTH * context.n_tokens)
    key = f"{context.facts.architecture}.context_length"
    trained = context.file.metadata.get(key)
    limits = [context.facts.n_positions, trained.data if trained else 0]
    n = min([n, *(int(limit) for limit in limits if limit)])
    return n if context.facts.is_small else min(n, CELLS)


def batch_sizes(n: int) -> list[int]:
    """Return the batch sizes, whose sum is n: whole tiles and one token, a few tokens, a prompt,
    whole tiles with each remainder, a large remainder, and small batches."""
    room = n - sum(FEW) - FILLED
    tiles = [WHOLE, 1] if room > WHOLE + PROMPT else []
    large = room - sum(tiles) >= LARGE + RESTS[0]
    prompt = LARGE if large else min(PROMPT, room - sum(tiles))
    rest = room - sum(tiles) - prompt
    some: list[int] = []
    for size in RESTS if tiles else ():
        if sum(some) + size <= rest:
            some.append(size)
    first = [*tiles, FILLED, prompt] if tiles else [prompt, FILLED]
    return [size for size in (*first, *some, rest - sum(some), *FEW) if size]


def filling(context: Context, sizes: Sequence[int]) -> tuple[Batch, ...]:
    """Return batches that fill the cache. The batch of FILLED tokens has two outputs, which are
    neither its first nor its last token. The batch of SILENT tokens has no outputs. If the
    vocabulary is large, a long batch has only one output, for its last token."""
    ids, at, batches = many_ids(context, sum(sizes)), 0, []
    silent = None
    if context.facts.architecture not in FIRST_ROW:
        silent = len(sizes) - len(FEW) + FEW.index(SILENT)
    for number, size in enumerate(sizes):
        batch = Batch.of(ids[at : at + size], start=at)
        if number == sizes.index(FILLED):
            batch.outputs[[0, 2, 4]] = False
        elif number == silent:
            batch.outputs[:] = False
        elif size > max(FEW) and size * context.facts.n_vocab > ROWS:
            batch.outputs[:-1] = False
        batches.append(batch)
        at += size
    return tuple(batches)


def many_ids(context: Context, n: int) -> list[int]:
    """Return n ids. They are the last id and the first, ids at the limits of narrow integers, then
    the other ids in a seeded order, so that all ids of a small vocabulary occur."""
    # raises NoAnswer if the size is unknown
    n_vocab = len(context.tokens) and context.facts.n_vocab
    others = np.argsort(Philox(key=[context.seed, n_vocab]).random_raw(n_vocab), kind="stable")
    ids = list(dict.fromkeys([*narrow_ids(n_vocab), *others[:n].tolist()]))
    return [ids[i % len(ids)] for i in range(n)]


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run that was not compared, and the reason. The status is "not-applicable" if the engine
    declares that it cannot answer. It is "not-compared" after a refusal without such a declaration,
    or if the engine is busy."""

    status: Status
    why: str
    n_sequences: int = 1  # number of sequences in the question

    @classmethod
    def of(cls, what: str, outcome: Unanswerable | Rejected | Busy) -> "LeftOut":
        if isinstance(outcome, Unanswerable):
            return cls(status="not-applicable", why=f"{what}: {outcome.message}")
        how = "refused" if isinstance(outcome, Rejected) else "not answered"
        return cls(status="not-compared", why=f"{what} {how}: {outcome.message}")

    def verdict(self, context: Context, suite: str) -> Verdict:
        more = {"sequences": self.n_sequences} if self.n_sequences > 1 else {}
        return context.verdict(suite, self.status, self.why, more)


def sequences_in(batches: Sequence[Batch]) -> int:
    return len(np.unique(np.concatenate([batch.seq_ids for batch in batches])))


def longer(
    context: Context, ids: Sequence[int], question: str
) -> tuple[list[int], list[int], LeftOut | None]:
    """Return longer ids for an engine that predicts single next tokens, the prefix lengths to ask
    for, and the refusal of a prefix, if the engine refused one."""
    most = n_cells(context)
    every = [*ids, *many_ids(context, most)]
    ends, left = [], None
    for n in (n for n in LONGER if len(ids) < n <= most):
        prompt = [every[:n]] if question == "logprobs" else every[:n]
        outcome = context.subject.ask(question, prompt, 1)
        if isinstance(outcome, Unanswerable | Rejected | Busy):
            left = LeftOut.of(f"beginnings of {n} tokens", outcome)
            break
        ends.append(n)
    return every[: max([len(ids), *ends])], ends, left


def batches_behind(context: Context, ids: Sequence[int], ends: Sequence[int]) -> tuple[Batch, ...]:
    """Return batches with a row of logits after each prefix. The batches are one run. If tokens
    attend to later tokens, there is one batch for each prefix."""
    if context.facts.architecture in NO_MEMORY:
        return tuple(Batch.for_next(ids[:n]) for n in ends)
    return (with_rows(ids, ends),)


def with_rows(ids: Sequence[int], ends: Sequence[int]) -> Batch:
    batch = Batch.of(ids)
    batch.outputs[:] = False
    batch.outputs[np.array(ends) - 1] = True
    return batch


def join_sequences(context: Context) -> tuple[Batch, ...]:
    """Return batches with several sequences. The second sequence begins in a batch with the first,
    takes turns with it, and continues alone; then a third sequence begins."""
    ids = many_ids(context, 64)[:31:-1]
    batches = []
    for places in PLACES:
        sequences, positions = zip(*places, strict=True)
        batch = Batch.of([ids.pop() for _ in places])
        batch.seq_ids[:], batch.positions[:] = sequences, positions
        batches.append(batch)
    batches[1].outputs[[0, 3]] = False
    return tuple(batches)
