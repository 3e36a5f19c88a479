"""Do both engines turn text into the same ids, and ids into the same bytes?"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.one_by_one import UNASKED, AnswersApart, ask_apart
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

AT_MOST, LONGEST = 60, 200  # differences in one verdict, characters of an input or an answer
# bytes; what is longer may take a second, and is asked with the first two sets of flags that both
# engines answer: special tokens are read, and are not
LONG, LONG_TIMES = 10_000, 2
WHOLE = 4000  # characters of the shortest that differs: one text is very long
BEYOND = b"\xf5\x80\x80\x80 too far"  # asked by itself: see Tokens.beyond
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

# in no vector: TEXTS are kept as they are, with llama.cpp's answers
MORE_TEXTS: tuple[bytes, ...] = (
    b"spaces . before , punctuation ; and 'lln 0063",  # words of other pre-tokenizers
    b"abcdefghijklm" * 20 + b" and a text " + b"beyond 255 bytes " * 16,
    # beyond 65,535 bytes; nothing to merge, which takes many engines n * n steps, and few lines:
    # where a line's end is a token of the user's, llama.cpp takes n * n steps for so many
    b"a\va\va\n" * 11_000,
    "line\u2028paragraph\u2029next\u0085old\vvertical\fform\x1cfile\u3000wide".encode(),
    b"if x:\n" + b" " * 16 + b"y\n" + b" " * 33 + b"z" + b"\t" * 9 + b"\n" * 9 + b"\r\n" * 3,
    b"\xed\xa0\x80 high \xed\xb0\x80 low \xed\xa0\xbd\xed\xb8\x80 pair",  # surrogates in WTF-8
    "DON'T I\u2019ll 1234567 \u0663\u0664 \uff11 \u2167 \u00bd \u0130\u01c5\ufb01\u1e9e".encode(),
    "ภาษาไทย हिन्दी \u1112\u1161\u11ab \u00ad\u200d\U0010ffff".encode(),
)


def some_tokens(n_vocab: int) -> list[int]:
    """The first and the last ones, where special tokens are, and some from all over."""
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
        encoded = partial(self.encoded, every=every, known=known, said=said, answered=[], broken={})
        yield from ask_ways(context, "encode", flags, encoded)
        if not context.subject_info.utf8_only:
            yield from ask_ways(context, "encode", [{"add_special": True}], self.beyond)
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
        yield from ask_ways(context, "decode", flags, partial(self.decoded, rows=rows))

    def encoded(
        self,
        context: Context,
        flags: dict[str, bool],
        every: Sequence[bytes],
        known: Sequence[Original],
        said: dict[bytes, list[int]],
        answered: list[dict[str, bool]],
        broken: dict[bytes, NoAnswer],
    ) -> Iterator[Verdict]:
        """Texts on which llama.cpp is known to differ from the original are asked as well.

        said: becomes what the oracle makes of them with all flags: some take it a second. answered:
        the flags that were. broken: becomes the texts without an answer, which are asked once.
        """
        if len(answered) >= LONG_TIMES:
            every = [text for text in every if len(text) <= LONG]
        texts = [text for text in every if may_be_asked(context, text) and text not in broken]
        found = ask_apart(partial(both_answers, context, "tokenize", flags), texts)
        yield from not_answered(context, "encode", flags, texts, found.failures)
        broken |= {texts[i]: error for i, error in found.failures.items()}
        texts, expected, actual = answered_items(texts, found)
        known = [each for each in known if each.text in texts]
        answered.append(flags)
        if all(flags.values()):
            said |= zip(texts, expected, strict=True)
        strict = read_strictly(context, flags, texts, expected, actual)
        kept = [i for i in range(len(texts)) if i not in strict]
        given, want, got = ([column[i] for i in kept] for column in (texts, expected, actual))
        verdict = compare_answers(context, "encode", flags, given, want, got, known)
        n_broken = sum(text in broken for text in every)
        verdict = with_left_out(verdict, len(every) - len(texts) - n_broken)
        yield with_read_strictly(verdict, [texts[i] for i in strict])

    def beyond(self, context: Context, flags: dict[str, bool]) -> Iterator[Verdict]:
        """A text that ends the process of llama.cpp under most kinds of vocabulary."""
        outcome = context.oracle.ask("tokenize", [BEYOND], **flags)
        if isinstance(outcome, Answered):
            actual = context.ask(context.subject, "tokenize", [BEYOND], **flags)
            way = "encode_beyond_unicode"  # what excuses "encode" does not excuse it
            yield compare_answers(context, way, flags, [BEYOND], outcome.value, actual)
            return
        error = no_answer(context.oracle.name, "tokenize", outcome)
        if not isinstance(outcome, Crashed | Rejected):
            raise error
        reply = context.subject.ask("tokenize", [BEYOND], **flags)
        if not isinstance(reply, Answered | Rejected | Crashed):
            raise no_answer(context.subject.name, "tokenize", reply)
        words = reply.message if isinstance(reply, Rejected | Crashed) else "answers"
        yield context.verdict(
            "tokens",
            "excused",
            f"a code point beyond U+10FFFF: {error.summary.splitlines()[0]}, as is known; "
            f"{context.subject.name}: {line_that_says_why(words)}",
            {"input": repr(BEYOND), "oracle": error.summary, "subject": words},
        )

    def decoded(
        self, context: Context, flags: dict[str, bool], rows: Sequence[Sequence[int]]
    ) -> Iterator[Verdict]:
        found = ask_apart(partial(both_answers, context, "detokenize", flags), rows)
        yield from not_answered(context, "decode", flags, rows, found.failures)
        rows, expected, actual = answered_items(rows, found)
        fit = [may_be_asked(context, text) for text in expected]
        given, want, got = (list(itertools.compress(a, fit)) for a in (rows, expected, actual))
        verdict = compare_answers(context, "decode", flags, given, want, got)
        yield with_left_out(verdict, len(rows) - len(given))


def both_answers(
    context: Context, question: str, flags: dict[str, bool], items: Sequence[Any]
) -> list[tuple[Any, Any]]:
    """Return the oracle's and the subject's answer to each item. Raises NoAnswer."""
    return list(zip(*context.ask_both(question, items, **flags), strict=True))


def answered_items(
    items: Sequence[Any], found: AnswersApart[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the items that have answers, the oracle's answers and the subject's, in order."""
    numbers = sorted(found.answers)
    pairs = [found.answers[i] for i in numbers]
    return [items[i] for i in numbers], [a for a, _ in pairs], [b for _, b in pairs]


