"""Do both engines turn text into the same ids, and ids into the same bytes?"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from harness.records import Verdict
from harness.suites.base import Context, Suite

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
    # nothing beyond U+10FFFF here: llama.cpp's byte-level tokenizers end the process on it
    b"\xc0\xaf overlong",
    b"Once upon a time, there was a little girl named Lily. She loved to play outside.",
)


class Tokens(Suite, name="tokens"):
    order = 20
    needs_vocabulary = True

    def run(self, context: Context) -> Iterator[Verdict]:
        for add, parse in itertools.product((True, False), repeat=2):
            flags = {"add_special": add, "parse_special": parse}
            yield self.encoded(context, flags)
        oracle_ids = context.ask(context.oracle, "tokenize", TEXTS)
        n_vocab = context.reading.graph.hparams.n_vocab
        rows = [*oracle_ids, *([i] for i in range(min(n_vocab, 2000)))]
        for remove, unparse in itertools.product((True, False), repeat=2):
            flags = {"remove_special": remove, "unparse_special": unparse}
            yield self.decoded(context, rows, flags)

    def encoded(self, context: Context, flags: dict[str, bool]) -> Verdict:
        expected = context.ask(context.oracle, "tokenize", TEXTS, **flags)
        actual = context.ask(context.subject, "tokenize", TEXTS, **flags)
        return judged(context, "encode", flags, TEXTS, expected, actual)

    def decoded(
        self, context: Context, rows: Sequence[Sequence[int]], flags: dict[str, bool]
    ) -> Verdict:
        expected = context.ask(context.oracle, "detokenize", rows, **flags)
        actual = context.ask(context.subject, "detokenize", rows, **flags)
        return judged(context, "decode", flags, rows, expected, actual)


def judged(
    context: Context,
    way: str,
    flags: dict[str, bool],
    inputs: Sequence[Any],
    expected: Sequence[Any],
    actual: Sequence[Any],
) -> Verdict:
    on = " ".join(name for name, value in flags.items() if value) or "no flags"
    wrong = [
        (len(repr(given)), repr(given), want, got)
        for given, want, got in zip(inputs, expected, actual, strict=True)
        if list(want) != list(got)
    ]
    if not wrong:
        return context.verdict("tokens", "agreed", f"{way} ({on}): {len(inputs)} inputs agree")
    _, given, want, got = min(wrong, key=lambda row: row[0])  # the shortest says it best
    return context.verdict(
        "tokens",
        "diverged",
        f"{way} ({on}): {len(wrong)} of {len(inputs)} inputs differ; {given[:80]} gives "
        f"{repr(got)[:80]}, expected {repr(want)[:80]}",
        {"way": way, "flags": flags, "input": given, "expected": repr(want), "actual": repr(got)},
        key=("tokens", way, on),
    )
