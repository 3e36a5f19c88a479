"""llama.cpp's samplers match our mirror bit for bit, and llama.cpp's known faults persist."""

import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.samplers.parts.constructors import BY_SAMPLER, CONSTRUCTORS
from lockstep.engine.samplers.parts.vocabulary import TokenizerWords
from lockstep.engine.samplers.parts.ways import Accident
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.fuzzers.base import FuzzPlan
from lockstep.harness.fuzzers.samplers.fuzzer import SamplersFuzzer
from lockstep.harness.known import entries
from lockstep.harness.known.samplers import entry_of_accident
from lockstep.harness.records import EXACT, Answered, Crashed, SampleRequest
from lockstep.harness.samplers.cases import CaseLimits, make_case
from lockstep.harness.samplers.judgement import count_mirror_differences, judge_answer
from lockstep.harness.synth.builtin import BUILTIN_VOCABULARIES
from tests.models import with_metadata
from tests.places import EXAMPLES
from tests.plans import plan_of, verdicts_of

KNOWN = {entry["id"]: entry for entry in entries("sampler")}
SHOWN = [known for known in KNOWN.values() if known["accident"] and "clone" not in known["id"]]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    return with_metadata(folder / "vocabulary.gguf", BUILTIN_VOCABULARIES["llama"])


@pytest.fixture(scope="module")
def llama_cpp(vocabulary: Path) -> Iterator[Session]:
    with Runner().open("llama.cpp", vocabulary, EXACT) as session:
        yield session


def answer(session: Session, request: SampleRequest) -> Any:
    outcome = session.ask("sample", request)
    assert isinstance(outcome, Answered), outcome
    return outcome.value


def test_mirror_gives_the_same_bits(llama_cpp: Session, vocabulary: Path) -> None:
    words = TokenizerWords(tokenizer_of(open_model(vocabulary).metadata))
    samplers = frozenset(BY_SAMPLER)
    plain, read = CaseLimits(samplers=samplers), CaseLimits(samplers=samplers, words=words)
    differences, seen = Counter[str](), Counter[str]()
    for limits, seeds in ((plain, range(60)), (read, range(25))):
        for case in (make_case(seed, 6, limits) for seed in seeds):
            found = answer(llama_cpp, case.request)
            differences.update(count_mirror_differences(case.request, found, limits.words))
            assert judge_answer(case.request, found, limits.words).unexplained == ()
            seen.update(case.samplers)
    assert {*seen} == {*BY_SAMPLER}
    assert not any(differences.values()), differences


