"""Engines that show only greedy tokens or text. The first differing token decides, unless the
choice was a tie."""

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.context.suite import Context
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.mutants.rope import RopeHalfSplit
from lockstep.harness.records import EXACT, Verdict
from lockstep.harness.suites.decode import PROMPT
from lockstep.harness.suites.parts.text_judged import is_replaced, judge_text
from lockstep.harness.synth.llama import LlamaRecipe
from tests.contexts import statuses
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin, with_metadata, with_values, written
from tests.quiet_engines import Quiet, made, wrong


class GreedyAlone(Quiet, name="greedy alone"):
    levels = ("greedy",)


class TextAlone(Quiet, name="text alone"):
    levels = ("generate",)


def text_engine(
    name: str,
    *,
    read: Callable[[bytes], bytes] = bytes,
    shown: Callable[[bytes, bytes], bytes] = lambda prompt, text: text,
    n: int | None = None,
) -> str:
    """Return an engine that changes prompts, or shows texts in another form. `n` is the number of
    tokens that the engine generates; None means the requested number."""

    def generate(self: Any, prompt: bytes, n_asked: int) -> bytes:
        ids = Reference.greedy(self, self.tokenize([read(prompt)])[0], n or n_asked)
        return shown(prompt, b"".join(self.tokenizer.piece(t, special=False) for t in ids))

    return made(f"text: {name}", TextAlone, generate=generate)


class FirstOfATie(GreedyAlone, name="greedy: the other of a tie"):
    """An engine that chooses the twin of the right token."""

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        ids = list(prompt)
        for _ in range(n):
            (best,) = Reference.greedy(self, ids, 1)
            ids.append(best ^ 1)
        return ids[len(prompt) :]


def third_wrong(self: Any, prompt: Sequence[int], n: int) -> list[int]:
    ids = Reference.greedy(self, prompt, n)
    return [*ids[:2], (ids[2] + 1) % 384, *ids[3:]] if n > 2 else ids


def whole_characters(text: bytes) -> bytes:
    """Cut off an incomplete last character of a text, like a stream that waits for the rest of the
    character."""
    decoder = getincrementaldecoder("utf-8")("surrogateescape")
    return decoder.decode(text).encode("utf-8", "surrogateescape")


