"""The command line: help without weight, bad input in one line, results that machines can read."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from lockstep.engine.gguf.types import REMOVED, TYPE_COUNT, type_by_name
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.check.check import Plan
from lockstep.harness.cli import app, golden
from lockstep.harness.cli.hints import next_step
from lockstep.harness.records import EXACT, Status, Verdict
from lockstep.harness.report.jsonl import read_report
from lockstep.harness.runs.run import RunResult
from lockstep.harness.selftest.selftest import mutants
from lockstep.harness.selftest.tokens import wrong_tokenizers
from lockstep.harness.synth.builtin import BUILTIN
from lockstep.harness.synth.gguf_writer import Tensor, write_gguf
from lockstep.harness.synth.llama import LlamaRecipe, metadata, tensors
from tests.models import builtin, with_changed_weight, with_metadata, with_tensor_type, written

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]
GOLDEN_COMMANDS = sorted(get_command(golden.app).commands)  # type: ignore[attr-defined]
GGML_ONLY = "Q8_1"  # a type of activations, which llama.cpp does not read from files either
OURSELVES = ("--oracle", "reference")  # no llama.cpp needed


class Ending(NamedTuple):
    code: int
    out: str
    err: str


Lockstep = Callable[..., Ending]


@pytest.fixture
def lockstep(capfd: pytest.CaptureFixture[str]) -> Lockstep:
    """Run a command in this process; an exception that escapes it fails the test."""

    def call(*args: object) -> Ending:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            app([str(arg) for arg in args])
        code = end.value.code
        assert isinstance(code, int | None)
        return Ending(code or 0, *capfd.readouterr())

    return call


def in_a_process(*args: str, code: str = "from lockstep.harness.cli import main; main()") -> Ending:
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return Ending(done.returncode, done.stdout, done.stderr)


def assert_refused(ending: Ending, *says: str) -> None:
    assert ending.code == 2
    assert ending.out == ""
    assert ending.err.startswith("lockstep: ")
    assert ending.err.count("\n") == 1
    assert "Traceback" not in ending.err
    for text in says:
        assert text in ending.err


# --- help -----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "3"])
def test_a_product_is_computed_by_one_thread_unless_the_user_wants_more(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine threads of small products only wait for each other."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    code = "import atexit, os, sys; assert 'numpy' not in sys.modules\n"
    code += "atexit.register(lambda: print(os.environ['OPENBLAS_NUM_THREADS']))\n"
    code += "from lockstep.harness.cli import main; assert 'numpy' not in sys.modules; main()"
    assert in_a_process("--help", code=code).out.splitlines()[-1] == (given or "1")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, lockstep: Lockstep) -> None:
    ending = lockstep(command, "--help")
    assert ending.code == 0
    assert ending.err == ""
    assert f"{command} [OPTIONS]" in ending.out


@pytest.mark.parametrize("command", GOLDEN_COMMANDS)
def test_every_command_on_goldens_explains_itself(command: str, lockstep: Lockstep) -> None:
    ending = lockstep("golden", command, "--help")
    assert ending.code == 0
    assert f"golden {command} [OPTIONS]" in ending.out


def test_the_commands_that_are_promised_are_there(lockstep: Lockstep) -> None:
    promised = {"check", "bisect", "trace", "run", "tokenize", "synth", "selftest", "doctor"}
    assert promised <= set(COMMANDS)
    text = lockstep("--help").out
    assert all(f"\n  {command} " in text for command in COMMANDS)


HEAVY = (
    "numpy",
    "numba",
    "llama_cpp",
    "gguf",
    "rich.console",
    "jsonschema",
    "lockstep.harness.check.check",
)


@pytest.mark.parametrize("args", [("--help",), ("check", "--help")], ids=" ".join)
def test_help_imports_nothing_of_weight(args: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom lockstep.harness.cli import main\n"
        "try:\n    main()\nfinally:\n"
        f"    print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)"
    )
    ending = in_a_process(*args, code=code)
    assert "Usage:" in ending.out
    loaded = set(json.loads(ending.err.replace("'", '"')))
    # the help of typer itself may be drawn by rich; everything else is ours to keep away
    assert loaded <= {"rich.console"}


def test_the_check_for_weight_sees_weight() -> None:
    code = f"import sys, numpy; print(set(sys.modules) & set({HEAVY!r}), file=sys.stderr)"
    assert "numpy" in in_a_process(code=code).err


# --- bad input ------------------------------------------------------------------------------


NAMED, Q4_K = "blk.0.attn_q.weight", 12


def missing(folder: Path) -> Path:
    return folder / "missing.gguf"


def directory(folder: Path) -> Path:
    return folder


def text_file(folder: Path) -> Path:
    path = folder / "notes.txt"
    path.write_text("This is no model.\n" * 100)
    return path


def empty_file(folder: Path) -> Path:
    path = folder / "empty.gguf"
    path.touch()
    return path


def truncated_file(folder: Path) -> Path:
    path = folder / "cut.gguf"
    path.write_bytes(builtin("f32", folder).read_bytes()[:-1000])
    return path


def truncated_header(folder: Path) -> Path:
    path = folder / "head.gguf"
    path.write_bytes(builtin("f32", folder).read_bytes()[:300])
    return path


def unknown_architecture(folder: Path) -> Path:
    arch = ("STR", "transistor\x1b[2J")
    return with_metadata(folder / "arch.gguf", LlamaRecipe(), general__architecture=arch)


def no_architecture(folder: Path) -> Path:
    return with_metadata(folder / "noarch.gguf", LlamaRecipe(), general__architecture=None)


def unknown_type_id(folder: Path) -> Path:
    model = builtin("f32", folder)
    return with_tensor_type(model, folder / "id.gguf", NAMED, TYPE_COUNT)


def removed_type_id(folder: Path) -> Path:
    model = builtin("f32", folder)
    return with_tensor_type(model, folder / "old.gguf", NAMED, min(REMOVED))


def rows_of_no_whole_blocks(folder: Path) -> Path:
    """Rows of 64 weights, of a type whose blocks are 256."""
    return with_tensor_type(builtin("f32", folder), folder / "row.gguf", NAMED, Q4_K)


def partial_block(folder: Path) -> Path:
    """The file ends within the last block of its last tensor."""
    path = folder / "block.gguf"
    path.write_bytes(builtin("q8_0", folder).read_bytes()[:-5])
    return path


def type_of_ggml_only(folder: Path) -> Path:
    """A file that is legal down to the last byte, of a type that this engine has no decoder for."""
    import_members("lockstep.engine.quants")
    assert GGML_ONLY not in WeightFormat.family
    kind, name = type_by_name(GGML_ONLY), NAMED
    rows: list[Tensor] = []
    for row in tensors(LlamaRecipe()):
        if row[0] == name:
            n_bytes = 64 * 64 // kind.block * kind.bytes
            row = (name, (64, 64), kind.name, [bytes(n_bytes)])
        rows.append(row)
    path = folder / "other.gguf"
    write_gguf(path, metadata(LlamaRecipe()), rows)
    return path


def no_vocabulary(folder: Path) -> Path:
    return written(folder, "silent.gguf", vocabulary=False)


class Bad(NamedTuple):
    make: Callable[[Path], Path]
    says: str
    commands: tuple[str, ...]  # that must refuse it


ALL = ("check", "bisect", "trace", "run", "tokenize")
BAD = [
    Bad(missing, "missing.gguf: no such file", ALL),
    Bad(directory, "", ALL),
    Bad(text_file, "", ALL),
    Bad(empty_file, "", ALL),
    Bad(truncated_file, "", ALL),
    Bad(truncated_header, "", ALL),
    Bad(unknown_architecture, "transistor", ("trace", "run")),
    Bad(no_architecture, "general.architecture", ("run",)),
    Bad(unknown_type_id, f"the tensor '{NAMED}': no tensor type has the id {TYPE_COUNT}", ALL),
    Bad(removed_type_id, f"the tensor '{NAMED}'", ALL),
    Bad(removed_type_id, "removed from ggml", ("check",)),
    Bad(rows_of_no_whole_blocks, f"'{NAMED}' has rows of 64 weights, expected a multiple of", ALL),
    Bad(partial_block, "ends inside the data of tensor 'output.weight'", ALL),
    Bad(type_of_ggml_only, "llama.cpp crashed in greedy", ("run",)),
    Bad(no_vocabulary, "vocab", ("run", "tokenize")),
]
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "check": (*OURSELVES, "--quiet", "--json"),
    "bisect": (*OURSELVES, "--quiet", "--json"),
    "trace": ("--quiet",),
    "run": ("--prompt", "Once", "-n", "1", "--quiet", "--engine", "reference"),
    "tokenize": ("--text", "Once"),
}


@pytest.mark.parametrize(
    ("bad", "command"),
    [(bad, command) for bad in BAD for command in bad.commands],
    ids=[f"{bad.make.__name__}-{command}" for bad in BAD for command in bad.commands],
)
def test_a_bad_model_is_refused_in_one_line(
    bad: Bad, command: str, lockstep: Lockstep, tmp_path: Path
) -> None:
    path, results = bad.make(tmp_path), tmp_path / "results"
    report = ("--report", results)
    place = {"check": report, "bisect": report, "trace": ("-o", results)}.get(command, ())
    ending = lockstep(command, path, *ARGUMENTS[command], *place)
    assert_refused(ending, bad.says)
    assert "\x1b" not in ending.err
    assert not results.exists()


WITHOUT_GRAPH = {
    unknown_architecture: "unknown model architecture: 'transistor",
    no_architecture: "the file has no general.architecture: it is no model",
    type_of_ggml_only: "llama.cpp crashed",
}


@pytest.mark.parametrize("make", WITHOUT_GRAPH, ids=lambda make: make.__name__)
def test_what_our_engine_has_no_graph_for_is_checked_in_the_rest(
    make: Callable[[Path], Path], lockstep: Lockstep, tmp_path: Path
) -> None:
    path = make(tmp_path)
    ending = lockstep("check", path, *OURSELVES, "--report", tmp_path / "results")
    assert ending.code in (0, 3)
    assert WITHOUT_GRAPH[make] in ending.out
    assert "\x1b" not in ending.out + ending.err
    bisected = lockstep("bisect", path, *OURSELVES, "--quiet", "--report", tmp_path / "results")
    assert bisected.code == 3
    first, *log = bisected.err.splitlines()
    assert first.startswith("lockstep: ")
    assert all(line.startswith("  | ") for line in log)  # of llama.cpp, where it crashed


@pytest.mark.parametrize("bad", [missing, text_file, partial_block])
def test_a_process_ends_as_the_command_does(bad: Callable[[Path], Path], tmp_path: Path) -> None:
    """What a shell sees: the in-process tests leave out the interpreter's own ending."""
    ending = in_a_process("check", str(bad(tmp_path)), *OURSELVES, "--quiet")
    assert_refused(ending)


