"""`fuzz tokens` without llama.cpp: our engine is compared with itself and with wrong tokenizers."""

from collections import Counter as Counted
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import BadInput
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.fuzzers.base import FuzzPlan, fuzzer_named, run_campaign
from lockstep.harness.fuzzers.tokens.shrink import order, shrink_input
from lockstep.harness.fuzzers.tokens.texts import (
    STRATEGIES,
    Counter,
    Material,
    id_list,
    material_of,
    text,
)
from lockstep.harness.mutants.tokenizers import WRONG
from lockstep.harness.records import EngineInfo, Verdict
from lockstep.harness.report.jsonl import read_report
from lockstep.harness.selftest.tokens import in_words, try_wrong_tokenizer
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from lockstep.harness.synth.llama import write_llama

KINDS = [kind for kind in BUILTIN_VOCABULARIES if kind != "none"]


class Dies(Reference):
    """A tokenizer that dies on a tilde, like an engine that ends its process."""

    name = "dies"

    def tokenize(self, texts: Any, **flags: Any) -> list[list[int]]:
        if any(b"~" in text for text in texts):
            raise RuntimeError("a tilde")
        return super().tokenize(texts, **flags)


class Forgets(Reference):
    name = "forgets"

    def tokenize(self, texts: Any, **flags: Any) -> list[list[int]]:
        return super().tokenize(texts, **flags)[:-1]


class Lossy(Reference):
    """An engine in a language whose strings are always valid UTF-8."""

    name = "lossy"
    says_so = True

    def describe(self) -> EngineInfo:
        return replace(super().describe(), utf8_only=self.says_so)

    def tokenize(self, texts: Any, **flags: Any) -> list[list[int]]:
        return super().tokenize([lossy(text) for text in texts], **flags)

    def detokenize(self, ids: Any, **flags: Any) -> list[bytes]:
        return [lossy(text) for text in super().detokenize(ids, **flags)]


