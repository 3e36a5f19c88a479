"""The error for an unknown name suggests similar known names, not all of them."""

import pytest

from lockstep.engine.choices import ALL, choices

MANY = [f"{name}-{i}" for name in ("attn_norm", "ffn_out", "l_out") for i in range(40)]


def test_few_names_are_all_listed() -> None:
    assert choices("c", ["a", "b"]) == "(known: a, b)"
    assert choices("c", []) == "(known: none)"
    assert choices("c", MANY[:ALL]).count("-") == ALL


@pytest.mark.parametrize(
    ("name", "meant"),
    [("ffn_out3", "ffn_out-3"), ("FFN_OUT-3", "ffn_out-3"), ("atn_norm-7", "attn_norm-7")],
)
def test_only_the_nearest_of_many_names_are_listed_with_their_number(name: str, meant: str) -> None:
    said = choices(name, MANY)
    assert said.startswith("(near: ")
    assert meant in said
    assert "120 in all" in said
    assert said.count(",") < 6


def test_dissimilar_name_gets_no_suggestions() -> None:
    assert choices("#", MANY) == "(near: none; 120 in all)"


def test_repeated_name_is_listed_once() -> None:
    assert choices("b", ["a", "a"]) == "(known: a)"
