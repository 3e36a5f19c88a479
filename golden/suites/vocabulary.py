"""Vectors of vocabularies: texts to ids and back, the bytes of tokens, and llama.cpp's own
cases."""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

from lockstep.golden.fetch import own_cases
from lockstep.golden.store import BrokenGolden
from lockstep.golden.suites.base import AskedEngine, Case, Golden, Source, Vectors, Verdicts, each
from lockstep.golden.suites.parts.token_cases import token_cases
from lockstep.golden.suites.parts.token_compare import compare_tokens, text_of
from lockstep.harness.records import Verdict
from lockstep.harness.suites.tokens import with_left_out
from lockstep.harness.synth.draws import integers, stream

GLUED = 32  # texts of random pieces, so that every kind of merge occurs
LONGEST = 10  # pieces in such a text
OWN_SPECIALS = 8  # number of the vocabulary's own special tokens whose texts are cases
SPECIAL_TYPES = (2, 3, 4)  # unknown, control and user-defined in tokenizer.ggml.token_type

Ids = list[int]
# names of a case's lists of ids; every case has `plain` and `full`
WAYS = {
    "plain": {"add_special": False, "parse_special": False},
    "parsed": {"add_special": False, "parse_special": True},
    "added": {"add_special": True, "parse_special": False},
    "full": {"add_special": True, "parse_special": True},
}
USUAL = ("plain", "full")
ALL_WAYS = ("special-", "own-")  # prefixes of the names of cases with all lists
PLAIN_BACK = {"remove_special": False, "unparse_special": False}
FULL_BACK = {"remove_special": False, "unparse_special": True}


class GoldenVocabulary(Golden, name="vocabulary"):
    def make(self, source: Source, what: str) -> Vectors:
        metadata = source.ask("metadata").metadata
        texts = {**token_cases(), **own_specials(metadata), **decode_random_ids(source, metadata)}
        source.progress(f"{what}: {len(texts)} texts")
        cases = encode_cases(source.ask, texts)
        backs = source.ask("detokenize", [row["ids"]["plain"] for row in cases], **PLAIN_BACK)
        for row, back in zip(cases, backs, strict=True):
            row["back"] = None if b64(back) == row["base64"] else b64(back)
        own = own_rows(source)
        met = sorted({i for ids in ids_of(cases, own) for i in ids})
        body = {"model": source.model, "cases": cases, "pieces": pieces(source.ask, met)}
        if own:
            body["llama_cpp"] = own
        return Vectors(document={**source.head("vocabulary"), "ways": WAYS, **body})

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        document = vectors.document
        if document["ways"] != WAYS:
            yield "the ways are not those that the cases' ids are named after"
        rows = [*document["cases"], *document.get("llama_cpp", ())]
        if len({row["id"] for row in rows}) != len(rows):
            yield "two cases have the same id"
        for row in document["cases"]:
            if set(row["ids"]) != set(ways_of(row["id"])):
                yield f"{row['id']}: ids are kept under {', '.join(row['ids'])}"
            if row["text"] != text_of(unb64(row["base64"])):
                yield f"{row['id']}: text and base64 are not the same text"
        table = document["pieces"]
        if not len(table["ids"]) == len(table["full"]) == len(table["plain"]):
            yield "the lists of pieces differ in length"
        missing = {i for ids in ids_of(document["cases"], ()) for i in ids} - {*table["ids"]}
        if missing:
            yield f"token {min(missing)} has no piece"

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        document = vectors.document
        found = {key: document[key] for key in ("provenance", "model", "ways")}
        for row in document["cases"]:
            for way, ids in row["ids"].items():
                found[f"{row['id']}: {way}"] = ids
            found[f"{row['id']}: input"] = row["base64"]
            found[f"{row['id']}: back"] = row["back"]
        for row in document.get("llama_cpp", ()):
            found[row["id"]] = row["ids"]
            found[f"{row['id']}: text"] = row["sha256"]
        table = document["pieces"]
        for i, full, plain in zip(table["ids"], table["full"], table["plain"], strict=True):
            found[f"token {i}"] = [full, plain]
        return found

    def replay(self, vectors: Vectors, ask: AskedEngine, verdict: Verdicts) -> Iterator[Verdict]:
        document = vectors.document
        parts = [replay_texts, replay_ids, replay_pieces]
        parts += [replay_own] if "llama_cpp" in document else []
        yield from each(verdict, *(partial(part, document, ask, verdict) for part in parts))


def replay_texts(
    document: Mapping[str, Any], ask: AskedEngine, verdict: Verdicts
) -> Iterator[Verdict]:
    for way, flags in WAYS.items():
        every = [row for row in document["cases"] if way in row["ids"]]
        rows = list(compress(every, ask.has([unb64(row["base64"]) for row in every])))
        got = ask("tokenize", [unb64(row["base64"]) for row in rows], **flags)
        names, want = [r["id"] for r in rows], [r["ids"][way] for r in rows]
        found = compare_tokens(f"encode, {way}", names, want, [list(ids) for ids in got], verdict)
        yield with_left_out(found, len(every) - len(rows))


def replay_ids(
    document: Mapping[str, Any], ask: AskedEngine, verdict: Verdicts
) -> Iterator[Verdict]:
    rows = document["cases"]
    got = ask("detokenize", [row["ids"]["plain"] for row in rows], **PLAIN_BACK)
    want = [row["base64"] if row["back"] is None else row["back"] for row in rows]
    fit = ask.has([unb64(text) for text in want])
    names, found = [r["id"] for r in rows], [b64(t) for t in got]
    yield compare_tokens("decode", names, want, found, verdict, fit)


