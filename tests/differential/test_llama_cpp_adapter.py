"""The oracle's adapter shows exactly llama.cpp's values, and showing them changes nothing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.records import (
    EXACT,
    PRESETS,
    Answered,
    Crashed,
    EngineInfo,
    Evaluation,
    Rejected,
    Request,
    Settings,
    Site,
)
from lockstep.harness.sites import SITES
from lockstep.harness.synth.builtin import BUILTIN
from lockstep.harness.synth.llama import write_llama

pytest.importorskip("llama_cpp", reason="llama_cpp is missing: llama.cpp's adapter was not run")

MODELS = Path(__file__).resolve().parents[2].parent / "shared" / "models"
STORIES = MODELS / "stories260K.gguf"
RUNNER = Runner(time_limit=120)
Array = NDArray[Any]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def model_named(name: str, directory: Path) -> Path:
    if name == "stories":
        if not STORIES.exists():
            pytest.skip(f"no {STORIES.name} in the shared folder: the adapter was not run on it")
        return STORIES
    path = directory / f"{name}.gguf"
    if not path.exists():
        write_llama(BUILTIN[name], path)
    return path


@pytest.fixture(
    scope="module",
    params=[(model, preset) for model in ("stories", "moe", "q8_0") for preset in PRESETS],
    ids="-".join,
)
def session(request: pytest.FixtureRequest, directory: Path) -> Iterator[Session]:
    model, preset = request.param
    with RUNNER.open("llama.cpp", model_named(model, directory), PRESETS[preset]) as session:
        yield session


@pytest.fixture(scope="module")
def stories(directory: Path) -> Iterator[Session]:
    with RUNNER.open("llama.cpp", model_named("stories", directory), EXACT) as session:
        yield session


def batches() -> tuple[Batch, ...]:
    """Return a prompt with two outputs, a single token, and a batch of two sequences without
    outputs."""
    prompt = Batch.of([1, 5, 9, 17, 33, 65])
    prompt.outputs[:4] = False
    pair = Batch(
        tokens=np.array([8, 11, 9], np.int32),
        positions=np.array([7, 0, 8], np.int32),
        seq_ids=np.array([0, 1, 0], np.int32),
        outputs=np.zeros(3, np.bool_),
    )
    return prompt, Batch.of([7], start=6), pair


def value(outcome: Any) -> Any:
    assert isinstance(outcome, Answered), outcome
    return outcome.value


def evaluated(session: Session, **options: Any) -> Evaluation:
    answer = value(session.ask("evaluate", Request(batches=batches(), **options)))
    assert isinstance(answer, Evaluation)
    return answer


def shown(session: Session, **options: Any) -> dict[Site, Array]:
    trace = evaluated(session, capture=True, **options).trace
    assert trace is not None
    return trace.values()


def same_logits(a: Evaluation, b: Evaluation) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a.logits, b.logits, strict=True))


def settings_of(session: Session) -> Settings:
    info = value(session.ask("describe"))
    assert isinstance(info, EngineInfo)
    assert info.settings
    return info.settings


def last_layer(values: dict[Site, Array]) -> int:
    return max(site.layer for site in values if site.layer is not None)


def test_tracing_changes_no_bit_of_the_logits(session: Session) -> None:
    plain, traced = evaluated(session), evaluated(session, capture=True)
    assert plain.trace is None
    assert [logits.shape[0] for logits in plain.logits] == [2, 1, 0]
    assert same_logits(plain, traced)


def test_last_site_is_the_logits(session: Session) -> None:
    traced = evaluated(session, capture=True)
    assert traced.trace is not None
    for step, logits in enumerate(traced.logits):
        output = traced.trace.values()[Site(step=step, layer=None, name="result_output")]
        assert output.tobytes() == logits.tobytes()


def test_adapter_shows_exactly_the_sites_of_the_model(session: Session) -> None:
    values = shown(session)
    experts = any(site.name == "ffn_moe_topk" for site in values)
    absent = {"kq", "kq_soft_max", "kqv_out"} if settings_of(session).flash_attn else {"fattn"}
    absent |= {
        name
        for name in SITES
        if name.startswith("ffn_moe_") != experts
        and name.startswith("ffn_")
        and name not in ("ffn_inp", "ffn_norm")
    }
    for step in range(3):
        assert {site.name for site in values if site.step == step} == set(SITES) - absent


def sizes(values: dict[Site, Array], step: int) -> dict[str, int]:
    """Return the sizes named in SITES for a model, from independent sites."""

    def shape(name: str) -> tuple[int, ...]:
        return values[Site(step=step, layer=0, name=name)].shape

    found = {
        "width": shape("attn_norm")[1],
        "heads": shape("Qcur_rope")[1],
        "kv_heads": shape("Kcur_rope")[1],
        "head_dim": shape("Kcur_rope")[2],
        "tokens": len(batches()[step]),
        "cells": sum(map(len, batches()[: step + 1])),
        "vocabulary": values[Site(step=step, layer=None, name="result_output")].shape[1],
    }
    if Site(step=step, layer=0, name="ffn_moe_topk") in values:
        experts, used = shape("ffn_moe_probs")[1], shape("ffn_moe_topk")[1]
        return found | {"experts": experts, "used": used, "n_ff": shape("ffn_moe_up")[2]}
    return found | {"n_ff": shape("ffn_up")[1]}


def test_site_has_its_documented_shape(session: Session) -> None:
    values = shown(session)
    after_the_choice = ("ffn_", "l_out", "result_")
    for site, array in values.items():
        words = sizes(values, site.step)
        if site.layer in (None, last_layer(values)) and site.name.startswith(after_the_choice):
            # only these tokens are computed further
            words["tokens"] = int(batches()[site.step].outputs.sum())
        assert array.shape == eval(SITES[site.name].shape.replace(")", ",)"), {}, words), site
        assert array.dtype == (np.int32 if site.name == "ffn_moe_topk" else np.float32)


def test_cache_holds_all_values_stored_so_far(session: Session) -> None:
    values, settings = shown(session), settings_of(session)
    storage = {"F32": np.float32, "F16": np.float16}
    for layer in range(last_layer(values) + 1):
        for cache, source, kind in (
            ("k_cache", "Kcur_rope", storage[settings.type_k]),
            ("v_cache", "Vcur", storage[settings.type_v]),
        ):
            steps = [values[Site(step=step, layer=layer, name=source)] for step in range(3)]
            for step in range(3):
                held = values[Site(step=step, layer=layer, name=cache)]
                stored = np.concatenate([array.reshape(-1, *held.shape[1:]) for array in steps])
                expected = stored[: len(held)].astype(kind).astype(np.float32)
                assert np.array_equal(held, expected), (cache, layer, step)


def test_attention_is_a_distribution_over_earlier_cells_of_its_sequence(
    session: Session,
) -> None:
    values = shown(session)
    if settings_of(session).flash_attn:
        assert not any(site.name == "kq_soft_max" for site in values)
        return
    seq_ids = np.concatenate([batch.seq_ids for batch in batches()])
    positions = np.concatenate([batch.positions for batch in batches()])
    for step, batch in enumerate(batches()):
        cells = sum(map(len, batches()[: step + 1]))
        visible = (batch.seq_ids[:, None] == seq_ids[:cells]) & (
            batch.positions[:, None] >= positions[:cells]
        )  # (tokens, cells)
        weights = values[Site(step=step, layer=0, name="kq_soft_max")]
        assert np.array_equal(weights > 0, np.broadcast_to(visible, weights.shape))
        assert np.allclose(weights.sum(-1), 1, atol=cells * 2**-24)


def test_chosen_experts_have_the_largest_probabilities(directory: Path) -> None:
    with RUNNER.open("llama.cpp", model_named("moe", directory), EXACT) as session:
        values = shown(session)
    found = {
        site.name: array for site, array in values.items() if (site.step, site.layer) == (0, 0)
    }
    used = found["ffn_moe_topk"].shape[1]
    chosen = np.argsort(-found["ffn_moe_probs"], axis=1)[:, :used]
    assert np.array_equal(found["ffn_moe_topk"], chosen)
    weights = np.take_along_axis(found["ffn_moe_probs"], chosen, axis=1)
    assert np.array_equal(found["ffn_moe_weights"], weights)
    assert not np.array_equal(found["ffn_moe_weights"], found["ffn_moe_weights_norm"])
    weighted = found["ffn_moe_down"] * found["ffn_moe_weights_norm"][:, :, None]
    assert np.array_equal(found["ffn_moe_weighted"], weighted)
    assert np.array_equal(found["ffn_moe_out"], weighted[:, 0] + weighted[:, 1])
    assert np.array_equal(found["l_out"], found["ffn_moe_out"] + found["ffn_inp"])


def replaceable(values: dict[Site, Array]) -> dict[Site, Array]:
    return {site: array for site, array in values.items() if not site.name.endswith("_cache")}


def test_replacing_every_site_with_its_own_value_changes_no_bit(session: Session) -> None:
    values, plain = shown(session), evaluated(session)
    same = replaceable(values)
    assert len(same) > 0.8 * len(values)
    again = evaluated(session, replace=same)
    assert again.trace is None
    assert same_logits(plain, again)


def noisy(array: Array) -> Array:
    """Return the values with noise, because an equal shift of all values would vanish in a
    softmax."""
    if array.dtype == np.int32:
        return np.ascontiguousarray(array[::-1])
    noise = np.sin(np.arange(array.size)).reshape(array.shape)
    return (array + noise).astype(np.float32)


def test_replacing_any_site_of_the_first_layer_changes_what_follows(session: Session) -> None:
    values, plain = shown(session), evaluated(session)
    for site, array in replaceable(values).items():
        if site.step == 0 and site.layer in (None, 0):
            changed = evaluated(session, replace={site: noisy(array)})
            assert not np.array_equal(plain.logits[0], changed.logits[0]), site


def test_record_has_the_value_before_the_replacement(session: Session) -> None:
    values = shown(session)
    for name in ("Qcur", "ffn_inp", "l_out"):
        site = Site(step=0, layer=0, name=name)
        wrong = shown(session, replace={site: noisy(values[site])})
        assert np.array_equal(wrong[site], values[site])
        following = Site(step=0, layer=1, name="attn_norm")
        assert not np.array_equal(wrong[following], values[following])


def test_patching_repairs_an_earlier_fault(session: Session) -> None:
    values, plain = shown(session), evaluated(session)
    site = Site(step=0, layer=0, name="ffn_inp")
    broken = {site: noisy(values[site])}
    truth = {s: v for s, v in values.items() if s.name == "l_out" and s.layer == last_layer(values)}
    assert not same_logits(plain, evaluated(session, replace=broken))
    assert same_logits(plain, evaluated(session, replace=broken | truth))


def test_requests_do_not_affect_each_other(session: Session) -> None:
    before = evaluated(session)
    shown(session, replace={})
    value(session.ask("greedy", [1, 2, 3], 4))
    assert same_logits(before, evaluated(session))


def test_greedy_token_has_the_largest_logit(session: Session) -> None:
    prompt = [1, 5, 9]
    ids = value(session.ask("greedy", prompt, 5))
    request = Request(batches=(Batch.of([*prompt, *ids]),))
    logits = value(session.ask("evaluate", request)).logits[0]
    assert ids == logits.argmax(-1)[len(prompt) - 1 : -1].tolist()
    assert value(session.ask("greedy", prompt, 0)) == []


def test_several_ubatches_give_logits_but_no_trace(directory: Path) -> None:
    settings = replace(EXACT, n_ubatch=4)
    with RUNNER.open("llama.cpp", model_named("f32", directory), settings) as session:
        assert [len(logits) for logits in evaluated(session).logits] == [2, 1, 0]
        outcome = session.ask("evaluate", Request(batches=batches(), capture=True))
        assert isinstance(outcome, Rejected)
        assert "several ubatches of 4" in outcome.message


SITE = Site(step=0, layer=0, name="l_out")
REFUSED: dict[str, tuple[Request, str]] = {
    "a full context": (Request(batches=(Batch.of([1] * 600),)), "600 tokens do not fit"),
    "no such token": (Request(batches=(Batch.of([1, 999]),)), "there is no token 999"),
    "an empty batch": (Request(batches=(Batch.of([]),)), "at least one token"),
    "too many sequences": (Request(batches=(Batch.of([1], seq_id=8),)), "ids go from 0 to 7"),
    "a gap": (
        Request(batches=(Batch.of([1]), Batch.of([1], start=5))),
        "inconsistent sequence positions",
    ),
    "a wrong shape": (
        Request(batches=(Batch.of([1]),), replace={SITE: np.zeros((1, 3), np.float32)}),
        "is float32 (1, 64), not float32 (1, 3)",
    ),
    "a wrong dtype": (
        Request(batches=(Batch.of([1]),), replace={SITE: np.zeros((1, 64))}),
        "not float64",
    ),
    "a cache": (
        Request(batches=(Batch.of([1]),), replace={replace(SITE, name="k_cache"): np.zeros(1)}),
        "is storage",
    ),
    "no such layer": (
        Request(batches=(Batch.of([1]),), replace={replace(SITE, layer=99): np.zeros(1)}),
        "computed no l_out-99",
    ),
    "no such step": (
        Request(batches=(Batch.of([1]),), replace={replace(SITE, step=1): np.zeros(1)}),
        "a request of 1 batches",
    ),
    "no such site": (
        Request(batches=(Batch.of([1]),), replace={replace(SITE, name="norm"): np.zeros(1)}),
        "no site named 'norm'",
    ),
    "the other attention": (
        Request(batches=(Batch.of([1]),), replace={replace(SITE, name="fattn"): np.zeros(1)}),
        "computed no fattn-0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_request_is_rejected_with_the_reason(stories: Session, name: str) -> None:
    request, reason = REFUSED[name]
    outcome = stories.ask("evaluate", request)
    assert isinstance(outcome, Rejected), outcome
    assert reason in outcome.message
    assert len(evaluated(stories).logits) == 3  # the same worker still answers


def test_assertion_of_ggml_is_a_crash_with_its_text(directory: Path) -> None:
    site = Site(step=0, layer=0, name="ffn_moe_topk")
    wild = Request(batches=(Batch.of([1]),), replace={site: np.full((1, 2), 77, np.int32)})
    with RUNNER.open("llama.cpp", model_named("moe", directory), EXACT) as session:
        outcome = session.ask("evaluate", wild)
        assert isinstance(outcome, Crashed)
        assert "was killed by SIGABRT" in outcome.message
        assert any("GGML_ASSERT" in line for line in outcome.log)
        evaluated(session)


def test_llama_cpp_continues_once_upon_a_time(stories: Session) -> None:
    (prompt,) = value(stories.ask("tokenize", [b"Once upon a time"]))
    ids = value(stories.ask("greedy", prompt, 16))
    (text,) = value(stories.ask("detokenize", [ids], remove_special=False, unparse_special=False))
    assert text.startswith(b", there was a little girl named Lily")


def test_tokenizer_takes_and_returns_bytes(stories: Session) -> None:
    texts = [b"", b"a\x00b", b"\xff\xfe", "héllo".encode(), b"word " * 200]
    rows = value(stories.ask("tokenize", texts, add_special=False))
    assert rows[0] == []
    back = value(stories.ask("detokenize", rows, remove_special=False, unparse_special=False))
    assert back[1] == texts[1]
    assert back[4].strip() == texts[4].strip()
    with_bos = value(stories.ask("tokenize", texts, add_special=True))
    assert with_bos == [[1, *row] for row in rows]
