"""A program whose model gives embeddings shows and replaces tensors through `embed`.

An earlier version asked for tensors only through `logits`. Such a program does not offer `logits`,
so no tensor was compared.
"""

import json
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.protocol.frames import Message, pack_message
from lockstep.harness.protocol.messages import question_of
from lockstep.harness.protocol.session import ProgramSession, command_of
from lockstep.harness.protocol.smoke import smoke
from lockstep.harness.records import (
    EXACT,
    Answered,
    Evaluation,
    Malformed,
    Request,
    Site,
    Unanswerable,
)
from tests.harness.check.test_check import plan_for
from tests.models import written
from tests.plans import open_both

SCHEMAS = Path(command_of.__code__.co_filename).parents[1] / "schemas"
# each row is twice the shown or replaced tensor
PROGRAM = """
import json, struct, sys
for line in sys.stdin.buffer:
    q = json.loads(line)
    given = sys.stdin.buffer.read(q["bytes"])
    head, raw = {"answer": {}}, b""
    if q["ask"] == "start":
        said = {"protocol": 1, "engine": "e", "version": "1", "can": CAN, "shows": ["embd"]}
        head = {"answer": said}
    elif q["ask"] == "embed":
        arrays, raw = [], b""
        for i, batch in enumerate(q["batches"]):
            own = [float(t) for t in batch["tokens"]]
            put_in = i == 0 and given
            on = struct.unpack(f"<{len(own)}f", given) if put_in else own
            shown = {f"rows{i}": [2 * x for x in on]}
            if q.get("trace"):
                shown[f"step{i}/embd"] = own
            for name, values in shown.items():
                arrays.append([name, "f32", [len(own), 1]])
                raw += struct.pack(f"<{len(own)}f", *values)
        head |= {"arrays": arrays, "bytes": len(raw)}
    else:
        head = {"failed": "asked for " + q["ask"]}
    sys.stdout.buffer.write(json.dumps({"id": q["id"], **head}).encode() + b"\\n" + raw)
    sys.stdout.buffer.flush()
"""
BATCHES = (Batch.of([3, 4]), Batch.of([5]))
EMBD = Site(step=0, layer=None, name="embd")


def program(folder: Path, *can: str) -> ProgramSession:
    script = folder / "engine.py"
    script.write_text(f"CAN = {list(can)}\n{PROGRAM}")
    command = [sys.executable, str(script)]
    return ProgramSession(command, None, EXACT, time_limit=60, memory_limit=1 << 30)


def run(session: ProgramSession, request: Request) -> Evaluation:
    outcome = session.ask("evaluate", request)
    assert isinstance(outcome, Answered), outcome
    assert isinstance(outcome.value, Evaluation)
    return outcome.value


def test_embedding_program_shows_its_tensors(tmp_path: Path) -> None:
    with program(tmp_path, "embed", "trace", "replace") as session:
        shown = run(session, Request(batches=BATCHES, capture=True, embeddings=True))
        assert [rows.tolist() for rows in shown.logits] == [[[6.0], [8.0]], [[10.0]]]
        assert shown.trace is not None
        assert shown.trace.values()[EMBD].tolist() == [[3.0], [4.0]]


def test_program_computes_embeddings_from_replaced_tensors(tmp_path: Path) -> None:
    given = {EMBD: np.array([[1.0], [2.0]], np.float32)}
    with program(tmp_path, "embed", "trace", "replace") as session:
        healed = run(session, Request(batches=BATCHES, embeddings=True, replace=given))
    assert healed.trace is None
    assert [rows.tolist() for rows in healed.logits] == [[[2.0], [4.0]], [[10.0]]]


def test_engine_without_tensors_is_not_asked_for_them(tmp_path: Path) -> None:
    with program(tmp_path, "embed") as session:
        outcome = session.ask("evaluate", Request(batches=BATCHES, capture=True, embeddings=True))
    assert isinstance(outcome, Unanswerable)
    assert outcome.message.endswith("does not offer trace")


def test_smoke_asks_embedding_program_for_tensors(tmp_path: Path) -> None:
    with program(tmp_path, "embed", "trace", "replace") as session:
        steps = {step.level: step.status for step in smoke(session)}
    assert [steps[level] for level in ("embed", "trace", "replace")] == ["works"] * 3
    assert steps["logits"] == "not offered"


def test_question_fits_the_schema() -> None:
    schema = json.loads((SCHEMAS / "protocol.json").read_text())
    request = Request(batches=BATCHES, capture=True, embeddings=True)
    message = question_of("evaluate", (request,), ["embed", "trace"]).send(request)
    line = pack_message(Message(head={"id": 1, **message.head}, arrays=message.arrays))[0]
    asked = json.loads(bytes(line))
    assert (asked["ask"], asked["trace"]) == ("embed", True)
    jsonschema.validate(asked, {"$ref": "#/$defs/ask-embed", "$defs": schema["$defs"]})


def test_malformed_answer_names_the_question_for_embeddings(tmp_path: Path) -> None:
    with open_both(plan_for(written(tmp_path, quant="F32"))) as both:
        context, outcome = both.context.for_embeddings(), Malformed(message="rows of width 3")
        with pytest.raises(NoAnswer, match="gave a malformed answer to embeddings once more: rows"):
            context.answer(context.subject, "evaluate once more", outcome)
