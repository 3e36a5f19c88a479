"""The suite `acid`: reports of engines at any level, with a verdict for each acid test."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lockstep.engine.errors import EngineError, Unsupported
from lockstep.engine.ops.mirror import Mirror
from lockstep.harness.acid.report import report_for
from lockstep.harness.acid.tokens import PROMPT
from lockstep.harness.acid.write import TYPES, write_acid
from lockstep.harness.adapters.fast import FastEngine
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.cli.acid_models import acid_files
from lockstep.harness.exit_codes import exit_code, exit_code_of_run
from lockstep.harness.mutants.heads import KvHeadModulo
from lockstep.harness.mutants.rope import RopeHalfSplit
from lockstep.harness.parallel.works import Forks
from lockstep.harness.records import Request, Verdict
from lockstep.harness.runs.run import Listener, run_plans
from tests.command_line import Lockstep, lockstep
from tests.contexts import diverged
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin
from tests.quiet_engines import Quiet, made, wrong

__all__ = ["lockstep"]
REPORT = report_for("llama", "F32")
NAMES = [test.name for test in REPORT.tests]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("acid") / "acid.gguf"
    write_acid(path)
    return path


def checked(model: Path, engine: str, **changes: Any) -> list[Verdict]:
    plan = plan_for(model, **({"engine": engine, "oracle": "fast", "suites": ("acid",)} | changes))
    return verdicts_of(plan)


def named_in(status: str, found: Sequence[Verdict]) -> list[str]:
    return [v.detail.get("test", "") for v in found if v.status == status]


def no(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise Unsupported("not offered")


ONE_LEVEL = {
    "text alone": made("acid: text alone", levels=("generate",)),
    "greedy alone": made("acid: greedy alone", levels=("greedy",)),
    "lists alone": made("acid: lists alone", levels=("logprobs",)),
    "everything": "fast",
}


# --- any level ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ONE_LEVEL.values(), ids=ONE_LEVEL)
def test_every_acid_test_is_a_verdict_at_every_level(model: Path, engine: str) -> None:
    found = checked(model, engine)
    assert named_in("agreed", found) == NAMES
    assert len(found) == len(NAMES)


def test_report_of_logits_is_read_along_the_oracles_tokens(model: Path) -> None:
    asked: list[Request] = []

    def evaluate(self: Any, request: Request) -> Any:
        asked.append(request)
        return FastEngine.evaluate(self, request)

    changes: dict[str, Any] = {"evaluate": evaluate, "greedy": no, "tokenize": no, "detokenize": no}
    engine = made("acid: logits", levels=("logits",), generate=no, logprobs=no, **changes)
    found = checked(model, engine)
    assert named_in("agreed", found) == NAMES
    assert len(asked) == 1
    of_given = {v.detail["test"] for v in found if "with given ids" in v.summary}
    assert of_given == {test.name for test in REPORT.tests if test.of_tokenizer}


class BeginningUnseen(Mirror):
    """An engine whose first cells are hidden. The fault is in its mask, not in its tokenizer."""

    def soft_max(self, x: Any, scale: float, visible: Any) -> Any:
        visible = visible.copy()
        visible[..., :2] &= visible.shape[-1] < 64
        return super().soft_max(x, scale, visible)


@pytest.mark.parametrize("own", [True, False], ids=["own ids", "given ids"])
def test_tokenizer_is_not_blamed_if_the_engine_gets_ids(model: Path, own: bool) -> None:
    levels = ("logits", "tokenize", "detokenize") if own else ("logits",)
    changes: dict[str, Any] = {} if own else {"tokenize": no, "detokenize": no}
    changes |= dict.fromkeys(("generate", "logprobs", "greedy"), no)
    changes |= {"ops": BeginningUnseen, "make_ops": Reference.make_ops, "levels": levels}
    found = checked(model, made(f"acid: no beginning, {own}", **changes))
    (bos,) = [v for v in found if v.detail.get("test") == "bos"]
    assert bos.status == "diverged"
    assert ("no BOS" in bos.summary) is own
    assert ("the tokenizer is not at fault" in bos.summary) is not own


# --- reports of wrong engines -------------------------------------------------------------------


@pytest.mark.parametrize("level", ["logprobs", "greedy", "generate"])
def test_wrong_engine_is_named_at_any_level(model: Path, level: str) -> None:
    engine = wrong(f"acid: wrong {level}", RopeHalfSplit)
    made(f"acid: wrong {level} alone", Reference.member(engine), levels=(level,))
    found = checked(model, f"acid: wrong {level} alone")
    (pairing,) = [v for v in found if v.detail.get("test") == "rope-pairing"]
    assert pairing.status == "diverged"
    assert pairing.key == "acid/rope-pairing"
    roots = {v.key for v in found if v.status == "diverged"}
    assert roots == {"acid/rope-pairing"}
    assert exit_code(found) == 1


def test_answer_that_depends_on_a_mistake_is_listed_under_it(model: Path) -> None:
    found = checked(model, "mutant:missing-scale")
    noes = diverged(found)
    assert "acid/attention-scale" in {v.key for v in noes}
    for verdict in noes:
        root = verdict.key.removeprefix("acid/")
        assert (root == verdict.detail["test"]) is ("this test depends on" not in verdict.summary)


def test_misread_part_of_a_block_is_named(tmp_path: Path) -> None:
    path = tmp_path / "q4.gguf"
    write_acid(path, quant="Q4_K")
    found = checked(path, "mutant:q4-k-minima-added")
    assert {v.key for v in found if v.status == "diverged"} <= {
        "acid/Q4_K-minima-53",
        "acid/Q4_K-minima-210",
    }
    assert exit_code(found) == 1


def text_alone(name: str, write: Any) -> str:
    return made(name, levels=("generate",), write=write)


def test_other_text_is_a_divergence_with_possible_causes(model: Path) -> None:
    engine = text_alone("acid: prose", lambda _, p: b"Paris is the capital of France.")
    (found,) = checked(model, engine)
    assert (found.status, found.key) == ("diverged", "acid/no report")


def test_empty_answer_is_not_compared(model: Path) -> None:
    (found,) = checked(model, text_alone("acid: silent", lambda _, p: b" \n"))
    assert (found.status, exit_code([found])) == ("not-compared", 3)


def test_truncated_report_leaves_tests_uncompared(model: Path) -> None:
    found = checked(model, text_alone("acid: cut", lambda _, p: b"".join(p)[:300]))
    assert exit_code(found) == 3
    last = found[-1]
    assert last.status == "not-compared"
    assert {*named_in("agreed", found)} | {*last.detail["tests"]} == {*NAMES}


def test_report_of_another_model_is_rejected(model: Path) -> None:
    def write(self: Any, pieces: list[bytes]) -> bytes:
        return b"".join(pieces).replace(b"F32", b"F16")

    (found,) = checked(model, text_alone("acid: another's", write))
    assert found.key == "acid/no report"


def test_engine_without_long_prompts_gets_a_short_one(model: Path) -> None:
    def generate(self: Any, prompt: bytes, n: int) -> bytes:
        if len(prompt) > 100:
            raise EngineError("too long")
        return Quiet.generate(self, prompt, n)

    found = checked(model, made("acid: short", levels=("generate",), generate=generate))
    assert named_in("agreed", found) == [test.name for test in REPORT.usual]
    assert any("too long" in v.summary for v in found)
    assert set(found[-1].detail["tests"]) == {test.name for test in REPORT.prompted}


def test_line_missing_after_the_long_prompt_stays_missing(
    model: Path,
) -> None:
    """The engine is wrong only in long prompts. The omitted line has as many tokens as a line with
    a NO."""

    def generate(self: Any, prompt: bytes, n: int) -> bytes:
        text = Quiet.generate(self, prompt, n)
        return text.replace(b" softmax-sum ok", b"") if len(prompt) > 100 else text

    found = checked(model, made("acid: lost", levels=("generate",), generate=generate))
    assert set(named_in("agreed", found)) == {*NAMES} - {"softmax-sum"}
    assert (found[-1].status, found[-1].detail["tests"]) == ("not-compared", ["softmax-sum"])
    assert exit_code(found) == 3


def test_wrong_oracle_is_reported_alone(model: Path) -> None:
    oracle = wrong("acid: wrong oracle", KvHeadModulo)
    found = checked(model, "fast", oracle=oracle)
    wrong_ones = diverged(found)
    assert wrong_ones
    assert {v.detail["at_fault"] for v in wrong_ones} == {"oracle"}
    both = checked(model, oracle, oracle=oracle)
    assert {v.detail["at_fault"] for v in both if v.status == "diverged"} == {"oracle"}
    assert any("the oracle does not write ok either" in v.summary for v in both)


# --- models -------------------------------------------------------------------------------------


def test_acid_suite_on_another_model_gives_advice(tmp_path: Path) -> None:
    other = builtin("f32", tmp_path)
    (found,) = checked(other, "fast")
    assert found.status == "not-applicable"
    assert "Omit MODEL" in found.summary
    assert checked(other, "fast", by_name=False, suites=("acid",)) == []


def test_acid_models_of_every_type_are_written_f32_first(tmp_path: Path) -> None:
    files = list(acid_files(None, tmp_path))
    names = [name for name, _ in files]
    assert names[0] == "acid:llama:F32"
    assert {f"acid:llama:{kind}" for kind in TYPES} <= {*names}
    assert len({path.read_bytes() for _, path in files}) == len(names)


def test_all_acid_models_are_checked_by_default(
    tmp_path: Path, lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.harness.acid.every.TYPES", ("F32", "Q8_0"))
    given = ("check", "--suite", "acid", "--engine", "fast", "--oracle", "fast", "--quiet")
    ending = lockstep(*given, "--report", tmp_path)
    assert ending.code == 0
    assert "acid:llama:F32" in ending.out
    assert "acid:llama:Q8_0" in ending.out


def test_refused_type_is_reported_and_changes_no_exit_code(tmp_path: Path) -> None:
    class Refuses(Quiet, name="acid: F32 alone"):
        levels = ("greedy",)

        def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
            if "Q8" in str(self.model):
                raise EngineError("no such type: Q8_0")
            return Quiet.greedy(self, prompt, n)

    def plan(quant: str, **changes: Any) -> Any:
        path = tmp_path / f"acid-{quant}.gguf"
        write_acid(path, quant=quant)
        engines = {"engine": "acid: F32 alone", "oracle": "fast", "suites": ("acid",)}
        return plan_for(path, **engines, **changes)

    plans = [plan("F32"), plan("Q8_0", optional=True)]
    result = run_plans(plans, tmp_path, ["test"], Forks(1), Listener())
    refused = [v for v in result.verdicts if v.status == "not-applicable"]
    assert [("Q8_0" in v.summary, v.case) for v in refused] == [(True, "acid-Q8_0.gguf")]
    assert result.code == 0
    assert exit_code_of_run(refused) == 3  # nothing else was compared
    alone = run_plans([plan("Q8_0")], tmp_path, ["test"], Forks(1), Listener())
    assert alone.code == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "http://localhost:1"), "serves one model and cannot open others"),
        (("--engine", "dump:nowhere"), "serves one model and cannot open others"),
        (("--subject-model", "x.gguf"), "omit --subject-model"),
        (("--arch", "nonsense"), "no acid model of architecture 'nonsense'"),
    ],
    ids=lambda given: str(given)[:20],
)
def test_engine_that_takes_no_models_is_refused_in_one_line(
    options: tuple[str, str], words: str, lockstep: Lockstep
) -> None:
    ending = lockstep("check", "--suite", "acid", *options)
    assert ending.code == 2
    assert words in ending.err
    assert len(ending.err.splitlines()) == 1


def test_acid_model_may_be_named_instead_of_a_file(lockstep: Lockstep, tmp_path: Path) -> None:
    given = ("--engine", "fast", "--oracle", "fast", "--suite", "acid", "--report", tmp_path)
    assert lockstep("check", "acid:llama:Q5_0", *given, "--quiet").code == 0
    assert "known: " in lockstep("check", "acid:llama:Q9_9", *given).err


def test_long_prompt_and_its_report_fit_the_usual_context() -> None:
    most = max(len(report_for("llama", kind).tests) for kind in TYPES)
    assert len(PROMPT) + 2 + most + 8 <= 512
