"""Questions that distinguish mistakes, among those that an engine can answer."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from time import perf_counter
from typing import Any

import numpy as np

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.batch import Batch
from lockstep.engine.gguf.types import type_by_name
from lockstep.harness.context.further_runs import further_runs, is_small, many_ids, n_cells
from lockstep.harness.context.relations import ways
from lockstep.harness.context.suite import Context, NoAnswer, line_that_says_why
from lockstep.harness.diagnosis.pace import Estimate, Pace, tokens_of
from lockstep.harness.diagnosis.questions import (
    Continued,
    Decoded,
    Embedded,
    Greedy,
    Header,
    Ids,
    InTurn,
    Likeliest,
    MistakeQuestion,
    RunQuestion,
    Written,
)
from lockstep.harness.diagnosis.sampled import sampler_questions
from lockstep.harness.judging.candidates import read_list
from lockstep.harness.judging.no_characters import shown_as
from lockstep.harness.records import Answered, Unanswerable
from lockstep.harness.suites.decode import Decode
from lockstep.harness.suites.logprobs import LENGTHS, by_text, names
from lockstep.harness.suites.parts.prompts import LONG, OTHERS
from lockstep.harness.suites.parts.prompts_in_turn import PROMPTS, Turn, telling_prompts
from lockstep.harness.suites.parts.text_readings import Pieces
from lockstep.harness.suites.tokens import MORE_TEXTS, TEXTS, may_be_asked, some_tokens

BLOCKS = 4096  # blocks of each type of weights
LONGEST = 4000  # bytes of a text; some wrong tokenizers need a step for each pair of bytes
BEGINNINGS = 32  # prefixes after which an engine without logits is asked for one token
LONG_ONES = (33, 40, 48, 56, 64, 65, 67, 80, 96, 112, 127, 129, 160, 200, 257, 261)
SHORT = 8  # tokens after each text but the first
CELLS = 64  # cells of a run that costs no more than a text
CANDIDATES = 64  # candidates of a list; a server sends them one by one
WORDS = 5  # words by which each prefix of a long text is longer than the previous one


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedQuestion:
    """A question, and the subject's answer to it."""

    question: MistakeQuestion
    said: Any


Missing = dict[str, list[str]]  # by reason: questions without an answer


def ask_questions(
    context: Context,
    questions: Sequence[MistakeQuestion],
    missing: Missing,
    *,
    seen: Callable[[AskedQuestion], None] = lambda one: None,
    tell: Callable[[Estimate], None] = lambda estimate: None,
) -> list[AskedQuestion]:
    """Return the subject's answers in order. `missing` gets the unanswered questions, grouped by
    reason. `seen` is called with each answer."""
    found: list[AskedQuestion] = []
    pace = Pace(left=sum(map(tokens_of, questions)))
    for number, question in enumerate(questions, 1):
        turn = f"question {number} of {len(questions)}{pace}"
        context.progress(f"{turn}: asking {context.subject.name} for {question.words}")
        started = perf_counter()
        outcome = question.ask(context.subject)
        pace.add(tokens_of(question), perf_counter() - started)
        if isinstance(outcome, Answered):
            said = readable(context, question, outcome.value)
            found.append(AskedQuestion(question=question, said=said))
            seen(found[-1])
        elif not isinstance(outcome, Unanswerable):  # an engine need not offer every question
            why = line_that_says_why(getattr(outcome, "message", "no answer in time"))
            missing.setdefault(why, []).append(question.words)
        tell(Estimate(seconds=pace.seconds_left))
    return found


def readable(context: Context, question: MistakeQuestion, said: Any) -> Any:
    if not isinstance(question, Likeliest):
        return said
    return read_list(said[0], names(context, said))


def questions_for(context: Context) -> Iterator[MistakeQuestion]:
    """Yield questions, cheap ones first and long runs last."""
    levels = context.subject_info.levels

    def offers(level: str) -> bool:
        return levels is None or level in levels

    if offers("parse"):
        yield Header(utf8_only=context.subject_info.utf8_only)
    if context.facts.has_vocabulary:
        yield from of_tokens(context, ids=offers("tokenize"), texts=offers("detokenize"))
    if offers("dequantize"):
        yield from of_weights(context)
    if not (context.facts.not_ours or context.facts.no_run):
        yield from of_runs(context, offers)
    if offers("sample"):
        yield from sampler_questions()


