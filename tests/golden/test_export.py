"""Exported vectors: each format is complete, and the runners in C give the same judgements as
Lockstep."""

import base64
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from lockstep.engine.samplers.parts.constructors import BY_SAMPLER
from lockstep.golden.export.literals import floating, string
from lockstep.golden.export.write import FORMS, WITH_RUNNERS, WITH_TENSORS, export
from lockstep.golden.store import DEFAULT_ROOT, BrokenGolden, sha256
from lockstep.harness.report.header import sha256_of
from tests.places import ROOT

ENGINES = Path(__file__).parent / "export_engines"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
FEW = {  # documents of each level that together contain all that a runner must support
    "dequant": ("q8_0", "q4_k", "f32"),
    "dot": ("q8_0", "q4_k", "f32"),
    "ops": ("add", "cpy", "cont", "argsort", "top_k", "moe_buckets", "relu", "soft_max", "rope"),
    "logits": ("f32", "q4_0"),
    "tokens": ("f32", "synth-t5"),
    "files": ("alignment-0", "alignment-16", "empty-file", "every-type", "array-arr-2-60"),
}
Built = Callable[[int], "Ran"]


class Ran:
    """A runner's output lines, and its exit code."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.lines = done.returncode, done.stdout.splitlines()


def compiled(folder: Path, engine: Path, wrong: int = 0) -> Ran:
    if COMPILER is None:
        pytest.skip("no C compiler: the runners were not compiled")
    program = folder / f"run-{wrong}"
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    sources = [*map(str, sorted(folder.glob("*.c"))), str(engine)]
    command = [COMPILER, *strict, f"-DWRONG={wrong}", f"-I{folder}", *sources, "-lm"]
    subprocess.run([*command, "-o", str(program)], check=True)
    return Ran(subprocess.run([program], capture_output=True, text=True, check=False))


@pytest.mark.parametrize("level", WITH_RUNNERS)
def test_right_engine_in_c_passes_and_wrong_engine_does_not(tmp_path: Path, level: str) -> None:
    export(tmp_path, level, "c", only=FEW[level])
    right = compiled(tmp_path, ENGINES / f"{level}.c")
    wrong = compiled(tmp_path, ENGINES / f"{level}.c", wrong=1)
    assert (right.code, wrong.code) == (0, 1), [*right.lines, *wrong.lines]
    assert re.match(r"0 of [1-9]", right.lines[-1])
    assert re.match(r"[1-9]\d* of [1-9]", wrong.lines[-1])


def test_every_operation_is_judged_in_c(tmp_path: Path) -> None:
    export(tmp_path, "ops", "c")
    right, wrong = (compiled(tmp_path, ENGINES / "ops.c", wrong=n) for n in (0, 1))
    assert right.code == 0, right.lines
    counts = {m[1]: int(m[2]) for x in wrong.lines if (m := re.match(r"(\S+) +(\d+) wrong in", x))}
    assert len(counts) == len(list((DEFAULT_ROOT / "ops").glob("*.json")))
    assert min(counts.values()) > 0


def test_ids_in_another_order_pass_if_the_order_is_free(tmp_path: Path) -> None:
    export(tmp_path, "ops", "c", only=("top_k", "moe_buckets"))
    assert compiled(tmp_path, ENGINES / "ops.c", wrong=2).code == 0


OFFERS_NOTHING = {
    "dequant": "int decode(const char *t, const uint8_t *b, size_t n, float *o)"
    "{ (void)t, (void)b, (void)n, (void)o; return 0; }",
    "ops": "int compute(const char *op, const struct ops_case *c, void *const *o)"
    "{ (void)op, (void)c, (void)o; return 0; }",
}


@pytest.mark.parametrize("level", OFFERS_NOTHING)
def test_an_engine_that_offers_nothing_does_not_pass(tmp_path: Path, level: str) -> None:
    export(tmp_path / "vectors", level, "c", only=FEW[level])
    engine = tmp_path / "engine.c"
    engine.write_text(f'#include "{level}.h"\n{OFFERS_NOTHING[level]}\n')
    ran = compiled(tmp_path / "vectors", engine)
    assert ran.code == 3
    assert f"{len(FEW[level])} " in ran.lines[-1]


DECODES_Q8_0 = """
#include "dequant.h"
#include <math.h>
#include <string.h>
int decode(const char *type, const uint8_t *block, size_t n, float *out) {
    int bits = block[0] | block[1] << 8, e = bits >> 10 & 31, m = bits & 1023;
    double d = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    if (strcmp(type, "Q8_0")) return 0;
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(bits >> 15 ? -d : d) * (float)(int8_t)block[2 + i SHIFT];
    return 1;
}
"""


@pytest.mark.parametrize(("shift", "code"), [("", 0), ("/ 2 * 2", 1)])
def test_decoder_in_c_must_match_bit_for_bit(tmp_path: Path, shift: str, code: int) -> None:
    export(tmp_path / "vectors", "dequant", "c", only=("q8_0", "q4_0"))
    engine = tmp_path / "engine.c"
    engine.write_text(DECODES_Q8_0.replace("SHIFT", shift))
    ran = compiled(tmp_path / "vectors", engine)
    assert ran.code == code, ran.lines
    assert "Q4_0     not offered" in ran.lines


@pytest.mark.parametrize("level", WITH_TENSORS)
def test_json_and_safetensors_hold_the_bits_of_the_vectors(tmp_path: Path, level: str) -> None:
    name = FEW[level][0]
    export(tmp_path / "j", level, "json", only=(name,))
    export(tmp_path / "s", level, "safetensors", only=(name,))
    document = json.loads((tmp_path / "j" / f"{name}.json").read_text())
    tensors = load_file(tmp_path / "s" / f"{name}.safetensors")
    shipped = load_file(DEFAULT_ROOT / level / f"{name}.safetensors")
    assert document["tensors"].keys() == tensors.keys() == shipped.keys()
    for key, value in shipped.items():
        row = document["tensors"][key]
        assert base64.b64decode(row["base64"]) == value.tobytes() == tensors[key].tobytes()
        assert tuple(row["shape"]) == value.shape == tensors[key].shape


@pytest.mark.parametrize("form", FORMS)
def test_export_states_its_content_and_hashes_every_file(tmp_path: Path, form: str) -> None:
    level = "logits"
    files = export(tmp_path, level, form, only=("f32", "stories260K"))
    index = json.loads((tmp_path / "index.json").read_text())
    there = {p.relative_to(tmp_path).as_posix(): p for p in tmp_path.rglob("*") if p.is_file()}
    assert {*files} == {*there.values()}
    assert index["files"] == {
        name: sha256(path.read_bytes()) for name, path in there.items() if name != "index.json"
    }
    assert (tmp_path / "LICENSE").read_text().startswith("MIT License")
    page = (tmp_path / "README.md").read_text()
    assert index["seal"] in page
    # a model without a recipe is named by its hash, and the other model is in the folder
    assert index["models_not_included"]["stories260K"] in page
    told = json.loads((DEFAULT_ROOT / level / "f32.json").read_text())["model"]["sha256"]
    assert sha256_of(tmp_path / "models" / "f32.gguf") == told


def test_the_licence_of_an_export_is_that_of_the_project() -> None:
    if not (ROOT / "LICENSE").exists():
        pytest.skip("no checkout: the two copies of the licence were not compared")
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "golden/export/LICENSE").read_bytes()


@pytest.mark.parametrize(
    ("level", "form", "only", "says"),
    [
        ("tokens", "safetensors", (), "no tensors: use --as json or c"),
        ("files", "safetensors", (), "no tensors"),
        ("samplers", "c", (), "no runner in C"),
        ("dot", "c", ("q4_9",), "dot has no 'q4_9' (near: q4_"),
    ],
)
def test_impossible_export_is_refused(
    tmp_path: Path, level: str, form: str, only: tuple[str, ...], says: str
) -> None:
    with pytest.raises(BrokenGolden, match=re.escape(says)):
        export(tmp_path / "new", level, form, only=only)
    assert not (tmp_path / "new").exists()


def test_export_overwrites_no_user_file(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(BrokenGolden, match="not empty"):
        export(tmp_path, "dot", "c", only=("f32",))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_edited_vectors_are_not_exported(tmp_path: Path) -> None:
    root = Path(shutil.copytree(DEFAULT_ROOT, tmp_path / "v1"))
    path = root / "dot" / "f32.json"
    path.write_bytes(path.read_bytes().replace(b'"rows": 6', b'"rows": 7'))
    with pytest.raises(BrokenGolden, match="changed by hand"):
        export(tmp_path / "out", "dot", "c", only=("f32",), root=root)


@pytest.mark.parametrize(
    "value",
    [0.1, -0.0, 16777216.0, 1e-45, 3.4028235e38, 1 / 3, math.inf, -math.inf, math.nan],
)
def test_a_literal_is_read_as_the_same_bits(value: float) -> None:
    text = floating(np.float32(value))
    known = {"INFINITY": math.inf, "-INFINITY": -math.inf, "NAN": math.nan}
    back = np.float32(known[text] if text in known else float(text.removesuffix("f")))
    assert back.tobytes() == np.float32(value).tobytes()


def test_string_never_ends_its_literal_early() -> None:
    text = 'a"b\\c??/d\n\x00\x1b é "; int x;'
    literal = string(text)
    assert not set(literal[1:-1]) & {'"', "?", "\n"}
    assert literal[1:-1].encode("ascii").decode("unicode_escape").encode("latin-1") == text.encode()


def test_sampler_export_has_the_whole_page_and_the_lists(tmp_path: Path) -> None:
    export(tmp_path, "samplers", "json", only=("top_p", "five-stages"))
    page = (tmp_path / "README.md").read_text()
    assert all(f"`{name}`" in page for name in BY_SAMPLER)
    assert "](../" not in page  # links outside the export would be broken
    shipped = json.loads((DEFAULT_ROOT / "samplers" / "top_p.json").read_text())
    assert json.loads((tmp_path / "top_p.json").read_text()) == shipped
