"""A dump from an untrusted source is read only within its folder, and refused with one clear
error."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.engine.errors import InvalidModel
from lockstep.harness.check.check import BadInput
from lockstep.harness.dumps.dump import read_dump
from lockstep.harness.dumps.node_maps import map_of as parsed
from lockstep.harness.dumps.node_maps import read_map
from lockstep.harness.judging.stored import Bf16File, half_step, looks_like
from lockstep.harness.known.foreign import finding_named
from lockstep.harness.runs.dump import dump_trace
from lockstep.harness.selftest.foreign_findings import write_case
from tests.harness.dumps.test_dumps import TENSORS, changed, plan_for, with_context
from tests.harness.dumps.test_node_maps import checked
from tests.stored_dumps import as_bf16, write_bf16

EVERYTHING = '[nodes]\n"*result_output" = "result_output"\n'


def names_a_map_outside(folder: Path, outside: Path) -> None:
    (outside / "m.toml").write_text(EVERYTHING)
    say(folder, map=str(outside / "m.toml"))


def names_a_map_above(folder: Path, outside: Path) -> None:
    (outside / "m.toml").write_text(EVERYTHING)
    say(folder, map=f"../{outside.name}/m.toml")


def links_its_map(folder: Path, outside: Path) -> None:
    (outside / "m.toml").write_text(EVERYTHING)
    (folder / "m.toml").symlink_to(outside / "m.toml")
    say(folder, map="m.toml")


def links_its_tensors(folder: Path, outside: Path) -> None:
    (folder / TENSORS).rename(outside / TENSORS)
    (folder / TENSORS).symlink_to(outside / TENSORS)


def links_its_index(folder: Path, outside: Path) -> None:
    (folder / "index.json").rename(outside / "index.json")
    (folder / "index.json").symlink_to(outside / "index.json")


def say(folder: Path, **words: str) -> None:
    index = json.loads((folder / "index.json").read_text()) | words
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "lead",
    [
        names_a_map_outside,
        names_a_map_above,
        links_its_map,
        links_its_tensors,
        links_its_index,
    ],
)
def test_dump_reads_no_file_outside_its_folder(
    lead: Callable[[Path, Path], None], written: Path, tmp_path: Path
) -> None:
    folder = changed(written, tmp_path / "d", lambda *_: None)
    outside = tmp_path / "outside"
    outside.mkdir()
    lead(folder, outside)
    with pytest.raises(InvalidModel, match="is outside the dump's folder"):
        read_dump(folder)


def test_linked_folder_and_a_link_inside_are_read(written: Path, tmp_path: Path) -> None:
    folder = changed(written, tmp_path / "d", lambda *_: None)
    (folder / TENSORS).rename(folder / "kept")
    (folder / TENSORS).symlink_to("kept")
    (tmp_path / "link").symlink_to(folder)
    assert read_dump(tmp_path / "link").files.keys() == read_dump(written).files.keys()


def test_unreadable_type_is_refused_by_its_name(written: Path, tmp_path: Path) -> None:
    folder = changed(written, tmp_path / "d", lambda *_: None)
    row = {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}
    head = json.dumps({"step0/l_out-0": row}).encode()
    (folder / "x.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + bytes(2))
    with pytest.raises(InvalidModel, match=r"'step0/l_out-0' is of type F8_E4M3, not F32, F64"):
        read_dump(folder)


def test_oversized_map_is_refused_at_once() -> None:
    lines = "".join(f'"*a*{{layer}}z{i}" = "n{i}-{{layer}}"\n' for i in range(20_000))
    names = parsed("m", f"[nodes]\n{lines}".encode())
    for i in range(50):
        assert names.find(f"{i}") is None
    with pytest.raises(InvalidModel, match="m: 20000 patterns for more than 50 names"):
        names.find("50")
    big = read_map("transformers")
    for layer in range(100):  # all steps of a large model, which repeat the same names
        for _ in range(64):
            assert big.find(f"model.layers.{layer}.mlp.up_proj") is not None


def test_name_with_many_stars_is_matched_without_backtracking() -> None:
    """Matching a name with several stars takes cubic time if they backtrack."""
    names = parsed("m", b'[nodes]\n"*a*a{layer}z" = "x-{layer}"')
    assert names.find("a0" * 250) is None
    assert "(?>" in names.rules[0].pattern.pattern
    for name, layer in (("a.a7z", 7), ("ba.a1z.a12z", 12)):
        found = names.find(name)
        assert found is not None
        assert found[0] == f"x-{layer}"


def test_layer_number_includes_all_its_digits() -> None:
    names = parsed("m", b'[nodes]\n"*{layer}.out" = "l_out-{layer}"')
    for number in (2, 12, 123):
        found = names.find(f"h{number}.out")
        assert found is not None
        assert found[0] == f"l_out-{number}"


def test_map_applies_only_to_architectures_that_it_lists(
    model: Path, written: Path, tmp_path: Path
) -> None:
    """Modules of another architecture have the same names but other values, so the map would accuse
    the dump."""
    folder = changed(written, tmp_path / "d", lambda *_: None)
    (folder / "m.toml").write_text(f'architectures = ["qwen2"]\n{EVERYTHING}')
    say(folder, map="m.toml")
    with pytest.raises(BadInput, match=r"m.toml is for files of qwen2, but this file is llama"):
        with_context(model, folder, lambda _: None)
    assert read_map("transformers").architectures == ("llama",)
    for wrong in ('architectures = "llama"', "architectures = [1]"):
        with pytest.raises(InvalidModel, match="architectures must be a list of texts"):
            parsed("m", f"{wrong}\n{EVERYTHING}".encode())


def test_bf16_is_read_by_value(tmp_path: Path) -> None:
    values = {"a": np.float32([[1, -2.5], [3e38, 1e-40]]), "b": np.float32([np.inf, np.nan, 0])}
    write_bf16(tmp_path / "t.safetensors", values)
    with Bf16File(tmp_path / "t.safetensors") as file:
        for key, value in values.items():
            assert np.array_equal(file.get_tensor(key), as_bf16(value), equal_nan=True)


def test_half_step_tolerance_covers_rounding_but_not_truncation() -> None:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(4000) * 10.0 ** rng.integers(-9, 4, 4000)).astype(np.float32)
    values[:2] = 0, 2**-25
    for kind, rounded in (("F16", values.astype(np.float16)), ("BF16", as_bf16(values))):
        stored = rounded.astype(np.float32)
        off = np.abs(stored.astype(np.float64) - values)
        assert (off <= half_step(stored, kind)).all()
    cut = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert (np.abs(cut.astype(np.float64) - values) > half_step(cut, "BF16")).any()
    assert not half_step(values, "F32").any()
    assert half_step(np.zeros(1), "BF16")[0] < half_step(np.zeros(1), "F16")[0] == 2**-25


def test_type_is_recognised_if_all_numbers_were_rounded_to_it() -> None:
    values = np.random.default_rng(0).standard_normal(400).astype(np.float32)
    half, brain = values.astype(np.float16).astype(np.float32), as_bf16(values)
    simple = np.float32([0, 1, -0.5, np.inf, np.nan])
    assert [looks_like([simple, each]) for each in (half, brain)] == ["F16", "BF16"]
    assert looks_like([half, brain]) == "F16"
    assert looks_like([values]) == looks_like([brain, values[:1]]) == looks_like([]) == ""
    assert looks_like([np.float32([1e6])]) == "" != looks_like([as_bf16(np.float32([1e6]))])


def test_stored_type_is_recognised_for_bf16_and_not_for_f32(
    model: Path, written: Path, tmp_path: Path
) -> None:
    folder = changed(written, tmp_path / "d", lambda *_: None)
    write_bf16(folder / TENSORS, load_file(written / TENSORS))
    found = with_context(model, folder, lambda context: dict(context.subject.stored))
    assert set(found.values()) == {"BF16"}
    save_file(load_file(written / TENSORS), folder / TENSORS)
    assert with_context(model, folder, lambda context: dict(context.subject.stored)) == {}


def test_dump_that_claims_a_known_engine_is_not_excused(tmp_path: Path) -> None:
    """Transformers is known to ignore the frequency factors of this model."""
    model = tmp_path / "m.gguf"
    write_case(finding_named("transformers-rope-freqs"), model)
    folder = tmp_path / "transformers"
    dump_trace(plan_for(model, "reference"), folder, None, lambda _: None)
    index = json.loads((folder / "index.json").read_text())
    named = {"engine": "transformers", "version": "5.23.0", "tokens": index["tokens"]}
    (folder / "index.json").write_text(json.dumps(named))
    tensors = load_file(folder / TENSORS)
    tensors["step0/result_output"] += 1
    save_file(tensors, folder / TENSORS)
    found = checked(model, f"dump:{folder}", "logits")
    assert [(v.suite, v.status) for v in found] == [("logits", "diverged")]


def renamed(index: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Rename all tensors except the logits, as another framework names them."""
    for key in [key for key in tensors if not key.endswith("/result_output")]:
        step, _, name = key.partition("/")
        tensors[f"{step}/model.{name}"] = tensors.pop(key)


