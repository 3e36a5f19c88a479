"""Messages about files other than llama models: a table of files and commands.

Each slow command is tested here on only one or two models; test_any_arch tests the other models.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lockstep.harness.cli import app
from lockstep.harness.shadow.models import make_variants
from lockstep.harness.synth.gguf_writer import gguf_bytes, write_gguf
from lockstep.harness.synth.llama import LlamaRecipe, metadata

VARIANTS = ("qwen3", "gemma3", "gpt2", "phi3", "mamba2", "bert", "t5")
GIVEN = {
    "check": ("--tokens", "4", "--steps", "2"),
    "run": ("--ids", "[1, 2, 3]", "-n", "2"),
    "tokenize": ("--text", "Once"),
    "trace": ("-o", "OUT", "--tokens", "4"),
    "bisect": ("--tokens", "4"),
    "shadow": ("--tokens", "4", "--steps", "1"),
}
OURS = ("qwen3", "gemma3", "gpt2", "phi3")
OTHER_GRAPH = "our engine has no graph for '{}' (it has: "
NO_TEXT = "the file has no vocabulary (tokenizer.ggml.model), so it has no text"
NO_MODEL = "the file is of type 'adapter', not a model"
NO_TENSORS = "the file holds no tensors"
CUT = "the file ends inside the data of tensor"

# file, command, exit code, expected text
TABLE = [
    *((name, "run", 0, OTHER_GRAPH.format(name)) for name in ("mamba2", "t5")),
    *((name, "run", 0, "[") for name in OURS),
    *((name, "check", 0, "conform: everything compared agrees") for name in OURS),
    *((name, "bisect", 0, "nothing to find") for name in OURS),
    *((name, "trace", 0, "tensors of reference in OUT") for name in OURS),
    ("bert", "run", 2, "the model (bert) has no logits, so there is no next token"),
    ("vocabulary", "run", 2, f"{NO_TENSORS}, so there is nothing to run"),
    ("adapter", "run", 2, f"{NO_MODEL}, so there is nothing to run"),
    ("damaged", "run", 2, CUT),
    ("qwen3", "tokenize", 2, NO_TEXT),
    ("vocabulary", "tokenize", 0, "["),
    ("adapter", "tokenize", 2, NO_TEXT),
    ("damaged", "tokenize", 2, f"damaged.gguf: reference: MalformedFile: {CUT}"),
    ("bert", "check", 0, "the model (bert) has no logits"),
    ("t5", "check", 0, "conform: everything compared agrees"),
    ("vocabulary", "check", 0, f"shadow not applicable: {NO_TENSORS}"),
    ("adapter", "check", 0, f"shadow not applicable: {NO_MODEL}"),
    ("damaged", "check", 2, CUT),
    ("bert", "trace", 0, "tensors of reference in OUT"),
    ("mamba2", "trace", 0, "tensors of replay in OUT"),
    ("mamba2", "bisect", 0, "ops agree; nothing to find"),
    ("bert", "bisect", 0, "nothing to find"),
    ("t5", "shadow", 0, "shadow (llama.cpp)"),
    ("vocabulary", "trace", 2, f"{NO_TENSORS}, so there is nothing to run"),
    ("adapter", "trace", 2, f"{NO_MODEL}, so there is nothing to run"),
    ("damaged", "trace", 2, CUT),
    ("vocabulary", "bisect", 3, NO_TENSORS),
    ("adapter", "bisect", 3, NO_MODEL),
    ("damaged", "bisect", 2, CUT),
    ("vocabulary", "shadow", 3, f"shadow not applicable: {NO_TENSORS}"),
    ("adapter", "shadow", 3, f"shadow not applicable: {NO_MODEL}"),
    ("damaged", "shadow", 2, CUT),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("files")
    made = dict(zip(VARIANTS, make_variants(VARIANTS, folder), strict=True))
    made |= {name: folder / f"{name}.gguf" for name in ("vocabulary", "adapter", "damaged")}
    made["vocabulary"].write_bytes(gguf_bytes(metadata(LlamaRecipe()), []))
    made["damaged"].write_bytes(made["qwen3"].read_bytes()[:100_000])
    write_gguf(
        made["adapter"],
        {
            "general.architecture": ("STR", "qwen3"),
            "general.type": ("STR", "adapter"),
            "adapter.type": ("STR", "lora"),
            "adapter.lora.alpha": ("F32", 8.0),
        },
        [
            ("blk.0.attn_q.weight.lora_a", (64, 4), "F32", np.full((4, 64), 0.01, np.float32)),
            ("blk.0.attn_q.weight.lora_b", (4, 64), "F32", np.full((64, 4), 0.01, np.float32)),
        ],
    )
    return lambda name: made[name]


@pytest.mark.parametrize(("file", "command", "code", "says"), TABLE)
def test_commands_end_with_a_code_and_a_sentence(
    file: str,
    command: str,
    code: int,
    says: str,
    files: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)  # reports go to the current folder
    with pytest.raises(SystemExit) as end:
        app([command, str(files(file)), *GIVEN[command]])
    said = capfd.readouterr()
    assert says in said.out + said.err
    assert (end.value.code or 0) == code
    errors = [line for line in said.err.splitlines() if line.startswith("lockstep: ")]
    assert len(errors) == (code == 2 or (command, code) == ("bisect", 3))  # one clear error