HONEST = [
    "text alone",
    made(
        "text: without its first space",
        TextAlone,
        write=lambda _, p: b"".join(p).removeprefix(b" "),
    ),
    made("text: as a stream", TextAlone, write=lambda _, p: whole_characters(b"".join(p))),
    made("text: without its last spaces", TextAlone, write=lambda _, p: b"".join(p).rstrip()),
]
WRONG = [
    wrong("text: wrong rope", RopeHalfSplit),
    made("text: the third token left out", TextAlone, write=lambda _, p: b"".join(p[:2] + p[3:])),
    made("text: a letter", TextAlone, write=lambda _, p: b"".join([*p[:2], b"~~~", *p[3:]])),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def verdicts(path: Path, engine: str, suite: str, **changes: Any) -> list[Verdict]:
    return verdicts_of(plan_for(path, engine=engine, suites=(suite,), **({"n_steps": 6} | changes)))


def with_twins(folder: Path) -> Path:
    """Write a model in which every token has a twin with the same logit, because output rows are
    repeated."""
    path = written(folder, "twins.gguf", seed=1, n_layer=1, n_embd=16, n_ff=16)
    return with_values(path, path, "output.weight", lambda rows: np.repeat(rows[::2], 2, axis=0))


# --- greedy tokens --------------------------------------------------------------------------------


def test_greedy_tokens_alone_are_compared_with_the_oracles(folder: Path) -> None:
    found = verdicts(builtin("f32", folder), "greedy alone", "decode")
    text, single, close, control, in_turn = found
    assert (text.status, text.summary) == ("agreed", "6 greedy tokens are the same")
    assert (single.status, close.status) == ("agreed", "agreed")
    assert control.status == "agreed"
    assert in_turn.status == "agreed"


def bos_again(self: Any, prompt: Sequence[int], n: int) -> list[int]:
    """Add a second BOS, which a good model ignores in many prompts."""
    known = self.tokenize([b"Once upon a time"])[0]
    given = prompt if prompt[: len(known)] == known else [1, *prompt]
    return Reference.greedy(self, given, n)


def test_engine_right_only_for_one_prompt_is_found_by_single_tokens(
    folder: Path,
) -> None:
    made("greedy: BOS again", GreedyAlone, greedy=bos_again)
    text, single = verdicts(builtin("f32", folder), "greedy: BOS again", "decode")
    assert (text.status, single.status) == ("agreed", "diverged")
    assert single.detail["at_fault"] == "subject"
    assert single.detail["margin"] > single.detail["allowed"]


def test_engine_with_lists_is_not_asked_for_single_tokens(folder: Path) -> None:
    found, control, in_turn = verdicts(builtin("f32", folder), "quiet", "decode")
    assert {found.status, control.status, in_turn.status} == {"agreed"}


def test_first_wrong_token_is_named_with_its_margin(folder: Path) -> None:
    made("greedy: third wrong", GreedyAlone, greedy=third_wrong)
    (found,) = verdicts(builtin("f32", folder), "greedy: third wrong", "decode")
    assert (found.status, exit_code([found])) == ("diverged", 1)
    assert (found.detail["step"], found.detail["at_fault"]) == (2, "subject")
    assert found.detail["margin"] > 2 * found.detail["allowed"]


def test_ties_are_excused_one_by_one_and_other_tokens_are_compared(folder: Path) -> None:
    found = verdicts(with_twins(folder), "greedy: the other of a tie", "decode", n_steps=3)
    assert [v.status for v in found] == ["excused"] * 4 + ["not-applicable"] * 2
    assert [v.detail["step"] for v in found[:3]] == [0, 1, 2]
    many = verdicts(with_twins(folder), "greedy: the other of a tie", "decode", n_steps=12)
    assert [v.status for v in many] == ["excused"] * 8 + [
        "not-compared",
        "excused",
        "not-applicable",
        "not-applicable",
    ]
    assert "4 tokens after 8 ties" in many[8].summary


# --- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", HONEST)
@pytest.mark.parametrize("name", ["f32", "q8_0"])
def test_honest_text_is_not_accused(engine: str, name: str, folder: Path) -> None:
    found = verdicts(builtin(name, folder), engine, "text")
    assert found[0].status == "agreed", found[0].summary
    assert exit_code(found) == 0


@pytest.mark.parametrize("engine", WRONG)
def test_wrong_text_diverges_at_its_first_wrong_token(engine: str, folder: Path) -> None:
    found = verdicts(builtin("f32", folder), engine, "text")
    assert [v.status for v in found] == ["diverged"], found[0].summary
    assert found[0].detail["step"] == (0 if "rope" in engine else 2)


def test_engine_that_writes_only_empty_texts_diverges(folder: Path) -> None:
    made("text: none", TextAlone, write=lambda _, p: b"")
    empty = verdicts(builtin("f32", folder), "text: none", "text")
    assert ([v.status for v in empty], exit_code(empty)) == (["not-compared", "diverged"], 1)


def test_engine_right_only_for_one_prompt_is_found_by_other_prompts(
    folder: Path,
) -> None:
    engine = text_engine("BOS again", read=lambda text: text if text == PROMPT else b"<s>" + text)
    first, *_, last = verdicts(builtin("f32", folder), engine, "text")
    assert (first.status, last.status) == ("agreed", "diverged")


class Words(dict[int, bytes]):
    """The pieces of a vocabulary for a test."""

    cleans = False

    def __getitem__(self, token: int) -> bytes:
        return self.get(token, b"")


WORDS = Words(
    {0: b"", 1: b" gir", 2: b" girl", 3: b"l", 4: b" boy", 5: b" is", 6: b"\xe2\x96", 7: b"s"}
)
GIRL_IS = (2, 5)


def text_verdicts(
    said: bytes,
    *rows: dict[int, float],
    noise: float = 0.01,
    more: float | None = None,
    whole: bool = False,
    free: Sequence[int] = GIRL_IS,
    pieces: Any = WORDS,
) -> list[Verdict]:
    """Return verdicts on a text. `free` is the oracle's text. `rows` are the logits before each
    token; missing logits are -9. `more` is the noise after further runs, or None if no further runs
    are allowed."""

    def noise_on(batches: Any) -> float:
        assert more is not None, "more runs were asked for"
        return more

    logits = np.full((len(rows), 8), -9.0, np.float32)
    for row, given in zip(logits, rows, strict=True):
        for token, value in given.items():
            row[token] = value
    context: Any = SimpleNamespace(
        oracle=SimpleNamespace(name="llama.cpp"),
        noise=SimpleNamespace(relative=noise),
        noise_on=noise_on,
        verdict=partial(Context.verdict, SimpleNamespace(case="c", repro=str)),
    )
    return list(judge_text(context, (), logits, free, said, pieces, whole=whole))


CLEAR = {2: 5.0, 1: 3.0}, {5: 5.0, 3: 4.5}


GIRL, IS = CLEAR


@pytest.mark.parametrize(
    ("said", "rows", "limits", "expected"),
    [
        (b" girl is", CLEAR, {}, ["agreed"]),  # the tokens of these bytes do not matter
        # a tie between two tokenizations is sought before the first difference
        (b" girls", ({2: 5.0, 1: 4.99}, {5: 5.0}), {}, ["excused 0 1"]),
        (b" girls", (GIRL, {5: 5.0, 7: 4.99}), {}, ["agreed", "excused 1 7"]),
        # a tie with a token that does not fit excuses nothing
        (b" girls", ({2: 5.0, 4: 4.99}, {5: 5.0, 4: 4.99}), {"more": 0.01}, ["diverged 1 7"]),
        # a tie with a control token excuses, because it has no text
        (b" dog", ({2: 5.0, 0: 4.99}, {5: 5.0}), {}, ["excused 0 0"]),
        # if the text must be complete, it may end early or continue only like an honest run
        (b" girl", ({2: 5.0}, IS), {}, ["agreed", "not-compared"]),
        (b" girl", ({2: 5.0}, IS), {"more": 0.01, "whole": True}, ["diverged 1 5"]),
        (b" girl", ({2: 5.0}, {5: 5.0, 0: 4.99}), {"whole": True}, ["agreed", "excused 1 0"]),
        (b" girl is is", ({2: 5.0}, IS), {"whole": True}, ["agreed", "diverged"]),
        # more runs take minutes, and are made only if the usual noise gives no tie
        (b" boy", ({2: 5.0, 4: 4.99}, {5: 5.0}), {}, ["excused 0 4"]),
        (b" boy", ({2: 5.0, 4: 4.5}, {5: 5.0}), {"more": 0.1}, ["excused 0 4"]),
        (b" boy", ({2: 5.0, 4: 4.5}, {5: 5.0}), {"more": 0.01}, ["diverged 0 4"]),
        # without a limit, ties are unknown
        (b" boy", CLEAR, {"noise": float("inf")}, ["not-compared"]),
        (b" boy", ({2: float("nan")}, {5: 1.0}), {}, ["not-compared"]),
    ],
)
def test_possible_greedy_text_is_distinguished_from_an_impossible_one(
    said: bytes, rows: Sequence[dict[int, float]], limits: dict[str, Any], expected: list[str]
) -> None:
    """Each expected value is a status, with the step and the token that differ."""
    found = text_verdicts(said, *rows, **limits)
    told = [(v.status, v.detail.get("step", ""), v.detail.get("actual", "")) for v in found]
    assert [" ".join(map(str, each)).rstrip() for each in told] == expected


def test_json_escaped_text_is_compared_by_characters(folder: Path) -> None:
    """Random models write many bytes that are not characters."""
    made("text: in JSON", TextAlone, write=lambda _, p: in_json(p))
    made("text: in JSON, wrong", TextAlone, write=lambda _, p: in_json([*p[:2], b"~~", *p[3:]]))
    for name in ("q4_0", "bf16"):
        right = verdicts(builtin(name, folder), "text: in JSON", "text", n_steps=16)
        assert {right[0].status, right[-1].status} == {"agreed"}, right
        assert exit_code(right) == 0  # one of so many texts may contain a tie
        assert "except for incomplete UTF-8" in right[0].summary
    wrong_ = verdicts(builtin("q4_0", folder), "text: in JSON, wrong", "text", n_steps=16)
    assert "diverged" in statuses(wrong_), wrong_


def in_json(pieces: Sequence[bytes]) -> bytes:
    return b"".join(pieces).decode("utf-8", "replace").encode()


def test_replacement_characters_for_invalid_bytes_are_recognised() -> None:
    replaced = "\ufffd".encode()
    assert is_replaced(replaced + b"x", b"\xffabc")
    assert is_replaced(b"a" + replaced, b"a\xe2\x80")
    assert not is_replaced(b"abc", b"\xffabc")
    assert not is_replaced("ä".encode(), "ü".encode())


def test_question_with_a_wrong_text_is_repeated(folder: Path) -> None:
    """The engine samples at a temperature above 0, and shows only the drawn text."""
    drawn = iter(range(1000))

    def generate(self: Any, prompt: bytes, n: int) -> bytes:
        return b"~~~%d" % next(drawn)

    made("text: drawn", TextAlone, generate=generate)
    wrong, again = verdicts(builtin("f32", folder), "text: drawn", "text")
    assert (wrong.status, again.status) == ("diverged", "diverged")


def test_other_prompts_are_compared_if_the_oracle_ends_at_once(
    tmp_path: Path,
) -> None:
    """The first token is a control token, after which engines may end.

    An earlier version asked only for this prompt.
    """
    recipe = LlamaRecipe(n_layer=1)
    path = written(tmp_path, n_layer=1)
    engine = Reference(path, EXACT)
    try:
        (first,) = engine.greedy(engine.tokenize([b"Once upon a time"])[0], 1)
        types = np.array(engine.file.metadata["tokenizer.ggml.token_type"].data)
    finally:
        engine.close()
    types[first] = 3  # the token becomes a control token
    with_metadata(path, recipe, tokenizer__ggml__token_type=("ARR[I32]", types.tolist()))
    *fine, last = verdicts(path, "text alone", "text")
    assert "agreed" in statuses(fine)
    assert last.status == "not-applicable"
    assert "the oracle begins with a token without text" in last.summary
    assert "diverged" in statuses(verdicts(path, "text: a letter", "text"))
