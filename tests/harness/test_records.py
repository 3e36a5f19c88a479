"""The shared records cannot be changed, and a trace names every tensor once."""

from dataclasses import FrozenInstanceError, fields, is_dataclass

import numpy as np
import pytest

from lockstep.harness import records
from lockstep.harness.records import DEFAULT, EXACT, PRESETS, Site, TensorRecord, Trace
from lockstep.harness.sites import SITES

DATACLASSES = [v for v in vars(records).values() if is_dataclass(v) and isinstance(v, type)]
OWN = [cls for cls in DATACLASSES if cls.__module__ == records.__name__]


def record(name: str, layer: int | None = 0, step: int = 0) -> TensorRecord:
    return TensorRecord(site=Site(step=step, layer=layer, name=name), value=np.zeros(2))


@pytest.mark.parametrize("cls", OWN, ids=lambda cls: cls.__name__)
def test_a_record_cannot_be_changed(cls: type) -> None:
    instance = object.__new__(cls)
    for field in fields(cls):
        with pytest.raises(FrozenInstanceError):
            setattr(instance, field.name, None)


def test_same_name_in_another_layer_or_step_is_another_site() -> None:
    three = (record("Qcur", 0), record("Qcur", 1), record("Qcur", 0, step=1))
    assert len(Trace(engine="x", records=three).values()) == 3


def test_a_trace_keeps_the_order_of_execution() -> None:
    names = ["Vcur", "Kcur", "Qcur"]
    trace = Trace(engine="x", records=tuple(record(name) for name in names))
    assert [site.name for site in trace.values()] == names


@pytest.mark.parametrize(
    ("site", "text"),
    [
        (Site(step=0, layer=3, name="ffn_out"), "ffn_out-3"),
        (Site(step=2, layer=None, name="result_output"), "result_output"),
    ],
)
def test_site_as_text_looks_like_ggmls_name(site: Site, text: str) -> None:
    assert site.name in SITES
    assert str(site) == text


def test_presets_contain_their_own_name() -> None:
    assert {name: preset.name for name, preset in PRESETS.items()} == {
        "exact": "exact",
        "default": "default",
    }


def test_exact_preset_avoids_every_rounding_of_default() -> None:
    assert (EXACT.type_k, EXACT.type_v, EXACT.flash_attn, EXACT.repack, EXACT.n_threads) == (
        *("F32", "F32", False, False, 1),
    )
    assert (DEFAULT.type_k, DEFAULT.type_v, DEFAULT.flash_attn, DEFAULT.repack) == (
        *("F16", "F16", True, True),
    )
