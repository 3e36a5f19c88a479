"""A stored run is judged like the answers of a running engine, and is untrusted."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from lockstep.engine.errors import InvalidModel
from lockstep.harness.check.check import BadInput, Plan
from lockstep.harness.context.suite import Context
from lockstep.harness.dumps import values
from lockstep.harness.dumps.dump import MOST_BATCHES, read_dump
from lockstep.harness.judging.findings import Findings
from lockstep.harness.locate.locate import locate
from lockstep.harness.records import Answered, Request, Unanswerable
from lockstep.harness.runs.dump import dump_trace
from tests.plans import open_both, plan_of

TENSORS = "tensors.safetensors"
Change = Callable[[dict[str, Any], dict[str, Any]], None]


def trace_of(model: Path, folder: Path) -> Path:
    """Write a dump as `lockstep trace` does."""
    dump_trace(plan_for(model, "reference"), folder, None, lambda _: None)
    return folder


def plan_for(model: Path, engine: str) -> Plan:
    return plan_of(model, engine, oracle="reference", n_tokens=7, n_steps=1)


def changed(written: Path, folder: Path, change: Change) -> Path:
    index = json.loads((written / "index.json").read_text())
    tensors = load_file(written / TENSORS)
    change(index, tensors)
    folder.mkdir(exist_ok=True)
    (folder / "index.json").write_text(json.dumps(index))
    save_file(tensors, folder / TENSORS)
    return folder


def with_context(model: Path, folder: Path, use: Callable[[Context], Any]) -> Any:
    with open_both(plan_for(model, f"dump:{folder}")) as both:
        return use(both.context)


def test_output_of_lockstep_trace_is_a_valid_dump_of_its_run(model: Path, written: Path) -> None:
    def use(context: Context) -> None:
        assert [len(batch) for batch in context.batches] == [7, 1, 1]
        expected, actual = context.ask_both(
            "evaluate", Request(batches=context.batches, capture=True)
        )
        assert all(map(np.array_equal, expected.logits, actual.logits))
        theirs, ours = expected.trace.values(), actual.trace.values()
        assert theirs.keys() == ours.keys()
        assert all(np.array_equal(theirs[site], ours[site]) for site in theirs)

    with_context(model, written, use)


def test_smallest_dump_has_ids_and_logits(model: Path, written: Path, tmp_path: Path) -> None:
    def least(index: dict[str, Any], tensors: dict[str, Any]) -> None:
        tokens = index["tokens"]
        index.clear()
        index |= {"engine": "mine", "version": "3", "tokens": tokens}
        for key in [key for key in tensors if "result_output" not in key]:
            del tensors[key]
        for key in tensors:  # half precision and a batch axis, as usual in engines
            tensors[key] = tensors[key][None].astype(np.float64)

    folder = changed(written, tmp_path / "d", least)

    def use(context: Context) -> None:
        assert context.subject_info.shows == ("result_output",)
        assert context.subject_info.version == "mine 3"
        expected, actual = context.ask_both("evaluate", Request(batches=context.batches))
        assert all(map(np.array_equal, expected.logits, actual.logits))

    with_context(model, folder, use)


def test_dump_answers_only_about_its_own_run(model: Path, written: Path) -> None:
    def use(context: Context) -> None:
        run = context.subject.ask("evaluate", Request(batches=context.batches))
        other = context.subject.ask("evaluate", Request(batches=context.batches[:1]))
        assert isinstance(run, Answered)
        assert isinstance(other, Unanswerable)
        assert other.declared
        assert isinstance(context.subject.ask("greedy", [1], 2), Unanswerable)

    with_context(model, written, use)


def drop_logits(index: dict[str, Any], tensors: dict[str, Any]) -> None:
    del tensors["step1/result_output"]


def misspell(index: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["step0/attn_nrm-0"] = tensors.pop("step0/attn_norm-0")


def no_step(index: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["attn_norm-0"] = tensors.pop("step0/attn_norm-0")


def too_late(index: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["step7/embd"] = tensors["step0/embd"]


def no_tokens(index: dict[str, Any], tensors: dict[str, Any]) -> None:
    del index["tokens"]


def no_ids(index: dict[str, Any], tensors: dict[str, Any]) -> None:
    index["tokens"][0][0] = "one"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop_logits, "no tensor step1/result_output"),
        (no_step, "logitsN, rowsN or stepN/NODE"),
        (too_late, "does not belong to any of 3 batches"),
        (no_tokens, "must be a list of lists of ids"),
        (no_ids, "'one', which is not an id"),
    ],
)
def test_fault_of_a_dump_is_reported(
    change: Change, words: str, model: Path, written: Path, tmp_path: Path
) -> None:
    folder = changed(written, tmp_path / "d", change)
    with pytest.raises(InvalidModel, match=words):
        read_dump(folder)
    with pytest.raises(BadInput, match=words):
        with_context(model, folder, lambda _: None)


def odd_cache(index: dict[str, Any], tensors: dict[str, Any]) -> None:
    index["engines"][0]["settings"]["type_k"] = "banana"


def of_another_model(index: dict[str, Any], tensors: dict[str, Any]) -> None:
    index["models"][0]["sha256"] = "0" * 64


def foreign_token(index: dict[str, Any], tensors: dict[str, Any]) -> None:
    index["tokens"][0][1] = 100_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (odd_cache, "type_k: expected one of F32, F16"),
        (of_another_model, "the run used a model with sha256 0000"),
        (foreign_token, "the run has token 100000, and .* has only 384 tokens"),
    ],
)
def test_dump_of_an_impossible_run_is_refused(
    change: Change, words: str, model: Path, written: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=words):
        with_context(model, changed(written, tmp_path / "d", change), lambda _: None)


def test_both_engines_run_with_the_settings_of_the_dump(
    model: Path, written: Path, tmp_path: Path
) -> None:
    def f16(index: dict[str, Any], tensors: dict[str, Any]) -> None:
        index["engines"][0]["settings"] |= {"type_k": "F16", "type_v": "F16"}

    found = with_context(model, changed(written, tmp_path / "d", f16), lambda c: c.settings)
    assert (found.type_k, found.type_v, found.flash_attn) == ("F16", "F16", False)


def test_pipe_among_the_files_does_not_block_a_check(written: Path, tmp_path: Path) -> None:
    folder = changed(written, tmp_path / "d", lambda *_: None)
    os.mkfifo(folder / "x.safetensors")
    with pytest.raises(InvalidModel, match=r"x\.safetensors: a pipe; expected a regular file"):
        read_dump(folder)


def test_misspelt_node_is_reported(model: Path, written: Path, tmp_path: Path) -> None:
    folder = changed(written, tmp_path / "d", misspell)
    found: list[Findings] = []
    with_context(model, folder, lambda context: found.append(locate(context)))
    ((why, sites),) = found[0].skipped.items()
    assert "llama.cpp's graph has no such node" in why
    assert "(near: attn_norm" in why
    assert [str(site) for site in sites] == ["attn_nrm-0"]
    assert not found[0].guilty


def test_missing_folder_json_and_safetensors_are_reported(written: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="no such file; lockstep trace writes"):
        read_dump(tmp_path / "nothing")
    (tmp_path / "index.json").write_text("[")
    with pytest.raises(InvalidModel, match="not JSON"):
        read_dump(tmp_path)
    folder = changed(written, tmp_path / "d", lambda *_: None)
    (folder / TENSORS).write_bytes(b"\x08")
    with pytest.raises(InvalidModel, match=TENSORS):
        read_dump(folder)


def test_a_tensor_of_another_shape_is_malformed(model: Path, written: Path, tmp_path: Path) -> None:
    def cut(index: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["step0/result_output"] = tensors["step0/result_output"][:, :-1].copy()

    folder = changed(written, tmp_path / "d", cut)

    def use(context: Context) -> str:
        return type(context.subject.ask("evaluate", Request(batches=context.batches))).__name__

    assert with_context(model, folder, use) == "Malformed"


def test_dump_of_many_batches_is_refused_at_once(written: Path, tmp_path: Path) -> None:
    """Running each batch would take minutes."""

    def many(index: dict[str, Any], _: dict[str, Any]) -> None:
        index["tokens"] = [[1]] * (MOST_BATCHES + 1)

    folder = changed(written, tmp_path / "d", many)
    with pytest.raises(InvalidModel, match="513 batches, expected at most 512: put more tokens"):
        read_dump(folder)


def test_dump_opens_each_file_once(
    model: Path, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a file reads its whole header. When the file was opened for each tensor, thousands of
    tensors took minutes."""
    opened: list[Path] = []

    def open_file(path: Path, **how: Any) -> Any:
        opened.append(path)
        return safe_open(path, **how)

    monkeypatch.setattr(values, "safe_open", open_file)
    with_context(model, written, lambda c: c.subject.ask("evaluate", Request(batches=c.batches)))
    assert opened == [written / TENSORS]
