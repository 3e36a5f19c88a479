"""Engines from public packages. An environment is built completely or not at all. The engine's name
selects its environment."""

import ast
import base64
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lockstep.engine.errors import Unsupported
from lockstep.harness.asking.downloads import CACHE
from lockstep.harness.asking.environments import NotBuilt
from lockstep.harness.cli import app
from lockstep.harness.context.runner import Runner
from lockstep.harness.foreign import building, engines
from lockstep.harness.foreign.building import add, added_engines, command_of, folder_of, remove
from lockstep.harness.foreign.engines import (
    ENGINES,
    NOT_RUNNING,
    PROGRAMS,
    Foreign,
    has_own_model,
    split_name,
)
from lockstep.harness.protocol.session import ProgramSession
from lockstep.harness.records import EXACT, Answered, Crashed, Unanswerable

FAKE = Foreign(
    name="fake",
    kind="python",
    packages=("lockstep-fake==1.0",),
    module="lockstep_fake",
    program="fake.py",
    can="ids",
    size="nothing",
)
PROGRAM = """
import json, os, sys
import lockstep_fake
print("the library prints")
out = os.fdopen(int(os.environ["LOCKSTEP_ANSWERS"]), "wb")
for line in sys.stdin.buffer:
    question = json.loads(line)
    answer = {"protocol": 1, "engine": "fake", "version": "1.0", "can": ["greedy"]}
    if question["ask"] == "greedy":
        answer = {"ids": [lockstep_fake.NUMBER] * question["n"]}
    out.write(json.dumps({"id": question["id"], "answer": answer}).encode() + b"\\n")
    out.flush()
"""
Wheel = Callable[[str], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache, with a pip that sees only our folder, and with one more engine."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setitem(ENGINES, FAKE.name, FAKE)
    monkeypatch.setattr(building, "PROGRAMS", tmp_path)
    (tmp_path / FAKE.program).write_text(PROGRAM)
    return tmp_path / "cache" / "engines"


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    """Return a function that puts the fake engine's package where pip finds it."""

    def make(module: str) -> None:
        info = "lockstep_fake-1.0.dist-info"
        files = {
            "lockstep_fake.py": module,
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: lockstep-fake\nVersion: 1.0\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
        with zipfile.ZipFile(tmp_path / "lockstep_fake-1.0-py3-none-any.whl", "w") as archive:
            for file, text in {**files, f"{info}/RECORD": record}.items():
                archive.writestr(file, text)

    return make


# --- environments -------------------------------------------------------------------------------


def test_engine_can_be_added_once_asked_and_removed(wheel: Wheel, cache: Path) -> None:
    wheel("NUMBER = 7")
    said: list[str] = []
    folder = add("fake", said.append)
    assert folder == folder_of(FAKE)
    assert said[0] == "building the environment of fake 1.0: nothing"
    n_said = len(said)
    assert add("fake", said.append) == folder
    assert len(said) == n_said
    with Runner().open("fake", None, EXACT) as session:
        outcome = session.ask("greedy", [1], 3)
    assert isinstance(outcome, Answered)
    assert outcome.value == [7, 7, 7]
    assert session.name == "fake"
    assert (FAKE, folder) in list(added_engines())
    assert remove("fake") == folder
    assert [path.name for path in cache.iterdir()] == ["build.lock"]


def test_users_python_variables_do_not_reach_the_engine(
    wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel("NUMBER = 7")
    add("fake")
    other = tmp_path / "other"
    other.mkdir()
    (other / "lockstep_fake.py").write_text("NUMBER = 8")
    monkeypatch.setenv("PYTHONPATH", str(other))
    with Runner().open("fake", None, EXACT) as session:
        outcome = session.ask("greedy", [1], 1)
    assert isinstance(outcome, Answered)
    assert outcome.value == [7]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (None, "pip could not install fake: .*No matching distribution"),
        ("raise ImportError('no such library')", "fake was installed and does not load: .*no such"),
    ],
)
def test_engine_that_cannot_be_built_says_why_and_leaves_nothing(
    wheel: Wheel, cache: Path, module: str | None, says: str
) -> None:
    if module is not None:
        wheel(module)
    with pytest.raises(NotBuilt, match=says):
        add("fake")
    assert [path.name for path in cache.iterdir()] == ["build.lock"]


def test_javascript_engine_without_node_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotBuilt, match="hyllama needs node 20 or newer, and there is no node here"):
        add("hyllama")


