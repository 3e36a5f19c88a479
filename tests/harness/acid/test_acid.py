"""Acid models without llama.cpp: their bytes and margins, and the reports that our engines
write."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.model import Model
from lockstep.engine.ops.mirror import Mirror
from lockstep.harness.acid.architectures import ARCHITECTURES
from lockstep.harness.acid.coded import FORMATS
from lockstep.harness.acid.explain import causes
from lockstep.harness.acid.measurements.base import LEAD, Measurement, answers_of, honest_lead, room
from lockstep.harness.acid.read import Read, read_report
from lockstep.harness.acid.report import END, report_for
from lockstep.harness.acid.shape import eight_bits
from lockstep.harness.acid.tokens import PROMPT
from lockstep.harness.acid.write import TYPES, write_acid
from lockstep.harness.catalogue.acid import SHORT, text_of, try_engine
from lockstep.harness.catalogue.models import with_keys
from lockstep.harness.catalogue.run import honest_engines, wrong_engines
from lockstep.harness.cli import acid as acid_cli
from lockstep.harness.honest.base import HonestEngine
from lockstep.harness.records import EXACT, PRESETS
from tests.command_line import Lockstep, lockstep

__all__ = ["lockstep"]

HASHES = {
    "F32": "c1801e7f5e47b468992c9bd727bb2249aa90ddac55ae4bcb21ee3a6c8494b5dd",
    "F16": "0b0bb89e42296c33339795cbc62c04a8c4795973072ad4e1c1a57036d7ecf84d",
    "BF16": "d5d7b28b240c8e41494dd6b5059bbfa6fa60e6f21d84f73374bc8903deefcec6",
    "Q8_0": "7a28ee6ddad555f5fe219ef549071e7c81859777bda57c2477d0f918a308604c",
    "Q4_0": "09f72894de31af1fac048b0022d70ac66d8490e007379c9a5e8fbdff56d42bf1",
    "Q4_K": "503fe2c5c5340fc27ca71d17147d3c950b539eb44be54183b10216171145ade8",
    "Q6_K": "29077e23c0b068f34c89c584267b6de32920e8c9cecf7cf608faa082d4b2b873",
    "MXFP4": "e2c60c0295d45ce3dc296d0aceff9faf3222c46591b79b29caa9be259b54e682",
}
REPORT = report_for("llama", "F32")
TESTS = REPORT.tests


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("acid") / "acid.gguf"
    write_acid(path)
    return path


def named(test: Measurement) -> str:
    return test.name


# --- bases that are not the file's ---------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "llama-moe", "qwen3"])
@pytest.mark.parametrize(
    ("base", "says"),
    [
        (500.0, "turns too fast"),
        (2000.0, "turns too slowly: 10000 taken for 1000?"),
        (5000.0, "turns too slowly: 10000 taken for 1000?"),
        (10000.0, "turns too slowly: 10000 taken for 1000?"),
        (10500.0, "turns too slowly: 10000 taken for 1000?"),
        (500000.0, "turns too slowly: 10000 taken for 1000?"),
    ],
)
def test_report_distinguishes_half_and_double_rope_base(
    arch: str, base: float, says: str, tmp_path: Path
) -> None:
    write_acid(tmp_path / "acid.gguf", arch)
    path = tmp_path / "other.gguf"
    key = f"{ARCHITECTURES[arch].gguf}.rope.freq_base"
    with_keys(tmp_path / "acid.gguf", path, {key: ("F32", base)})
    reading = read_report(text_of("fast", path, EXACT, SHORT))
    assert {a.test: a.says for a in reading.answers if not a.ok}["rope-base"] == says


# --- the file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("quant", HASHES)
def test_files_have_the_same_bytes_everywhere(quant: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_acid(path, quant=quant)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == HASHES[quant]


@pytest.mark.parametrize("quant", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "MXFP4"])
def test_file_of_a_small_weight_type_has_at_most_a_megabyte(quant: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_acid(path, quant=quant)
    assert path.stat().st_size < 1_000_000


def test_file_explains_its_use(model: Path) -> None:
    with GgufFile.open(model) as file:
        said = str(file.metadata["general.description"].data)
        assert file.metadata["tokenizer.chat_template"].data == PROMPT
    assert "lockstep acid read" in said
    assert "tokenizer.chat_template" in said


def test_eight_bits_fit_bf16_and_f16() -> None:
    values = eight_bits(np.cos(np.arange(1000.0)) * 450)
    assert np.array_equal(values, values.astype(np.float16))
    assert not np.any(values.astype(np.float32).view(np.uint32) & 0xFFFF)


def test_options_name_the_written_types() -> None:
    assert tuple(acid_cli.ACID_TYPES.split()) == TYPES


# --- margins ------------------------------------------------------------------------------------


def every_test() -> list[Measurement]:
    return [test for kind in ("F32", *FORMATS) for test in report_for("llama", kind).tests]


@pytest.mark.parametrize("test", {t.name: t for t in every_test()}.values(), ids=named)
def test_honest_engine_is_far_from_every_threshold(test: Measurement) -> None:
    assert room(test) >= 2
    assert honest_lead(test) >= LEAD / 3


@pytest.mark.parametrize("test", TESTS, ids=named)
def test_known_mistakes_get_their_own_answers(test: Measurement) -> None:
    answers = answers_of(test, 1.0)
    for number, (_, values) in enumerate(test.wrong, 1):
        leads = [answer.lead(np.array(values)) for answer in answers]
        assert int(np.argmin(leads)) == number


def test_complete_report_is_right_at_temperature_one(model: Path) -> None:
    """After the prompt, two tokens have only one possible successor. Then each acid test has its
    own tokens. This test adds up 1 - p over all tokens of the report."""
    engine = Model(model, Mirror(1, 512, ()), n_ctx=512)
    doubt, text = 0.0, []
    ids = engine.tokenizer().encode(PROMPT.encode(), add_special=True, parse_special=False)
    for token, logits in engine.choices(ids, len(TESTS) + 3):
        p = np.exp(logits.astype(np.float64) - logits.max())
        doubt += 1 - 1 / float(p.sum())
        text.append(token)
    engine.close()
    assert doubt < 1e-9
    # no token occurs twice, so repetition penalties change nothing
    assert len(set(text)) == len(text)


# --- engines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [PROMPT, SHORT, "", "thank", "x"])
def test_any_prompt_gives_a_complete_report(model: Path, prompt: str) -> None:
    reading = read_report(text_of("fast", model, EXACT, prompt))
    assert reading.code == 0
    assert reading.complete
    assert reading.prompted is (prompt == PROMPT)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_our_engines_say_ok(model: Path, engine: str, preset: str) -> None:
    assert read_report(text_of(engine, model, PRESETS[preset])).code == 0


# these round more coarsely than acid models allow
TOO_COARSE = {f"honest:{name}" for name in ("cache-e4m3", "cache-e5m2", "attention-int8")}
FINE = [cls for cls in honest_engines() if cls.name not in TOO_COARSE]


@pytest.mark.parametrize("cls", FINE, ids=lambda cls: cls.name)
def test_no_honest_engine_says_no(model: Path, cls: type[HonestEngine]) -> None:
    seen = try_engine(cls.name, model, REPORT)
    assert seen.said_no == ()
    assert seen.complete


@pytest.mark.parametrize("quant", TYPES)
def test_every_type_is_ok_in_our_engine(quant: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_acid(path, quant=quant)
    reading = read_report(text_of("fast", path, EXACT, SHORT))
    assert (reading.code, reading.quant) == (0, quant)


@pytest.mark.parametrize(
    ("engine", "test", "says"),
    [
        ("rope-half-split", "rope-pairing", "pairs of the other kind"),
        ("rope-other-way", "rope-pairing", "turned the other way"),
        ("kv-head-modulo", "kv-heads-of-values", "heads alternate between KV heads"),
        ("gelu-for-silu", "silu", "GELU"),
        ("mask-missing", "causal-mask", "later tokens are seen"),
        ("cache-ring-of-32", "far-64", ""),
        ("wrong-eps", "norm-eps", None),
        ("missing-scale", "attention-scale", "scores too large"),
    ],
)
def test_wrong_engine_names_its_mistake(
    model: Path, engine: str, test: str, says: str | None
) -> None:
    wrong_engines()
    reading = read_report(text_of(f"mutant:{engine}", model, EXACT))
    (answer,) = (each for each in reading.answers if each.test == test)
    assert not answer.ok
    assert says is None or answer.says == says


def test_every_mistake_that_a_test_catches_is_in_the_catalogue() -> None:
    known = {cls.name.partition(":")[2] for cls in wrong_engines()}
    assert {name for test in every_test() for name in test.catches} <= known


def test_prerequisite_tests_exist() -> None:
    others = (test for arch in ARCHITECTURES for test in report_for(arch, "F32").tests)
    names = {test.name for test in (*every_test(), *others)}
    assert {name for test in every_test() for name in test.rests_on} <= names


# --- reading ------------------------------------------------------------------------------------

SAID = "acid 1 llama F32, 21 tests; 14 more with the acid prompt\n"


def lines(*without: str) -> str:
    return "".join(f" {t.name} ok\n" for t in REPORT.usual if t.name not in without)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (SAID + lines() + END, 0),
        (f"> hello\n{SAID}{lines()}{END}\nmain: 40 tokens", 0),
        ((SAID + lines() + END).replace("\n", "\r\n"), 0),
        ((SAID + lines() + END).replace("\n", ""), 0),
        ((SAID + lines() + END).replace("ok", "\x1b[32mok\x1b[0m"), 0),
        (SAID + lines("silu") + " silu NO (GELU)\n" + END, 1),
        (SAID + lines("silu") + " silu NO (\x1b[2J)\n" + END, 1),
        (SAID + lines("silu") + END, 3),
        (SAID + lines(), 3),
        ("", 2),
        ("Paris is the capital of France.", 2),
        ("acid 9 llama F32, 21 tests\n" + lines() + END, 2),
        ("acid 1 llama Q9_9, 21 tests\n" + lines() + END, 2),
    ],
)
def test_text_is_read_as_written(text: str, code: int, tmp_path: Path, lockstep: Lockstep) -> None:
    path = tmp_path / "said.txt"
    path.write_bytes(text.encode())
    ending = lockstep("acid", "read", path, "--json")
    assert ending.code == code
    assert json.loads(ending.out)["exit_code"] == code
    assert "\x1b" not in lockstep_text(lockstep, path)


def lockstep_text(lockstep: Lockstep, path: Path) -> str:
    ending = lockstep("acid", "read", path)
    return ending.out + ending.err


def test_reading_puts_a_dependent_no_below_its_cause(tmp_path: Path, lockstep: Lockstep) -> None:
    path = tmp_path / "said.txt"
    wrong = " rope-pairing NO (pairs of the other kind)\n rope-base NO\n"
    path.write_text(SAID + lines("rope-pairing", "rope-base") + wrong + END)
    ending = lockstep("acid", "read", path)
    said = ending.out.splitlines()
    assert ending.code == 1
    assert said.index("rope-pairing NO: pairs of the other kind") < said.index("  rope-base: NO")


def test_reading_names_rope_pairing_before_positions(tmp_path: Path, lockstep: Lockstep) -> None:
    wrong = {
        "positions-in-prompt": "one position off",
        "rope-pairing": "pairs of the other kind",
        "rope-base": "",
    }
    noes = "".join(f" {name} NO{f' ({says})' if says else ''}\n" for name, says in wrong.items())
    oks = "".join(f" {test.name} ok\n" for test in TESTS if test.name not in wrong)
    path = tmp_path / "said.txt"
    path.write_text(f"acid 1 llama F32: 35 tests\n{oks}{noes}{END}")
    said = lockstep("acid", "read", path).out.splitlines()
    assert said[1] == "rope-pairing NO: pairs of the other kind"
    rest = said.index(
        "These tests depend on the faults above; look at them when the faults are fixed:"
    )
    assert {*said[rest + 1 :]} == {"  positions-in-prompt: one position off", "  rope-base: NO"}


def test_tests_that_depend_on_each_other_are_one_cause() -> None:
    tests = {test.name: test for test in TESTS}
    noes = [Read(test=name, ok=False) for name in ("prompt-end", "far-64", "two-spaces")]
    assert causes(tests, noes) == [(noes[0], noes[1])]


def test_list_has_every_test_and_the_prompt(lockstep: Lockstep) -> None:
    listed = lockstep("acid", "list").out
    assert all(f"{test.name}: {test.sees}" in listed for test in TESTS)
    assert "no test sees:" in listed
    assert lockstep("acid", "list", "--prompt").out == PROMPT + "\n"


@pytest.mark.parametrize(
    "options", [("--arch", "nonsense"), ("--quant", "Q9_9")], ids=lambda options: options[0]
)
def test_impossible_acid_write_prints_one_line_with_the_choices(
    options: tuple[str, str], tmp_path: Path, lockstep: Lockstep
) -> None:
    ending = lockstep("acid", "write", "-o", tmp_path / "a.gguf", *options)
    assert ending.code == 2
    assert "known: " in ending.err
    assert len(ending.err.splitlines()) == 1
