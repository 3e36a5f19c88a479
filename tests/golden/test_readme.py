"""The examples of golden/README.md work: they pass a right engine, and fail a wrong engine."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.engine.weights import Weight
from lockstep.golden.store import DEFAULT_ROOT
from lockstep.golden.suites.base import Verdicts
from lockstep.golden.suites.parts.run_compare import compare_ways
from lockstep.golden.write import Made, files_of
from tests.golden.small_runs import CHANGES, changed, small_run

import_members("lockstep.engine.quants")
README = (DEFAULT_ROOT.parents[1] / "README.md").read_text()
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
RIGHT = "(int8_t)b[2 + i]"
DECODER = """
#include <math.h>
#include <stdint.h>
void decode_q8_0(const uint8_t *b, float *out) {
    int bits = b[0] | b[1] << 8, e = bits >> 10 & 31, m = bits & 1023;
    float d = e == 31 ? (m ? NAN : INFINITY) : ldexpf(e ? 1024 + m : m, (e ? e : 1) - 25);
    for (int i = 0; i < 32; i++) out[i] = (bits >> 15 ? -d : d) * WEIGHT;
}
"""


def example(language: str, calls: str) -> str:
    """Return the example that calls the reader's function of that name."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = (block for block in blocks if f"{calls}(" in block)
    return str(found)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler: the example in C was not run")
@pytest.mark.parametrize(("weight", "code"), [(RIGHT, 0), ("b[2 + i]", 1), ("(int8_t)b[i]", 1)])
def test_c_example_passes_a_right_decoder_and_fails_wrong_decoders(
    weight: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "check.c").write_text(example("c", "decode_q8_0"))
    (tmp_path / "mine.c").write_text(DECODER.replace("WEIGHT", weight))
    sources = [str(tmp_path / name) for name in ("check.c", "mine.c")]
    command = [str(COMPILER), "-std=gnu11", "-w", *sources, "-lm", "-o", str(tmp_path / "check")]
    subprocess.run(command, check=True)
    done = subprocess.run([str(tmp_path / "check")], cwd=DEFAULT_ROOT, capture_output=True)
    assert done.returncode == code, done.stdout
    assert (b"\n0 weights" in b"\n" + done.stdout) is (code == 0)


LOGITS = """
#include <stdio.h>
#include <stdlib.h>
float *my_logits(const int *ids, int n_ids, const int *batches, int n_batches) {
    FILE *file = fopen("mine.f32", "rb"); float *rows = malloc(1 << 22);
    return fread(rows, 4, 1 << 20, file), rows;
}
"""


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run-in-c")
    (folder / "check.c").write_text(example("c", "my_logits"))
    (folder / "mine.c").write_text(LOGITS)
    sources = [str(folder / name) for name in ("check.c", "mine.c")]
    command = [str(COMPILER), "-std=gnu11", "-w", *sources, "-lm", "-o", str(folder / "check")]
    subprocess.run(command, check=True)
    return folder / "check"


@pytest.mark.skipif(COMPILER is None, reason="no C compiler: the example in C was not run")
@pytest.mark.parametrize("name", CHANGES)
def test_c_example_passes_right_logits_and_fails_wrong_logits(
    name: str, checker: Path, tmp_path: Path
) -> None:
    """The example gives the same result as `golden verify`."""
    vectors = small_run()
    for entry, raw in files_of(Made(path="mine", kind="run", vectors=vectors, model=None)):
        (tmp_path / entry.path).write_bytes(raw)
    matrix = changed(name)
    (tmp_path / "mine.f32").write_bytes(matrix.tobytes())
    arguments = [str(checker), "mine.json", "mine.safetensors"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True)
    found = compare_ways(vectors, "logits", matrix, Verdicts(suite="run", case=name, repro=""))
    assert (done.returncode == 0) is (found.status == "agreed") is CHANGES[name], done.stdout


def dot(factor: float) -> Callable[[bytes, tuple[float, ...]], float]:
    kind = WeightFormat.member("Q4_K")

    def multiply(row: bytes, acts: tuple[float, ...]) -> float:
        weight = Weight("row", kind, (1, len(acts)), np.frombuffer(row, np.uint8))
        x = np.array([acts], np.float32)
        return float(Mirror().linear(x, weight)[0, 0]) * factor

    return multiply


def run_python(calls: str, function: Callable[..., object]) -> None:
    here = Path.cwd()
    os.chdir(DEFAULT_ROOT)
    try:
        code = compile(example("python", calls).replace("open(", "opened("), "README.md", "exec")
        with_files: list[object] = []

        def opened(*args: str) -> object:
            with_files.append(open(*args))  # noqa: SIM115  # closed below, as the example does not
            return with_files[-1]

        exec(code, {calls: function, "opened": opened})
    finally:
        os.chdir(here)
        for file in with_files:
            file.close()  # type: ignore[attr-defined]


def test_python_example_passes_a_right_product() -> None:
    run_python("dot_q4_k", dot(1))


def test_python_example_fails_for_a_scale_off_by_one_in_100_000() -> None:
    with pytest.raises(AssertionError):
        run_python("dot_q4_k", dot(1.00001))


def rms_norm(x: tuple[float, ...], shape: list[int], eps: float) -> list[float]:
    rows = np.array(x, np.float32).reshape(shape)
    with np.errstate(invalid="ignore"):
        mean = np.mean(rows * rows, axis=-1, keepdims=True, dtype=np.float32)
        return [float(y) for y in (rows / np.sqrt(mean + np.float32(eps))).reshape(-1)]


def test_operations_example_passes_a_right_norm_and_fails_another_eps() -> None:
    run_python("rms_norm", rms_norm)
    with pytest.raises(AssertionError):
        run_python("rms_norm", lambda x, shape, eps: rms_norm(x, shape, 10 * eps))
    with pytest.raises(AssertionError):
        run_python("rms_norm", lambda x, shape, eps: list(x))
