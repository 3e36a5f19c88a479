"""Models with an encoder and models whose result is embeddings: right ones agree, and wrong ones
are found."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.batch import Batch, steps_of
from lockstep.engine.quants.base import F32
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.graph.engine import ReplayEngine
from lockstep.harness.records import (
    DEFAULT,
    EXACT,
    Answered,
    Evaluation,
    Rejected,
    Request,
    Settings,
)
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import variant_named
from lockstep.harness.synth.llama import LlamaRecipe
from tests.differential.conftest import Checked
from tests.harness.context.test_further_runs import Wrong, seen_through
from tests.models import with_metadata

PlanFor = Callable[..., object]
MadeOf = Callable[..., Path]
MEAN, LAST, RANK = 1, 3, 4  # values of llama_pooling_type


@pytest.fixture(scope="module")
def made(namer: Session, tmp_path_factory: pytest.TempPathFactory) -> MadeOf:
    """Return a function that writes a variant, pooled or not, each once."""
    folder = tmp_path_factory.mktemp("variants")

    def make(name: str, pooling: int = 0) -> Path:
        path = folder / f"{name}-{pooling}.gguf"
        if not path.exists():
            changed = ((".pooling_type", pooling),) if pooling else ()
            # ranks come from tensors that other models of the architecture lack
            ranks = pooling == RANK
            variant = replace(variant_named(name), changed=changed, complete=ranks)
            make_variant(variant, path, session=namer)
        return path

    return make


def statuses(checked: Checked, plan: object) -> dict[str, str]:
    found = checked(plan)  # type: ignore[arg-type]
    return {v.suite: v.status for v in found}


# --- an encoder before a decoder ------------------------------------------------------------------


@pytest.mark.parametrize("preset", [EXACT, DEFAULT])
def test_decoder_is_compared_after_its_encoder(
    preset: Settings, made: MadeOf, plan_for: PlanFor, checked: Checked
) -> None:
    plan = plan_for(made("t5"), settings=preset, n_steps=4, suites=("logits", "decode", "shadow"))
    assert statuses(checked, plan) == dict.fromkeys(("logits", "decode", "shadow"), "agreed")


class Deaf(ReplayEngine, name="test:encoder-without-its-last-token"):
    """An engine that drops the end-of-text token from its encoder's prompt, a common mistake in new
    engines."""

    def evaluate(self, request: Request) -> Evaluation:
        first, *rest = request.batches
        shorter = Batch.to_encode(Batch.of(first.tokens.tolist()[:-1]))
        found = super().evaluate(replace(request, batches=(shorter, *rest)))
        return replace(found, logits=(np.empty((0, 128), np.float32), *found.logits[1:]))


def test_encoder_that_reads_less_is_found_by_the_decoders_logits(
    made: MadeOf, plan_for: PlanFor, checked: Checked
) -> None:
    (verdict,) = checked(plan_for(made("t5"), engine=Deaf.name, suites=("logits",)))  # type: ignore[arg-type]
    assert (verdict.status, verdict.detail["at_fault"]) == ("diverged", "subject")


def test_text_begins_with_the_start_token_of_the_decoder(made: MadeOf) -> None:
    prompt, start = [5, 6, 7], 0
    with Runner().open("llama.cpp", made("t5"), EXACT) as session:
        greedy = session.ask("greedy", prompt, 3)
        assert isinstance(greedy, Answered), greedy
        batches = steps_of(prompt, greedy.value, start)
        run = session.ask("evaluate", Request(batches=batches))
        assert isinstance(run, Answered), run
        rows = np.concatenate(run.value.logits)
        assert rows.argmax(axis=1).tolist() == greedy.value
        unencoded = session.ask("evaluate", Request(batches=batches[1:]))
        assert isinstance(unencoded, Rejected)
        assert "for its encoder" in unencoded.message


def test_batch_for_a_missing_encoder_is_refused(made: MadeOf) -> None:
    with Runner().open("llama.cpp", made("bert"), EXACT) as session:
        batch = Batch.of([1, 2])
        found, plain = (session.ask("embed", (b,)) for b in (Batch.to_encode(batch), batch))
    assert isinstance(found, Rejected)
    assert isinstance(plain, Answered)  # so the model lacks an encoder


# --- embeddings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pooling", "preset"),
    [
        ("bert", 0, DEFAULT),
        ("bert", MEAN, EXACT),
        ("bert", RANK, EXACT),
        ("t5encoder", 0, EXACT),
    ],
)
def test_embeddings_are_compared_if_there_are_no_logits(
    name: str, pooling: int, preset: Settings, made: MadeOf, plan_for: PlanFor, checked: Checked
) -> None:
    plan = plan_for(made(name, pooling), settings=preset, suites=("logits", "embeddings"))
    assert statuses(checked, plan) == {"logits": "not-applicable", "embeddings": "agreed"}


class AllOneSequence(Wrong, name="test:all-one-sequence"):
    """An engine in which every token of a batch sees all tokens of the batch."""

    model_class = seen_through(lambda visible, _: np.ones_like(visible))


def test_sequences_that_see_each_other_are_found(
    made: MadeOf, plan_for: PlanFor, checked: Checked
) -> None:
    plan = plan_for(made("bert"), engine=AllOneSequence.name, suites=("embeddings",))
    alone, beside = checked(plan)  # type: ignore[arg-type]
    assert (alone.status, beside.status) == ("agreed", "diverged")
    assert beside.detail["at_fault"] == "subject"


def test_model_with_logits_has_embeddings_if_its_metadata_asks(
    made: MadeOf, plan_for: PlanFor, checked: Checked
) -> None:
    both = ("logits", "embeddings")
    plan = plan_for(made("qwen3", LAST), suites=both)
    assert statuses(checked, plan) == dict.fromkeys(both, "agreed")
    plan = plan_for(made("qwen3"), suites=both)
    assert statuses(checked, plan) == {"logits": "agreed", "embeddings": "not-applicable"}


def test_pooling_llama_is_replayed(tmp_path: Path, plan_for: PlanFor, checked: Checked) -> None:
    path = with_metadata(tmp_path / "m.gguf", LlamaRecipe(), llama__pooling_type=("U32", LAST))
    assert statuses(checked, plan_for(path, suites=("embeddings",))) == {"embeddings": "agreed"}


class FirstForMean(ReplayEngine, name="test:first-token-for-the-mean"):
    """An engine that uses the first token's row where the metadata requires the mean."""

    def embed(self, batches: Sequence[Batch]) -> tuple[F32, ...]:
        rows = [batch.tokens[:1] for batch in batches]
        return super().embed([Batch.of(ids.tolist()) for ids in rows])


