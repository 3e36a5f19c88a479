"""Engines that show tensors without replacement are judged from their own inputs."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from lockstep.engine.errors import EngineError
from lockstep.engine.node import Node
from lockstep.engine.ops.near import Expected
from lockstep.harness.graph.aliases import places_by_site
from lockstep.harness.graph.segments import MORE, RUNS, SegmentJudge
from lockstep.harness.graph.ways import Honest, Noisy, Wide
from lockstep.harness.records import Site
from lockstep.harness.runs.dump import dump_trace
from lockstep.harness.runs.run import builtin_model
from tests.places import EXAMPLES
from tests.plans import bisection_of, plan_of
from tests.recorded import BATCHES, LAYERS, Recorded, recorded, variant_of

TAKES = '"trace", "replace"'


# --- along a recorded graph: a model of an architecture that is not ours --------------------------


@dataclass(frozen=True)
class OneOpWrong(Honest):
    """A wrong engine whose product has its rows shifted by one."""

    name: str = ""

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        value = super().result(node, found)
        return np.roll(value, 1, axis=-1) if node.name == self.name else value


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with recorded("qwen3moe", tmp_path_factory.mktemp("models")) as found:
        yield found


def test_wrong_product_is_found_only_at_its_op(qwen3: Recorded) -> None:
    found = qwen3.accused(qwen3.run(OneOpWrong(name="ffn_up-1")))
    assert {str(f.site) for f in found} == {"ffn_up-1"}
    assert {(f.op, f.at_fault, f.weight) for f in found} == {
        ("MUL_MAT", "subject", "blk.1.ffn_up.weight")
    }


def test_wrong_integers_are_located(qwen3: Recorded) -> None:
    values = qwen3.run(Honest())
    place = next(p for p in values if str(qwen3.wires[p].site) == "l_out-0")
    values[place] = np.rint(values[place]).astype(np.int32)
    assert str(qwen3.accused(values, LAYERS)[0].site) == "l_out-0"


@pytest.mark.parametrize(("only", "runs"), [((), RUNS), (LAYERS, RUNS + MORE + RUNS)])
def test_noise_of_a_single_op_is_not_measured_if_its_bound_decides(
    only: tuple[str, ...], runs: int, qwen3: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine with a single wrong op needs only the runs with wider inputs."""
    right, made = SegmentJudge.run, []

    def run(self: SegmentJudge, way: Honest, *args: Any, **more: Any) -> Any:
        made.append(isinstance(way, Noisy))
        return right(self, way, *args, **more)

    monkeypatch.setattr(SegmentJudge, "run", run)
    assert qwen3.accused(qwen3.run(OneOpWrong(name="ffn_up-1")), only)
    assert sum(made) == runs


def test_engine_that_shows_layers_learns_which_tensor_to_show_next(qwen3: Recorded) -> None:
    found = qwen3.accused(qwen3.run(OneOpWrong(name="ffn_up-1")), LAYERS)
    assert {str(f.site) for f in found} == {"l_out-1"}
    assert "MUL_MAT" in found[0].op
    assert "to halve it" in found[0].reason
    assert [str(site) for site in found[0].inputs] == ["l_out-0"]


def test_two_faults_show_at_once(qwen3: Recorded) -> None:
    values = qwen3.run(OneOpWrong(name="ffn_up-1"))
    other = next(p for p, w in qwen3.wires.items() if str(w.site) == "ffn_gate-0")
    values[other] = np.roll(values[other], 1, axis=-1)
    sites = {str(f.site) for f in qwen3.accused(values)}
    assert {"ffn_gate-0", "ffn_up-1"} <= sites


@pytest.mark.parametrize("only", [(), LAYERS])
@pytest.mark.parametrize(
    ("way", "plain"), [(Honest(), False), (Honest(), True), (Wide(), False), (Wide(), True)]
)
def test_honest_engines_of_other_designs_are_not_accused(
    way: Honest, plain: bool, only: tuple[str, ...], qwen3: Recorded
) -> None:
    assert qwen3.accused(qwen3.run(way, plain=plain), only) == []


@dataclass(frozen=True)
class ById(Honest):
    """An engine that processes the two chosen experts in the order of their ids."""

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        value = np.array(super().result(node, found))
        if node.op == "ARGSORT":
            value[..., :2] = np.sort(value[..., :2])
        return value


@dataclass(frozen=True)
class OthersShares(ById):
    """A wrong engine that swaps the weights of two experts."""

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        value = super().result(node, found)
        return value[:, :, ::-1] if node.name == "ffn_moe_weights-1" else value


@dataclass(frozen=True)
class SwappedShares(Honest):
    """The same wrong engine, with the experts in llama.cpp's order."""

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        value = super().result(node, found)
        return value[:, :, ::-1] if node.name == "ffn_moe_weights-1" else value


