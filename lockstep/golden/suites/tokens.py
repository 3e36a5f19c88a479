"""Token lists: texts to ids under each pair of flags, ids back to bytes, and every single piece."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import compress
from typing import Any

from lockstep.golden.suites.base import AskedEngine, Case, Golden, Source, Vectors, Verdicts, each
from lockstep.harness.records import Verdict
from lockstep.harness.suites.tokens import TEXTS, with_left_out
from lockstep.harness.synth.generator import integers, stream

GLUED = 32  # texts glued from random pieces, so that every kind of merge is met
LONGEST = 12  # pieces of such a text
FLAGS = ((False, False), (False, True), (True, False), (True, True))


class GoldenTokens(Golden, name="tokens"):
    def make(self, source: Source, what: str) -> Vectors:
        n_vocab = vocabulary_size(source)
        texts = [*TEXTS, *decode_random_ids(source, n_vocab)]
        source.progress(f"{what}: token lists of {len(texts)} texts")
        encode = [row for flags in FLAGS for row in encode_cases(source.ask, texts, flags)]
        lists = [row["ids"] for row in encode if row["add_special"] and not row["parse_special"]]
        ends = [[], [1], [2], [1, 2], [1, 1], [2, 2]]
        runs = lists + [run for run in ends if max(run, default=0) < n_vocab]
        decode = [row for flags in FLAGS for row in decode_cases(source.ask, runs, flags)]
        pieces = [
            {
                "id": f"pieces{flag_suffix(flags)}",
                **decoding(flags),
                "hex": hexes(source.ask, each, flags),
            }
            for each in ([[token] for token in range(n_vocab)],)
            for flags in FLAGS
        ]
        body = {"model": source.model, "encode": encode, "decode": decode, "pieces": pieces}
        return Vectors(document={**source.head("tokens"), **body})

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        document = vectors.document
        for row in document["encode"]:
            if row["text"] != shown(bytes.fromhex(row["hex"])):
                yield f"{row['id']}: text and hex are not the same text"
        ids = [row["id"] for part in ("encode", "decode", "pieces") for row in document[part]]
        if len(set(ids)) != len(ids):
            yield "two cases have the same id"

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        document = vectors.document
        found = {key: document[key] for key in ("provenance", "model")}
        for part, value in (("encode", "ids"), ("decode", "hex"), ("pieces", "hex")):
            for row in document[part]:
                given = {k: v for k, v in row.items() if k not in ("id", "text", value)}
                found[row["id"]] = row[value]
                found[f"{row['id']}: input"] = given
        return found

    def replay(self, vectors: Vectors, ask: AskedEngine, verdict: Verdicts) -> Iterator[Verdict]:
        ways = (replay_texts, replay_ids)
        yield from each(verdict, *(partial(way, vectors.document, ask, verdict) for way in ways))


def replay_texts(
    document: Mapping[str, Any], ask: AskedEngine, verdict: Verdicts
) -> Iterator[Verdict]:
    for flags in FLAGS:
        on = encoding(flags)
        every = matching(document["encode"], on)
        rows = list(compress(every, ask.has([bytes.fromhex(row["hex"]) for row in every])))
        got = ask("tokenize", [bytes.fromhex(row["hex"]) for row in rows], **on)
        want = [row["ids"] for row in rows]
        found = compare_rows("encode", flags, rows, want, [list(run) for run in got], verdict)
        yield with_left_out(found, len(every) - len(rows))


def replay_ids(
    document: Mapping[str, Any], ask: AskedEngine, verdict: Verdicts
) -> Iterator[Verdict]:
    for flags in FLAGS:
        on = decoding(flags)
        rows = matching(document["decode"], on)
        got = ask("detokenize", [row["ids"] for row in rows], **on)
        want = [row["hex"] for row in rows]
        found = [text.hex() for text in got]
        yield judged_texts("decode", flags, rows, want, found, verdict, ask)
        (pieces,) = matching(document["pieces"], on)
        tokens = range(len(pieces["hex"]))
        got = ask("detokenize", [[token] for token in tokens], **on)
        named_rows = [{"id": f"token {token}"} for token in tokens]
        found = [text.hex() for text in got]
        texts = pieces["hex"]
        yield judged_texts("pieces", flags, named_rows, texts, found, verdict, ask)


def judged_texts(
    way: str,
    flags: tuple[bool, bool],
    rows: list[Case],
    want: list[str],
    got: list[str],
    verdict: Verdicts,
    ask: AskedEngine,
) -> Verdict:
    """Without texts that the engine's language does not have."""
    fit = ask.has([bytes.fromhex(text) for text in want])
    if len(got) == len(want):
        rows = list(compress(rows, fit))
        want, got = (list(compress(each, fit)) for each in (want, got))
    return with_left_out(compare_rows(way, flags, rows, want, got, verdict), fit.count(False))