def lossy(text: bytes) -> bytes:
    return text.decode(errors="replace").encode()


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register wrong engines while a test runs."""
    for cls in (Dies, Forgets, Lossy):
        monkeypatch.setitem(Adapter.family, cls.name, cls)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Material]]:
    """Return the tokenizer and the material of each built-in vocabulary."""
    folder = tmp_path_factory.mktemp("vocabularies")
    found: dict[str, tuple[Tokenizer, Material]] = {}
    for kind in KINDS:
        write_llama(BUILTIN_VOCABULARIES[kind], folder / f"{kind}.gguf")
        with GgufFile.open(folder / f"{kind}.gguf") as file:
            tokenizer = tokenizer_of(file.metadata)
            found[kind] = tokenizer, material_of(tokenizer, file.metadata)
    return found


def fuzzed(target: str, **changes: Any) -> list[Verdict]:
    plan = FuzzPlan(
        **{"targets": (target,), "oracle": "reference", "cases": 1000, "seed": 3, **changes}
    )
    fuzzer = fuzzer_named("tokens")
    fuzzer.check(plan)
    return list(fuzzer.run(plan, lambda target, text: None))


# --- wrong engines ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tokenizer_is_caught_and_its_case_is_small(name: str) -> None:
    result = try_wrong_tokenizer(WRONG[name], oracle="reference")
    assert result.caught
    assert result.size is not None
    assert result.size <= WRONG[name].size <= 13
    assert name in result.again


def test_right_tokenizer_is_not_caught_and_this_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = WRONG["mutant:bos-doubled"]
    monkeypatch.setattr(wrong, "tokenize", Reference.tokenize)
    result = try_wrong_tokenizer(wrong, oracle="reference", cases=100)
    assert not result.caught
    assert in_words(result) == "MISSED"


@pytest.mark.parametrize("kind", KINDS)
def test_engine_compared_with_itself_has_no_differences(kind: str) -> None:
    verdicts = fuzzed(f"builtin:{kind}", cases=600)
    assert {v.status for v in verdicts} <= {"agreed", "excused"}
    assert [v.detail["texts"] for v in verdicts if v.status == "agreed"] == [600]


def test_crash_of_one_engine_is_reported_with_a_small_text() -> None:
    verdicts = fuzzed("builtin:llama", engine="reference", oracle="dies", cases=300)
    (crashed,) = (v for v in verdicts if v.status == "crashed")
    assert crashed.detail["input"] == b"~".hex()
    assert "a tilde" in crashed.detail["expected"]
    assert exit_code(verdicts) == 3


def test_text_that_both_engines_refuse_is_excused_and_counted() -> None:
    verdicts = fuzzed("builtin:gpt2", cases=4000)
    agreed, excused = verdicts
    assert (agreed.status, excused.status) == ("agreed", "excused")
    assert agreed.detail["refused_by_both"] > 3
    assert "code points up to U+10FFFF" in excused.summary


@pytest.mark.parametrize(("says_so", "status"), [(True, "agreed"), (False, "diverged")])
def test_utf8_engine_is_not_accused_of_other_texts(
    says_so: bool, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lossy, "says_so", says_so)
    assert status in {v.status for v in fuzzed("builtin:gpt2", engine="lossy", cases=300)}
    (alone,) = fuzzed("builtin:gpt2", engine="lossy", given=(b"\xff",))
    assert (alone.status == "not-compared") is says_so


def test_too_few_answers_are_a_difference() -> None:
    assert "diverged" in {v.status for v in fuzzed("builtin:llama", engine="forgets", cases=40)}


# --- cases --------------------------------------------------------------------------------------


def test_seed_and_number_decide_a_case() -> None:
    whole = fuzzed("builtin:llama-ties", engine="mutant:ties-to-the-right", cases=300)
    cases = {v.detail["case"] for v in whole if v.status == "diverged"}
    for case in cases:
        alone = fuzzed("builtin:llama-ties", engine="mutant:ties-to-the-right", start=case, cases=1)
        assert [v.detail["case"] for v in alone if v.status == "diverged"] == [case]


def test_another_seed_makes_other_texts(opened: dict[str, tuple[Any, Material]]) -> None:
    _, material = opened["gpt2"]
    a, b, c = ([text(Counter(seed, str(i)), material) for i in range(50)] for seed in (1, 1, 2))
    assert a == b
    assert a != c


@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_makes_many_different_texts(
    kind: str, opened: dict[str, tuple[Any, Material]]
) -> None:
    _, material = opened[kind]
    for strategy in STRATEGIES:
        draw = Counter(5, strategy.__name__)
        texts = [strategy(draw, material) for _ in range(100)]
        assert len(set(texts)) > 50, strategy.__name__
        assert max(map(len, texts)) < 2000, strategy.__name__


@pytest.mark.parametrize("kind", KINDS)
def test_texts_reach_most_of_a_small_vocabulary(
    kind: str, opened: dict[str, tuple[Any, Material]]
) -> None:
    tokenizer, material = opened[kind]
    met: Counted[int] = Counted()
    for at in range(6000):
        made = text(Counter(9, str(at)), material)
        with suppress(EngineError):  # some texts make llama.cpp crash
            met.update(tokenizer.encode(made, parse_special=True))
    assert len(met) > 0.8 * tokenizer.vocabulary.n_vocab


def test_lists_of_ids_contain_any_token(opened: dict[str, tuple[Any, Material]]) -> None:
    tokenizer, material = opened["plamo2"]
    draw = Counter(1, "ids")
    ids = {token for _ in range(2000) for token in id_list(draw, material)}
    assert ids == set(range(tokenizer.vocabulary.n_vocab))


# --- the same strategies, driven by Hypothesis --------------------------------------------------


class Drawn:
    """Numbers from Hypothesis, in place of random numbers."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def below(self, n: int) -> int:
        return self.draw(st.integers(0, n - 1))


@st.composite
def texts_of(draw: st.DrawFn, material: Material) -> bytes:
    return text(Drawn(draw), material)