def without_choices(recorded: Recorded, way: Honest) -> dict[Any, NDArray[Any]]:
    return {p: v for p, v in recorded.run(way).items() if v.dtype.kind == "f"}


def test_order_of_experts_is_free_and_need_not_be_shown(experts: Recorded) -> None:
    honest, by_id = (without_choices(experts, way) for way in (Honest(), ById()))
    assert any(not np.array_equal(honest[place], by_id[place]) for place in honest)
    assert experts.accused(by_id) == []
    assert experts.accused(by_id, ("ffn_moe_weights_norm", "ffn_moe_down", *LAYERS)) == []


@pytest.mark.parametrize("way", [OthersShares(), SwappedShares()])
def test_wrong_expert_shares_are_found_in_any_order(way: Honest, experts: Recorded) -> None:
    found = experts.accused(without_choices(experts, way))
    assert {str(f.site) for f in found} == {"ffn_moe_weights-1"}


@dataclass(frozen=True)
class TheWorst(Honest):
    """An engine that chooses the experts with the smallest scores, in one layer."""

    def result(self, node: Node, found: Expected) -> NDArray[Any]:
        value = super().result(node, found)
        return value[..., ::-1] if node.name == "ffn_moe_argsort-1" else value


@pytest.mark.parametrize("only", [(), ("ffn_moe_argsort", *LAYERS)])
def test_wrongly_chosen_experts_are_found_at_the_choice(
    only: tuple[str, ...], experts: Recorded
) -> None:
    """All values after the choice are right for the chosen experts."""
    found = experts.accused(experts.run(TheWorst()), only)
    assert {(str(f.site), f.layer) for f in found} == {("ffn_moe_argsort-1", 1)}


@pytest.mark.parametrize("only", [(), ("ffn_moe_argsort", *LAYERS)])
@pytest.mark.parametrize("way", [Honest(), Wide(), ById()])
def test_experts_that_are_shown_in_any_order_are_right(
    way: Honest, only: tuple[str, ...], experts: Recorded
) -> None:
    assert experts.accused(experts.run(way), only) == []


@pytest.mark.parametrize("wrong", [-1, 4, 1 << 20])
def test_invalid_expert_ids_are_found_and_the_run_continues(wrong: int, experts: Recorded) -> None:
    values = experts.run(Honest())
    place = next(p for p, w in experts.wires.items() if str(w.site) == "ffn_moe_argsort-0")
    values[place] = values[place].copy()
    values[place][..., 0, 0] = wrong
    assert str(experts.accused(values)[0].site) == "ffn_moe_argsort-0"


@pytest.mark.parametrize("way", [Honest(), ById()])
def test_wrong_product_of_experts_is_not_taken_for_another_order(
    way: Honest, experts: Recorded
) -> None:
    values = without_choices(experts, way)
    place = next(p for p, w in experts.wires.items() if str(w.site) == "ffn_moe_up-0")
    values[place] = np.roll(values[place], 1, axis=-1)
    assert str(experts.accused(values)[0].site) == "ffn_moe_up-0"


def test_tensor_of_only_nan_is_found(qwen3: Recorded) -> None:
    values = qwen3.run(Honest())
    place = next(p for p, w in qwen3.wires.items() if str(w.site) == "ffn_up-1")
    values[place] = np.full_like(values[place], np.nan)
    assert "ffn_up-1" in {str(f.site) for f in qwen3.accused(values)}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_without_a_source_are_found(bad: float, qwen3: Recorded) -> None:
    """The values before them are NaN or infinite, so there is no finite bound."""
    values = qwen3.run(Honest())
    place = next(p for p, w in qwen3.wires.items() if str(w.site) == "ffn_swiglu-1")
    values[place] = values[place].copy()
    values[place][..., 2, 3] = bad
    assert "ffn_out-1" in {str(f.site) for f in qwen3.accused(values)}


def in_use(recorded: Recorded, values: dict[Any, NDArray[Any]]) -> dict[Any, NDArray[Any]]:
    """Return the values of cells in use, as an engine without empty cells shows them."""
    cells = np.cumsum([len(batch) for batch in BATCHES])
    return {
        place: value[0, :, :, : cells[place[0]]]
        if recorded.wires[place].site.name in ("kq", "kq_soft_max")
        else value
        for place, value in values.items()
    }


def test_attention_may_be_shown_over_the_cells_in_use(qwen3: Recorded) -> None:
    assert qwen3.accused(in_use(qwen3, qwen3.run(Honest()))) == []
    values = in_use(qwen3, qwen3.run(OneOpWrong(name="kq-1")))
    assert values[next(p for p, w in qwen3.wires.items() if w.site.name == "kq")].ndim == 3
    assert {str(f.site) for f in qwen3.accused(values)} == {"kq-1"}