def vocabulary_size(source: Source) -> int:
    """As the oracle reads the file: the vocabulary, not the logits, decides."""
    summary = source.ask("metadata")
    return len(summary.metadata["tokenizer.ggml.tokens"][1])


def decode_random_ids(source: Source, n_vocab: int) -> list[bytes]:
    """What random ids decode to, under the oracle."""
    bits = stream(source.seed, "golden.tokens")
    lengths = integers(bits, GLUED, LONGEST) + 1
    runs = [[int(i) for i in integers(bits, int(n), n_vocab)] for n in lengths]
    texts: list[bytes] = source.ask("detokenize", runs, remove_special=False, unparse_special=True)
    return texts


def encoding(flags: tuple[bool, bool]) -> dict[str, bool]:
    return dict(zip(("add_special", "parse_special"), flags, strict=True))


def decoding(flags: tuple[bool, bool]) -> dict[str, bool]:
    return dict(zip(("remove_special", "unparse_special"), flags, strict=True))


def flag_suffix(flags: tuple[bool, bool]) -> str:
    """`-00` to `-11`: the two flags in the order of the document's keys."""
    return f"-{int(flags[0])}{int(flags[1])}"


def encode_cases(ask: AskedEngine, texts: list[bytes], flags: tuple[bool, bool]) -> list[Case]:
    found = ask("tokenize", texts, **encoding(flags))
    return [
        {
            "id": f"encode-{i:03d}{flag_suffix(flags)}",
            "hex": text.hex(),
            "text": shown(text),
            **encoding(flags),
            "ids": list(ids),
        }
        for i, (text, ids) in enumerate(zip(texts, found, strict=True))
    ]


def decode_cases(ask: AskedEngine, runs: list[list[int]], flags: tuple[bool, bool]) -> list[Case]:
    return [
        {"id": f"decode-{i:03d}{flag_suffix(flags)}", "ids": run, **decoding(flags), "hex": text}
        for i, (run, text) in enumerate(zip(runs, hexes(ask, runs, flags), strict=True))
    ]


def hexes(ask: AskedEngine, runs: list[list[int]], flags: tuple[bool, bool]) -> list[str]:
    return [text.hex() for text in ask("detokenize", runs, **decoding(flags))]


def shown(text: bytes) -> str | None:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


def matching(rows: list[Case], flags: Mapping[str, bool]) -> list[Case]:
    return [row for row in rows if all(row[name] == value for name, value in flags.items())]


def compare_rows(
    way: str,
    flags: tuple[bool, bool],
    rows: list[Case],
    want: list[Any],
    got: list[Any],
    verdict: Verdicts,
) -> Verdict:
    names = encoding(flags) if way == "encode" else decoding(flags)
    on = " ".join(name for name, value in names.items() if value) or "no flags"
    if len(got) != len(want):
        text = f"{way} ({on}): {len(got)} answers to {len(want)} questions"
        return verdict("diverged", text, key=f"{way}/count")
    wrong = [row for row in zip(rows, want, got, strict=True) if row[1] != row[2]]
    if not wrong:
        return verdict("agreed", f"{way} ({on}): {len(rows)} cases are the same")
    row, expected, actual = min(wrong, key=lambda each: len(each[1]))
    text = (
        f"{way} ({on}): {len(wrong)} of {len(rows)} cases differ; {row['id']} gives "
        f"{str(actual)[:80]}, expected {str(expected)[:80]}"
    )
    detail = {"id": row["id"], "expected": expected, "actual": actual, "mismatched": len(wrong)}
    return verdict("diverged", text, detail, key=f"{way}/{on}")
