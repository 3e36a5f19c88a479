"""Comparison of tokenizers. Both engines must turn texts into the same ids, and ids into the same
bytes."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.one_by_one import UNASKED, ask_apart
from lockstep.harness.context.suite import (
    Context,
    NoAnswer,
    Suite,
    line_that_says_why,
    no_answer,
)
from lockstep.harness.judging.no_characters import is_utf8, shown_as
from lockstep.harness.records import PART, Answered, Crashed, Rejected, Verdict
from lockstep.harness.report.text import cut
from lockstep.harness.suites.parts.made_texts import (
    own_texts,
    special_rows,
    special_texts,
    special_tokens,
)
from lockstep.harness.suites.parts.originals import Original, named_among, originals_of
from lockstep.harness.suites.parts.pieces import sides
from lockstep.harness.suites.parts.token_kinds import count_kinds

Row = tuple[Any, Any, Any]
AT_MOST, LONGEST = 60, 200  # differences in one verdict; characters of an input or an answer
# A text with more bytes may take a second. It is asked only with the first two sets of flags that
# both engines answer: special tokens are parsed, and are not parsed.
LONG, LONG_TIMES = 10_000, 2
WHOLE = 4000  # characters of the shortest input that differs; one input is very long
BEYOND = b"\xf5\x80\x80\x80 too far"  # this text is asked separately: see Tokens.beyond
TEXTS: tuple[bytes, ...] = (
    b"",
    b" ",
    b"  ",
    b"   three  spaces   ",
    b"Once upon a time",
    b" Once upon a time",
    b"Hello, world!",
    b"hello\nworld\n\n",
    b"\ttab\tand\r\nreturn",
    b"don't can't we'll I'm",
    b"0123456789 3.14159 1,000,000",
    b"a" * 100,
    b"supercalifragilisticexpialidocious",
    b"for (int i = 0; i < n; ++i) { x[i] += 1; }",
    b"<s> </s> <unk> <0x41> <|endoftext|>",
    "▁▁ already escaped ▁".encode(),
    "Größe naïve façade ñandú".encode(),
    "你好，世界 こんにちは 안녕하세요".encode(),
    "שלום עולם مرحبا بالعالم".encode(),
    "e\u0301 combining a\u0308\u0323".encode(),
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽".encode(),
    "\ufeffbom \u200bzero\u00a0width \ue000private".encode(),
    b"nul \x00 inside",
    b"\xff\xfe invalid \xc3( and \xe2\x82 cut",
    b"\xc0\xaf overlong",
    b"Once upon a time, there was a little girl named Lily. She loved to play outside.",
)

# not in any golden vector: TEXTS stay as they are, together with llama.cpp's answers
MORE_TEXTS: tuple[bytes, ...] = (
    # words that other pre-tokenizers split in other places
    b"spaces . before , punctuation ; and 'lln 0063",
    b"abcdefghijklm" * 20 + b" and a text " + b"beyond 255 bytes " * 16,
    # more than 65,535 bytes. The text has nothing to merge, which would take many engines n * n
    # steps. It has few lines, because llama.cpp needs n * n steps if the end of a line is a user-
    # defined token.
    b"a\va\va\n" * 11_000,
    "line\u2028paragraph\u2029next\u0085old\vvertical\fform\x1cfile\u3000wide".encode(),
    b"if x:\n" + b" " * 16 + b"y\n" + b" " * 33 + b"z" + b"\t" * 9 + b"\n" * 9 + b"\r\n" * 3,
    b"\xed\xa0\x80 high \xed\xb0\x80 low \xed\xa0\xbd\xed\xb8\x80 pair",  # surrogates in WTF-8
    "DON'T I\u2019ll 1234567 \u0663\u0664 \uff11 \u2167 \u00bd \u0130\u01c5\ufb01\u1e9e".encode(),
    "ภาษาไทย हिन्दी \u1112\u1161\u11ab \u00ad\u200d\U0010ffff".encode(),
)


def some_tokens(n_vocab: int) -> list[int]:
    """Return the first and the last ids, which include special tokens, and some ids in between."""
    ends = {*range(min(n_vocab, 1000)), *range(max(0, n_vocab - 500), n_vocab)}
    return sorted(ends | {*range(0, n_vocab, max(1, n_vocab // 500))})


class Tokens(Suite, name="tokens"):
    order = 20

    def inapplicable(self, facts: ModelFacts) -> str:
        return "" if facts.has_vocabulary else "the file has no vocabulary"

    def run(self, context: Context) -> Iterator[Verdict]:
        known = originals_of(context.file.metadata)
        said: dict[bytes, list[int]] = {}
        both = itertools.product((True, False), repeat=2)
        flags = [{"add_special": add, "parse_special": parse} for add, parse in both]
        made, special = made_texts(context)
        every = [*TEXTS, *MORE_TEXTS, *made, *(each.text for each in known)]
        encoded = partial(encode_texts, every=every, known=known, said=said, answered=[], broken={})
        yield from ask_ways(context, "encode", flags, encoded)
        if not context.subject_info.utf8_only:
            yield from ask_ways(context, "encode", [{"add_special": True}], encode_beyond)
        texts = [*TEXTS, *MORE_TEXTS]
        if not said.keys() >= {*texts}:
            ask = partial(context.ask, context.oracle, "tokenize")
            found = ask_apart(ask, texts)
            said |= {texts[i]: ids for i, ids in found.answers.items()}
        n_vocab = context.facts.n_vocab
        rows = [said[text] for text in (*texts, *made) if text in said]
        alone = [[token] for token in some_tokens(n_vocab)]
        rows += alone + [row for row in special if row not in alone]
        both = itertools.product((True, False), repeat=2)
        flags = [{"remove_special": remove, "unparse_special": unparse} for remove, unparse in both]
        yield from ask_ways(context, "decode", flags, partial(decode_rows, every=rows))


@dataclass(frozen=True, kw_only=True)
class Way:
    """A question with its flags: encode texts, or decode ids. Its rows are (input, the oracle's
    answer, the subject's answer)."""

    context: Context
    name: str
    flags: dict[str, bool]

    @property
    def on(self) -> str:
        return " ".join(name for name, value in self.flags.items() if value) or "no flags"

    def __str__(self) -> str:
        return f"{self.name} ({self.on})"

    def key(self, *more: str) -> tuple[str, ...]:
        return ("tokens", self.name, *more)

    def ask(self, question: str, items: Sequence[Any]) -> tuple[list[Row], Mapping[int, NoAnswer]]:
        """Return the rows in order, and the reasons why other items have no answer."""

        def both(some: Sequence[Any]) -> list[tuple[Any, Any]]:
            answers = self.context.ask_both(question, some, **self.flags)
            return list(zip(*answers, strict=True))

        found = ask_apart(both, items)
        return [(items[i], *found.answers[i]) for i in sorted(found.answers)], found.failures

    def not_answered(
        self, items: Sequence[Any], failures: Mapping[int, NoAnswer]
    ) -> Iterator[Verdict]:
        """Yield a verdict for each item that broke the question, and one verdict for all items that
        were then not asked."""
        unasked = [number for number, error in failures.items() if error.detail.get(UNASKED)]
        for number in [number for number in failures if number not in unasked] + unasked[:1]:
            given, error = items[number], failures[number]
            more = f" and {len(unasked) - 1} more" if number in unasked[:1] else ""
            text = (
                f"{self}: {error.summary}: input {number + 1} of {len(items)}, "
                f"{cut(repr(given), 80)}, length {len(given)}{more}; all others were compared"
            )
            detail = {**error.detail, "way": self.name, "flags": self.flags}
            detail["input"] = repr(given)[:WHOLE]
            key = self.key(error.status)
            yield self.context.verdict("tokens", error.status, text, detail, key)

    def read_strictly(self, rows: Sequence[Row]) -> list[bytes]:
        """Return the texts for which the subject reads U+FFFD in place of invalid bytes, as
        llama.cpp itself does under some vocabularies (BPE without byte tokens). llama.cpp accepts
        overlong forms and surrogates, which Unicode forbids. Other engines need not accept them."""
        forms = {row[0]: sorted(shown_as(row[0])) for row in rows if differs(row)}
        forms = {text: shown for text, shown in forms.items() if not is_utf8(text)}
        if not forms:
            return []
        asked = [b"\xff", "\ufffd".encode(), *itertools.chain.from_iterable(forms.values())]
        kept, replaced, *said = self.context.ask(
            self.context.oracle, "tokenize", asked, **self.flags
        )
        if list(kept) != list(replaced):
            return []
        answers = iter(said)
        same = {text: [list(next(answers)) for _ in shown] for text, shown in forms.items()}
        return [text for text, _, got in rows if list(got) in same.get(text, [])]

    def compare(self, rows: Sequence[Row], known: Sequence[Original] = ()) -> Verdict:
        detail: dict[str, Any] = {PART: str(self)}
        wrong = [row for row in rows if differs(row)]
        if not wrong:
            summary = f"{self}: {len(rows)} inputs agree"
            if known:
                summary += (
                    f"; {len(known)} of them are known: llama.cpp differs from the "
                    "original tokenizer"
                )
                detail["differs_from_the_original"] = [each.row() for each in known]
            return self.context.verdict("tokens", "agreed", summary, detail)
        why = named_among(self.context, wrong)
        wrong.sort(key=lambda row: len(repr(row[0])))  # the shortest difference is the clearest
        texts = [[cut(repr(part), LONGEST) for part in row] for row in wrong[:AT_MOST]]
        given, want, got = map(repr, wrong[0])
        detail |= {"way": self.name, "flags": self.flags, "total": len(wrong)}
        detail |= {"input": given[:WHOLE], "expected": want[:WHOLE], "actual": got[:WHOLE]}
        if self.name.startswith("encode"):
            detail["sides"] = sides(self.context, *wrong[0][1:])
        detail["differences"] = [{"text": f"{a} gives {c}, expected {b}"} for a, b, c in texts]
        detail["kinds"] = count_kinds(self.context, wrong)
        text = (
            f"{self}: {len(wrong)} of {len(rows)} inputs differ; {cut(given, 80)} "
            f"gives {cut(got, 80)}, expected {cut(want, 80)}{why}"
        )
        return self.context.verdict("tokens", "diverged", text, detail, key=self.key(self.on))


def differs(row: Row) -> bool:
    return list(row[1]) != list(row[2])


def encode_texts(
    way: Way,
    every: Sequence[bytes],
    known: Sequence[Original],
    said: dict[bytes, list[int]],
    answered: list[dict[str, bool]],
    broken: dict[bytes, NoAnswer],
) -> Iterator[Verdict]:
    """Yield verdicts on texts, including those for which llama.cpp is known to differ from the
    original tokenizer. said: a dict that receives the oracle's ids if all flags are set, because
    asking again may take a second; answered: a list that receives the flags that were answered;
    broken: a dict that receives the texts without an answer, which are not asked again."""
    if len(answered) >= LONG_TIMES:
        every = [text for text in every if len(text) <= LONG]
    texts = [text for text in every if may_be_asked(way.context, text) and text not in broken]
    rows, failures = way.ask("tokenize", texts)
    yield from way.not_answered(texts, failures)
    broken |= {texts[i]: error for i, error in failures.items()}
    asked = {text for text, *_ in rows}
    known = [each for each in known if each.text in asked]
    answered.append(way.flags)
    if all(way.flags.values()):
        said |= {text: ids for text, ids, _ in rows}
    strict = way.read_strictly(rows)
    verdict = way.compare([row for row in rows if row[0] not in strict], known)
    n_broken = sum(text in broken for text in every)
    verdict = with_left_out(verdict, len(every) - len(rows) - n_broken)
    yield with_read_strictly(verdict, strict)


def encode_beyond(way: Way) -> Iterator[Verdict]:
    """Yield the verdict on a text that ends llama.cpp's process with most kinds of vocabulary."""
    context = way.context
    outcome = context.oracle.ask("tokenize", [BEYOND], **way.flags)
    if isinstance(outcome, Answered):
        actual = context.ask(context.subject, "tokenize", [BEYOND], **way.flags)
        # a known difference of "encode" must not excuse this one
        beyond = replace(way, name="encode_beyond_unicode")
        yield beyond.compare([(BEYOND, outcome.value[0], actual[0])])
        return
    error = no_answer(context.oracle.name, "tokenize", outcome)
    if not isinstance(outcome, Crashed | Rejected):
        raise error
    reply = context.subject.ask("tokenize", [BEYOND], **way.flags)
    if not isinstance(reply, Answered | Rejected | Crashed):
        raise no_answer(context.subject.name, "tokenize", reply)
    words = reply.message if isinstance(reply, Rejected | Crashed) else "answers"
    text = f"a code point beyond U+10FFFF: {error.summary.splitlines()[0]} (a known fault); "
    text += f"{context.subject.name}: {line_that_says_why(words)}"
    detail = {"input": repr(BEYOND), "oracle": error.summary, "subject": words}
    yield context.verdict("tokens", "excused", text, detail)


def decode_rows(way: Way, every: Sequence[Sequence[int]]) -> Iterator[Verdict]:
    rows, failures = way.ask("detokenize", every)
    yield from way.not_answered(every, failures)
    fit = [row for row in rows if may_be_asked(way.context, row[1])]
    yield with_left_out(way.compare(fit), len(rows) - len(fit))


def ask_ways(
    context: Context,
    name: str,
    flags: Sequence[dict[str, bool]],
    question: Callable[[Way], Iterator[Verdict]],
) -> Iterator[Verdict]:
    """Ask with each set of flags, and yield the verdicts. If an engine lacks some flags, only their
    answers are missing. An engine that lacks all of them does not offer the question."""
    found: list[Verdict] = []
    missing: list[NoAnswer] = []
    for each in flags:
        way = Way(context=context, name=name, flags=each)
        try:
            found.extend(question(way))
        except NoAnswer as error:
            if error.status != "not-compared":
                yield from found
                raise
            missing.append(error)
            text = f"{way}: {error.summary}"
            found.append(context.verdict("tokens", error.status, text, error.detail))
    if len(missing) == len(flags) > 1:
        raise missing[0]
    yield from found


def made_texts(context: Context) -> tuple[list[bytes], list[list[int]]]:
    """Return texts of the vocabulary's own tokens, and lists of its special ids. Both are empty if
    our reader cannot read the vocabulary."""
    try:
        tokenizer, seed = context.tokenizer, context.seed
        texts = [*own_texts(tokenizer, seed), *special_texts(tokenizer, seed)]
        alone = [[token] for token in special_tokens(tokenizer)]
        return texts, [*alone, *special_rows(tokenizer)]
    except EngineError:
        return [], []


def may_be_asked(context: Context, text: bytes) -> bool:
    """Return True if the engine may be asked for the text. In many languages a text must be
    UTF-8."""
    return not context.subject_info.utf8_only or is_utf8(text)


def with_read_strictly(verdict: Verdict, texts: Sequence[bytes]) -> Verdict:
    if not texts:
        return verdict
    text = (
        f"{verdict.summary}; the engine reads invalid UTF-8 as U+FFFD in {len(texts)} of "
        "them, as Unicode recommends, and llama.cpp decodes overlong forms and surrogates"
    )
    detail = {**verdict.detail, "read_with_replacements": [repr(text) for text in texts]}
    status = "excused" if verdict.status == "agreed" else verdict.status
    return replace(verdict, status=status, summary=text, detail=detail)


def with_left_out(verdict: Verdict, n: int) -> Verdict:
    text = f"{verdict.summary}; {n} inputs that are not UTF-8 were not compared"
    return replace(verdict, summary=text) if n else verdict
