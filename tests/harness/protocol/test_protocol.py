"""Any program can be asked. Whatever it does becomes an outcome of the question, and does not
affect other questions."""

import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from lockstep.engine.errors import Unsupported
from lockstep.harness.context.runner import Runner
from lockstep.harness.context.suite import no_answer
from lockstep.harness.processes.wire import WireError
from lockstep.harness.protocol.frames import LONGEST_LINE, Message, head_of, pack_message
from lockstep.harness.protocol.messages import LEVELS, QUESTIONS, start
from lockstep.harness.protocol.session import ProgramSession, command_of
from lockstep.harness.protocol.smoke import question_for_level, smoke
from lockstep.harness.records import (
    DEFAULT,
    EXACT,
    Answered,
    Crashed,
    Malformed,
    Outcome,
    Rejected,
    TimedOut,
    Unanswerable,
)
from lockstep.harness.runs.run import builtin_model

TESTS = Path(__file__).parents[2]
FAKE = [sys.executable, "-I", "-S", str(TESTS / "fake_program.py")]
SCHEMA = json.loads(
    (Path(command_of.__code__.co_filename).parents[1] / "schemas/protocol.json").read_text()
)
TEXT = (b"words",)


def fake(way: str, *, seconds: float = 60.0, memory: int | None = 1 << 30) -> ProgramSession:
    return ProgramSession([*FAKE, way], None, EXACT, time_limit=seconds, memory_limit=memory)


def value_of(outcome: Outcome) -> object:
    assert isinstance(outcome, Answered), outcome
    return outcome.value


def ids(way: str, **limits: float) -> Outcome:
    with fake(way, **limits) as session:  # type: ignore[arg-type]
        return session.ask("tokenize", list(TEXT))


def test_answer_equals_the_adapters_answer() -> None:
    outcome = ids("answers")
    assert isinstance(outcome, Answered)
    assert outcome.value == [[1, 2]]


@pytest.mark.parametrize("way", ["prints first", "uses the descriptor"])
def test_library_output_is_not_an_answer(way: str) -> None:
    outcome = ids(way)
    assert isinstance(outcome, Answered)
    assert outcome.value == [[1, 2]]


@pytest.mark.parametrize(
    ("way", "why"),
    [("sends NaN at first", "NaN is not JSON"), ("prints a dict", "{'id': 1, ")],
)
def test_malformed_first_answer_is_reported_at_once_and_not_as_log(way: str, why: str) -> None:
    outcome = ids(way)
    assert isinstance(outcome, Malformed), outcome
    assert why in outcome.message


def test_refusal_missing_level_and_failure_are_distinguished() -> None:
    assert ids("refuses") == Rejected(message="no such words")
    assert ids("does not support") == Unanswerable(message="not yet")
    failed = ids("fails")
    assert isinstance(failed, Crashed)
    assert failed.message == "an exception in two lines"
    said = no_answer("fake_program.py", "greedy", failed).summary
    assert said == "fake_program.py failed in greedy: an exception in two lines"
    died = no_answer("fake_program.py", "greedy", replace(failed, said=False)).summary
    assert died.startswith("fake_program.py crashed in greedy: ")


def test_undeclared_ability_of_an_engine_is_not_asked() -> None:
    with fake("answers") as session:
        outcome = session.ask("metadata")
    assert outcome == Unanswerable(message="fake_program.py does not offer parse", declared=True)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("lacks the ids", "no 'ids'"),
        ("answers with a list", '"answer" to tokenize: expected an object, got a list of 0'),
        ("has a number for ids", "a list of 1 lists of ids, got 7"),
        ("says a key twice", "duplicate key 'answer'"),
        ("has a text for its id", "expected \"id\":2, got '2'"),
        ("has texts for ids", "the ids of text 0"),
        ("has fewer answers", "a list of 1 lists of ids"),
        ("says both", "expected one of answer, refused, unsupported, failed"),
        ("says nothing", "expected one of answer"),
        ("names one array twice", "names one array twice"),
        ("has a type of its own", "'f8'"),
        ("announces ten gigabytes", "and at most"),
        ("counts badly", '"bytes" is 3'),
        ("miscounts", 'expected "id":2, got 99'),
        ("answers the one before twice", "did the engine answer the previous question twice?"),
        ("sends no JSON", "expected a line of JSON"),
        ("sends a list", "expected a JSON object"),
        ("sends NaN", "NaN is not JSON"),
        ("nests", "recursion"),
        ("writes on and on", f"a line of more than {LONGEST_LINE} bytes"),
        ("of another version", '"protocol": expected 1, got 2'),
        ("can more than there is", "telepathy"),
        ("nameless", '"engine": expected a text'),
        ("shows a node without a name", "names of nodes"),
        ("has strange settings", '"settings", n_ctx'),
        ("stores keys in nothing", '"settings", type_k: expected one of F32, F16'),
        ("has no threads", '"settings", n_threads: expected 1 to'),
        ("has very many threads", '"settings", n_threads: expected 1 to 512'),
    ],
)
def test_malformed_answer_states_the_expectation(way: str, words: str) -> None:
    outcome = ids(way)
    assert isinstance(outcome, Malformed), outcome
    assert words in outcome.message