# --- names ----------------------------------------------------------------------------------------


def test_argument_of_an_engine_comes_after_its_name(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel("NUMBER = 7")
    monkeypatch.setitem(ENGINES, "fake", replace(FAKE, takes="FOLDER"))
    add("fake")
    command = command_of("fake:/some/where:else")
    assert command is not None
    assert command[-1] == "/some/where:else"
    assert has_own_model("fake:x")
    with Runner().open("fake:x", None, EXACT) as session:
        assert session.name == "fake"
    with pytest.raises(Unsupported):
        command_of("fake")


def test_engine_without_an_argument_is_not_found_with_one() -> None:
    assert split_name("fake:x") is None
    assert not has_own_model("fake")


def test_missing_engine_says_how_to_add_it() -> None:
    with pytest.raises(Unsupported, match="add it: lockstep engine add fake"):
        command_of("fake")
    said = CliRunner().invoke(app, ["check", "builtin:f32", "--engine", "fake"])
    assert said.exit_code == 2
    assert said.stderr == "lockstep: fake is not added yet; add it: lockstep engine add fake\n"


def test_unknown_name_lists_the_known_names() -> None:
    with pytest.raises(Unsupported, match=r"no engine named 'hylama' \(.*hyllama"):
        engines.engine_named("hylama")
    assert command_of("hylama") is None


def test_engine_that_cannot_be_asked_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NOT_RUNNING, "tried", "its wheel is for another machine")
    said = CliRunner().invoke(app, ["engine", "add", "tried"])
    assert said.exit_code == 2
    assert NOT_RUNNING["tried"] in said.stderr
    assert NOT_RUNNING["tried"] in CliRunner().invoke(app, ["engine", "list"]).stdout


def test_list_names_every_engine() -> None:
    said = CliRunner().invoke(app, ["engine", "list"])
    assert said.exit_code == 0
    for name in ENGINES:
        assert re.search(rf"^{re.escape(name)} ", said.stdout, re.MULTILINE)


def test_engines_have_pinned_packages_and_programs_have_engines() -> None:
    real = [engine for engine in ENGINES.values() if engine is not FAKE]
    for engine in real:
        assert re.fullmatch(r"\d+(\.\d+)+", engine.version), engine.name
        assert "==" in engine.packages[0] or engine.kind == "node"
    programs = {path.name for path in PROGRAMS.iterdir() if path.is_file()}
    shared = {"answering.py", "answering.mjs", "peft_folder.py", "torch_models.py"}
    shared |= {"ik_llama_cpp_samplers.py", "transformers_samplers.py"}
    assert programs - {engine.program for engine in real} == shared


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.py")), ids=lambda path: path.name)
def test_program_knows_nothing_of_lockstep(path: Path) -> None:
    """The program runs in an environment without our packages."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.partition(".")[0] for name in names} & {"engine", "harness", "golden"}


# --- shared code of the programs ------------------------------------------------------------------

ON_ANSWERING = """
import numpy as np
from answering import Refused, Unsupported, encode_answer, greedy_ids, later, rows_of, serve, texts

class Model:
    def __init__(self, path):
        print("loading ...")
        if "broken" in (path or ""):
            raise ValueError("this file is broken")
    def decode(self, ids, start):
        return np.eye(8, dtype=np.float64)[[(i + 1) % 8 for i in ids]]
    def greedy(self, question, _):
        return greedy_ids(self.decode, question)
    def logits(self, question, _):
        return rows_of(self.decode, question)
    def tokenize(self, question, _):
        if question["parse_special"]:
            raise Unsupported("no special tokens")
        return {"ids": [[len(text)] for text in texts(question)]}, {}
    def detokenize(self, question, _):
        return encode_answer("".join(map(str, ids)) for ids in question["ids"])

def start(path, settings):
    names = ("greedy", "logits", "tokenize", "detokenize")
    return {"engine": "e", "version": "1", "text": "utf8"}, later(lambda: Model(path), *names)