def of_runs(context: Context, offers: Callable[[str], bool]) -> Iterator[MistakeQuestion]:
    """Yield the questions about runs. If the engine shows logits, its lists and texts would show
    nothing more."""
    # an engine that does not declare its levels gets fewer questions
    more = context.subject_info.levels is not None
    if Architecture.member(context.facts.architecture).embeds:
        if offers("embed"):
            yield from of_embeddings(context)
    elif offers("logits"):
        yield from of_logits(context, greedy=offers("greedy"))
    else:
        if more and offers("logprobs"):
            yield from of_lists(context)
        if offers("greedy"):
            yield from of_tokens_behind(context)
        if more and offers("generate") and context.facts.has_vocabulary:
            yield from of_texts(context)


def of_tokens(context: Context, *, ids: bool, texts: bool) -> Iterator[MistakeQuestion]:
    every = tuple(
        text
        for text in (*TEXTS, *MORE_TEXTS)
        if len(text) < LONGEST and may_be_asked(context, text)
    )
    forms = {b"\xff", *every}  # the texts, and their forms in engines that use UTF-8
    every += tuple(sorted(set().union(*map(shown_as, forms)) - {*every}))
    every += (b"\xff",) if may_be_asked(context, b"\xff") else ()
    rows = tuple((token,) for token in some_tokens(context.facts.n_vocab))
    several = tuple(tuple(int(t) for t in np.ravel(rows[i : i + 5])) for i in range(0, 100, 5))
    for special, parsed in product((True, False), repeat=2):
        which = ("with" if special else "without") + " special tokens"
        which += ", which are read in texts" if parsed else ""
        if ids:
            flags = (("add_special", special), ("parse_special", parsed))
            yield Ids(words=f"the ids of texts {which}", texts=every, flags=flags)
        if texts:
            flags = (("remove_special", special), ("unparse_special", parsed))
            words = f"the texts of ids {which}"
            ids_of = (*rows, *filter(None, several))
            utf8 = context.subject_info.utf8_only
            yield Written(words=words, rows=ids_of, flags=flags, utf8_only=utf8)


def of_weights(context: Context) -> Iterator[MistakeQuestion]:
    first = {tensor.type.name: tensor for tensor in [*context.file.tensors.values()][::-1]}
    for name, tensor in sorted(first.items()):
        most = BLOCKS * type_by_name(name).bytes
        raw = context.file.raw(tensor.name).reshape(-1)[:most].copy()
        yield Decoded(words=f"weights of {tensor.name} ({name})", type=name, raw=raw)


def of_embeddings(context: Context) -> Iterator[MistakeQuestion]:
    yield Embedded(words="the embeddings of a prompt", batches=context.batches)
    ids = many_ids(context, min(67, n_cells(context)))
    beside = Batch.of([*ids[:5], *ids[:3]])
    beside.seq_ids[:], beside.positions[:] = [1] * 5 + [2] * 3, [*range(5), *range(3)]
    words = "the embeddings of a longer prompt and of two at once"
    yield Embedded(words=words, batches=(Batch.of(ids), beside))


def of_logits(context: Context, *, greedy: bool) -> Iterator[MistakeQuestion]:
    """Yield the questions of `check`, and a question with other tokens in batches of the same
    sizes."""
    yield RunQuestion(
        words="the logits of a prompt and of tokens after it", batches=context.batches
    )
    if context.subject_info.partial or context.given:
        return
    both = context.facts.decoder_start is not None
    if not both:
        turned = [replace(batch, tokens=batch.tokens[::-1].copy()) for batch in context.batches]
        words = "the logits of the same prompt backwards"
        yield RunQuestion(words=words, batches=tuple(turned))
        for way in ways(context):
            if not way.capture:
                yield RunQuestion(words=f"the logits {way.words}", batches=way.batches)
    runs = sorted(further_runs(context), key=lambda run: sum(map(len, run.batches)))
    short = [run for run in runs if sum(map(len, run.batches)) <= CELLS]
    for run in short:
        yield RunQuestion(words=f"the logits {run.words}", batches=run.batches)
    if greedy:
        yield text_of(context)
        yield from prompts_in_turn(context)
    for run in runs[len(short) :]:
        yield RunQuestion(words=f"the logits {run.words}", batches=run.batches)