def test_candidate_lists_contain_ids_or_texts_with_numbers() -> None:
    with fake("answers") as ids_, fake("lists texts") as texts:
        lists = value_of(ids_.ask("logprobs", [[3], [4]], 2))
        assert lists == [[(5, -0.5), (1, -2.0)]] * 2
        assert value_of(texts.ask("logprobs", [[3]], 1)) == [[(b"a", float("-inf"))]]
        assert value_of(ids_.ask("generate", b"text", 4)) == b"text"


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("lists a value less", "what PROTOCOL.md says, got"),
        ("lists an endless number", "what PROTOCOL.md says, got"),
        ("lists words", 'expected numbers, "nan", "inf" or "-inf"'),
        ("lists no base64", "expected base64"),
        ("lists a token twice", "each token once"),
        ("lists for nobody", "a list of 1 lists of candidates"),
    ],
)
def test_invalid_list_is_malformed(way: str, words: str) -> None:
    with fake(way) as session:
        outcome = session.ask("logprobs", [[3]], 1)
    assert isinstance(outcome, Malformed), outcome
    assert words in outcome.message


def test_death_is_a_crash_with_last_words_and_the_next_answer_comes() -> None:
    with fake("dies") as session:
        outcome = session.ask("tokenize", list(TEXT))
        assert outcome == Crashed(
            message="fake_program.py exited with status 1 during tokenize", log=("out of luck",)
        )
        assert isinstance(session.ask("greedy", [1], 2), Answered)
    assert "was killed by SIGKILL" in getattr(ids("is killed"), "message", "")


def test_engine_that_cannot_start_gives_its_own_reason() -> None:
    outcome = ids("cannot load")
    assert isinstance(outcome, Crashed)
    assert outcome.message.endswith("a kind of tensor that is not implemented: Q4_K")


def test_silence_is_a_timeout_and_the_next_question_is_answered() -> None:
    with fake("hangs", seconds=0.5) as session:
        outcome = session.ask("tokenize", list(TEXT))
        assert isinstance(outcome, TimedOut)
        assert isinstance(session.ask("greedy", [1], 2), Answered)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux alone")
def test_memory_is_bounded() -> None:
    outcome = ids("takes memory", memory=1 << 30)
    assert isinstance(outcome, Crashed)
    assert "MemoryError" in " ".join(outcome.log)
    assert outcome.message.endswith("(its memory limit is 1.0 GiB, without mapped files)")


def test_an_array_of_another_shape_is_malformed() -> None:
    raw = np.zeros(68, np.uint8)
    with fake("answers") as right, fake("has another shape") as wrong:
        good = right.ask("dequantize", "Q8_0", raw)
        assert isinstance(good, Answered)
        assert good.value.shape == (64,)
        assert isinstance(wrong.ask("dequantize", "Q8_0", raw), Malformed)


def test_settings_match_those_used_by_the_engine() -> None:
    with fake("follows no settings") as session:
        outcome = session.ask("describe")
    assert isinstance(outcome, Answered)
    assert outcome.value.settings.type_k == outcome.value.settings.type_v == "F16"
    assert outcome.value.version == "fake 7"
    with fake("names its settings") as session:
        outcome = session.ask("describe")
    assert isinstance(outcome, Answered)
    assert outcome.value.settings.type_k == "Q8_0"


def test_engine_text_does_not_control_a_terminal() -> None:
    with fake("steers the terminal") as session:
        outcome = session.ask("describe")
    assert isinstance(outcome, Answered)
    assert outcome.value.version == "fake [2J 7"