@pytest.mark.parametrize("kind", ["gpt2", "rwkv"])
def test_byte_level_tokens_decode_to_every_utf8_text(
    kind: str, opened: dict[str, tuple[Any, Material]]
) -> None:
    tokenizer, material = opened[kind]

    @settings(max_examples=40, derandomize=True, deadline=None)
    @given(texts_of(material))
    def comes_back(made: bytes) -> None:
        text = made.decode(errors="ignore").encode()
        ids = tokenizer.encode(text, add_special=False)
        assert b"".join(tokenizer.piece(token, special=True) for token in ids) == text

    comes_back()


def test_hypothesis_shrinks_what_the_strategies_find(
    opened: dict[str, tuple[Any, Material]],
) -> None:
    tokenizer, material = opened["llama"]

    def drops_a_part(made: bytes) -> bool:
        whole = tokenizer.decode(tokenizer.encode(made))
        return bool(whole.decode(errors="ignore").encode() != whole)

    smallest = find(texts_of(material), drops_a_part, settings=settings(derandomize=True))
    assert len(smallest) <= 4


# --- shrinking ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_text", "needle"),
    [
        (b"abc" * 50 + b"\xc3\xa9x" + b"yz" * 50, b"\xc3\xa9x"),
        ("👩‍👩‍👧 and then some".encode(), "👧".encode()),
        (b"x" * 1000 + b"\x00", b"\x00"),
        (b"needle", b"needle"),
    ],
)
def test_text_is_shrunk_to_its_cause(given_text: bytes, needle: bytes) -> None:
    questions = 0

    def wrong(texts: Any) -> list[bool]:
        nonlocal questions
        questions += 1
        return [needle in each for each in texts]

    assert shrink_input(given_text, wrong) == needle
    assert questions <= 60


def test_shrinking_simplifies_irrelevant_parts_of_a_text() -> None:
    def wrong(texts: Any) -> list[bool]:
        return [len(each.decode()) >= 3 and "é" in each.decode() for each in texts]

    assert shrink_input("wörldé!".encode(), lambda texts: safe(wrong, texts)) in (
        "a é".encode(),
        " é ".encode(),
        "aéa".encode(),
    )


def safe(wrong: Any, texts: Any) -> list[bool]:
    """Return for each text True if it is wrong. Invalid UTF-8 never counts as wrong."""
    found = []
    for each in texts:
        try:
            found += wrong([each])
        except UnicodeDecodeError:
            found.append(False)
    return found


def test_ids_are_removed_and_never_replaced() -> None:
    assert shrink_input((5, 6, 7, 8, 9), lambda rows: [7 in row for row in rows]) == (7,)


def test_order_of_texts_prefers_short_then_plain() -> None:
    assert sorted([b"zz", b"aa", b"b", b"\xff"], key=order) == [b"b", b"\xff", b"aa", b"zz"]


# --- a campaign ---------------------------------------------------------------------------------


def test_a_campaign_writes_a_report_that_can_be_read(tmp_path: Path) -> None:
    plan = FuzzPlan(targets=("builtin:llama", "builtin:bert"), oracle="reference", cases=100)
    result = run_campaign("tokens", plan, tmp_path, ["lockstep", "fuzz", "tokens"])
    rows = read_report(result.folder / "report.jsonl")
    assert result.code == 0
    assert [row["case"] for row in rows[1:-1]] == ["builtin:llama", "builtin:bert"]


def test_target_that_is_not_a_vocabulary_is_refused_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing.gguf: no such file.*builtin:rwkv"):
        fuzzed(str(tmp_path / "nothing.gguf"))


def test_a_file_without_a_vocabulary_is_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    write_llama(BUILTIN_VOCABULARIES["none"], path)
    (verdict,) = fuzzed(str(path))
    assert verdict.status == "not-compared"
    assert "no vocabulary" in verdict.summary


def test_time_limit_ends_a_campaign_with_its_resume_point() -> None:
    verdicts = fuzzed("builtin:rwkv", cases=10**9, seconds=0.01)
    assert verdicts[0].detail["next"] == 2000
    assert verdicts[0].detail["texts"] == 2000


def test_wrong_engines_have_different_mistakes() -> None:
    assert len({cls.mistake for cls in WRONG.values()}) == len(WRONG) == 20
