"""Lists of likely tokens: differences that honest engines may have, and the mistakes of wrong
engines."""

from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.harness.check.check import Plan
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.judging.candidates import (
    Candidate,
    Listed,
    names_of,
    off_from,
    read_list,
)
from lockstep.harness.records import DEFAULT, EXACT, Settings, Verdict
from lockstep.harness.suites.logprobs import ends, left_open
from lockstep.harness.suites.parts.lists import alike
from tests.contexts import check_engine, statuses
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin
from tests.quiet_engines import HONEST_LISTS, WRONG_LISTS, Quiet, Row, changed, made, moved, shown

END_IS_2 = SimpleNamespace(eog=frozenset({2}))
LOGITS = np.array([4.0, 3.0, 2.5, 1.0, -2.0, -90.0], np.float32)
NAMES = names_of(
    [b"a", b" b", b"b", b"\xff", b"\xfe", b"c"], [b"a", b"_b", b"b", b"<0xFF>", b"<0xFE>", b"c"]
)


INF, NAN = float("inf"), float("nan")
WHOLE = [(i, float(v) - 4.5) for i, v in enumerate(LOGITS)]
DIGITS = [(0, -9.234), (1, -10.23), (2, -10.73), (3, -12.23)]
HALVES = [(1, -5.5), (2, -6.0)]  # values from 4 to 8; the constant covers one of two errors
AB = [(b"a", -1.1234567), (b"_b", -2.1234567), (b"b", -2.6234567)]
REPLACED = "\ufffd".encode()


@pytest.mark.parametrize(
    ("said", "allowed", "kind"),
    [
        # lists may differ from logits by any constant
        ([(0, -0.2), (1, -1.2), (2, -1.7)], 0.01, ""),
        ([(0, 50.0), (1, 49.0)], 0.01, ""),
        # noise may move both ends of a distance
        ([(0, 4.0123456), (1, 2.9923456)], 0.0101, ""),
        ([(0, 4.0123456), (1, 2.9723456)], 0.0101, "value"),
        ([(0, 4.1234567), (2, 2.6234567)], 0.26, ""),
        # a text of several tokens may be any of them: here the one with a space
        ([(b"a", -1.1234567), (b"b", -2.1234567)], 0.01, ""),
        (AB, 0.01, ""),
        ([(b"a", -1.1234567), (b"b", -3.1234567)], 0.01, "value"),
        ([(b"a", -1.1234567), (b"b", -2.1234567), (b"b", -2.6234567)], 0.01, ""),
        # an entry without whole characters is ignored, and an unknown entry may be the missing
        # token
        ([*AB, (REPLACED, -4.1234567)], 0.01, ""),
        ([(0, 4.1234567), (b"?", 3.1), (2, 2.6234567)], 0.01, ""),
        # a probability too small for float32 may be zero
        ([*WHOLE[:5], (5, -INF)], 0.01, ""),
        ([*WHOLE[:4], (4, -INF), WHOLE[5]], 0.01, "value"),
        # values that are rounded for readers are off by half a unit, or by half of the last digit
        ([(0, -0.12), (1, -1.13)], 1e-9, ""),
        ([(0, -0.1200001), (1, -1.13)], 1e-9, "value"),
        ([*DIGITS, (4, -15.23)], 1e-9, ""),
        ([*DIGITS, (4, -15.25)], 1e-9, "value"),
        ([(0, -1.0), (1, -1.0), (2, -1.0)], 1e-9, "value"),  # whole numbers are not rounded values
        # values in half precision are off by half a step, of BF16, or of F16 if one is no BF16
        # number
        *(
            ([(0, first), *HALVES, (3, -7.5 - by * step)], 1e-9, kind)
            for first, step in ((-4.50390625, 2.0**-8), (-4.5, 2.0**-5))
            for by, kind in ((1, ""), (2, "value"), (1 / 64, "value"))
        ),
        ([(1, 3.1234567), (0, 4.1234567)], 0.51, ""),  # the likeliest come first, except for noise
        ([(0, NAN)], 0.01, "not finite"),
        ([(0, INF)], 0.01, "not finite"),
    ],
)
def test_list_is_compared_with_logits(
    said: list[tuple[int | bytes, float]], allowed: float, kind: str
) -> None:
    found = off_from(read_list(said, NAMES), LOGITS, allowed)
    assert (found.kind if found else "") == kind


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            [(0, 4.123456789), (1, 3.123456789), (2, 2.723456789)],
            {"kind": "value", "token": 2, "wrong": 1, "expected": pytest.approx(2.623456789)},
        ),
        (
            [(0, 4.1234567), (2, 2.6234567)],
            {"kind": "missing", "token": 1, "expected": 0.5},
        ),
        (
            [(1, 3.1234567), (0, 4.1234567), (2, 2.6234567)],
            {"kind": "order", "token": 0, "expected": 3.1234567},
        ),
        (  # a repeated text is not above its end, and every value is right
            [(b"a", -1.1234567)] * 5,
            {"kind": "twice", "token": 0, "expected": 1.0, "actual": 5.0},
        ),
    ],
)
def test_wrong_row_is_named_with_the_expected_one(
    said: list[tuple[int | bytes, float]], expected: dict[str, Any]
) -> None:
    found = off_from(read_list(said, NAMES), LOGITS, 0.01)
    assert {key: getattr(found, key) for key in expected} == expected