def test_command_is_a_path_or_has_arguments() -> None:
    assert command_of(f"{sys.executable} -c 'a b'") == [sys.executable, "-c", "a b"]
    assert command_of("llama.cpp@0.3.8") is command_of("mutant:wrong-eps") is None
    assert command_of("llama.cpp activations") is None
    with pytest.raises(Unsupported, match="no such file"):
        command_of("./nothing-here --fast")
    with pytest.raises(Unsupported, match="chmod"):
        command_of(str(TESTS / "fake_program.py"))


def test_path_with_spaces_is_a_command_without_quotes(tmp_path: Path) -> None:
    program = tmp_path / "my engine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert command_of(str(program)) == command_of(f"'{program}'") == [str(program)]
    assert command_of(f"'{program}' --fast") == [str(program), "--fast"]
    (tmp_path / "my").symlink_to(program)
    assert command_of(str(program)) == [str(tmp_path / "my"), "engine"]


def test_a_runner_opens_programs_by_their_command(tmp_path: Path) -> None:
    command = " ".join([*FAKE, "answers"])
    with Runner(time_limit=60).open(command, None, EXACT) as session:
        assert session.name == "fake_program.py"
        assert isinstance(session.ask("greedy", [1], 3), Answered)


def test_smoke_asks_every_level_and_names_wrong_levels(tmp_path: Path) -> None:
    model = builtin_model("f32", tmp_path)
    with ProgramSession(
        [*FAKE, "fails"], model, EXACT, time_limit=60, memory_limit=None
    ) as session:
        steps = {step.level: step.status for step in smoke(session)}
    assert list(steps) == ["start", *LEVELS]
    assert steps["greedy"] == steps["dequantize"] == "works"
    assert steps["tokenize"] == steps["logits"] == "wrong"
    assert steps["parse"] == steps["replace"] == "not offered"


# --- the schema and the page ----------------------------------------------------------------------


def lines_asked() -> Iterator[bytes | memoryview]:
    yield pack_message(Message(head={"id": 1, **start("m.gguf", DEFAULT).head}))[0]
    for level in LEVELS:
        if level != "replace":
            question, args, kwargs = question_for_level(level)
            message = QUESTIONS[question].send(*args, **kwargs)
            yield pack_message(Message(head={"id": 1, **message.head}, arrays=message.arrays))[0]


def test_every_question_fits_the_schema() -> None:
    for line in lines_asked():
        question = json.loads(bytes(line))
        jsonschema.validate(question, SCHEMA)
        own = {"$ref": f"#/$defs/ask-{question['ask']}", "$defs": SCHEMA["$defs"]}
        jsonschema.validate(question, own)
        assert list(question)[:2] == ["id", "ask"]
        assert list(question)[-2:] == ["arrays", "bytes"]


def test_schema_refuses_messages_outside_the_protocol() -> None:
    for wrong in ({"id": 1}, {"id": 1, "answer": {}, "failed": ""}, {"id": 1, "ask": "sing"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


def test_page_names_every_level_and_its_examples_match_the_schema() -> None:
    page = (Path(command_of.__code__.co_filename).parent / "PROTOCOL.md").read_text()
    for level in LEVELS:
        assert re.search(rf"^### .*\b{level}\b", page, re.MULTILINE), level
    joined = (
        re.sub(r"\n     ", "", page)
        .replace(",...}", ',"arrays":[],"bytes":0}')
        .replace("[...]", "[]")
    )
    examples = re.findall(r'^    (\{"id".*)$', joined, re.MULTILINE)
    assert len(examples) >= 10
    for text in examples:
        head, _ = json.JSONDecoder().raw_decode(text)
        if "answer" in head:
            kind = "start" if "protocol" in head["answer"] else "parse"
            part = {"$ref": f"#/$defs/answer-{kind}", "$defs": SCHEMA["$defs"]}
            jsonschema.validate(head["answer"], part)
        else:
            jsonschema.validate({"arrays": [], "bytes": 0} | head, SCHEMA)


def test_duplicate_keys_are_found_in_linear_time() -> None:
    """An earlier version compared each key with all others. For 100,000 keys this took minutes,
    without a deadline."""
    line = b"{" + b"".join(b'"%d":0,' % i for i in range(100_000)) + b'"99999":0}'
    started = time.process_time()
    with pytest.raises(WireError, match="duplicate key '99999'"):
        head_of(line)
    assert time.process_time() - started < 20
