"""Outputs of a Python class compared with the end of the graph, and tensors of several sequences.

llama.cpp splits several sequences into ubatches, with which the class's tensors are compared.
"""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lockstep.engine.batch import Batch
from lockstep.harness.asking.put_in import watch_values
from lockstep.harness.bisect.bisection import Bisection, bisect
from lockstep.harness.check.check import Plan, run_suites
from lockstep.harness.graph.aliases import places_by_site
from lockstep.harness.graph.ways import Honest
from lockstep.harness.locate.segments import UNLIKE
from lockstep.harness.locate.ubatches import by_ubatches, outputs_of_graphs, which_rows
from lockstep.harness.records import EXACT, Request, Site
from lockstep.harness.runs.dump import dump_trace
from lockstep.harness.runs.run import builtin_model
from tests.plans import open_both, plan_of
from tests.recorded import recorded, variant_of

ENGINE = """
from dataclasses import replace
import numpy as np
from lockstep.engine.errors import Unsupported
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.records import Trace

SHOWS = {shows!r}


def of_one_sequence(batches):
    at = 0
    for batch in batches:
        places = np.arange(at, at + len(batch), dtype=np.int32)
        at += len(batch)
        yield replace(batch, positions=places, seq_ids=0 * batch.seq_ids)


class Mine(Reference):
    def describe(self):
        return replace(super().describe(), shows=SHOWS, computes_nodes=False, shows_nodes=False)

    def evaluate(self, request):
        if self.loaded.graph.embeds != request.embeddings:
            raise Unsupported("not here")
        batches = {batches}
        run = super().evaluate(replace(request, batches=batches{more}))
        rows = tuple(self.rows(each) for each in run.logits)
        if run.trace is None:
            return replace(run, logits=rows)
        kept = tuple(r for r in run.trace.records if r.site.name in SHOWS)
        return replace(run, logits=rows, trace=Trace(engine="mine", records=kept))

    def rows(self, rows):
        return {rows}
"""
ONE_SEQUENCE = "tuple(of_one_sequence(request.batches))"
L2 = "rows / np.sqrt((rows * rows).sum(-1, keepdims=True))"


def engine(
    folder: Path, *shows: str, batches: str = "request.batches", rows: str = "rows", more: str = ""
) -> str:
    script = folder / "mine.py"
    script.write_text(ENGINE.format(shows=shows, batches=batches, rows=rows, more=more))
    return f"adapter:{script}"


def made(folder: Path, arch: str) -> Path:
    path = folder / f"{arch}.gguf"
    variant_of(arch, path)
    return path


def asked(model: Path, engine: str, question: Callable[..., object]) -> object:
    with open_both(plan_of(model, engine, n_tokens=9)) as both:
        return question(both.context)


def bisected(model: Path, engine: str) -> Bisection:
    found = asked(model, engine, bisect)
    assert isinstance(found, Bisection)
    return found


def test_wrong_embeddings_after_right_tensors_are_found(tmp_path: Path) -> None:
    """An earlier report found no wrong op, and blamed the order of calls."""
    model = made(tmp_path, "bert")
    found = bisected(model, engine(tmp_path, "ffn_inp", rows=L2))
    assert found.exit_code == 1
    assert found.first is not None
    assert found.first.site.name == "result_embd_pooled"
    assert bisected(model, engine(tmp_path, "ffn_inp")).exit_code == 0


def test_a_wrong_head_is_found_though_only_layers_are_shown(tmp_path: Path) -> None:
    model = builtin_model("f32", tmp_path)
    found = bisected(model, engine(tmp_path, "l_out", rows="rows + np.float32(0.5)"))
    assert found.exit_code == 1
    assert found.first is not None
    assert found.first.site.name == "result_output"
    assert found.first.weight == "output_norm.weight, output.weight"
    assert bisected(model, engine(tmp_path, "l_out")).exit_code == 0


