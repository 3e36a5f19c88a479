"""Engines that accept only UTF-8 texts, and engines without flags. Questions that they cannot
answer are not compared, and wrong answers are still found."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import open_plan, run_suites
from lockstep.harness.records import EngineInfo, Verdict
from tests.harness.check.test_check import plan_for
from tests.models import builtin


class OfText(Reference, name="test:of-text"):
    """A text engine that dies on bytes that are not UTF-8, and writes U+FFFD for invalid bytes."""

    def describe(self) -> EngineInfo:
        return replace(super().describe(), utf8_only=True)

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        for text in texts:
            text.decode()
        return super().tokenize(texts, add_special=add_special, parse_special=parse_special)

    def detokenize(
        self, ids: Sequence[Sequence[int]], *, remove_special: bool, unparse_special: bool
    ) -> list[bytes]:
        flags = {"remove_special": remove_special, "unparse_special": unparse_special}
        found = super().detokenize(ids, **flags)
        return [text.decode(errors="replace").encode() for text in found]


class LosesSpaces(OfText, name="test:of-text-and-wrong"):
    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        stripped = [text.lstrip(b" ") for text in texts]
        return super().tokenize(stripped, add_special=add_special, parse_special=parse_special)


class AddsNothing(Reference, name="test:adds-nothing"):
    """An engine that never adds BOS and EOS."""

    def tokenize(
        self, texts: Sequence[bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        if add_special:
            raise Unsupported("BOS is up to who calls it")
        return super().tokenize(texts, add_special=False, parse_special=parse_special)


def verdicts(name: str, tmp_path: Path) -> list[Verdict]:
    plan = plan_for(builtin("f32", tmp_path), engine=name, suites=("tokens",))
    opened = open_plan(plan, lambda _: None)
    try:
        return list(run_suites(opened.context, ("tokens",)))
    finally:
        opened.close()


def test_text_engine_is_not_asked_for_non_utf8_texts(tmp_path: Path) -> None:
    found = verdicts("test:of-text", tmp_path)
    assert {v.status for v in found} == {"agreed"}
    assert len(found) == 8
    assert all("that are not UTF-8 were not compared" in v.summary for v in found)


def test_wrong_answer_of_a_text_engine_is_found(tmp_path: Path) -> None:
    wrong = [v for v in verdicts("test:of-text-and-wrong", tmp_path) if v.status == "diverged"]
    assert len(wrong) == 4
    first = wrong[0].detail
    assert first["total"] == len(first["differences"])
    assert first["differences"][0]["text"].startswith("b' ' gives [1], expected [1, ")


def test_missing_flags_of_an_engine_affect_only_questions_with_flags(tmp_path: Path) -> None:
    found = verdicts("test:adds-nothing", tmp_path)
    lacking = [v.summary for v in found if v.status == "not-compared"]
    assert len(lacking) == 3  # one of them is about an invalid code point
    assert all(text.startswith("encode (add_special") for text in lacking)
    assert all("BOS is up to who calls it" in text for text in lacking)
    agreed = {v.summary.partition(":")[0] for v in found if v.status == "agreed"}
    assert {"encode (no flags)", "encode (parse_special)"} < agreed
    assert len([way for way in agreed if way.startswith("decode")]) == 4