def test_text_that_is_not_a_token_is_unknown() -> None:
    unknown = read_list([(b"?", -1.0), (b"a", -2.0)], NAMES)
    assert (unknown.unknown, len(unknown.candidates)) == (1, 1)
    assert NAMES[b"bytes:\\xff"] == (3,)


@pytest.mark.parametrize("shown", ["\ufffd", "\ufffd\ufffd", "\ufffd\ufffd\ufffd"])
def test_any_number_of_replacement_signs_for_bytes_is_accepted(shown: str) -> None:
    # beginnings of two characters; Go's JSON shows a sign for each of the three bytes
    names = names_of([b"a", b"\xe5\xbd\xe5", b"\xe5\xbd"], [b"a", b"?", b"??"])
    assert 1 in names[shown.encode()]
    said = [(b"a", -1.1234567), (shown.encode(), -2.1234567)]
    logits = np.array([2.0, 1.0, -3.0], np.float32)
    assert off_from(read_list(said, names), logits, 0.01) is None


def test_tokens_shown_as_nothing_or_as_signs_are_resolved() -> None:
    # a token that consists of signs stands only for itself
    names = names_of(["\ufffd\ufffd".encode(), b"a\xff"], [b"?", b"??"])
    assert (names["\ufffd\ufffd".encode()], REPLACED in names) == ((0,), False)
    # a control token may be shown as an empty text, and invalid bytes may be dropped
    names = names_of([b"<s>", b"\xff", b"a"], [b"<s>", b"<0xFF>", b"a"], {0})
    assert (names[b""], names[b"<s>"]) == ((0, 1), (0,))
    # llama-cpp-python shows an empty text for a token of more than 32 bytes
    names = names_of([b"=" * 33, b"-" * 32, b"a"], [b"?", b"??", b"a"])
    assert names[b""] == (0,)
    logits = np.array([1.0, -3.0, 2.0], np.float32)
    assert off_from(read_list([(b"a", -0.5234567), (b"", -1.5234567)], names), logits, 0.01) is None
    without = read_list([(b"a", -0.5234567), (b"-" * 32, -5.5234567)], names)
    assert off_from(without, logits, 0.01) is not None


# --- the suite ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def listed(folder: Path, engine: str, name: str = "f32", settings: Settings = EXACT) -> Verdict:
    (found,) = verdicts_of(plan_of(folder, engine, name, settings))
    return found


def plan_of(folder: Path, engine: str, name: str = "f32", settings: Settings = EXACT) -> Plan:
    return plan_for(builtin(name, folder), engine=engine, suites=("logprobs",), settings=settings)


@pytest.mark.parametrize("engine", HONEST_LISTS)
def test_honest_list_is_not_accused(engine: str, folder: Path) -> None:
    found = listed(folder, engine)
    assert (found.status, exit_code([found])) == ("agreed", 0), found.summary
    assert found.detail["values_compared"] > 10


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "moe-q8_0"])
@pytest.mark.parametrize("settings", [EXACT, DEFAULT], ids=lambda s: s.name)
def test_quantised_models_have_their_noise(name: str, settings: Settings, folder: Path) -> None:
    assert listed(folder, "quiet", name, settings).status == "agreed"