def test_answer_that_differs_from_its_shown_tensor_is_found(tmp_path: Path) -> None:
    """An earlier report found no wrong op, and blamed the order of calls."""
    model, shows = builtin_model("f32", tmp_path), ("l_out", "result_output")
    found = bisected(model, engine(tmp_path, *shows, rows="rows * np.float32(1.5)"))
    assert found.exit_code == 1
    assert [(each.site.name, each.parameters) for each in found.culprits] == [
        ("result_output", UNLIKE)
    ]
    assert bisected(model, engine(tmp_path, *shows)).exit_code == 0


def test_missing_logits_of_an_embedding_model_accuse_no_engine(tmp_path: Path) -> None:
    """The class raises Unsupported for everything that it lacks; check once called that
    incomplete."""
    model = made(tmp_path, "bert")
    said = asked(model, engine(tmp_path, "ffn_inp"), lambda c: [*run_suites(c, ["logits"])])
    assert isinstance(said, list)
    assert {verdict.status for verdict in said} == {"not-applicable"}
    said = asked(model, engine(tmp_path, "ffn_inp"), lambda c: [*run_suites(c, ["embeddings"])])
    assert isinstance(said, list)
    assert {verdict.status for verdict in said} == {"agreed"}


def test_shared_state_is_located_by_layer_and_tokens(
    tmp_path: Path,
) -> None:
    """llama.cpp splits these batches into ubatches. Lockstep once accused the lookup of tokens."""
    model = made(tmp_path, "mamba")
    found = bisected(model, engine(tmp_path, "embd", "l_out", batches=ONE_SEQUENCE))
    assert found.exit_code == 1
    assert found.first is not None
    assert (found.first.site.name, found.first.layer) == ("l_out", 0)
    assert "embd" not in {each.site.name for each in found.culprits}


def test_engine_that_ignores_replaced_values_is_not_blamed_later(
    tmp_path: Path,
) -> None:
    """README shows a class that ignores replaced values. Its norms were once called wrong."""
    model = builtin_model("f32", tmp_path)
    ignores = engine(tmp_path, "attn_norm", "l_out", more=", replace={}")
    found = bisected(model, ignores)
    assert (found.exit_code, found.first) == (0, None)
    said = asked(model, ignores, lambda c: [*run_suites(c, ["products"])])
    assert isinstance(said, list)
    assert {verdict.status for verdict in said} == {"not-applicable"}
    wrong = engine(tmp_path, "attn_norm", "l_out", more=", replace={}", rows="rows * np.float32(2)")
    found = bisected(model, wrong)
    assert found.first is not None
    assert found.first.site.name == "result_output"


@pytest.mark.parametrize(
    "look",
    [
        lambda values: bool(values),
        lambda values: values.get(Site(step=0, layer=None, name="embd")),
        lambda values: dict(values),
        lambda values: {**values},
        lambda values: values.pop(Site(step=0, layer=0, name="l_out")),
        lambda values: values == {},
        lambda values: [*values.items()],
        lambda values: pickle.dumps(values),
    ],
)
def test_engine_that_reads_replaced_values_is_compared(look: Callable[[object], object]) -> None:
    request = Request(batches=(), replace={Site(step=0, layer=0, name="l_out"): np.zeros(1)})
    given, (asked,) = watch_values((request,))
    assert given.is_ignored
    look(asked.replace)
    assert not given.is_ignored
    assert not watch_values((Request(batches=()),))[0].is_ignored  # there is no value to watch