def text_of(context: Context) -> Greedy:
    return Greedy(
        words=f"{context.n_steps} greedy tokens",
        ids=tuple(Decode().prompt(context)),
        n=context.n_steps,
        decoder_start=context.facts.decoder_start,
    )


def prompts_in_turn(context: Context) -> Iterator[InTurn]:
    """Yield a question with several prompts, asked one after the other, because an engine may reuse
    cached data of an earlier prompt. A small model gets the prompts of `check`, whose answers
    depend on their beginnings. On a large model the search for such prompts takes too long."""
    if context.facts.decoder_start is not None:
        return
    prompts = [tuple(one.ids) for one in telling_prompts(context)] if is_small(context.file) else []
    if len(prompts) < 2:
        room = n_cells(context) - 1
        turns = [turn for turn in PROMPTS if turn.n <= room]
        ids = iter(many_ids(context, sum(turn.n for turn in turns)))
        prompts = []
        for turn in turns:
            prompts.append(seed_prompt(turn, prompts[-1] if prompts else (), ids))
    if prompts:
        words = f"the next token after {len(prompts)} prompts in turn"
        yield InTurn(words=words, prompts=(prompts[0][:1], *prompts))


def seed_prompt(turn: Turn, before: Sequence[int], ids: Iterator[int]) -> tuple[int, ...]:
    """Return a prompt that shares its beginning and its end with the previous prompt, as far as
    `turn` says."""
    if not turn.n:
        return tuple(before)
    new = tuple(islice(ids, turn.n - turn.begin - turn.end))
    return (*before[: turn.begin], *new, *before[len(before) - turn.end :])


def of_tokens_behind(context: Context) -> Iterator[MistakeQuestion]:
    """Yield questions for one token after each of many prefixes, and a question for a text. A
    single text is not enough, because a wrong engine may still write the right text."""
    if context.facts.decoder_start is None:
        for ids, n in beginnings(context):
            words = f"the token after {n} seeded tokens that begin with {ids[0]}"
            yield Greedy(words=words, ids=tuple(ids[:n]), n=1)
    yield text_of(context)
    yield from prompts_in_turn(context)


def beginnings(context: Context) -> Iterator[tuple[list[int], int]]:
    first = context.tokens[: min(context.n_tokens, BEGINNINGS)]
    second = many_ids(context, min(max(LONG_ONES), n_cells(context)))
    for ids in (first, second):
        yield from ((ids, n) for n in range(min(len(ids), BEGINNINGS), 0, -1))
    yield from ((second, n) for n in LONG_ONES if n <= len(second))


def of_lists(context: Context) -> Iterator[MistakeQuestion]:
    k = min(CANDIDATES, context.facts.n_vocab)
    if context.subject_info.text_only:
        try:
            prefixes: Sequence[Any] = by_text(context).prefixes
        except NoAnswer:
            return
    else:
        ids = tuple(context.tokens[: context.n_tokens])
        prefixes = [ids[:n] for n in (len(ids), *reversed(LENGTHS)) if n <= len(ids)]
    for prefix in prefixes:
        words = f"the likeliest tokens after {prefix!r:.60} (length {len(prefix)})"
        yield Likeliest(words=words, prefix=prefix, k=k)


def of_texts(context: Context) -> Iterator[MistakeQuestion]:
    pieces = Pieces.of(context)
    parts = LONG.split(b" ")
    some = [b" ".join(parts[:n]) for n in range(2, len(parts), WORDS)]
    room = n_cells(context) - SHORT - 2  # each token has at least one byte
    prompts = [text for text in (*OTHERS, *some) if len(text) <= room]
    for prompt, n in ((context.prompt, context.n_steps), *((text, SHORT) for text in prompts)):
        words = f"the text after {prompt[-24:]!r} ({len(prompt)} bytes)"
        yield Continued(words=words, prompt=prompt, n=n, pieces=pieces)