@pytest.mark.parametrize("engine", WRONG_LISTS)
def test_a_wrong_list_diverges(engine: str, folder: Path) -> None:
    found = listed(folder, engine)
    assert found.status == "diverged", found.summary
    assert (found.detail["kind"], found.detail["at_fault"]) == (WRONG_LISTS[engine], "subject")


def test_empty_lists_are_not_compared(folder: Path) -> None:
    made("lists: empty", change=lambda self, row: [])
    made("lists: strangers", change=lambda self, row: [(b"\x00\x01 no token", -1.0)])
    for engine in ("lists: empty", "lists: strangers"):
        found = listed(folder, engine)
        assert (found.status, exit_code([found])) == ("not-compared", 3)


def test_empty_list_among_others_is_not_compared(folder: Path) -> None:
    """The engine returns empty lists for all prompts except the shortest."""

    def short(self: Any, prefixes: Sequence[Any], k: int) -> list[Row]:
        return [Quiet.logprobs(self, [p], k)[0] if len(p) < 2 else [] for p in prefixes]

    made("lists: of one prompt", logprobs=short)
    agreed, rest = verdicts_of(plan_of(folder, "lists: of one prompt"))
    assert (agreed.status, rest.status) == ("agreed", "not-compared")
    assert "6 of 7 lists, which are empty" in rest.summary
    assert exit_code([agreed, rest]) == 3


def test_list_of_another_position_is_named(folder: Path) -> None:
    """The engine truncates prompts after eight tokens. The report names the lengths that match."""

    def cut(self: Any, prefixes: Sequence[Any], k: int) -> list[Row]:
        return Quiet.logprobs(self, [p[:8] for p in prefixes], k)

    def early(self: Any, prefixes: Sequence[Any], k: int) -> list[Row]:
        return Quiet.logprobs(self, [p[:-1] or p for p in prefixes], k)

    made("lists: cut", logprobs=cut)
    made("lists: early", logprobs=early)
    for engine, words, right in (
        ("lists: cut", "of 9 tokens; prefixes of 1 to 8 tokens agree, token ", 8),
        ("lists: early", "of 2 tokens; the prefix of length 1 agrees, token ", 1),
    ):
        found = listed(folder, engine)
        assert words in found.summary
        assert found.detail["right_after"] == [right]


def test_question_with_a_wrong_list_is_repeated(folder: Path) -> None:
    """The engine continues reading where its earlier question ended."""
    kept: list[int] = []

    def stale(self: Any, prefixes: Sequence[Any], k: int) -> list[Row]:
        rows = []
        for prefix in prefixes:
            kept[:] = [*kept, *prefix][-200:]
            rows += Quiet.logprobs(self, [list(kept)], k)
        return rows

    made("lists: stale", logprobs=stale)
    wrong, again = verdicts_of(plan_of(folder, "lists: stale"))
    assert (wrong.detail["kind"], wrong.status, again.status) == ("value", "diverged", "diverged")


ROW = [(1, -0.5), (2, NAN), (3, -INF)]
TWICE = [(b"x", -1.0), (b"x", -5.0)]


@pytest.mark.parametrize(
    ("first", "again", "same"),
    [
        (ROW, [(1, -0.505), (3, -INF), (2, NAN)], True),
        (ROW, [(1, -0.52), (2, NAN), (3, -INF)], False),
        (ROW, [(1, -0.5), (2, -1.0), (3, -INF)], False),
        (ROW, ROW[:2], False),
        (TWICE, TWICE, True),
        (TWICE, [(b"x", -1.0), (b"x", -4.0)], False),
        ([(5, -0.1)], [(7, -0.2)], False),
        # only the last two entries of a list may swap within the noise
        ([(1, -0.5), (2, -3.0)], [(1, -0.5), (3, -2.995)], True),
        ([(1, -0.5), (2, -3.0)], [(1, -0.5), (3, -2.9)], False),
    ],
)
def test_answers_match_only_within_the_noise(first: Row, again: Row, same: bool) -> None:
    assert alike(0.01, [first], [again]) is same


