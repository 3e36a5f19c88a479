"""Shrinking of GGUF files: the cause remains, and everything else is removed."""

import pytest

from lockstep.engine.errors import MalformedFile
from lockstep.engine.gguf.file import GgufFile
from lockstep.harness.fuzzers.gguf.faults import FAULTS
from lockstep.harness.fuzzers.gguf.grammar import cases
from lockstep.harness.fuzzers.gguf.shrink import Shows, draft_of, shrink_file


def refused_as(kind: str) -> Shows:
    def one(raw: bytes) -> bool:
        try:
            GgufFile.from_bytes(raw)
        except MalformedFile as error:
            return error.kind == kind
        return kind == "accepted"

    return lambda files: [one(raw) for raw in files]


def test_a_draft_is_read_back_from_its_bytes() -> None:
    read = [draft_of(case.raw) for case in cases(1, "valid", 1, 400)[::2]]
    assert all(draft is not None for draft in read)
    assert sum(len(draft.rows) for draft in read if draft) > 200


def test_unreadable_bytes_become_the_tail() -> None:
    for family in ("broken", "several", "mutated"):
        for case in cases(2, family, 0, 300):
            draft = draft_of(case.raw)
            assert draft is None or draft.raw() == case.raw


@pytest.mark.parametrize(
    ("fault", "most"),
    [
        *(("bool-array-2", 50), ("key-nul-alignment", 38), ("string-not-utf8", 24)),
        *(("value-type-13", 38), ("name-not-utf8", 64), ("overlap-half", 160)),
        *(("array-5-deep", 90), ("nbytes-wraps-to-0", 64), ("alignment-u64", 62)),
    ],
)
def test_a_file_shrinks_to_its_fault(fault: str, most: int) -> None:
    kinds = FAULTS[fault].kinds or ("accepted",)
    for family_case in cases(3, "several", 0, 6):
        draft = draft_of(cases(3, "valid", family_case.number, 1)[0].raw)
        assert draft is not None
        draft.n_rows = draft.n_pairs = draft.data = draft.padding = None
        FAULTS[fault].apply(draft, _Least())
        small = shrink_file(draft.raw(), refused_as(kinds[0]))
        assert refused_as(kinds[0])([small]) == [True]
        assert len(small) <= most, (small.hex(), family_case.number)


class _Least:
    def below(self, n: int) -> int:
        return 0


def test_shrinking_tries_no_more_files_than_allowed() -> None:
    tried = 0

    def shows(files: list[bytes]) -> list[bool]:
        nonlocal tried
        tried += len(files)
        return [True] * len(files)

    shrink_file(cases(1, "valid", 1, 1)[0].raw, shows, most=50)
    assert 0 < tried <= 50


def test_long_text_is_not_shrunk_byte_by_byte() -> None:
    long = cases(1, "broken", [f.name for f in FAULTS.values() if f.kinds].index("key-65536"), 1)
    (case,) = long
    assert case.faults == ("key-65536",)
    small = shrink_file(case.raw, refused_as("key-long"), most=2000)
    assert 65536 < len(small) < 65800