class Unpooled(ReplayEngine, name="test:embeddings-of-another-scale"):
    """An engine that normalises its embeddings, which is the caller's task."""

    def embed(self, batches: Sequence[Batch]) -> tuple[F32, ...]:
        found = super().embed(batches)
        return tuple(rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in found)


@pytest.mark.parametrize(("engine", "pooling"), [(FirstForMean, MEAN), (Unpooled, LAST)])
def test_wrong_pooling_is_found_and_blamed(
    engine: type[ReplayEngine], pooling: int, made: MadeOf, plan_for: PlanFor, checked: Checked
) -> None:
    plan = plan_for(made("bert", pooling), engine=engine.name, suites=("embeddings",))
    found = checked(plan)  # type: ignore[arg-type]
    assert exit_code(found) == 1
    assert found[0].detail["at_fault"] == "subject"
    assert "embeddings differ" in found[0].summary


@pytest.mark.parametrize("name", ["grok", "glm5-next"])
def test_graph_with_layers_without_flash_attention_is_compared(name: str, made: MadeOf) -> None:
    with Runner().open("llama.cpp", made(name), DEFAULT) as session:
        run = session.ask("evaluate", Request(batches=(Batch.of([1, 2, 3]),)))
    assert isinstance(run, Answered), run


def test_embeddings_of_vocabulary_width_are_not_logits(tmp_path: Path) -> None:
    """Unnamed rows of logits are recognised by their length."""
    path = tmp_path / "bert.gguf"
    wide = replace(variant_named("bert"), sizes=(("n_embd", 128), ("n_vocab", 128)))
    with open_for_variants() as session:
        make_variant(wide, path, session=session)
    with Runner().open("llama.cpp", path, EXACT) as session:
        outcome = session.ask("embed", (Batch.of([1, 2, 3]),))
    assert isinstance(outcome, Answered), outcome
    assert outcome.value[0].shape == (3, 128)