def test_dump_of_embeddings_is_compared_and_wrong_pooling_is_found(tmp_path: Path) -> None:
    """`lockstep trace` once wrote an invalid dump of such a model, which has no logits."""
    model, right = made(tmp_path, "bert"), tmp_path / "right"
    plan = Plan(
        case=model.name,
        model=model,
        subject_model=model,
        engine="llama.cpp",
        settings=EXACT,
        n_tokens=9,
        command="m",
    )
    dump_trace(plan, right, None, lambda _: None)
    assert bisected(model, f"dump:{right}").exit_code == 0
    said = asked(model, f"dump:{right}", lambda c: [*run_suites(c, ["embeddings", "logits"])])
    assert isinstance(said, list)
    assert {v.suite: v.status for v in said} == {"embeddings": "agreed", "logits": "not-applicable"}
    tensors = load_file(right / "tensors.safetensors")
    rows = tensors["step0/result_embd_pooled"]
    tensors["step0/result_embd_pooled"] = rows / np.sqrt((rows * rows).sum(-1, keepdims=True))
    save_file(tensors, right / "tensors.safetensors")
    found = bisected(model, f"dump:{right}")
    assert found.exit_code == 1
    assert found.first is not None
    assert found.first.site.name == "result_embd_pooled"


# --- along a recorded graph -----------------------------------------------------------------------


def taking_turns(*tokens: int) -> Batch:
    """Return a batch in which two sequences alternate; the first sequence has one more token."""
    sequences = np.array([0, 1, 0, 1, 0], np.int32)
    positions = np.array([0, 0, 1, 1, 2], np.int32)
    outputs = np.array([True, False, True, True, True])
    return Batch(np.array(tokens, np.int32), positions, sequences, outputs)


@pytest.mark.parametrize("last", [5, 90])
def test_rows_of_a_batch_are_compared_with_their_ubatch(last: int, tmp_path: Path) -> None:
    """The last token either repeats an earlier token, so that its rows are ambiguous, or differs
    from all others."""
    batch = taking_turns(5, 42, 79, 16, last)
    with recorded("mamba", tmp_path, batches=(batch,)) as mamba:
        assert len(mamba.program.graphs) == 2
        values = mamba.run(Honest())
        of_name = {str(wire.site): values[place] for place, wire in mamba.wires.items()}
        rows = [of_name[name].reshape(-1, 64) for name in ("l_out-0", "l_out ubatch 1-0")]
        order = [0, 2, 1, 3, 4]  # the same number of tokens of each sequence, and then the rest
        whole = np.zeros((5, 64), np.float32)
        whole[order] = np.concatenate(rows)
        places = places_by_site(mamba.program, mamba.wires)
        site = Site(step=0, layer=0, name="l_out")
        cut, sites = by_ubatches([batch], mamba.program, places, {site: whole})
        assert sites == {site}
        if last == 5:
            assert cut == {}
            return
        assert [str(each) for each in cut] == ["l_out-0", "l_out ubatch 1-0"]
        for part, expected in zip(cut.values(), rows, strict=True):
            assert np.array_equal(part, expected)
        one, other = (places[site] for site in cut)
        assert "has tokens 0, 2, 1, 3 of" in which_rows(batch, mamba.program, one, 4)
        # only rows with outputs
        assert "has tokens 0, 2, 3 of" in which_rows(batch, mamba.program, one, 3)
        assert "has tokens 4 of" in which_rows(batch, mamba.program, other, 1)
        assert which_rows(batch, mamba.program, other, 2) == ""


def test_rows_of_a_split_batch_are_not_the_result_of_one_graph(
    tmp_path: Path,
) -> None:
    batch = taking_turns(5, 42, 79, 16, 90)
    with recorded("mamba", tmp_path, batches=(batch,)) as mamba:
        rows = np.zeros((4, 384), np.float32)
        assert outputs_of_graphs(mamba.program, [rows]) == {}
    with recorded("qwen3", tmp_path, batches=(batch,)) as qwen3:
        rows = np.zeros((4, qwen3.program.width), np.float32)
        (place,) = outputs_of_graphs(qwen3.program, [rows])
        assert qwen3.wires[place].site.name == "result_output"
        assert outputs_of_graphs(qwen3.program, [rows[:3]]) == {}
