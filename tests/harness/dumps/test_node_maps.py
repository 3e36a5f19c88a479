"""Dumps with foreign tensor names, which a map translates. An ambiguous map is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.engine.errors import InvalidModel
from lockstep.harness.cli import app
from lockstep.harness.dumps.dump import folder_of, map_of
from lockstep.harness.dumps.node_maps import map_of as parsed
from lockstep.harness.dumps.node_maps import neighbours
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import Verdict
from tests.harness.dumps.test_dumps import plan_for
from tests.plans import verdicts_of

THEIRS = {  # module of transformers -> node with its result
    "model.embed_tokens": "embd",
    "model.layers.{}.input_layernorm": "attn_norm-{}",
    "model.layers.{}.self_attn.q_proj": "Qcur-{}",
    "model.layers.{}.self_attn.k_proj": "Kcur-{}",
    "model.layers.{}.self_attn.v_proj": "Vcur-{}",
    "model.layers.{}.self_attn.o_proj": "attn_out-{}",
    "model.layers.{}.post_attention_layernorm": "ffn_norm-{}",
    "model.layers.{}.mlp.down_proj": "ffn_out-{}",
    "model.layers.{}": "l_out-{}",
    "model.norm": "result_norm",
    "lm_head": "result_output",
}
HEADS = {"Qcur": 4, "Kcur": 2}  # numbers of heads in the built-in model


def halves(value: Any, n_head: int) -> Any:
    """Return the rows in the order of a library that rotates element i of a head with element i +
    n/2."""
    split = value.reshape(len(value), n_head, -1, 2)
    return np.ascontiguousarray(np.swapaxes(split, 2, 3).reshape(value.shape))


def as_transformers(tensors: dict[str, Any], *, permuted: bool = True) -> dict[str, Any]:
    found = {}
    for step in range(3):
        for theirs, node in THEIRS.items():
            for layer in range(2 if "{}" in theirs else 1):
                value = tensors[f"step{step}/{node.format(layer)}"]
                if permuted and (n := HEADS.get(node.removesuffix("-{}"))):
                    value = halves(value, n)
                found[f"step{step}/{theirs.format(layer)}"] = value[None]
        found[f"step{step}/model.rotary_emb"] = np.zeros((1, 1), np.float32)
    return found


def renamed(written: Path, folder: Path, rename: Callable[..., Any], **index: Any) -> Path:
    said = json.loads((written / "index.json").read_text()) | index
    folder.mkdir()
    (folder / "index.json").write_text(json.dumps(said))
    save_file(rename(load_file(written / "tensors.safetensors")), folder / "t.safetensors")
    return folder


def checked(model: Path, engine: str, *suites: str, oracle: str = "reference") -> list[Verdict]:
    return verdicts_of(replace(plan_for(model, engine), oracle=oracle), *suites)


def test_index_may_contain_its_map_or_name_a_file_in_its_folder(
    model: Path, written: Path, tmp_path: Path
) -> None:
    folder = renamed(written, tmp_path / "d", as_transformers, map="transformers")
    assert exit_code(checked(model, f"dump:{folder}", "logits")) == 0
    own = renamed(
        written,
        tmp_path / "own",
        lambda t: {key.replace("result_output", "head"): value for key, value in t.items()},
        map="own.toml",
    )
    (own / "own.toml").write_text('[nodes]\nhead = "result_output"\n')
    assert exit_code(checked(model, f"dump:{own}", "logits")) == 0


def test_axes_are_reordered_to_llama_cpps_order() -> None:
    rule = parsed(
        "m", b'[nodes]\n"q.{layer}" = { node = "Qcur_rope-{layer}", axes = [1, 0, 2] }'
    ).find("q.07")
    assert rule is not None
    assert rule[0] == "Qcur_rope-7"
    assert rule[1].apply(np.zeros((4, 5, 8)), {}).shape == (5, 4, 8)


@pytest.mark.parametrize(
    ("pattern", "node", "name", "found"),
    [
        ("l{layer}.q", "Qcur ADD-{layer}", "l1.q", "Qcur ADD-1"),
        ("l{layer}.n", "norm RMS_NORM 2-{layer}", "l0.n", "norm RMS_NORM 2-0"),
        ("embeddings.norm", "inp_norm-0", "embeddings.norm", "inp_norm-0"),
        ("mixer.0.x", "node_29", "mixer.0.x", "node_29"),
    ],
)
def test_every_name_of_a_llama_cpp_trace_can_be_mapped(
    pattern: str, node: str, name: str, found: str
) -> None:
    """Earlier versions refused names with an op or a number, and BERT's queries after their
    bias."""
    rule = parsed("m", f'[nodes]\n"{pattern}" = "{node}"'.encode()).find(name)
    assert rule is not None
    assert rule[0] == found


def test_interleaved_halves_become_neighbours() -> None:
    value = np.array([[0, 1, 2, 3, 10, 11, 12, 13]])
    assert neighbours(value, 2).tolist() == [[0, 2, 1, 3, 10, 12, 11, 13]]
    assert np.array_equal(neighbours(halves(value, 2), 2), value)
    for n_head in (0, 3):
        with pytest.raises(ValueError, match="cannot be split"):
            neighbours(value, n_head)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "not TOML"),
        ("[nodes]\n", "expected one table"),
        ("[other]\na = 1\n", "expected one table"),
        ('[nodes]\na = "attn norm"\n', "expected a node such as attn_norm-"),
        ("[nodes]\na = 7\n", "expected a node, or a table"),
        ('[nodes]\na = { node = "embd", scale = 2 }\n', "expected a node, or a table"),
        ('[nodes]\n"a.{layer}" = "embd"\n', "in both the name and the node"),
        ('[nodes]\na = "attn_norm-{layer}"\n', "in both the name and the node"),
        ('[nodes]\na = { node = "embd", rows = "halves" }\n', "rows may be"),
        ('[nodes]\na = { node = "embd", axes = [0, 2] }\n', "axes must be an order"),
        ('[nodes]\n"*a*b*c" = "embd"\n', "at most 2"),
    ],
)
def test_fault_of_a_map_is_reported(text: str, words: str) -> None:
    with pytest.raises(InvalidModel, match=words):
        parsed("m.toml", text.encode())


def test_map_is_part_of_the_engines_name() -> None:
    engine = "dump:a/b#map=m.toml"
    assert (folder_of(engine), map_of(engine)) == (Path("a/b"), "m.toml")
    assert (folder_of("dump:a#b"), map_of("dump:a#b")) == (Path("a#b"), "")
    assert folder_of("./a#map=b") is None


def test_map_is_only_for_dumps(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        app(["check", str(model), "--map", "transformers"])
    assert end.value.code == 2
    assert "--map is only for dumps" in capfd.readouterr().err


def test_tensor_without_a_pattern_in_the_map_is_named(
    model: Path, written: Path, tmp_path: Path
) -> None:
    """A tensor with a misspelt pattern is not compared, and the report says so."""
    folder = renamed(written, tmp_path / "d", as_transformers)
    own = tmp_path / "own.toml"
    text = '[nodes]\n"lm_head" = "result_output"\n"model.layers.{layer}" = "l_out-{layer}"\n'
    own.write_text(f'{text}"model.norms" = "result_norm"\n')
    unfit, agreed = checked(model, f"dump:{folder}#map={own}", "trace", oracle="llama.cpp")
    assert (agreed.status, unfit.status) == ("agreed", "not-applicable")
    assert "no pattern of the map matches" in unfit.summary
    assert "model.layers.*.input_layernorm" in unfit.summary
    own.write_text(
        '[nodes]\n"lm_head" = "result_output"\n"model.layer.{layer}" = "l_out-{layer}"\n'
    )
    (nothing,) = checked(model, f"dump:{folder}#map={own}", "trace", oracle="llama.cpp")
    assert "does not show tensors: no pattern of the map matches" in nothing.summary
    fits = checked(model, f"dump:{written}", "trace", oracle="llama.cpp")
    assert [verdict.status for verdict in fits] == ["agreed"]