serve(start)
"""


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ProgramSession]:
    def start(model: Path | None = None) -> ProgramSession:
        (tmp_path / "mine.py").write_text(ON_ANSWERING)
        monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
        command = [sys.executable, str(tmp_path / "mine.py")]
        return ProgramSession(command, model, EXACT, time_limit=60.0, memory_limit=4 << 30)

    return start


def test_engine_with_the_shared_loop_answers_every_level(
    answering: Callable[..., ProgramSession],
) -> None:
    from lockstep.engine.batch import Batch
    from lockstep.harness.records import Request

    with answering() as session:
        asked = [
            session.ask("greedy", [1, 2], 3),
            session.ask("tokenize", [b"hallo", b""]),
            session.ask("detokenize", [[1, 2]], remove_special=False, unparse_special=True),
        ]
        request = Request(batches=(Batch.of([1, 2]), Batch.of([3], start=2)))
        run = session.ask("evaluate", request)
    assert [each.value for each in asked if isinstance(each, Answered)] == [
        [3, 4, 5],
        [[5], [0]],
        [b"12"],
    ]
    assert isinstance(run, Answered)
    assert [rows.argmax(1).tolist() for rows in run.value.logits] == [[2, 3], [4]]


def test_lack_or_failure_in_the_shared_loop_concerns_one_question(
    answering: Callable[..., ProgramSession], tmp_path: Path
) -> None:
    from lockstep.engine.batch import Batch
    from lockstep.harness.records import Request

    two = Batch.of([1, 2])
    two = type(two)(**{**vars_of(two), "seq_ids": np.array([0, 1], np.int32)})
    with answering() as session:
        lacking = session.ask("tokenize", [b""], parse_special=True)
        several = session.ask("evaluate", Request(batches=(two,)))
        after = session.ask("greedy", [1], 1)
    assert lacking == Unanswerable(message="no special tokens")
    assert isinstance(several, Unanswerable)
    assert isinstance(after, Answered)
    with answering(tmp_path / "broken.gguf") as session:
        assert isinstance(session.ask("describe"), Answered)
        failed = session.ask("greedy", [1], 1)
    assert isinstance(failed, Crashed)
    assert "ValueError: this file is broken" in failed.message


def vars_of(batch: object) -> dict[str, object]:
    from dataclasses import fields

    return {f.name: getattr(batch, f.name) for f in fields(batch)}  # type: ignore[arg-type]


IN_JAVASCRIPT = """
import { fromBase64, json, serve, toBase64, Unsupported } from "PROGRAMS/answering.mjs";
console.log("loading ...");
await serve((path) => {
  const parse = () => ({
    version: 3,
    metadata: {
      big: [null, 18446744073709551615n],
      nan: [null, json(NaN)],
      list: [null, json([1.5, -Infinity])],
    },
  });
  const tokenize = (question) => {
    if (question.parse_special) throw new Unsupported("no");
    return { ids: fromBase64(question.texts).map((text) => [text.length]) };
  };
  const logits = (question, show) => {
    for (const [i, { tokens }] of question.batches.entries())
      show(`logits${i}`, [tokens.length, 2], new Float32Array(2 * tokens.length));
    return {};
  };
  return [{ engine: "e", version: "1" }, { parse, tokenize, logits }];
});
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no node: answering.mjs was not run")
def test_javascript_engine_answers_with_the_shared_loop(tmp_path: Path) -> None:
    from lockstep.engine.batch import Batch
    from lockstep.harness.records import Request

    program = tmp_path / "mine.mjs"
    program.write_text(IN_JAVASCRIPT.replace("PROGRAMS", str(PROGRAMS)))
    command = ["node", str(program)]
    with ProgramSession(command, None, EXACT, time_limit=60.0, memory_limit=8 << 30) as session:
        parsed = session.ask("metadata")
        ids = session.ask("tokenize", ["ä".encode()])
        lacking = session.ask("tokenize", [b""], parse_special=True)
        run = session.ask("evaluate", Request(batches=(Batch.of([1, 2]),)))
    assert isinstance(parsed, Answered)
    assert parsed.value.unknown == ("alignment", "data_offset", "tensors", "types")
    assert {key: value for key, (_, value) in parsed.value.metadata.items()} == {
        "big": (1 << 64) - 1,
        "nan": "nan",
        "list": [1.5, "-inf"],  # without a type, it is unknown if these are numbers
    }
    assert isinstance(ids, Answered)
    assert ids.value == [[1]]
    assert isinstance(lacking, Unanswerable)
    assert isinstance(run, Answered)
    assert run.value.logits[0].shape == (2, 2)


def test_texts_are_sent_as_bytes() -> None:
    sys.path.insert(0, str(PROGRAMS))
    try:
        from answering import encode_answer  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(PROGRAMS))
    answer, _ = encode_answer([b"\xff", "ä"])
    assert [base64.b64decode(text) for text in answer["texts"]] == [b"\xff", "ä".encode()]
