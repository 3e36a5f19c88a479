"""GGUF files with one named fault each, with our verdict, its reason, and each parser's answer."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from lockstep.engine.gguf.fields import KINDS
from lockstep.golden.suites.base import AskedEngine, Case, Golden, Source, Vectors, Verdicts
from lockstep.harness.adapters.parts.parsing import (
    ACCEPTED,
    ENDINGS,
    Parsed,
    pack_files,
    parse_answer,
)
from lockstep.harness.context.runner import Runner
from lockstep.harness.fuzzers.gguf.faults import FAULTS
from lockstep.harness.fuzzers.gguf.fuzzer import WAYS
from lockstep.harness.fuzzers.gguf.grammar import BROKEN, VALID, alone
from lockstep.harness.records import EXACT, Verdict

OTHERS = ("gguf-py", "reference")  # engines that are asked in addition to the oracle
COMPARE = (
    "a valid file is accepted, an invalid one refused, and never a crash; with an "
    "implementation-defined one a parser may do either"
)


class GoldenFiles(Golden, name="files"):
    def make(self, source: Source, what: str) -> Vectors:
        """Make the vectors of one file. For all files, use `every`, which takes a second instead of
        minutes."""
        return every(source, [what])[what]

    def inconsistencies(self, vectors: Vectors) -> Iterator[str]:
        document = vectors.document
        if len(base64.b64decode(document["base64"])) != document["bytes"]:
            yield f"the file does not have {document['bytes']} bytes"
        accepted = document["parsers"].get("reference buffer") == ACCEPTED
        if accepted and document["verdict"] == "invalid":
            yield "the file is invalid, but our own reader accepts it"
        if not accepted and document["verdict"] == "valid":
            yield "the file is valid, but our own reader refuses it"
        for parser, ending in document["parsers"].items():
            if ending not in ENDINGS:
                yield f"{parser} ends in {ending!r}, which is not an ending"

    def cases(self, vectors: Vectors) -> Mapping[str, Any]:
        document = vectors.document
        found: Case = {key: document[key] for key in ("provenance", "verdict", "why", "base64")}
        return {**found, **document["parsers"]}

    def replay(self, vectors: Vectors, ask: AskedEngine, verdict: Verdicts) -> Iterator[Verdict]:
        """Compare a parser's answers with its stored answers, or else with the right answers."""
        document = vectors.document
        raw = base64.b64decode(document["base64"])
        ways = [name for name in document["parsers"] if name.split()[0] == ask.engine]
        for name in ways or [f"{ask.engine} buffer"]:
            way = name.split()[1]
            got = parse_answer(ask("parse", *pack_files([raw]), way), 1)
            yield self.verdict_for(document, name, got, verdict)

    def verdict_for(
        self, document: Mapping[str, Any], name: str, got: Parsed, verdict: Verdicts
    ) -> Verdict:
        fault, ending = document["fault"], got.ending(0)
        expected = document["parsers"].get(name)
        right = document["verdict"]
        if expected is not None:
            fits = ending == expected
        else:
            expected = {"valid": ACCEPTED, "invalid": "a refusal"}.get(right, "no crash")
            refused = ending in KINDS or ending in ("memory", "other")
            fits = refused if right == "invalid" else ending == ACCEPTED
            fits |= right == "implementation-defined" and refused
        detail = {"fault": fault, "ending": ending, "expected": expected, "why": document["why"]}
        if fits:
            return verdict("agreed", f"{name}: {ending}", detail)
        text = f"{name}: {ending}, expected {expected}: {document['why']}"
        return verdict("diverged", text, detail, key=f"{name}/{fault}")


def names() -> list[str]:
    return [fault.name for fault in (*VALID, *BROKEN)]


def every(source: Source, faults: Sequence[str]) -> dict[str, Vectors]:
    """Return the vectors of these files, by name."""
    files = [alone(name) for name in faults]
    said = {f"{source.ask.engine} {way}": source.ask("parse", *pack_files(files), way)
            for way in WAYS[source.ask.engine]}  # fmt: skip
    for engine in OTHERS:
        with Runner().open(engine, None, EXACT) as session:
            ask = AskedEngine(engine=engine, session=session)
            said |= {
                f"{engine} {way}": ask("parse", *pack_files(files), way) for way in WAYS[engine]
            }
    answers = {name: parse_answer(answer, len(files)) for name, answer in said.items()}
    return {
        name: Vectors(document=document_of(source, name, files[i], answers, i))
        for i, name in enumerate(faults)
    }


def document_of(
    source: Source, name: str, raw: bytes, answers: Mapping[str, Parsed], i: int
) -> Case:
    fault = FAULTS[name]
    return {
        **source.head("files"),
        "fault": name,
        "verdict": fault.verdict,
        "why": fault.why,
        "compare": COMPARE,
        "bytes": len(raw),
        "base64": base64.b64encode(raw).decode(),
        "parsers": {parser: answer.ending(i) for parser, answer in answers.items()},
        "versions": {"gguf-py": version("gguf")},
    }
