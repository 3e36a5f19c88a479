"""The grammar of GGUF files: generated files match their description, and our reader gives the
verdicts of the table."""

from itertools import pairwise

import pytest

from lockstep.engine.errors import MalformedFile
from lockstep.engine.gguf.fields import KINDS
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.fuzzers.gguf.draft import FileDraft, array, string
from lockstep.harness.fuzzers.gguf.faults import FAULTS, FileFault
from lockstep.harness.fuzzers.gguf.grammar import FAMILIES, LARGEST, Least, cases, numbers_of
from lockstep.harness.synth.gguf_writer import gguf_bytes

CORPUS = [gguf_bytes({"k": ("ARR[STR]", ["a", "bc"])}, [("t", (8,), "F32", bytes(32))]), b"GGUF"]
EVERY = pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)


def verdict(raw: bytes) -> str:
    try:
        GgufFile.from_bytes(raw)
    except MalformedFile as error:
        return error.kind
    return "accepted"


def with_fault(fault: FileFault, draft: FileDraft) -> bytes:
    fault.apply(draft, Least())
    return draft.raw()


def test_draft_without_faults_equals_the_writers_file() -> None:
    draft = FileDraft()
    draft.put(b"n", 4, (7).to_bytes(4, "little"))
    draft.put(b"s", 9, array(8, 2, string(b"a") + string(b"bc")))
    draft.add(b"first", (3, 2), 0, 24)
    draft.add(b"second", (32,), 8, 34)
    tensors = [("first", (3, 2), "F32", bytes(24)), ("second", (32,), "Q8_0", bytes(34))]
    written = gguf_bytes({"n": ("U32", 7), "s": ("ARR[STR]", ["a", "bc"])}, tensors)
    assert draft.raw() == written


@EVERY
def test_our_reader_gives_each_fault_the_verdict_of_the_table(fault: FileFault) -> None:
    assert verdict(with_fault(fault, FileDraft())) in (fault.kinds or {"accepted"})


@EVERY
def test_fault_states_its_rule_and_reason(fault: FileFault) -> None:
    assert set(fault.kinds) <= KINDS
    assert fault.why.endswith(".")
    if fault.verdict != "implementation-defined":
        assert bool(fault.kinds) == (fault.verdict == "invalid")


def test_faults_cover_every_kind_of_refusal() -> None:
    assert {verdict(with_fault(fault, FileDraft())) for fault in FAULTS.values()} == {
        "accepted",
        *KINDS - {"key-empty"},  # a file with only this fault would be too short for its counts
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_seed_family_and_number_determine_a_case(family: str) -> None:
    some = cases(3, family, 40, 10, CORPUS)
    assert [case.number for case in some] == list(range(40, 50))
    assert some[4:] == cases(3, family, 44, 6, CORPUS)
    assert some != cases(4, family, 40, 10, CORPUS)


def test_case_may_need_more_numbers_than_drawn_ahead() -> None:
    one, two = numbers_of(1, "valid", 6, 2)
    (again,) = numbers_of(1, "valid", 7, 1)
    drawn = [two.below(1 << 64) for _ in range(3000)]
    assert drawn == [again.below(1 << 64) for _ in range(3000)]
    assert len(set(drawn)) == 3000
    assert one.below(1 << 64) != drawn[0]


@pytest.mark.parametrize("family", ["valid", "broken"])
def test_files_with_one_fault_get_its_verdict(family: str) -> None:
    seen = set()
    for case in cases(1, family, 0, 1500):
        kinds = FAULTS[case.faults[0]].kinds if case.faults else ()
        assert verdict(case.raw) in (kinds or {"accepted"}), (case.number, case.faults)
        seen.update(case.faults)
    assert {f for f in FAULTS if bool(FAULTS[f].kinds) == (family == "broken")} == seen


def test_combined_faults_do_not_make_a_file_long() -> None:
    huge = [FAULTS["alignment-max"], FAULTS["padding-not-zero"], FAULTS["empty-tensor-between"]]
    draft = FileDraft()
    for fault in huge:
        fault.apply(draft, Least())
    assert len(draft.raw()) < 1 << 20
    assert max(len(case.raw) for case in cases(5, "several", 0, 3000)) < 1 << 20


def test_mutated_files_are_neither_all_refused_nor_all_accepted() -> None:
    verdicts = [verdict(case.raw) for case in cases(1, "mutated", 0, 1000)]
    assert 0.1 < verdicts.count("accepted") / 1000 < 0.5
    assert len(set(verdicts)) > 15


def test_corpus_files_are_tried_unchanged_first_and_long_files_skipped() -> None:
    files = [*CORPUS, bytes(LARGEST + 1)]
    found = cases(1, "corpus", 0, 50, files)
    assert [case.raw for case in found[:2]] == CORPUS
    assert max(len(case.raw) for case in found) < 1000
    assert any(a.raw != b.raw for a, b in pairwise(found[2:]))
