"""Servers that offer only chats: their text is compared under the model's own template."""

from pathlib import Path

import pytest

from lockstep.harness.acid.write import write_acid
from lockstep.harness.check.check import BadInput
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.processes import chat_template
from lockstep.harness.processes.chat_template import NoText, render_apart
from lockstep.harness.records import Verdict
from lockstep.harness.synth.llama import LlamaRecipe
from tests.fake_server import CHAT, CHAT_TEMPLATE, serving
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import with_metadata


def model_with(template: str | None, path: Path) -> Path:
    held = None if template is None else ("STR", template)
    return with_metadata(path, LlamaRecipe(seed=1), tokenizer__chat_template=held)


def check_text(model: Path, url: str) -> list[Verdict]:
    return verdicts_of(plan_for(model, engine=url, suites=("text",), n_steps=5))


def test_chat_server_agrees_through_the_models_own_template(tmp_path: Path) -> None:
    model = model_with(CHAT_TEMPLATE, tmp_path / "m.gguf")
    with serving(model, pages=CHAT) as url:
        found = check_text(model, url)
    assert {verdict.status for verdict in found} == {"agreed"}, found


def test_chat_server_with_another_template_diverges(tmp_path: Path) -> None:
    model = model_with(CHAT_TEMPLATE.replace("<bot>", "<bot> "), tmp_path / "m.gguf")
    with serving(model, pages=CHAT) as url:
        assert exit_code(check_text(model, url)) == 1


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "the model has no tokenizer.chat_template"),
        ("{{ raise_exception('users alone') }}", "ValueError: users alone"),
    ],
)
def test_chat_template_without_a_text_is_not_compared(
    template: str | None, says: str, tmp_path: Path
) -> None:
    model = model_with(template, tmp_path / "m.gguf")
    with serving(model, pages=CHAT) as url:
        found = check_text(model, url)
    assert exit_code(found) == 3
    assert any(says in verdict.summary for verdict in found), found


def test_acid_model_is_read_through_a_chat(tmp_path: Path) -> None:
    model = tmp_path / "acid.gguf"
    write_acid(model)
    with serving(model, pages=CHAT) as url:
        found = verdicts_of(plan_for(model, engine=url, suites=("acid",)))
    assert {verdict.status for verdict in found} == {"agreed"}, found
    assert len(found) > 20


def test_error_on_an_unknown_server_lists_the_requests_tried(tmp_path: Path) -> None:
    model = model_with(None, tmp_path / "m.gguf")
    with (
        serving(model, pages=frozenset({"/elsewhere"})) as url,
        pytest.raises(BadInput) as said,
    ):
        check_text(model, url)
    for page in ("GET /props", "GET /v1/models", "POST /v1/chat/completions"):
        assert page in str(said.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 10**11 }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 'x' * 2**21 }}",
        "{% if %}",
    ],
)
def test_hostile_template_gives_no_text(template: str) -> None:
    with pytest.raises(NoText):
        render_apart(template, "Once", "<s>", "</s>")


def test_endless_template_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "TIME_LIMIT_SECONDS", 0.5)
    long = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(NoText, match=r"more than 0\.5 s"):
        render_apart(long, "Once", "", "")
