"""Differences that come of a type which llama.cpp repairs are said to."""

from types import SimpleNamespace
from typing import Any

from lockstep.engine.tokenizers.vocabulary import Attr
from lockstep.harness.suites.parts.repaired_types import named_among

SHOWN = int(Attr.USER_DEFINED)
VOCABULARY = SimpleNamespace(
    stored_attrs=(SHOWN, SHOWN, int(Attr.CONTROL)),
    attrs=(SHOWN, int(Attr.USER_DEFINED | Attr.CONTROL), int(Attr.CONTROL)),
    texts=(b"a", b"</s>", b"<s>"),
)
CONTEXT: Any = SimpleNamespace(tokenizer=SimpleNamespace(vocabulary=VOCABULARY))


def test_a_token_that_llama_cpp_hides_against_the_file_is_named() -> None:
    wrong = [([1], b"", b"</s>"), ([0, 1], b"a", b"a</s>")]
    text = named_among(CONTEXT, wrong)
    assert text.startswith("; llama.cpp takes 1 '</s>' for a control token by its text")
    assert named_among(CONTEXT, [(b"</s>", [0], [1])]) == text


def test_where_one_difference_has_no_such_token_nothing_is_said() -> None:
    assert named_among(CONTEXT, [([1], b"", b"</s>"), ([2], b"", b"<s>")]) == ""
    assert named_among(CONTEXT, [(b"a", [0], [2])]) == ""