def test_a_bad_model_for_the_subject_is_refused_too(lockstep: Lockstep, tmp_path: Path) -> None:
    good, bad = builtin("f32", tmp_path), text_file(tmp_path)
    report = ("--report", tmp_path / "results")
    for command in ("check", "bisect"):
        ending = lockstep(command, good, "--subject-model", bad, *OURSELVES, "-q", *report)
        assert_refused(ending, "notes.txt")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("check", "builtin:f64"), ["'f64'", *BUILTIN]),
        (("bisect", "builtin:f64"), ["'f64'", *BUILTIN]),
        (("trace", "builtin:f64", "-o", "x"), ["'f64'", *BUILTIN]),
        (("run", "builtin:f64", "--prompt", "x"), ["'f64'", *BUILTIN]),
        (("check", "builtin:f32", "--suite", "speed"), ["'speed'", "metadata", "trace"]),
        (("check", "builtin:f32", "--engine", "rust"), ["'rust'", "llama.cpp", "reference"]),
        (("check", "builtin:f32", "--oracle", "rust"), ["'rust'", "llama.cpp", "reference"]),
        (("bisect", "builtin:f32", "--engine", "mutant:x"), ["mutant:wrong-eps", "reference"]),
        (("run", "builtin:f32", "--prompt", "x", "--engine", "rust"), ["'rust'", "fast"]),
        (("tokenize", "builtin:f32", "--text", "x", "--engine", "no"), ["'no'", "llama.cpp"]),
        (("tokenize", "builtin:f32"), ["--text", "--file"]),
        (("tokenize", "builtin:f32", "--file", "gone.txt"), ["gone.txt: no such file"]),
        (("tokenize", "builtin:f32", "--decode", "--text", "x"), ["not a JSON list of ids: b'x'"]),
        (("tokenize", "builtin:f32", "--decode", "--text", "[true]"), ["not a JSON list of ids"]),
        (
            ("tokenize", "builtin:f32", "--decode", "--text", "[" * 100_000),
            ["not a JSON list of ids"],
        ),
        (("tokenize", "builtin:f32", "--decode", "--text", "[999]"), ["no token 999"]),
        (("synth", "-o", "x.gguf", "--arch", "nope"), ["'nope'", "159 in all"]),
        (("synth", "-o", "x.gguf", "--arch", "gptj"), ["'gptj'", "no graph"]),
        (("synth", "-o", "x.gguf", "--arch", "mamba", "--tied"), ["--tied", "mamba"]),
        (("synth", "-o", "x.gguf", "--arch", "qwen3", "--heads", "3"), ["multiple of 3 heads"]),
        (("synth", "-o", "x.gguf", "--arch", "qwen3", "--vocabulary", "9"), ["needs at least"]),
        (("synth", "-o", "x.gguf", "--arch", "gemma3", "--quant", "Q4_K"), ["256", "64"]),
        (("synth",), ["-o FILE"]),
        (("shadow",), ["MODEL or --arch"]),
        (("shadow", "x.gguf", "--arch", "mamba"), ["not both"]),
        (("shadow", "no-such.gguf"), ["no-such.gguf", "no such file"]),
        (("shadow", __file__, "no-such.gguf"), ["no-such.gguf", "no such file"]),
        (("shadow", __file__), [Path(__file__).name, "a text file"]),
        (("shadow", "--arch", "nope"), ["'nope'", "159 in all"]),
        (("synth", "-o", "x.gguf", "--quant", "Q9_9"), ["'Q9_9'", "Q8_0"]),
        (("synth", "-o", "x.gguf", "--width", "2"), ["head_size is 0"]),
        (("synth", "-o", "no/such/folder/x.gguf"), ["x.gguf"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_unknown_choice_is_refused_and_the_known_ones_are_named(
    args: tuple[str, ...],
    says: list[str],
    lockstep: Lockstep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(lockstep(*args), *says)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ("chekc",),
        ("check", "--engin", "x"),
        ("check", "--tokens", "0"),
        ("check", "--tokens", "many"),
        ("check", "--settings", "fancy"),
        ("check", "--seed", str(2**128)),
        ("synth", "-o", "x", "--seed", "-1"),
        ("trace", "builtin:f32"),
        ("run", "builtin:f32"),
    ],
    ids=" ".join,
)
def test_a_wrong_option_is_a_usage_error(args: tuple[str, ...], lockstep: Lockstep) -> None:
    ending = lockstep(*args)
    assert ending.code == 2
    assert ending.out == ""
    assert "Traceback" not in ending.err


# --- results --------------------------------------------------------------------------------


def one_object(text: str) -> dict[str, Any]:
    """JSON without the literals that are none."""
    value = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(value, dict)
    assert text.count("\n") == 1
    return value


def test_a_check_gives_one_json_object_and_a_whole_report(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    ending = lockstep(
        "check", "builtin:f32", *OURSELVES, "--json", "--steps", "4", "--report", tmp_path
    )
    summary = one_object(ending.out)
    assert (ending.code, summary["exit_code"], summary["divergences"]) == (0, 0, [])
    assert summary["counts"].keys() == {"agreed", "excused"}  # shadow judges llama.cpp only
    rows = read_report(Path(summary["report"]))
    assert rows[-1]["counts"] == summary["counts"]
    assert rows[0]["models"][0]["recipe"]["seed"] == BUILTIN["f32"].seed
    assert rows[0]["command"].startswith("lockstep")


def test_two_checks_leave_two_reports(lockstep: Lockstep, tmp_path: Path) -> None:
    args = ("check", "builtin:f32", *OURSELVES, "--suite", "metadata", "-q", "--report", tmp_path)
    before: dict[Path, bytes] = {}
    for n in (1, 2, 3):
        assert lockstep(*args).code == 0
        found = {path: path.read_bytes() for path in tmp_path.glob("*/report.jsonl")}
        assert len(found) == n
        assert before.items() <= found.items()
        before = found


def test_side_by_side_gives_the_same_verdicts(lockstep: Lockstep, tmp_path: Path) -> None:
    args = ("check", *OURSELVES, "--suite", "dequant", "--json", "-q", "--report", tmp_path)
    one, two = (one_object(lockstep(*args, "-j", n).out) for n in (1, 2))
    assert one["counts"] == two["counts"]
    a, b = (
        sorted((r["case"], r["summary"]) for r in read_report(Path(s["report"]))[1:-1])
        for s in (one, two)
    )
    assert a == b
    assert {case for case, _ in a} == {f"builtin:{name}" for name in BUILTIN}


def test_a_divergence_is_exit_code_1_with_the_command_that_repeats_it(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    model = builtin("f32", tmp_path)
    other = with_changed_weight(model, tmp_path / "o.gguf", "blk.1.attn_v.weight", 3, 4, 0.5)
    args = ("check", model, "--subject-model", other, *OURSELVES, "--suite", "trace")
    ending = lockstep(*args, "--report", tmp_path / "r", "-q")
    assert ending.code == 1
    assert "DIVERGENCE" in ending.out
    again = next(line for line in ending.out.splitlines() if "again: " in line)
    repeated = again.split("lockstep ", 1)[1].split()
    assert lockstep(*repeated, "--report", tmp_path / "r", "-q").code == 1
    said, _, place = ending.out.splitlines()[-1].partition("lockstep ")
    assert said == "the place, and the proof: "
    assert lockstep(*place.split(), "-q").code == 1


@pytest.mark.parametrize(
    ("engine", "suites", "command"),
    [
        ("./mine", {"logits": "diverged"}, "diagnose m.gguf --engine ./mine --steps 4 --seed 0"),
        ("./mine", {"decode": "diverged", "trace": "agreed"}, "bisect m.gguf --engine ./mine"),
        ("./mine", {"tokens": "diverged", "logits": "agreed"}, ""),
        ("dump:mine", {"logits": "diverged"}, ""),
    ],
)
def test_what_comes_next_depends_on_what_the_engine_shows(
    engine: str, suites: dict[str, Status], command: str
) -> None:
    options = f"m.gguf --engine {engine} --steps 4 --seed 0"
    path = Path("m.gguf")
    plan = Plan(
        case="m", model=path, subject_model=path, engine=engine, settings=EXACT, command=options
    )
    verdicts = [
        Verdict(suite=suite, case="m", status=status, summary="")
        for suite, status in suites.items()
    ]
    result = RunResult(code=1, folder=path, verdicts=verdicts, engines=(), seconds=0.0)
    said = next_step([plan], result)
    assert said.partition("lockstep ")[2].startswith(command)
    assert bool(said) is bool(command)


def test_a_bisection_gives_one_json_object(lockstep: Lockstep, tmp_path: Path) -> None:
    model = builtin("f32", tmp_path)
    other = with_changed_weight(model, tmp_path / "o.gguf", "blk.1.attn_v.weight", 3, 4, 0.5)
    rest = (*OURSELVES, "--json", "-q", "--report", tmp_path / "results")
    ending = lockstep("bisect", model, "--subject-model", other, *rest)
    found = one_object(ending.out)
    assert (ending.code, found["exit_code"], found["confirmed"]) == (1, 1, True)
    (culprit,) = found["culprits"]
    assert (culprit["site"], culprit["layer"], culprit["weight"]) == (
        *("Vcur", 1, "blk.1.attn_v.weight"),
    )
    assert culprit["positions"]["indices"] == [3]
    (report,) = (tmp_path / "results").glob("*/report.jsonl")
    _, first, proof, footer = read_report(report)
    assert (first["status"], first["detail"]["site"]) == ("diverged", "Vcur")
    assert proof["detail"]["bisection"]["proof"]["confirms"]
    assert footer["exit_code"] == 1
    assert "Vcur" in report.with_name("report.html").read_text()
    same = one_object(lockstep("bisect", model, *rest).out)
    assert (same["exit_code"], same["culprits"], same["confirmed"]) == (0, [], None)


def test_a_quick_look_gives_one_json_object(lockstep: Lockstep) -> None:
    args = ("run", "builtin:f32", "--prompt", "Once", "-n", "5", "--engine", "reference")
    ending = lockstep(*args, "--json", "-q")
    answer = one_object(ending.out)
    assert ending.code == 0
    assert len(answer["ids"]) == 5
    assert answer["engine"] == "reference"


def test_tokenize_and_back(lockstep: Lockstep) -> None:
    text = "Once upon a\ttime"
    plain = ("tokenize", "builtin:f32", "--no-special")  # like llama.cpp, a BOS keeps the space
    ids = lockstep(*plain, "--text", text).out
    assert all(isinstance(i, int) for i in json.loads(ids))
    assert lockstep(*plain, "--decode", "--text", ids).out == text + "\n"
    with_bos = lockstep("tokenize", "builtin:f32", "--text", text).out
    assert json.loads(with_bos) == [1, *json.loads(ids)]


def test_a_trace_is_written_with_its_index(lockstep: Lockstep, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    ending = lockstep("trace", "builtin:moe", "-o", tmp_path / "t", "--tokens", "3", "-q")
    assert ending.code == 0
    index = json.loads((tmp_path / "t" / "index.json").read_text())
    tensors = load_file(tmp_path / "t" / "tensors.safetensors")
    assert {row["key"] for row in index["tensors"]} == tensors.keys()
    for row in index["tensors"]:
        assert list(tensors[row["key"]].shape) == row["shape"]
        assert len(row["axes"].split(",")) == len(row["shape"])


def test_synth_says_what_it_wrote(lockstep: Lockstep, tmp_path: Path) -> None:
    from lockstep.harness.report.header import sha256_of

    path = tmp_path / "m.gguf"
    ending = lockstep("synth", "-o", path, "--quant", "Q8_0", "--seed", "5", "--tied")
    assert ending.code == 0
    assert sha256_of(path) in ending.out
    assert lockstep("run", path, "--prompt", "x", "-n", "1", "--engine", "reference").code == 0


def test_synth_says_which_matrices_are_not_of_the_type_asked_for(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    ending = lockstep("synth", "-o", path, "--arch", "qwen3", "--quant", "Q4_K", "--width", "256")
    assert ending.code == 0
    assert "no whole blocks of Q4_K: blk.0.ffn_down.weight, blk.1" in ending.out


def test_selftest_lists_every_wrong_engine_with_its_mistake(lockstep: Lockstep) -> None:
    lines = lockstep("selftest", "--list").out.splitlines()
    wrong = [*mutants(), *wrong_tokenizers()]
    assert [line.split()[0] for line in lines] == [cls.name for cls in wrong]
    assert all(cls.mistake in line for cls, line in zip(wrong, lines, strict=True))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "norms"), "--only: says nothing without another option"),
        (("--honest", "1", "--only", "norms"), "--only: says nothing beside --honest"),
        (("--sample", "3", "--catalogue"), "--sample: says nothing beside --catalogue"),
        (("--catalogue", "--diagnosis"), "--catalogue and --diagnosis: name one of them"),
        (("--catalogue", "--only", "norm"), "no family 'norm' of wrong engines (near: norms"),
        (("--black-box", "--only", "qwen"), "no family or model 'qwen' of wrong engines"),
        (("--diagnosis", "--only", "norm"), "no family 'norm' of wrong engines (near: norms"),
    ],
)
def test_selftest_refuses_what_would_try_something_else_than_was_asked(
    lockstep: Lockstep, words: tuple[str, ...], said: str
) -> None:
    ending = lockstep("selftest", *words)
    assert ending.code == 2
    assert said in ending.err


@pytest.mark.parametrize("unbuffered", ["", "1"])  # at the end, and at the first line
def test_a_reader_who_has_enough_of_the_output_is_no_error(unbuffered: str) -> None:
    listing = subprocess.Popen(
        [sys.executable, "-m", "lockstep", "synth", "--list"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    with listing.stderr:
        listing.stdout.close()  # before a line is written
        assert (listing.wait(60), listing.stderr.read()) == (141, "")
