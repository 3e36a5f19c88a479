"""Secrets are never shown, written or logged, in whatever spelling, neither whole nor in part."""

import json
import sys
from base64 import b64encode
from pathlib import Path

import pytest

from lockstep.harness.records import Crashed, Unanswerable
from lockstep.harness.redaction import (
    API_KEY,
    REDACTED,
    keep_secret_options,
    redact,
    values_of_others,
)
from lockstep.harness.report.jsonl import plain
from tests.command_line import in_a_process
from tests.fake_server import sending
from tests.models import builtin

SECRET = 'sk-Zq8/"v+71Lkd=0t'
WORD = "Zq8"  # a part that occurs in no other text


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, SECRET)


@pytest.mark.parametrize(
    "text",
    [
        f"bad key Bearer {SECRET}",
        f"bad key {SECRET[:-4]}'...: cut",
        f"{SECRET[4:]} is the rest of a line",
        json.dumps({"said": SECRET}),
        repr(SECRET.encode()),
        "https://host/?q=sk-Zq8%2F%22v%2B71Lkd%3D0t",
        "c2stWnE4LyJ2KzcxTGtkPTB0",
        b64encode(f"Bearer {SECRET}".encode()).decode(),
        b64encode(f"me:{SECRET}, and more".encode()).decode(),
        "sk-Zq8/&quot;v+71Lkd=0t",
        f"{SECRET}{SECRET}",
        f"a text ...{SECRET[5:]} and more",
        f"a text {SECRET[1:]}",
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        "".join(f"%{byte:02X}" for byte in SECRET.encode()),
        "".join(f"\\u{ord(character):04x}" for character in SECRET),
        "".join(f"&#{ord(character)};" for character in SECRET),
    ],
)
def test_redact_hides_key_in_any_spelling(text: str) -> None:
    found = redact(text)
    assert REDACTED in found
    assert WORD not in found
    assert "71Lkd" not in found
    assert redact(found) == found
    assert not any(piece in found for piece in ("WnE4", "cTgv", "phxOC"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Basic dTpw, go", f"Authorization: Basic {REDACTED}, go"),
        ('{"Authorization": "Bearer abc"}', f'{{"Authorization": "Bearer {REDACTED}"}}'),
        ("x-api-key=abc", f"x-api-key={REDACTED}"),
        ("Set-Cookie: a=b; c=d", f"Set-Cookie: {REDACTED}"),
        ("unknown Bearer ab-12", f"unknown Bearer {REDACTED}"),
        ("at http://me:pw@h:1/v1", f"at http://{REDACTED}@h:1/v1"),
        ("at http://me:p/w@h:1/v1", f"at http://{REDACTED}@h:1/v1"),
        ("serve:./s --api-key abc --port 1", f"serve:./s --api-key {REDACTED} --port 1"),
        ("'./s' --hf-token=abc", f"'./s' --hf-token={REDACTED}"),
        ("http://h/v1?api_key=abc&n=1", f"http://h/v1?api_key={REDACTED}&n=1"),
        ("./e --token abc --pass=def", f"./e --token {REDACTED} --pass={REDACTED}"),
        ("env MY_TOKEN=abc ./e", f"env MY_TOKEN={REDACTED} ./e"),
        ("http:/me:pw@h/m.gguf: no such file", f"http:/{REDACTED}@h/m.gguf: no such file"),
        ("...//me:pw@h/db", f"...//{REDACTED}@h/db"),
    ],
)
def test_redact_hides_secrets_in_headers_and_addresses(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "HTTP 401: Bearer authentication required (if it needs a key, set LOCKSTEP_API_KEY)",
        "openai:http://localhost:8080/v1#@cf/model and me@host",
        "tokenizer.ggml.bos_token_id: expected 1, got 2",
        "lockstep check m.gguf --tokens 32 --engine ./e",
        "n_key=4, token=5 and the key=value of a pair; \\u005a\\u0041 &#90;&#65;",
    ],
)
def test_redact_keeps_other_words(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(("key", "text"), [("s3cret", "no s3crets here"), ("none", "none")])
def test_redact_ignores_keys_too_short_to_recognise(
    key: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, key)
    assert redact(text) == text


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DB_PASS", "correct-horse-battery", "correct-horse-battery"),
        ("OPENAI_KEY", "sk-0123456789abcdef", "sk-0123456789abcdef"),
        ("DB_URL", "postgres://me:long-password@h/db", "cut: long-password@h/db"),
    ],
)
def test_redact_hides_secrets_of_the_environment(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    values_of_others.cache_clear()
    try:
        assert redact(f"it says {said}").startswith(("it says [", "it says cut: ["))
    finally:
        values_of_others.cache_clear()


def test_redact_hides_every_line_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, "first-of-two-lines\nX: second-of-two")
    assert "second" not in redact("Invalid header value b'X: second-of-two'")


def test_redact_hides_an_option_value_that_an_engine_repeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lockstep.harness.redaction.GIVEN", {})
    keep_secret_options(["check", "--engine", "./e --token opt-value-0123", "--tokens", "32"])
    assert redact("invalid credentials: opt-value-0123") == f"invalid credentials: {REDACTED}"


def test_outcomes_and_reports_hold_no_key() -> None:
    crashed = Crashed(message=f"bad {SECRET}", log=("x", f"key {SECRET}"))
    assert WORD not in str(crashed)
    assert WORD not in str(Unanswerable(message=SECRET, declared=True))
    assert WORD not in json.dumps(plain({"engine": [f"serve:./s --key {SECRET}"]}))


def files_below(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


FORMATS = ("--format", "junit", "--format", "markdown", "--format", "ctrf")


def test_check_hides_a_key_that_a_server_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = b'{"error": {"message": "bad key Bearer s3cr3t-key-0123"}}'
    monkeypatch.setenv(API_KEY, "s3cr3t-key-0123")
    monkeypatch.setenv("LOCKSTEP_TRACEBACK", "1")
    model = builtin("f32", tmp_path)
    with sending(b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said)) as url:
        ended = in_a_process(
            *("check", str(model), "--engine", url, "--suite", "metadata", *FORMATS),
            *("--report", str(tmp_path / "reports")),
        )
    assert ended.code == 2
    assert f"HTTP 401: bad key Bearer {REDACTED}" in ended.err
    assert "s3cr3t" not in ended.out + ended.err


DIES = f"""
import json, os, sys
question = json.loads(sys.stdin.readline())
said = {{"protocol": 1, "engine": "mine", "version": os.environ["{API_KEY}"], "can": ["tokenize"]}}
print(json.dumps({{"id": 1, "answer": said}}), flush=True)
sys.stdin.readline()
sys.exit("cannot log in with " + os.environ["{API_KEY}"])
"""


def test_check_hides_a_key_that_a_program_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, "s3cr3t-key-0123")
    (tmp_path / "dies.py").write_text(DIES)
    engine = f"{sys.executable} {tmp_path}/dies.py --api-key s3cr3t-two"
    reports = tmp_path / "reports"
    ended = in_a_process(
        *("check", str(builtin("f32", tmp_path)), "--engine", engine, "--suite", "tokens"),
        *("--oracle", "reference", "--report", str(reports), *FORMATS),
    )
    assert ended.code == 3, ended.err
    written = files_below(reports)
    assert f"cannot log in with {REDACTED}" in written
    assert f"--api-key {REDACTED}" in written
    assert "s3cr3t" not in written + ended.out + ended.err