def test_wrong_hidden_product_of_cells_is_found_downstream(qwen3: Recorded) -> None:
    """All our runs compute the same values for hidden cells, so a wrong value is not noise."""
    place = next(p for p, w in qwen3.wires.items() if str(w.site) == "kq-1")
    wrong = qwen3.run(Honest())[place].copy()
    wrong[..., 1:] *= 1.5
    values = qwen3.run(Honest(), values={place: wrong})
    values[place] = wrong[0, :, :, :1]
    assert "kq_soft_max-1" in {str(f.site) for f in qwen3.accused(values)}


def test_cells_with_weight_must_be_shown(qwen3: Recorded) -> None:
    """All later values are right for the cells that are shown."""
    values = in_use(qwen3, qwen3.run(Honest()))
    last = [p for p, w in qwen3.wires.items() if w.site.name == "kq_soft_max" and p[0] == 1]
    known: dict[Any, NDArray[Any]] = {}
    for place in last:
        cells = values[place].shape[-1] - 1
        known[place] = qwen3.run(Honest(), values=known)[place][0, :, :, :cells]
    wrong = {**qwen3.run(Honest(), values=known), **known}
    found = qwen3.accused(wrong)
    assert {str(f.site) for f in found} == {"kq_soft_max-0", "kq_soft_max-1"}
    assert {f.mismatch.kind for f in found if f.mismatch} == {"shape"}
    for name in last:
        wrong[name] = values[name]
    assert "kq_soft_max-0" not in {str(f.site) for f in qwen3.accused(wrong)}


def test_attention_over_wrong_cells_is_malformed(qwen3: Recorded) -> None:
    values = in_use(qwen3, qwen3.run(Honest()))
    place = next(p for p, w in qwen3.wires.items() if w.site.name == "kq")
    values[place] = values[place][:, :-1]
    with pytest.raises(EngineError, match="put in at kq-0"):
        qwen3.accused(values)


def test_nodes_are_also_named_after_our_sites(qwen3: Recorded) -> None:
    places = places_by_site(qwen3.program, qwen3.wires)
    for name in ("attn_norm", "Qcur", "ffn_swiglu", "l_out"):
        assert Site(step=0, layer=1, name=name) in places


# --- a dump of a model that our engine has no graph for -------------------------------------------

CHANGED = "step0/Kcur_normed-1"  # llama.cpp's own name; no site of ours has it


def test_a_dump_may_show_any_node_of_llama_cpps_graph(tmp_path: Path) -> None:
    """The dump is llama.cpp's own, at first unchanged, then with one changed number."""
    path, right, wrong = tmp_path / "qwen3.gguf", tmp_path / "right", tmp_path / "wrong"
    variant_of("qwen3", path)
    dump_trace(plan_of(path, "llama.cpp", n_tokens=9), right, None, lambda _: None)
    tensors = load_file(right / "tensors.safetensors")
    assert CHANGED in tensors
    found = bisection_of(plan_of(path, f"dump:{right}", n_tokens=9))
    assert (found.exit_code, found.first) == (0, None)
    assert CHANGED.partition("/")[2] in {str(f.site) for f in found.found.all}
    shutil.copytree(right, wrong)
    tensors[CHANGED].flat[7] += np.float32(0.25)
    save_file(tensors, wrong / "tensors.safetensors")
    found = bisection_of(plan_of(path, f"dump:{wrong}", n_tokens=9))
    assert found.exit_code == 1
    assert found.first is not None
    assert str(found.first.site) == CHANGED.partition("/")[2]
    assert found.first.op == "MUL"  # product with the norm's weight


# --- a program that shows tensors and takes none --------------------------------------------------


@pytest.mark.parametrize(
    ("right", "wrong", "first"),
    [
        ("", "", None),
        ("x[..., 0::2], x[..., 1::2]", "*np.split(x, 2, -1)", ("ROPE", "Qcur_rope-0")),
        ("gate / (1", "up / (1", ("SWIGLU", "ffn_swiglu-0")),
    ],
)
def test_program_without_replacement_is_bisected(
    right: str, wrong: str, first: tuple[str, str] | None, tmp_path: Path
) -> None:
    text = (EXAMPLES / "engine.py").read_text()
    assert TAKES in text
    assert right in text
    script = tmp_path / "engine.py"
    text = text.replace(TAKES, '"trace"')
    script.write_text(text.replace(right, wrong) if right else text)
    command = shlex.join([sys.executable, str(script)])
    found = bisection_of(plan_of(builtin_model("f32", tmp_path), command, n_tokens=9))
    assert found.found.own_inputs
    if first is None:
        assert (found.exit_code, found.first) == (0, None)
        return
    assert found.exit_code == 1
    assert found.first is not None
    assert (found.first.op, str(found.first.site)) == first
    assert found.first.at_fault == "subject"
