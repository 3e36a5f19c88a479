"""A server is asked over HTTP. Any answer becomes an outcome of its question, and does not affect
other questions."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.harness.check.check import BadInput
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.http import client
from lockstep.harness.http.client import address_of
from lockstep.harness.http.llama_server import LlamaServer
from lockstep.harness.http.session import HttpSession
from lockstep.harness.protocol.smoke import smoke
from lockstep.harness.records import (
    EXACT,
    Answered,
    Busy,
    Crashed,
    Malformed,
    Outcome,
    Rejected,
    TimedOut,
    Unanswerable,
)
from lockstep.harness.redaction import API_KEY
from tests.fake_server import OPENAI, sending, serving
from tests.harness.http.conftest import checked
from tests.models import builtin

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
PROPS = b'{"default_generation_settings":{"n_ctx":512}}'


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin("q8_0", tmp_path_factory.mktemp("models"))


def spoilt(path: str, *at: str | int, value: Any = None, by: Any = None) -> Callable[..., Any]:
    """Return a function that changes one place in the answers of a page."""

    def change(page: str, said: Any) -> Any:
        if page != path:
            return said
        held = said
        for step in at[:-1]:
            if isinstance(step, str) and step not in held:
                return said
            held = held[step]
        if at[-1] in held if isinstance(held, dict) else True:
            held[at[-1]] = held[at[-1]] + by if by is not None else value
        return said

    return change


# --- honest servers -------------------------------------------------------------------------------


def test_llama_server_is_compared_at_every_level(model: Path) -> None:
    with serving(model) as url:
        found = checked(model, url)
    compared = {v.suite: v.status for v in found if v.status != "not-applicable"}
    assert compared.pop("shadow") == "excused"  # this suite is only about the oracle
    assert compared == dict.fromkeys(("tokens", "logprobs", "decode", "text"), "agreed"), found
    assert exit_code(found) == 0
    assert {v.suite for v in found if v.status == "not-applicable"} > {"logits", "trace"}


def test_named_suite_reports_a_level_that_a_server_lacks(model: Path) -> None:
    with serving(model) as url:
        found = checked(model, url, "metadata", "logits", "dequant")
    assert {v.status for v in found} == {"not-compared"}, found
    assert exit_code(found) == 3
    said = " ".join(v.summary for v in found)  # levels are named as in smoke and in the protocol
    assert all(f"does not offer {level}" in said for level in ("parse", "logits", "dequantize"))


@pytest.mark.parametrize(("takes_ids", "strict"), [(True, True), (False, True), (False, False)])
def test_an_openai_server_is_compared_by_text_and_lists(
    takes_ids: bool, strict: bool, model: Path
) -> None:
    with serving(model, pages=OPENAI, takes_ids=takes_ids, strict=strict) as url:
        found = checked(model, url, "logprobs", "text")
        again = checked(model, f"openai:{url}/v1", "logprobs")
    assert {v.suite: v.status for v in found} == {"logprobs": "agreed", "text": "agreed"}, found
    assert again[0].status == "agreed"
    # the server limits the number of candidates; equal texts count once
    assert 10 < max(again[0].detail["candidates"]) <= 20


def test_newer_object_lists_of_llama_server_are_read(model: Path) -> None:
    def content(path: str, said: Any) -> Any:
        if path == "/v1/completions" and "logprobs" in said["choices"][0]:
            (row,) = said["choices"][0]["logprobs"]["top_logprobs"]
            objects = [{"token": name, "logprob": value} for name, value in row.items()]
            said["choices"][0]["logprobs"] = {"content": [{"top_logprobs": objects}]}
        return said

    with serving(model, content, OPENAI) as url:
        assert [v.status for v in checked(model, url, "logprobs")] == ["agreed"]


def test_server_without_bias_may_end_the_text() -> None:
    """The server sends no list at the end of a text. The model has only one end token; with two,
    the end would be ambiguous."""

    def ask(method: str, path: str, body: Any = None) -> Any:
        if path == "/tokenize":
            return {"tokens": [7]}
        over = len(body["prompt"]) == 2
        rows = [] if over else [{"top_logprobs": [{"id": 5, "logprob": -0.5}]}]
        tokens = [] if over else [5]
        stop = "limit" if len(tokens) == body["n_predict"] else "eos"
        return {"tokens": tokens, "stop_type": stop, "completion_probabilities": rows}

    server = LlamaServer(ends=lambda: frozenset({2}))
    assert server.logprobs(ask, [[1], [1, 5]], 4) == [[(5, -0.5)], []]
    assert server.greedy(ask, [1], 3) == [5, 2, 5]
    with pytest.raises(Unsupported, match="the server ignores logit_bias"):
        LlamaServer(ends=lambda: frozenset({2, 3})).greedy(ask, [1], 3)


# --- wrong ones -----------------------------------------------------------------------------------


LISTED = ("completion_probabilities", 0, "top_logprobs")


@pytest.mark.parametrize(
    ("suite", "change"),
    [
        ("tokens", spoilt("/tokenize", "tokens", value=[1])),
        ("logprobs", spoilt("/completion", *LISTED, 0, "logprob", by=0.01)),
        ("logprobs", spoilt("/completion", *LISTED, 0, "id", value=383)),
        ("logprobs", spoilt("/completion", *LISTED, value=[{"id": 383, "logprob": -1.5}])),
        ("decode", spoilt("/completion", "tokens", value=[5, 5, 5, 5, 5])),
        ("text", spoilt("/completion", "content", value="Once more")),
    ],
)
def test_a_wrong_server_diverges(suite: str, change: Callable[..., Any], model: Path) -> None:
    with serving(model, change) as url:
        found = checked(model, url, suite)
    assert exit_code(found) in (1, 3)
    wrong = {v.status for v in found} - {"agreed", "not-applicable", "excused"}
    assert wrong <= {"diverged", "malformed"}
    assert wrong, found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (spoilt("/completion", "completion_probabilities", value=[]), "a list with an item 0"),
        (spoilt("/completion", "completion_probabilities", value={}), "a list with an item 0"),
        (spoilt("/completion", *LISTED, value={"a": 1}), "the candidates: expected a list"),
        (spoilt("/completion", *LISTED, 0, "logprob", value="much"), "expected a number"),
        (spoilt("/completion", *LISTED, 0, "id", value=1 << 40), "expected ids from 0 to 383"),
        (spoilt("/completion", *LISTED, 1, value=7), "expected an object with 'token'"),
    ],
)
def test_an_answer_of_another_form_is_malformed(
    change: Callable[..., Any], words: str, model: Path
) -> None:
    with serving(model, change) as url:
        (found,) = checked(model, url, "logprobs")
    assert (found.status, exit_code([found])) == ("malformed", 3)
    assert words in found.summary
    if "ids from" not in words:  # ids are checked only after the whole answer
        assert '; asked: POST /completion {"temperature": 0' in found.summary


def test_null_value_counts_as_not_finite(model: Path) -> None:
    with serving(model, spoilt("/completion", *LISTED, 0, "logprob", value=None)) as url:
        (found,) = checked(model, url, "logprobs")
    assert (found.status, found.detail["kind"]) == ("diverged", "not finite")


# --- another model, no server, a key --------------------------------------------------------------


def test_server_with_another_model_is_refused_before_the_comparison(
    model: Path, other: Path
) -> None:
    with serving(other) as url, pytest.raises(BadInput, match="model is not MODEL: n_embd"):
        checked(model, url, "logprobs")


def test_server_with_a_file_of_another_size_is_refused(model: Path, other: Path) -> None:
    def change(path: str, said: Any) -> Any:
        return said | {"model_path": str(other)} if path == "/props" else said

    with serving(model, change) as url, pytest.raises(BadInput, match=r"q8_0\.gguf has \d+ bytes"):
        checked(model, url, "logprobs")


def test_refused_connection_gives_one_clear_message(model: Path) -> None:
    with sending() as url:
        pass
    with pytest.raises(BadInput, match="no server listens there; start the server"):
        checked(model, url, "logprobs")


def test_small_context_is_not_a_difference(model: Path) -> None:
    change = spoilt("/props", "default_generation_settings", value={"n_ctx": 8})
    with serving(model, change) as url:
        (found,) = checked(model, url, "logprobs")
    assert (found.status, exit_code([found])) == ("not-compared", 3)
    assert "has 8 cells, but the run needs 10" in found.summary


def test_server_that_any_question_would_kill_is_asked_nothing(model: Path) -> None:
    change = spoilt("/v1/models", "data", 0, "meta", value={"vocab_type": 0})
    with serving(model, change) as url:
        found = checked(model, url, "logprobs", "text", "decode")
    assert {v.status for v in found} == {"not-compared"}
    assert exit_code(found) == 3


def test_server_with_several_models_needs_a_name(model: Path) -> None:
    def two(path: str, said: Any) -> Any:
        return {"data": [{"id": "a"}, {"id": "b"}]} if path == "/v1/models" else said

    with serving(model, two, OPENAI) as url:
        with pytest.raises(BadInput, match=r"after #, as in .*: a, b"):
            checked(model, url, "text")
        assert [v.status for v in checked(model, f"{url}/v1#a", "text")] == ["agreed"] * 3


def test_key_is_sent_and_never_part_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("http://me:secret@localhost:1", "http://me:se/cret@localhost:1"):
        with pytest.raises(Unsupported, match=API_KEY):
            address_of(url)
    monkeypatch.setenv(API_KEY, "secret")
    with sending(b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\n{}") as url:
        outcome = asked(url, "describe")
    assert isinstance(outcome, Unanswerable)
    assert "HTTP 401" in outcome.message
    assert "secret" not in outcome.message


# --- bytes that are no answers --------------------------------------------------------------------


def asked(url: str, question: str, *args: Any, seconds: float = 20.0) -> Outcome:
    with HttpSession(url, None, EXACT, time_limit=seconds, start_limit=seconds) as session:
        return session.ask(question, *args)


def body(raw: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(raw) + raw


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (lambda: sending(b"SSH-2.0 hello\r\n"), "the answer is not HTTP"),
        (lambda: sending(body(b"<html>")), "expected JSON, got b'<html>'"),
        (lambda: sending(body(b"[" * 100_000)), "expected JSON"),
        (lambda: sending(body(b'{"a":"\xff"}')), "expected JSON"),
        (lambda: sending(body(PROPS[:-9])), "expected JSON"),
        (
            lambda: sending(HEAD + b"Content-Length: 999\r\n\r\n" + PROPS),
            "ends 954 bytes too early",
        ),
        (lambda: sending(HEAD + b"Transfer-Encoding: chunked\r\n\r\nxx\r\n"), "not HTTP"),
        (lambda: sending(HEAD, forever=b"X: y\r\n" * 50), "not HTTP"),
        (lambda: sending(b"HTTP/1.1 200 OK" + b"x" * 100_000), "not HTTP"),
        (lambda: sending(body(b"7")), "an object with 'data'"),
    ],
)
def test_garbage_answer_is_malformed(
    server: Callable[[], AbstractContextManager[str]], words: str
) -> None:
    with server() as url:
        outcome = asked(url, "describe")
    assert isinstance(outcome, Malformed), outcome
    assert words in outcome.message


def test_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LARGEST", 1 << 20)
    with sending(HEAD + b"\r\n", forever=b" " * 65536) as url:
        outcome = asked(url, "describe")
    assert isinstance(outcome, Malformed)
    assert "longer than 1048576 bytes" in outcome.message


def test_endless_error_is_cut() -> None:
    with sending(b"HTTP/1.1 500 Oh\r\n\r\n", forever=b"x" * 65536) as url:
        outcome = asked(url, "describe")
    assert isinstance(outcome, Crashed)
    assert len(outcome.message) < 1000


@pytest.mark.parametrize(
    "server",
    [
        lambda: sending(hang=True),
        lambda: sending(HEAD, hang=True),
        lambda: sending(HEAD + b"Content-Length: 9\r\n\r\n{", hang=True),
        lambda: sending(forever=b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_silence_times_out_at_any_point(
    server: Callable[[], AbstractContextManager[str]],
) -> None:
    with server() as url:
        outcome = asked(url, "describe", seconds=0.5)
    assert outcome == TimedOut(seconds=0.5)


def test_slow_trickle_still_times_out() -> None:
    """Each byte comes in time; the whole answer does not."""
    with sending(HEAD + b"Content-Length: 1000000000\r\n\r\n", forever=b" ") as url:
        assert asked(url, "describe", seconds=0.5) == TimedOut(seconds=0.5)


def test_vanished_server_is_a_crash(model: Path) -> None:
    with serving(model) as url:
        session = HttpSession(url, None, EXACT, time_limit=20)
        assert isinstance(session.ask("describe"), Answered)
    outcome = session.ask("greedy", [1], 2)
    assert isinstance(outcome, Crashed)
    assert "no server listens" in outcome.message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, Rejected), (422, Rejected), (404, Unanswerable), (302, Unanswerable)),
        *((413, Rejected), (403, Busy), (409, Busy), (500, Crashed)),
    ],
)
def test_http_status_decides_the_outcome(status: int, kind: type, model: Path) -> None:
    words = json.dumps({"error": {"message": "too long"}}).encode()
    raw = b"HTTP/1.1 %d X\r\nLocation: /elsewhere\r\nContent-Length: %d\r\n\r\n" % (
        status,
        len(words),
    )
    with sending(raw + words) as url, serving(model) as honest:
        session = HttpSession(honest, None, EXACT, time_limit=20)
        assert isinstance(session.ask("describe"), Answered)
        session.address = address_of(url)
        outcome = session.ask("greedy", [1], 2)
    assert isinstance(outcome, kind), outcome
    message = getattr(outcome, "message", "")
    assert f"HTTP {status}: too long" in message
    assert ("use /elsewhere" in message) is (status == 302)


def test_check_waits_for_a_server_that_loads_its_model(model: Path) -> None:
    loading = b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n"
    with sending(loading) as url:
        outcome = asked(url, "describe", seconds=1.2)
    assert isinstance(outcome, Crashed)
    assert "HTTP 503" in outcome.message


def test_smoke_lists_the_levels_of_a_server(model: Path) -> None:
    for options in ({}, {"pages": OPENAI}, {"pages": OPENAI, "takes_ids": False}):
        with (
            serving(model, **options) as url,
            HttpSession(url, model, EXACT, time_limit=20) as session,
        ):
            steps = {step.level: step.status for step in smoke(session)}
        works = {level for level, status in steps.items() if status == "works"}
        assert {"generate", "logprobs"} < works, steps
        assert {*steps.values()} == {"works", "not offered"}