def test_constructors_match_the_library_exports() -> None:
    code = (
        "import subprocess; from llama_cpp import llama_cpp as L; "
        "print(*[n for n in dir(L) if n.startswith('llama_sampler_init_')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*run.stdout.split()} >= {row.function for row in CONSTRUCTORS}


@cache
def request_of(name: str) -> SampleRequest:
    case = KNOWN[name]["case"]
    row = np.full(case["n"], case["rest"], np.float32)
    for place, value in case["put"]:
        row[place] = value
    return SampleRequest(
        chain=tuple(case["chain"]),
        logits=row[None],
        accepted=(tuple(case.get("accepted", ())),),
        draws=np.full((1, len(case["chain"])), 0.5),
    )


def model_of(case: dict[str, Any], folder: Path, vocabulary: Path) -> Path:
    """Return the vocabulary, or a copy in which a text of the case is a separate token."""
    if "piece" not in case:
        return vocabulary
    recipe = BUILTIN_VOCABULARIES[case["vocabulary"]]
    plain = open_model(with_metadata(folder / "plain.gguf", recipe)).metadata
    tokens = list(plain["tokenizer.ggml.tokens"].data)
    place, text = case["piece"]
    tokens[place] = text
    changes: Any = {"tokenizer.ggml.tokens": ("ARR[STR]", tokens)}
    return with_metadata(folder / "piece.gguf", recipe, **changes)


@pytest.mark.parametrize("known", SHOWN, ids=lambda known: known["id"])
def test_accidental_behaviour_still_occurs_in_llama_cpp(
    known: dict[str, Any], vocabulary: Path, tmp_path: Path
) -> None:
    request, model = request_of(known["id"]), model_of(known["case"], tmp_path, vocabulary)
    words = TokenizerWords(tokenizer_of(open_model(model).metadata))
    with Runner().open("llama.cpp", model, EXACT) as session:
        findings = judge_answer(request, answer(session, request), words).findings
    over = f"llama.cpp does as defined: take {known['id']} out of harness/known"
    assert [each.accident for each in findings] == [Accident[known["accident"]]], over


def test_every_accidental_behaviour_has_an_entry() -> None:
    assert all(entry_of_accident(each)["version"] == "0.3.36" for each in Accident)


def test_long_piece_still_ends_infill(tmp_path: Path) -> None:
    known = KNOWN["llama-cpp-infill-long-piece"]
    recipe = BUILTIN_VOCABULARIES["llama"]
    plain = open_model(with_metadata(tmp_path / "plain.gguf", recipe)).metadata
    tokens = list(plain["tokenizer.ggml.tokens"].data)
    tokens[300] = "x" * known["case"]["longest"]
    path = with_metadata(
        tmp_path / "long.gguf", recipe, **{"tokenizer.ggml.tokens": ("ARR[STR]", tokens)}
    )
    request = SampleRequest(
        chain=({"sampler": "top_k", "k": 2}, {"sampler": "infill"}),
        logits=np.eye(1, len(tokens), 300, dtype=np.float32) * 9,
        accepted=((),),
        draws=np.full((1, 2), np.nan),
    )
    with Runner().open("llama.cpp", path, EXACT) as session:
        assert isinstance(session.ask("sample", request), Crashed)


CLONE = """
import ctypes
import numpy as np
from llama_cpp import llama_cpp as L
ROW = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])

def choose(sampler):
    rows = np.zeros(300, ROW)
    rows["id"] = np.arange(300)
    data = rows.ctypes.data_as(L.llama_token_data_p)
    array = L.llama_token_data_array(data=data, size=300, selected=-1, sorted=False)
    L.llama_sampler_apply(sampler, ctypes.byref(array))
    return array.selected

sampler = L.llama_sampler_init_adaptive_p(0.3, 0.9, 3)
first = choose(sampler)
clone = L.llama_sampler_clone(sampler)
print(choose(clone) == first, choose(sampler) == first)
"""


def test_clone_of_adaptive_p_still_draws_anew() -> None:
    run = subprocess.run([sys.executable, "-c", CLONE], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False"]


@pytest.mark.parametrize(
    ("engine", "status"),
    [
        ("honest:log-space", "agreed"),
        (f"{sys.executable} {EXAMPLES / 'sampler.py'}", "agreed"),
        ("mutant:temp-twice", "diverged"),
    ],
)
def test_suite_finds_wrong_engines_and_passes_right_engines(
    engine: str, status: str, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.harness.suites.samplers.CASES", 40)  # default: 120
    monkeypatch.setattr("lockstep.harness.samplers.cases.LAZY_CASES", 1)  # default: 8
    monkeypatch.setattr("lockstep.harness.samplers.cases.GRAMMAR_ROWS", 2)  # default: 8
    found = verdicts_of(plan_of(vocabulary, engine, suites=("samplers",), by_name=True))
    (temp,) = [v for v in found if v.detail.get("part") == "temp"]
    assert temp.status == status
    others = {v.status for v in found if v.detail.get("part") != "temp"}
    assert others == {"agreed", "excused"}


def test_fuzzing_finds_only_known_differences() -> None:
    plan = FuzzPlan(targets=("typical", "mirostat"), engine="llama.cpp", cases=60)
    found = list(SamplersFuzzer().run(plan, lambda target, text: None))
    assert {verdict.status for verdict in found} == {"agreed", "excused"}
    known = {verdict.detail["known"] for verdict in found if verdict.status == "excused"}
    assert known <= {*KNOWN}
    assert "llama-cpp-typical-of-zero" in known


def example_command(name: str, folder: Path) -> str:
    source = EXAMPLES / name
    if name.endswith(".mjs"):
        return shlex.join(["node", str(source)])
    program = folder / "sampler"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-o", str(program)]
    subprocess.run(["cc", *flags, str(source), "-lm"], check=True, capture_output=True)
    return str(program)


@pytest.mark.parametrize(("name", "needed"), [("sampler.c", "cc"), ("sampler.mjs", "node")])
def test_example_in_another_language_conforms(
    name: str, needed: str, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(needed) is None:
        pytest.skip(f"{needed} is not installed: {name} was not asked")
    monkeypatch.setattr("lockstep.harness.suites.samplers.CASES", 30)  # default: 120
    engine = example_command(name, tmp_path)
    found = verdicts_of(plan_of(vocabulary, engine, suites=("samplers",), by_name=True))
    agreed = {v.detail["part"] for v in found if v.status == "agreed"}
    assert agreed == {"greedy", "dist", "top_k", "top_p", "min_p", "temp", "penalties"}
    assert {v.status for v in found} == {"agreed", "excused"}


@pytest.mark.parametrize(
    ("engine", "status"),
    [
        ("mutant:grammar-open-on-error", "diverged"),
        ("mutant:grammar-class-not-negated", "diverged"),
        ("honest:grammar-leaves-out", "agreed"),
    ],
)
def test_suite_finds_wrong_grammars_and_passes_right_grammars(
    engine: str, status: str, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "suites.samplers.CASES",
        "suites.samplers.WORD_CASES",
        "samplers.cases.LAZY_CASES",
    ):
        monkeypatch.setattr(f"lockstep.harness.{name}", 0)
    found = verdicts_of(plan_of(vocabulary, engine, suites=("samplers",), by_name=True))
    assert [v.status for v in found if v.detail.get("part") == "grammar"] == [status]