def misspelt(index: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["step0/attn_nrm-0"] = tensors.pop("step0/attn_norm-0")


@pytest.mark.parametrize(
    ("change", "status"), [(renamed, "not-compared"), (misspelt, "not-applicable")]
)
def test_dump_without_known_names_does_not_conform_by_logits_alone(
    change: Any, status: str, model: Path, written: Path, tmp_path: Path
) -> None:
    folder = changed(written, tmp_path / "d", change)
    found = [v for v in checked(model, f"dump:{folder}", "trace") if v.status != "agreed"]
    assert [v.status for v in found] == [status]
    assert "llama.cpp's graph has no such node" in found[0].summary


def test_dump_that_claims_too_much_memory_is_refused_unread(
    model: Path, written: Path, tmp_path: Path
) -> None:
    """A sparse file of a terabyte occupies no disk space."""
    folder = tmp_path / "huge"
    copytree(written, folder)
    read_dump(folder)  # the unchanged folder gives no error
    size = 1 << 40
    row = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    header = json.dumps({"step0/l_out-0": row}).encode()
    (folder / "index.json").write_text(json.dumps({"tokens": [[1]]}))
    (folder / "tensors.safetensors").unlink()
    save_file({"step0/result_output": np.zeros((1, 4), np.float32)}, folder / "a.safetensors")
    with (folder / "b.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    with pytest.raises(InvalidModel, match=r"its tensors take 1,099,511,627,792 bytes in F32"):
        read_dump(folder)
