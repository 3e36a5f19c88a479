"""Vectors of token lists: texts to ids with each pair of flags, ids to bytes, and every piece."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import compress
from typing import Any

from lockstep.golden.suites.base import AskedEngine, Case, Golden, Source, Vectors, Verdicts, each
from lockstep.golden.suites.parts.token_compare import compare_tokens, text_of
from lockstep.harness.records import Verdict
from lockstep.harness.suites.tokens import TEXTS, with_left_out
from lockstep.harness.synth.generator import integers, stream

GLUED = 32  # texts of random pieces, so that every kind of merge occurs
LONGEST = 12  # pieces in such a text
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
            if row["text"] != text_of(bytes.fromhex(row["hex"])):
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
        names, want = [row["id"] for row in rows], [row["ids"] for row in rows]
        found = compare_tokens(
            name_way("encode", on), names, want, [list(run) for run in got], verdict
        )
        yield with_left_out(found, len(every) - len(rows))


def replay_ids(
    document: Mapping[str, Any], ask: AskedEngine, verdict: Verdicts
) -> Iterator[Verdict]:
    for flags in FLAGS:
        on = decoding(flags)
        rows = matching(document["decode"], on)
        (pieces,) = matching(document["pieces"], on)
        every = range(len(pieces["hex"]))
        questions = (
            ("decode", [row["id"] for row in rows], [row["ids"] for row in rows], None),
            ("pieces", [f"token {token}" for token in every], [[t] for t in every], pieces["hex"]),
        )
        for way, names, runs, texts in questions:
            want = [row["hex"] for row in rows] if texts is None else texts
            fit = ask.has([bytes.fromhex(text) for text in want])
            got = hexes(ask, runs, flags)
            yield compare_tokens(name_way(way, on), names, want, got, verdict, fit)


def name_way(way: str, flags: Mapping[str, bool]) -> str:
    return f"{way} ({' '.join(name for name, value in flags.items() if value) or 'no flags'})"


def vocabulary_size(source: Source) -> int:
    """Return the vocabulary size that the oracle reads from the file, not the number of logits."""
    summary = source.ask("metadata")
    return len(summary.metadata["tokenizer.ggml.tokens"][1])


def decode_random_ids(source: Source, n_vocab: int) -> list[bytes]:
    """Return the texts that the oracle decodes from random ids."""
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
    """Return `-00` to `-11`: the two flags in the order of the document's keys."""
    return f"-{int(flags[0])}{int(flags[1])}"


def encode_cases(ask: AskedEngine, texts: list[bytes], flags: tuple[bool, bool]) -> list[Case]:
    found = ask("tokenize", texts, **encoding(flags))
    return [
        {
            "id": f"encode-{i:03d}{flag_suffix(flags)}",
            "hex": text.hex(),
            "text": text_of(text),
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


def matching(rows: list[Case], flags: Mapping[str, bool]) -> list[Case]:
    return [row for row in rows if all(row[name] == value for name, value in flags.items())]