@pytest.mark.parametrize(
    ("of_end", "ended"), [(1.0, [1]), (0.81, [1]), (0.79, [])], ids=["likeliest", "tie", "not"]
)
def test_empty_list_at_the_end_of_a_text_is_explained(of_end: float, ended: list[int]) -> None:
    """A server that stops at the end of a text has no tokens to list. A server that stops at
    another place is not excused."""
    context: Any = SimpleNamespace(tokenizer=SimpleNamespace(vocabulary=END_IS_2))
    full = Listed(candidates=(Candidate(ids=(0,), value=-1.0),))
    logits = np.array([[0, 0, 5], [1, 0, of_end]], dtype=np.float32)
    found = ends(context, [full, Listed(candidates=())], logits, 0.1)
    assert found == ended
    left = left_open([full, Listed(candidates=())], found)
    assert left == ("" if ended else "not compared: 1 of 2 lists, which are empty")


def test_list_of_texts_that_are_not_tokens_is_not_compared(folder: Path) -> None:
    """The server writes the space of a token with the character that another vocabulary uses."""

    def written(engine: Any, row: Row) -> Row:
        named = [(shown(engine, token), value) for token, value in row]
        return [(text.replace(b" ", "\u0120".encode()), value) for text, value in named]

    made("lists: spaces of another vocabulary", change=written)
    agreed, rest = verdicts_of(plan_of(folder, "lists: spaces of another vocabulary"))
    assert (agreed.status, rest.status) == ("agreed", "not-compared")
    assert "candidates whose text is not a token" in rest.summary


def test_single_candidate_lists_are_compared_by_rank_only(folder: Path) -> None:
    made("lists: of one", change=lambda self, row: row[:1])
    found = listed(folder, "lists: of one")
    assert found.status == "agreed"
    assert "only ranks were compared" in found.summary


def test_engines_that_show_logits_are_not_asked_for_lists(folder: Path) -> None:
    path = builtin("f32", folder)
    assert {v.suite for v in verdicts_of(plan_for(path))}.isdisjoint({"logprobs", "text"})
    named = check_engine(path, "reference", "logprobs", "text")
    assert statuses(named) == {"not-compared"}  # the user named these suites


def by(factor: float) -> dict[str, Any]:
    return changed(lambda _, row: [(token, value * factor) for token, value in row])


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (made("lists: to base 10", **by(1 / log(10))), "0.4343, as with logarithms to base 10"),
        (made("lists: to base 2", **by(1 / log(2))), "1.443, as with logarithms to base 2"),
        (made("lists: at 0.8", **by(1 / 0.8)), "1.25, as with a temperature of 0.8"),
        (made("lists: at 0.7", **by(1 / 0.7)), "as with a temperature of 0.7"),
    ],
)
def test_common_factor_of_all_values_is_named(engine: str, says: str, tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    found = check_engine(model, engine, "logprobs")
    assert found[0].status == "diverged", found
    assert says in found[0].summary


def test_probabilities_in_lists_are_recognised(tmp_path: Path) -> None:
    shares = changed(lambda _, row: [(token, exp(value)) for token, value in row])
    engine = made("lists: probabilities", **shares)
    for model in ("f32", "q8_0"):
        found = check_engine(builtin(model, tmp_path), engine, "logprobs")
        assert found[0].status == "diverged", found
        assert found[0].summary.endswith(
            "the values are probabilities, and their logarithms are right"
        )


def test_lists_without_control_tokens_are_reported_as_such(tmp_path: Path) -> None:
    def lacks(*tokens: int) -> dict[str, Any]:
        return changed(lambda _, row: [each for each in row if each[0] not in tokens])

    engines = {
        made("lists: no control tokens", **lacks(0, 1, 2)): True,
        made("lists: nor 3", **lacks(0, 1, 2, 3)): False,
    }
    for engine, alone in engines.items():
        found = check_engine(builtin("f32", tmp_path), engine, "logprobs")
        assert (found[0].status, found[0].detail["kind"]) == ("diverged", "missing")
        assert ("all missing tokens are control tokens" in found[0].summary) is alone


def test_single_wrong_value_has_no_factor(tmp_path: Path) -> None:
    engine = made("lists: one moved, and no factor", **changed(moved(0.01)))
    found = check_engine(builtin("f32", tmp_path), engine, "logprobs")
    assert found[0].status == "diverged", found
    assert "factor" not in found[0].summary
