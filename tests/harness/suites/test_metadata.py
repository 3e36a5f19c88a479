"""The suite metadata: differences between two readers of a file, and types that gguf-py does not
know."""

import shlex
import sys
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.types import type_by_name
from lockstep.harness.check.check import run_suites
from lockstep.harness.context.runner import IsolatedSession
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.protocol.frames import Message
from lockstep.harness.protocol.messages import read_parse
from lockstep.harness.records import (
    Answered,
    Crashed,
    FileSummary,
    Outcome,
    Rejected,
    TensorSummary,
    Unanswerable,
    Verdict,
)
from lockstep.harness.suites.metadata import (
    MAX_ENTRIES,
    as_far_as_a_nul,
    check_arrays,
    differences,
    known_differences,
    readable,
    type_that_it_lacks,
)
from lockstep.harness.synth.gguf_writer import gguf_bytes
from tests.all_types import model_of
from tests.contexts import context_of, statuses
from tests.models import builtin

NO_GGUF_PY = "no gguf-py: the suite was not run"
TENSOR = TensorSummary(name="a", ne=(64, 2), type="Q2_0", offset=0, n_bytes=36)
SUMMARY = FileSummary(
    version=3,
    alignment=32,
    data_offset=64,
    metadata={"k": ("U32", 7), "truth": ("BOOL", True)},
    tensors=(TENSOR, replace(TENSOR, name="b", type="F32")),
)
REFUSAL = "EngineError: gguf-py does not read m.gguf: "
NOT_VALID = "is not a valid GGMLQuantizationType"


def verdicts_on(path: Path, engine: str = "reference", oracle: str = "reference") -> list[Verdict]:
    with context_of(path, engine=engine, oracle=oracle) as context:
        return list(run_suites(context, ("metadata",)))


def test_type_unknown_to_gguf_py_is_excused_and_named(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason=NO_GGUF_PY)
    if "Q2_0" in gguf.GGMLQuantizationType.__members__:
        pytest.skip("this gguf-py knows Q2_0: no type is left that it refuses")
    ours, theirs = found = verdicts_on(model_of("Q2_0", tmp_path))
    assert (ours.status, theirs.status) == ("agreed", "excused")
    assert theirs.detail == {"reader": "gguf-py", "type": "Q2_0"}
    assert exit_code(found) == 0


def test_gguf_py_is_compared_if_it_knows_every_type(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason=NO_GGUF_PY)
    found = verdicts_on(builtin("q8_0", tmp_path))
    assert [v.status for v in found] == ["agreed", "agreed"]


def test_context_does_not_wait_for_gguf_py(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason=NO_GGUF_PY)
    with context_of(builtin("f32", tmp_path)) as context:
        verdicts = list(run_suites(context, ("metadata", "dequant")))
        assert not context.begun
    assert [v.suite for v in verdicts] == ["metadata", "dequant", "metadata"]
    assert statuses(verdicts) == {"agreed"}


def test_death_of_gguf_py_is_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = IsolatedSession.ask

    def ask(session: IsolatedSession, question: str, *args: object) -> Outcome:
        if session.name == "gguf-py":
            return Crashed(message="the worker of gguf-py was killed", log=())
        return usual(session, question, *args)

    monkeypatch.setattr(IsolatedSession, "ask", ask)
    first, last = verdicts_on(builtin("f32", tmp_path))
    assert (first.status, last.status) == ("agreed", "crashed")
    assert "gguf-py" in last.summary


def test_other_block_size_is_a_known_difference_of_readers(
    tmp_path: Path,
) -> None:
    """An earlier version gave the verdict `malformed`, as if gguf-py had not answered."""
    pytest.importorskip("gguf", reason=NO_GGUF_PY)
    path = tmp_path / "m.gguf"
    rows = [(name, (64,), name, bytes(2 * type_by_name(name).bytes)) for name in ("Q8_1", "Q8_0")]
    path.write_bytes(gguf_bytes({"general.architecture": ("STR", "x")}, rows))
    ours, theirs = found = verdicts_on(path)
    assert (ours.status, theirs.status, exit_code(found)) == ("agreed", "excused", 0)
    assert theirs.detail["known"] == ["gguf-py-value-rows-q8-1"]
    assert theirs.detail["total"] == 1


def test_other_size_and_type_is_not_a_known_difference() -> None:
    other = replace(SUMMARY, tensors=(replace(TENSOR, n_bytes=40), SUMMARY.tensors[1]))
    (found,) = differences(SUMMARY, other)
    assert found["kind"] == "rows Q2_0"
    assert found["kind"] not in known_differences("gguf-py")


