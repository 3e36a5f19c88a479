"""Tensors that are shown in part or under two names: missing and contradictory values are found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.harness.graph.aliases import places_by_site
from lockstep.harness.graph.segments import SegmentJudge
from lockstep.harness.graph.ways import Honest
from lockstep.harness.locate.segments import (
    by_place,
    misshapen,
    outputs_alone,
    wrong_by_another_name,
)
from lockstep.harness.records import Site
from tests.recorded import BATCHES, Recorded, recorded


@pytest.mark.parametrize("name", ["kq-1", "k_cache-1", "v_cache-1"])
def test_part_without_used_cells_is_malformed(name: str, qwen3: Recorded) -> None:
    """A partly shown tensor may hide wrong values: an engine could show only its right cells."""
    places = {
        str(s): p for s, p in places_by_site(qwen3.program, qwen3.wires).items() if not s.step
    }
    whole = qwen3.run(Honest())[places[name]]
    cells = len(BATCHES[0])
    heads = (2, cells) if name == "kq-1" else (1, 128)
    for shown in (1, cells - 1, cells, cells + 1):
        shape = (*heads, shown) if name == "kq-1" else (shown, *heads)
        part = {places[name]: np.zeros(shape, np.float32)}
        found = misshapen(qwen3.program, part).get(places[name])
        assert (found is not None) == (shown < cells)
        assert (
            found is None
            or found.detail == f"{cells} cells are in use, and the engine shows {shown}"
        )
    assert misshapen(qwen3.program, {places[name]: whole}) == {}


def test_engine_must_show_the_used_experts(tmp_path: Path) -> None:
    """An engine with a wrong second expert would otherwise be blamed at a later op."""
    with recorded("qwen3moe", tmp_path) as experts:
        place = next(p for p, w in experts.wires.items() if str(w.site) == "ffn_moe_argsort-0")
        for shown in (1, 2, 3):
            part = {place: np.zeros((len(BATCHES[0]), shown), np.int32)}
            found = misshapen(experts.program, part).get(place)
            assert (found.detail if found else "") == (
                "2 experts are in use, and the engine shows 1" if shown == 1 else ""
            )


def test_engine_may_show_its_last_layer_for_all_tokens(tmp_path: Path) -> None:
    """llama.cpp drops rows without outputs in its last layer. An honest engine was once accused of
    a wrong shape."""
    asked = replace(BATCHES[0], outputs=np.array([False, True, False, False, True]))
    with recorded("qwen3", tmp_path, batches=(asked,)) as found:
        places = places_by_site(found.program, found.wires)
        site = next(s for s in places if str(s) == "l_out-1")
        whole = np.arange(5 * 256, dtype=np.float32).reshape(5, 256)
        shown = {site: whole}
        kept = outputs_alone((asked,), found.program, places, shown)
        assert np.array_equal(kept[site], whole[[1, 4]])
        assert misshapen(found.program, {places[site]: kept[site]}) == {}
        first = next(s for s in places if str(s) == "l_out-0")
        assert outputs_alone((asked,), found.program, places, {first: whole}) == {}


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_scalar_may_be_shown_without_an_axis(factor: float, tmp_path: Path) -> None:
    with recorded("qwen3moe", tmp_path) as experts:
        values = experts.run(Honest())
        place = next(
            p
            for p, wire in experts.wires.items()
            if str(wire.site) == "ffn_moe_weights_sum-1" and values[p].size == 1
        )
        values[place] = values[place].reshape(()) * np.float32(factor)
        for only in ((), ("ffn_moe_weights_sum", "l_out")):
            found = {str(f.site) for f in experts.accused(values, only)}
            assert ("ffn_moe_weights_sum-1" in found) == (factor != 1)


@pytest.mark.parametrize("wrong", [0, 1])
def test_node_with_two_names_is_judged_under_both(wrong: int, qwen3: Recorded) -> None:
    """Either the first or the second of the two values is wrong."""
    places = places_by_site(qwen3.program, qwen3.wires)
    values = {site: value for site, value in shown_by_llama_cpp(qwen3).items() if not site.step}
    both = [Site(step=0, layer=1, name=name) for name in ("ffn_up", "ffn_up MUL_MAT")]
    assert len({places[site] for site in both}) == 1
    flat = values[both[0]].reshape(5, -1)
    values |= {both[1]: flat}
    assert len(list(by_place(values, places))) == 1
    values[both[wrong]] = np.roll(values[both[wrong]], 1, axis=-1)
    shown, other = by_place(values, places)
    judge = SegmentJudge(
        program=qwen3.program, wires=qwen3.wires, file=qwen3.file, build=qwen3.build, shown=shown
    )
    found = {judge.place_of[f.site] for f in judge.findings() if f.mismatch}
    found |= set(wrong_by_another_name(judge, other))
    assert places[both[0]] in found


def shown_by_llama_cpp(recorded: Recorded) -> dict[Site, NDArray[Any]]:
    return {recorded.wires[place].site: value for place, value in recorded.run(Honest()).items()}


def test_tensor_without_elements_compares_nothing(tmp_path: Path) -> None:
    """The report once said that both engines have NaN."""
    with recorded("mamba2", tmp_path) as states:
        shown = states.run(Honest())
        assert any(not value.size for value in shown.values())
        judge = SegmentJudge(
            program=states.program,
            wires=states.wires,
            file=states.file,
            build=states.build,
            shown=shown,
        )
        assert all(found.compared for found in judge.findings())


@pytest.mark.parametrize("wrong", [-1, 1 << 20])
def test_invalid_cell_ids_are_found_and_the_run_continues(wrong: int, tmp_path: Path) -> None:
    """An indexer chooses these cells. A mask is written at their ids; nothing is looked up by the
    ids."""
    with recorded("deepseek32", tmp_path) as sparse:
        values = sparse.run(Honest())
        place = next(p for p, w in sparse.wires.items() if str(w.site) == "top_k-0")
        values[place] = values[place].copy()
        values[place][..., 0] = wrong
        assert "top_k-0" in {str(f.site) for f in sparse.accused(values)}