def replay_pieces(
    document: Mapping[str, Any], ask: AskedEngine, verdict: Verdicts
) -> Iterator[Verdict]:
    table = document["pieces"]
    names = [f"token {i}" for i in table["ids"]]
    for key, flags in (("full", FULL_BACK), ("plain", PLAIN_BACK)):
        got = ask("detokenize", [[i] for i in table["ids"]], **flags)
        fit = ask.has([bytes.fromhex(piece) for piece in table[key]])
        found = [t.hex() for t in got]
        yield compare_tokens(f"pieces, {key}", names, table[key], found, verdict, fit)


# --- texts --------------------------------------------------------------------------------------


def own_specials(metadata: Mapping[str, tuple[str, Any]]) -> dict[str, bytes]:
    """Return texts of the first and last special tokens, each alone and with other text around
    it."""
    tokens = metadata["tokenizer.ggml.tokens"][1]
    _, types = metadata.get("tokenizer.ggml.token_type", ("", ()))
    found = [token for token, kind in zip(tokens, types, strict=False) if kind in SPECIAL_TYPES]
    half = OWN_SPECIALS // 2
    texts = dict.fromkeys([*found[:half], *found[-half:]])
    forms = ("{0}", "a {0} b", "{0}{0}\n")
    return {
        f"own-{i}-{n}": form.format(token).encode("utf-8", "surrogateescape")
        for i, token in enumerate(texts)
        for n, form in enumerate(forms)
    }


def decode_random_ids(source: Source, metadata: Mapping[str, tuple[str, Any]]) -> dict[str, bytes]:
    """Return the texts that the oracle decodes from random ids."""
    n_vocab = len(metadata["tokenizer.ggml.tokens"][1])
    bits = stream(source.seed, "golden.vocabulary")
    lengths = integers(bits, GLUED, LONGEST) + 1
    runs = [[int(i) for i in integers(bits, int(n), n_vocab)] for n in lengths]
    texts = source.ask("detokenize", runs, **FULL_BACK)
    return {f"glued-{i:02d}": text for i, text in enumerate(texts)}


# --- rows ---------------------------------------------------------------------------------------


def encode_cases(ask: AskedEngine, texts: Mapping[str, bytes]) -> list[Case]:
    rows: dict[str, Case] = {
        name: {"id": name, "base64": b64(text), "text": text_of(text), "ids": {}}
        for name, text in texts.items()
    }
    for way, flags in WAYS.items():
        names = [n for n in texts if way in ways_of(n)]
        for name, ids in zip(
            names, ask("tokenize", [texts[n] for n in names], **flags), strict=True
        ):
            rows[name]["ids"][way] = list(ids)
    return list(rows.values())


def ways_of(name: str) -> tuple[str, ...]:
    return tuple(WAYS) if name.startswith(ALL_WAYS) else USUAL


def ids_of(cases: Sequence[Case], own: Sequence[Case]) -> Iterator[Ids]:
    for row in cases:
        yield from row["ids"].values()
    for row in own:
        yield row["ids"]


def pieces(ask: AskedEngine, ids: Ids) -> Case:
    """Return the bytes of each token; under `plain`, hidden tokens have no bytes."""
    alone = [[i] for i in ids]
    full, plain = (
        [t.hex() for t in ask("detokenize", alone, **f)] for f in (FULL_BACK, PLAIN_BACK)
    )
    return {"ids": ids, "full": full, "plain": plain}


def own_rows(source: Source) -> list[Case]:
    """Return llama.cpp's own cases, with a hash in place of each text, which we do not ship."""
    assert source.path is not None
    cases = own_cases(source.path)
    if not cases:
        return []
    got = source.ask("tokenize", [text for text, _ in cases], **WAYS["plain"])
    rows = []
    for i, ((text, ids), found) in enumerate(zip(cases, got, strict=True)):
        if list(found) != ids:
            raise BrokenGolden(
                f"llama.cpp's case {i} of {source.path.name} says {ids[:12]}, but the oracle "
                f"{list(found)[:12]}"
            )
        rows.append({"id": f"llama.cpp-{i:02d}", "sha256": digest(text), "ids": ids})
    backs = source.ask("detokenize", [row["ids"] for row in rows], **PLAIN_BACK)
    for row, back in zip(rows, backs, strict=True):
        row["back"] = digest(back)
    return rows


def replay_own(
    document: Mapping[str, Any], ask: AskedEngine, verdict: Verdicts
) -> Iterator[Verdict]:
    """Replay llama.cpp's own cases, whose texts lie next to the model."""
    rows = document["llama_cpp"]
    cases = [] if ask.path is None else own_cases(ask.path)
    by_hash = {digest(text): text for text, _ in cases}
    missing = [row["id"] for row in rows if row["sha256"] not in by_hash]
    if missing:
        yield verdict(
            "not-compared",
            f"the texts of {len(missing)} of llama.cpp's own cases are not next to the model: "
            "`lockstep golden fetch` gets them",
        )
        return
    names = [row["id"] for row in rows]
    got = ask("tokenize", [by_hash[row["sha256"]] for row in rows], **WAYS["plain"])
    want = [row["ids"] for row in rows]
    yield compare_tokens(
        "encode, llama.cpp's own", names, want, [list(ids) for ids in got], verdict
    )
    backs = ask("detokenize", want, **PLAIN_BACK)
    hashes = [digest(back) for back in backs]
    yield compare_tokens(
        "decode, llama.cpp's own", names, [row["back"] for row in rows], hashes, verdict
    )


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def unb64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
