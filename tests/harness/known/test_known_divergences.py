"""The list of known divergences is well formed. tests/differential checks that it is true."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import lockstep.harness.known
from lockstep.engine.quants.base import WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.adapters import adapter_class
from lockstep.harness.cli import app
from lockstep.harness.fuzzers.batch.known import known_schedules
from lockstep.harness.fuzzers.gguf.findings import known_files
from lockstep.harness.fuzzers.quants.differences import WORDS
from lockstep.harness.fuzzers.quants.known import Known, entry_for, known_divergences
from lockstep.harness.known import NAME, entries
from lockstep.harness.known.foreign import foreign_findings
from lockstep.harness.known.originals import known_of_originals
from lockstep.harness.known.own import own_differences
from lockstep.harness.records import Mismatch
from lockstep.harness.shadow.known import known_crash
from lockstep.harness.suites.parts.originals import known_originals

import_members("lockstep.engine.quants")
KNOWN = known_divergences()


def test_list_ships_with_the_package() -> None:
    assert (Path(lockstep.harness.known.__file__).parent / NAME).is_file()
    assert len(KNOWN) >= 7
    assert len(known_files()) >= 40
    assert len(known_schedules()) >= 20
    assert len(known_originals()) >= 14
    assert known_crash("plm", "default")


def test_missing_table_is_an_error() -> None:
    with pytest.raises(KeyError, match="dequants"):
        entries("dequants")


def test_entries_have_unique_ids_and_subjects() -> None:
    assert len({known.id for known in KNOWN}) == len(KNOWN)
    assert len({(k.component, k.type, k.symptom) for k in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.id)
def test_entry_states_its_subject_place_and_report(known: Known) -> None:
    assert adapter_class(known.component).name == known.component
    assert len(bytes.fromhex(known.case)) == WeightFormat.member(known.type).layout.itemsize
    assert known.symptom in {*WORDS, "unsupported"}
    assert known.sentence.endswith(".")
    assert known.status.startswith(("reported", "not reported: "))
    assert known.link.startswith("https://github.com/") or known.status.startswith("not reported")


def test_an_entry_is_found_by_component_type_and_symptom() -> None:
    first = KNOWN[0]
    assert entry_for(KNOWN, first.component, first.type, first.symptom) is first
    assert entry_for(KNOWN, first.component, first.type, "value") is None
    assert entry_for(KNOWN, "llama.cpp", first.type, first.symptom) is None


def test_own_differences_have_unique_ids_and_a_case() -> None:
    every = [each.id for each in own_differences()] + [each.id for each in foreign_findings()]
    assert len(set(every)) == len(every)
    assert all(each.case and each.sentence in each.report() for each in own_differences())


def test_finding_of_an_oracle_is_printed_and_has_no_run() -> None:
    name = next(iter(own_differences())).id
    assert CliRunner().invoke(app, ["finding", name]).exit_code == 0
    assert CliRunner().invoke(app, ["finding", name, "--run"]).exit_code == 2


def test_known_original_applies_only_to_its_config_and_place() -> None:
    known = next(each for each in known_of_originals() if each.below == {"n_ctx_original": "n_ctx"})
    config, worst = {"rope_type": "longrope", "n_ctx_original": 64}, Mismatch(kind="value")
    assert known.explains("phi3", config, {"n_ctx": 512}, "kqv_out", worst)
    assert not known.explains("phi3", config, {"n_ctx": 64}, "kqv_out", worst)
    assert not known.explains("phi3", config, {"n_ctx": 512}, "l_out", worst)
    assert not known.explains("llama", config, {"n_ctx": 512}, "kqv_out", worst)
    assert not known.explains(
        "phi3", config | {"rope_type": None}, {"n_ctx": 512}, "kqv_out", worst
    )


@pytest.mark.parametrize(("window", "is_known"), [(31, True), (32, False), (None, False)])
def test_known_window_explains_only_longer_texts(window: int | None, is_known: bool) -> None:
    worst, sizes = Mismatch(kind="value"), {"n_ctx": 512, "n_tokens": 32}
    for known in known_of_originals():
        if "sliding_window" in known.below:
            [name], config = known.architectures, {"sliding_window": window}
            assert known.explains(name, config, sizes, "kqv_out", worst) is is_known


@pytest.mark.parametrize(("off", "is_known"), [(4.7e-4, True), (2e-3, False)])
def test_known_gelu_explains_no_larger_error(off: float, is_known: bool) -> None:
    known = next(each for each in known_of_originals() if each.id == "bert-gelu-by-tanh")
    worst = Mismatch(kind="value", expected=0.25, actual=0.25 + off)
    assert known.explains("bert", {"hidden_act": "gelu"}, {}, "ffn_gelu", worst) is is_known
