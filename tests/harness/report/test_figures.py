"""Figures in reports of suites: shares of limits, logits by position, texts of tokens, and
blocks."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.judging.compare import PIECE, share_of_limit
from lockstep.harness.report.nodes import NodeRow, node_columns, short
from lockstep.harness.report.page.alignment import alignment_of
from lockstep.harness.report.page.chart import chart_of
from lockstep.harness.report.page.hexdump import block, dump_of
from lockstep.harness.report.page.nodes import node_data
from lockstep.harness.suites.parts.by_position import MOST, by_position
from lockstep.harness.suites.parts.pieces import LONGEST, MOST_IDS, pieces_of, sides
from tests.models import builtin

import_members("lockstep.engine.quants")
F = np.float32


@pytest.fixture
def context(tmp_path: Path) -> Any:
    """Yield a stand-in for a context with the parts that figures need: the oracle's tokenizer, and
    a flag for a vocabulary."""
    with GgufFile.open(builtin("f32", tmp_path)) as file:
        own, facts = tokenizer_of(file.metadata), SimpleNamespace(has_vocabulary=True)
        yield SimpleNamespace(tokenizer=own, facts=facts)


# --- shares of limits ---


def test_worst_share_may_belong_to_a_smaller_error() -> None:
    expected, actual = np.zeros((2, 3)), np.array([[0, 0.5, 0], [0, 0, 1.0]])
    allowed = np.array([[1, 0.1, 1], [1, 1, 10.0]])
    assert share_of_limit(expected, actual, allowed) == (5.0, (0, 1))


def test_equal_elements_have_no_share_and_no_place() -> None:
    same = np.array([1.0, math.nan, math.inf])
    assert share_of_limit(same, same, 0.0) == (0.0, ())


def test_error_without_tolerance_is_beyond_every_limit() -> None:
    assert share_of_limit(np.zeros(3), np.array([0, 0, 1e-9]), 0.0) == (math.inf, (2,))


def test_nan_on_one_side_is_beyond_every_limit() -> None:
    assert share_of_limit(np.zeros(2), np.array([0, math.nan]), 1.0) == (math.inf, (1,))


def test_an_element_without_a_limit_has_no_share() -> None:
    assert share_of_limit(np.zeros(2), np.ones(2), np.array([math.inf, 4])) == (0.25, (1,))


def test_place_is_right_beyond_the_first_piece() -> None:
    expected = np.zeros((3, PIECE))
    actual = expected.copy()
    actual[1, 7], actual[2, 9] = 0.5, 2.0
    assert share_of_limit(expected, actual, 4.0) == (0.5, (2, 9))


# --- logits by position ---


def test_each_position_has_an_error_and_the_margin_of_its_token(context: Any) -> None:
    expected = np.array([[4, 1, 0], [1, 2, 1.5]], F)
    actual = np.array([[4, 1, 0], [1, 1, 1.5]], F)
    found = by_position(context, expected, actual, "logit")["by_position"]
    assert found["error"] == [0, 0.25]
    assert found["margin"] == [0.75, 0.125]
    assert found["other_choices"] == 1
    other = found["first_other"]
    assert (other["position"], other["expected"], other["actual"]) == (1, 1, 2)


def test_first_different_token_has_its_text_on_both_sides(context: Any) -> None:
    expected, actual = np.zeros((1, 384), F), np.zeros((1, 384), F)
    expected[0, 300], actual[0, 301] = 1, 1
    other = by_position(context, expected, actual, "logit")["by_position"]["first_other"]
    assert [other["expected_text"], other["actual_text"]] == pieces_of(context, [300, 301])
    assert other["expected_text"] != other["actual_text"]


def test_worst_of_neighbouring_positions_is_kept_if_they_are_many(context: Any) -> None:
    expected = np.ones((3 * MOST, 2), F)
    actual = expected.copy()
    actual[4, 0] = 1.5
    found = by_position(context, expected, actual, "embedding")["by_position"]
    assert found["every"] == 3
    assert found["error"] == [0, 0.5, *[0] * (MOST - 2)]


def test_embeddings_have_no_greedy_token(context: Any) -> None:
    found = by_position(context, np.ones((2, 3), F), np.ones((2, 3), F), "embedding")
    assert set(found["by_position"]) == {"every", "error", "what"}


def test_chart_counts_errors_beyond_the_limit_even_if_infinite() -> None:
    figures = {"every": 1, "error": [1e-7, 0.2, "inf"]}
    chart = chart_of({"allowed_relative": 1e-5, "by_position": figures})
    assert chart is not None
    assert "exceeded at 2 of 3" in chart.caption
    assert (chart.bars.count("M"), chart.over.count("M")) == (1, 2)


# --- ids and pieces ---


def test_unknown_ids_have_no_piece(context: Any) -> None:
    assert pieces_of(context, [-1, 10**9]) == [None, None]


def test_a_model_without_a_vocabulary_has_no_pieces(context: Any) -> None:
    context.facts.has_vocabulary = False
    assert pieces_of(context, [1, 2]) is None


def test_sides_begin_shortly_before_the_first_difference(context: Any) -> None:
    expected = [5] * 2000
    actual = [5] * 900 + [6] + [5] * 1099
    found = sides(context, expected, actual)
    assert found["start"] == 900 - MOST_IDS // 4
    assert len(found["actual"]["ids"]) == MOST_IDS
    assert found["actual"]["count"] == 2000


def test_long_piece_is_cut_and_shows_its_length() -> None:
    class Long:
        pieces = (b"x" * 1_000_000,)

        def piece(self, token: int, *, special: bool) -> bytes:
            return self.pieces[token]

    facts = SimpleNamespace(has_vocabulary=True)
    given: Any = SimpleNamespace(tokenizer=Long(), facts=facts)
    assert pieces_of(given, [0]) == ["x" * LONGEST + "... (1000000 characters)"]


def test_ids_after_an_inserted_id_do_not_count_as_different() -> None:
    def side(ids: list[int]) -> dict[str, Any]:
        return {"ids": ids, "pieces": None, "count": len(ids)}

    given = {"start": 0, "expected": side([1, 2, 3, 4]), "actual": side([1, 9, 2, 3, 4])}
    found = alignment_of({"sides": given, "way": "encode"})
    assert found is not None
    wrong = [line for line in found["lines"] if line["kind"] == "differs"]
    assert [(line["at"], line["expected"], line["actual"]) for line in wrong] == [
        (1, None, (9, ""))
    ]


def test_texts_after_another_greedy_token_are_not_aligned_again() -> None:
    def side(ids: list[int], text: str) -> dict[str, Any]:
        return {"ids": ids, "pieces": list(text), "count": len(ids)}

    given = {
        "start": 0,
        "expected": side([1, 2, 3, 4], "abcd"),
        "actual": side([1, 9, 2, 3], "axbc"),
    }
    found = alignment_of({"sides": given, "step": 1})
    assert found is not None
    rows = [(line["kind"], line["at"]) for line in found["lines"]]
    assert rows == [("same", 0), ("differs", 1), ("differs", 2), ("differs", 3)]
    assert found["texts"] == {"before": "a", "expected": "bcd", "actual": "xbc"}


# --- bytes ---


@pytest.mark.parametrize("kind", sorted(WeightFormat.family))
def test_every_byte_of_a_block_is_in_a_named_field(kind: str) -> None:
    size = WeightFormat.family[kind].layout.itemsize
    fields = block("both", kind, bytes(range(256)).hex()[: 2 * size].ljust(2 * size, "0"))["fields"]
    found = [byte for field in fields for line in field["lines"] for byte in line]
    assert len(found) == size
    assert all(field["name"] != "bytes" for field in fields)


def test_block_of_another_size_is_shown_as_bytes() -> None:
    (field,) = block("both", "Q4_0", "0011")["fields"]
    assert (field["name"], field["lines"]) == ("bytes", [[("00", False), ("11", False)]])


def test_long_file_is_dumped_in_part_and_shows_its_length() -> None:
    found = dump_of({"file": "41" * 10_000})
    assert found is not None
    assert (found["bytes"], found["cut"], len(found["lines"])) == (10_000, True, 128)
    assert found["lines"][0].endswith("|AAAAAAAAAAAAAAAA|")


# --- nodes ---


def test_columns_of_nodes_are_short_and_complete() -> None:
    usual: dict[str, Any] = {"step": 0, "name": "norm", "op": "MUL", "reason": "r"}
    rows = [NodeRow(**usual, order=i, layer=i, share=1 / 3, error=1e-7) for i in range(4)]
    found = node_columns(rows)
    assert found["names"] == ["norm"]
    assert found["share"] == [0.333] * 4
    assert found["layer"] == [0, 1, 2, 3]
    assert "err_in" not in found  # these errors are unknown


@pytest.mark.parametrize(("value", "written"), [(0.0, "0"), (2.0, "2"), (1.2345e-7, "1.23e-07")])
def test_a_figure_has_three_digits(value: float, written: str) -> None:
    assert repr(short(value)) == written


def test_infinity_stays_infinite() -> None:
    assert short(math.inf) == math.inf


def test_wrong_node_is_the_worst_of_a_model_whatever_its_share() -> None:
    usual: dict[str, Any] = {"step": 0, "layer": 0, "reason": "", "error": 0.1}
    rows = [
        NodeRow(**usual, order=0, name="a", op="ROPE", share=0.2, wrong=True),
        NodeRow(**usual, order=1, name="b", op="ADD", share=0.9),
    ]
    detail = {"by_node": node_columns(rows)}
    verdict = {"suite": "trace", "case": "m", "status": "agreed", "detail": detail}
    (model,) = node_data([verdict])["models"]
    assert model["summary"]["op"] == "ROPE"