def not_answered(
    context: Context,
    way: str,
    flags: dict[str, bool],
    items: Sequence[Any],
    failures: Mapping[int, NoAnswer],
) -> Iterator[Verdict]:
    """Yield a verdict for each item that broke the question, and one for those not asked."""
    unasked = [number for number, error in failures.items() if error.detail.get(UNASKED)]
    for number in [number for number in failures if number not in unasked] + unasked[:1]:
        given, error = items[number], failures[number]
        more = f" and {len(unasked) - 1} more" if number in unasked[:1] else ""
        text = (
            f"{way} ({name_flags(flags)}): {error.summary}: input {number + 1} of {len(items)}, "
            f"{cut(repr(given), 80)}, {len(given)} long{more}; the others were compared"
        )
        detail = {**error.detail, "way": way, "flags": flags, "input": repr(given)[:WHOLE]}
        yield context.verdict("tokens", error.status, text, detail, ("tokens", way, error.status))


def ask_ways(
    context: Context,
    way: str,
    flags: Sequence[dict[str, bool]],
    question: Callable[..., Iterator[Verdict]],
) -> Iterator[Verdict]:
    """Flags that an engine does not have cost what is asked with them alone; if it has none of
    them, it does not have the question."""
    found: list[Verdict] = []
    missing: list[NoAnswer] = []
    for each in flags:
        try:
            found.extend(question(context, flags=each))
        except NoAnswer as error:
            if error.status != "not-compared":
                yield from found
                raise
            missing.append(error)
            text = f"{way} ({name_flags(each)}): {error.summary}"
            found.append(context.verdict("tokens", error.status, text, error.detail))
    if len(missing) == len(flags) > 1:
        raise missing[0]
    yield from found


def made_texts(context: Context) -> tuple[list[bytes], list[list[int]]]:
    """Return texts of the vocabulary's own tokens, and lists of its special ids, if we read it."""
    try:
        tokenizer, seed = context.tokenizer, context.seed
        texts = [*own_texts(tokenizer, seed), *special_texts(tokenizer, seed)]
        alone = [[token] for token in special_tokens(tokenizer)]
        return texts, [*alone, *special_rows(tokenizer)]
    except EngineError:
        return [], []