@pytest.mark.parametrize(
    ("outcome", "lacking"),
    [
        (Rejected(message=f"{REFUSAL}ValueError: 42 {NOT_VALID}"), "Q2_0"),
        (Rejected(message=f"{REFUSAL}ValueError: np.uint32(42) {NOT_VALID}"), "Q2_0"),
        # the oracle sees no such tensor in the file
        (Rejected(message=f"{REFUSAL}ValueError: 41 {NOT_VALID}"), ""),
        (Rejected(message=f"{REFUSAL}ValueError: 4242 {NOT_VALID}"), ""),
        # other refusals
        (Rejected(message=f"{REFUSAL}ValueError: 42 is not a valid GGUFValueType"), ""),
        (Rejected(message=f"{REFUSAL}KeyError: 42"), ""),
        (Rejected(message=f"{REFUSAL}ValueError: 42 {NOT_VALID}: and something else"), ""),
        # not refusals
        (Crashed(message=f": ValueError: 42 {NOT_VALID}"), ""),
        (Unanswerable(message=f": ValueError: 42 {NOT_VALID}"), ""),
        (Answered(value=SUMMARY, seconds=0.1), ""),
    ],
)
def test_other_answers_of_gguf_py_are_not_excused(outcome: Outcome, lacking: str) -> None:
    assert type_that_it_lacks(outcome, SUMMARY) == lacking


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (replace(SUMMARY, version=2), "version"),
        (replace(SUMMARY, alignment=64), "alignment"),
        (replace(SUMMARY, data_offset=96), "data_offset"),
        (replace(SUMMARY, metadata={**SUMMARY.metadata, "k": ("U32", 8)}), "key"),
        (replace(SUMMARY, metadata={**SUMMARY.metadata, "k": ("I32", 7)}), "key"),
        (replace(SUMMARY, metadata={"k": ("U32", 7), "truth": ("BOOL", 1)}), "key"),
        (replace(SUMMARY, metadata={"k": ("U32", 7), "truth": ("BOOL", False)}), "key"),
        (replace(SUMMARY, metadata={"truth": ("BOOL", True)}), "key"),
        (replace(SUMMARY, tensors=SUMMARY.tensors[:1]), "tensor"),
        (replace(SUMMARY, tensors=(replace(TENSOR, offset=32), SUMMARY.tensors[1])), "tensor"),
        (replace(SUMMARY, tensors=SUMMARY.tensors[::-1]), "order"),
    ],
)
def test_difference_is_found_in_either_order_of_readers(other: FileSummary, what: str) -> None:
    assert differences(SUMMARY, SUMMARY) == []
    assert [found["what"] for found in differences(SUMMARY, other)] == [what]
    assert [found["what"] for found in differences(other, SUMMARY)] == [what]


def test_report_on_a_tensor_shows_only_the_values_that_differ() -> None:
    """Authors of engines in other languages do not know how Python prints our records."""
    moved = replace(SUMMARY, tensors=(replace(TENSOR, offset=32), SUMMARY.tensors[1]))
    (found,) = differences(SUMMARY, moved)
    assert found["text"] == "tensor 'a': expected {'offset': 0}, got {'offset': 32}"
    (gone,) = differences(SUMMARY, replace(SUMMARY, tensors=SUMMARY.tensors[:1]))
    assert gone["text"].startswith(
        "tensor 'b': expected {'name': 'b', 'ne': (64, 2), 'type': 'F32'"
    )
    assert gone["text"].endswith(", got absent")


def test_hidden_field_of_a_reader_is_not_a_difference() -> None:
    bare = replace(
        SUMMARY,
        version=0,
        alignment=0,
        data_offset=0,
        metadata={"k": ("", 7), "truth": ("", True)},
        tensors=(),
        unknown=("version", "alignment", "data_offset", "tensors", "types"),
    )
    assert differences(SUMMARY, bare) == []
    (wrong,) = differences(SUMMARY, replace(bare, metadata={**bare.metadata, "k": ("", 8)}))
    assert wrong["text"] == "key 'k': expected ('U32', 7), got ('', 8)"
    (absent,) = differences(SUMMARY, replace(bare, metadata={"truth": ("", True)}))
    assert absent["text"] == "key 'k': expected ('U32', 7), got absent"
    shown = replace(bare, unknown=("alignment", "data_offset", "tensors", "types"))
    assert [row["what"] for row in differences(SUMMARY, shown)] == ["version"]


def test_token_inf_stays_a_text_for_an_engine_without_types() -> None:
    """Most vocabularies have the token "inf". In the protocol, an infinite float is written as the
    same text."""
    keys = {"tokens": ("ARR[STR]", ["a", "inf"]), "low": ("F32", -inf), "row": ("ARR[F64]", [inf])}
    said = {"tokens": [None, ["a", "inf"]], "low": [None, "-inf"], "row": [None, ["inf"]]}
    bare = read_parse(Message(head={"answer": {"metadata": said}}))
    summary = replace(SUMMARY, metadata=keys)
    assert differences(summary, bare) == []
    wrong = replace(bare, metadata={**bare.metadata, "low": ("", "inf"), "row": ("", [1.0])})
    places = [row["where"] for row in differences(summary, wrong)]
    assert places == ["key 'low'", "key 'row', element 0"]


