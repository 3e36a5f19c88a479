"""Bad input gives a one-line error, and destroys no data."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lockstep.engine.gguf.types import REMOVED, TYPE_COUNT, type_by_name
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.synth.builtin import BUILTIN, BUILTIN_VOCABULARIES
from lockstep.harness.synth.gguf_writer import Tensor, write_gguf
from lockstep.harness.synth.llama import LlamaRecipe, metadata, tensors
from tests.command_line import OURSELVES, Lockstep, assert_refused, in_a_process
from tests.models import builtin, with_metadata, with_tensor_type, written

GGML_ONLY = "Q8_1"  # a type of activations, which llama.cpp does not read from files


TOKENS = "tokenizer.ggml.tokens"
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
    """Write a file whose rows of 64 weights have a type with blocks of 256."""
    return with_tensor_type(builtin("f32", folder), folder / "row.gguf", NAMED, Q4_K)


def partial_block(folder: Path) -> Path:
    """Write a file that ends within the last block of its last tensor."""
    path = folder / "block.gguf"
    path.write_bytes(builtin("q8_0", folder).read_bytes()[:-5])
    return path


def type_of_ggml_only(folder: Path) -> Path:
    """Write a valid file with a type for which our engine has no decoder."""
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


def a_piece_twice(folder: Path) -> Path:
    recipe = BUILTIN_VOCABULARIES["llama"]
    keys = dict(metadata(recipe))
    kind, texts = keys[TOKENS]
    path = folder / "twice.gguf"
    write_gguf(path, keys | {TOKENS: (kind, [*texts[:-1], texts[5]])}, tensors(recipe))
    return path


class Bad(NamedTuple):
    make: Callable[[Path], Path]
    says: str
    commands: tuple[str, ...]  # commands that must refuse the file


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
    Bad(a_piece_twice, f"{TOKENS} must differ", ("check", "run", "tokenize")),
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


@pytest.mark.parametrize("command", ["twin", "slice"])
def test_command_that_reads_a_file_names_the_malformed_one(
    command: str, lockstep: Lockstep, tmp_path: Path
) -> None:
    path = truncated_file(tmp_path)
    assert_refused(lockstep(command, path, "-o", tmp_path / "out.gguf"), str(path))


WITHOUT_GRAPH = {
    unknown_architecture: "unknown model architecture: 'transistor",
    no_architecture: "the file has no general.architecture, so it is not a model",
    type_of_ggml_only: "llama.cpp crashed",
}


@pytest.mark.parametrize("make", WITHOUT_GRAPH, ids=lambda make: make.__name__)
def test_model_without_our_graph_is_checked_in_other_suites(
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
    assert all(line.startswith("  | ") for line in log)  # the log of llama.cpp if it crashed


@pytest.mark.parametrize("bad", [missing, text_file, partial_block])
def test_process_has_the_exit_code_of_its_command(
    bad: Callable[[Path], Path], tmp_path: Path
) -> None:
    """The other tests run commands in this process. A shell also sees how the interpreter ends, so
    this test starts a process."""
    ending = in_a_process("check", str(bad(tmp_path)), *OURSELVES, "--quiet")
    assert_refused(ending)


def test_bad_model_for_the_subject_is_refused(lockstep: Lockstep, tmp_path: Path) -> None:
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
        *(
            ((*command, role, "llama.cpp@"), ["'llama.cpp@' is not a version", "llama.cpp@0.3.8"])
            for command in (("check", "builtin:f32"), ("fuzz", "batch"), ("fuzz", "tokens"))
            for role in ("--engine", "--oracle")
        ),
        (("tokenize", "builtin:f32", "--text", "x", "--engine", "llama.cpp@"), ["not a version"]),
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
def test_unknown_choice_is_refused_with_the_known_choices(
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
        ("shadow", "--arch", "mamba", "--cache-type-k", "q9_0"),
        ("shadow", "--arch", "mamba", "--cache-type-v", "f15"),
        ("check", "--seed", str(2**128)),
        ("synth", "-o", "x", "--seed", "-1"),
        ("synth", "-o", "x", "--lora", "x.gguf", "--alpha", "1e39"),
        ("synth", "-o", "x", "--lora", "x.gguf", "--alpha", "nan"),
        ("synth", "-o", "x", "--rope-base", "1e39"),
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