def may_be_asked(context: Context, text: bytes) -> bool:
    """Many languages have no texts but those of UTF-8."""
    return not context.subject_info.utf8_only or is_utf8(text)


def read_strictly(
    context: Context,
    flags: dict[str, bool],
    texts: Sequence[bytes],
    expected: Sequence[Any],
    actual: Sequence[Any],
) -> list[int]:
    """Which texts the subject reads with U+FFFD where bytes are no characters, as llama.cpp does
    itself under some kinds of vocabulary (BPE, but not those with tokens of bytes). It decodes
    overlong forms and surrogates all the same, which Unicode forbids: nobody has to follow."""
    rows = enumerate(zip(texts, expected, actual, strict=True))
    found = [i for i, (text, a, b) in rows if list(a) != list(b) and not is_utf8(text)]
    if not found:
        return []
    forms = {i: sorted(shown_as(texts[i])) for i in found}
    asked_for = [b"\xff", "\ufffd".encode(), *itertools.chain.from_iterable(forms.values())]
    kept, replaced, *said = context.ask(context.oracle, "tokenize", asked_for, **flags)
    if list(kept) != list(replaced):
        return []
    answers = iter(said)
    same = {i: [list(next(answers)) for _ in forms[i]] for i in found}
    return [i for i in found if list(actual[i]) in same[i]]


def with_read_strictly(verdict: Verdict, texts: Sequence[bytes]) -> Verdict:
    if not texts:
        return verdict
    text = (
        f"{verdict.summary}; {len(texts)} with bytes that are no characters are read with U+FFFD "
        "there, as Unicode has it, where llama.cpp decodes overlong forms and surrogates"
    )
    detail = {**verdict.detail, "read_with_replacements": [repr(text) for text in texts]}
    status = "excused" if verdict.status == "agreed" else verdict.status
    return replace(verdict, status=status, summary=text, detail=detail)


def with_left_out(verdict: Verdict, n: int) -> Verdict:
    text = f"{verdict.summary}; {n} that are no UTF-8 were not compared"
    return replace(verdict, summary=text) if n else verdict


def name_flags(flags: dict[str, bool]) -> str:
    return " ".join(name for name, value in flags.items() if value) or "no flags"


def compare_answers(
    context: Context,
    way: str,
    flags: dict[str, bool],
    inputs: Sequence[Any],
    expected: Sequence[Any],
    actual: Sequence[Any],
    known: Sequence[Original] = (),
) -> Verdict:
    on = name_flags(flags)
    wrong = [
        (len(repr(given)), repr(given), want, got)
        for given, want, got in zip(inputs, expected, actual, strict=True)
        if list(want) != list(got)
    ]
    if not wrong:
        detail: dict[str, Any] = {PART: f"{way} ({on})"}
        summary = f"{way} ({on}): {len(inputs)} inputs agree"
        if known:
            summary += f"; {len(known)} of them: llama.cpp differs from the original"
            detail["differs_from_the_original"] = [each.row() for each in known]
        return context.verdict("tokens", "agreed", summary, detail)
    rows_asked = zip(inputs, expected, actual, strict=True)
    why = named_among(context, (row for row in rows_asked if list(row[1]) != list(row[2])))
    wrong.sort(key=lambda row: row[0])  # the shortest says it best
    rows = [[cut(text, LONGEST) for text in (row[1], repr(row[3]), repr(row[2]))] for row in wrong]
    texts = [f"{given} gives {got}, expected {want}" for given, got, want in rows]
    _, given, want, got = wrong[0]
    said: dict[str, Any] = {PART: f"{way} ({on})", "way": way, "flags": flags}
    said |= {"input": given[:WHOLE], "total": len(wrong)}
    said |= {"expected": repr(want)[:WHOLE], "actual": repr(got)[:WHOLE]}
    if way.startswith("encode"):
        said["sides"] = sides(context, want, got)
    said["differences"] = [{"text": text} for text in texts[:AT_MOST]]
    return context.verdict(
        "tokens",
        "diverged",
        f"{way} ({on}): {len(wrong)} of {len(inputs)} inputs differ; {cut(given, 80)} "
        f"gives {cut(repr(got), 80)}, expected {cut(repr(want), 80)}{why}",
        said,
        key=("tokens", way, on),
    )