def test_non_utf8_texts_accuse_no_utf8_engine() -> None:
    keys = {"name": ("STR", "caf\udce9"), "tokens": ("ARR[STR]", ["\udcff", "\u00e9", "a"])}
    summary = replace(SUMMARY, metadata=keys)
    said = {"name": ("STR", "caf\ufffd"), "tokens": ("ARR[STR]", ["\ufffd", "\u00e9", "a"])}
    honest = replace(SUMMARY, metadata=said)
    theirs, n = readable(summary, honest)
    assert (differences(theirs, honest), n) == ([], 2)
    wrong = replace(honest, metadata={**said, "tokens": ("ARR[STR]", ["\ufffd", "\ufffd", "a"])})
    (found,) = differences(readable(summary, wrong)[0], wrong)
    assert found["where"] == "key 'tokens', element 1"
    for lacking in ({"tokens": said["tokens"]}, {**said, "name": ("U8", 1)}):
        other = replace(honest, metadata=lacking)
        (found,) = differences(readable(summary, other)[0], other)
        assert found["where"] == "key 'name'"


def test_text_cut_by_the_oracle_at_a_nul_accuses_no_engine() -> None:
    shown = {"name": ("STR", "a"), "tokens": ("ARR[STR]", ["", "b"])}
    summary = replace(SUMMARY, metadata=shown)
    honest = replace(
        SUMMARY, metadata={"name": ("STR", "a\0b"), "tokens": ("ARR[STR]", ["\0", "b"])}
    )
    seen, n = as_far_as_a_nul(summary, honest)
    assert (differences(seen, honest), n) == ([], 2)
    for wrong in ({**honest.metadata, "name": ("STR", "c\0b")}, {**shown, "name": ("STR", "ab")}):
        other = replace(honest, metadata=wrong)
        (found,) = differences(as_far_as_a_nul(summary, other)[0], other)
        assert found["where"] == "key 'name'"


def test_text_with_a_nul_is_read_whole_and_accuses_no_engine(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama_cpp is missing: nothing was read by it")
    keys = {"general.architecture": ("STR", "llama"), "general.name": ("STR", "a\0b")}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(keys, []))
    found = verdicts_on(tmp_path / "m.gguf", oracle="llama.cpp")
    assert statuses(found) == {"agreed"}, found
    assert "1 texts were compared up to a NUL" in found[0].summary


LOSSY = """
import json, sys
keys = {"general.architecture": [None, "llama"], "general.name": [None, "caf\\ufffd"]}
for line in sys.stdin:
    start = {"protocol": 1, "engine": "e", "version": "1", "can": ["parse"], "text": sys.argv[1]}
    answer = start if '"start"' in line else {"metadata": keys}
    print(json.dumps({"id": json.loads(line)["id"], "answer": answer}), flush=True)
"""


@pytest.mark.parametrize(("texts", "status"), [("utf8", "agreed"), ("bytes", "diverged")])
def test_suite_uses_an_engines_utf8_declaration(tmp_path: Path, texts: str, status: str) -> None:
    (tmp_path / "lossy.py").write_text(LOSSY)
    keys = {"general.architecture": ("STR", "llama"), "general.name": ("STR", "caf\udce9")}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(keys, []))
    command = shlex.join([sys.executable, str(tmp_path / "lossy.py"), texts])
    found = verdicts_on(tmp_path / "m.gguf", command)[0]
    assert found.status == status, found
    left_out = "; 1 texts that are not UTF-8 were not compared" in found.summary
    assert left_out is (texts == "utf8")


def test_first_differing_element_of_an_array_is_named() -> None:
    ours = replace(SUMMARY, metadata={"k": ("ARR[U32]", [1, 2, 3])})
    theirs = replace(SUMMARY, metadata={"k": ("ARR[U32]", [1, 2, 4])})
    (found,) = differences(ours, theirs)
    assert found["text"] == "key 'k', element 2: expected 3, got 4"


def test_key_is_named_before_the_offset_that_it_moves() -> None:
    other = replace(SUMMARY, metadata={**SUMMARY.metadata, "more": ("U32", 1)}, data_offset=96)
    assert [found["what"] for found in differences(SUMMARY, other)] == ["key", "data_offset"]


def test_array_too_large_for_a_message_is_not_compared(tmp_path: Path) -> None:
    """Three readers took minutes for a vocabulary of ten million tokens."""
    with GgufFile.open(builtin("f32", tmp_path)) as file:
        key = "tokenizer.ggml.token_type"
        held = file.metadata[key]
        check_arrays({key: replace(held, data=[1] * MAX_ENTRIES)})
        with pytest.raises(NoAnswer, match=r"token_type has 1,048,577 entries, and") as found:
            check_arrays({key: replace(held, data=[1] * (MAX_ENTRIES + 1))})
    assert found.value.status == "not-compared"
