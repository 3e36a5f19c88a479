"""Many files for a parser that dies on some of them. Every other file gets an answer, and each
death is reported."""

import os
import signal
import time

import numpy as np
import pytest

from lockstep.harness.adapters.parts.forked import FEW, Read, parse_forked
from lockstep.harness.adapters.parts.parsing import (
    SPARE_MEMORY,
    CostLimits,
    Parsed,
    files_of,
    pack_files,
    parse_answer,
)

MB = 1 << 20
LIMITS = CostLimits(seconds=0.2)


def read(raw: bytes) -> tuple[str, int, str]:
    """Stand in for a parser: behave as the content of the file says."""
    if raw == b"dies":
        os.write(2, b"assertion of the parser\n")
        os.kill(os.getpid(), signal.SIGSEGV)
    if raw == b"leaves":
        os._exit(0)
    if raw == b"loops":
        while True:
            pass
    if raw == b"sleeps":
        time.sleep(60)
    if raw == b"eats":
        bytearray(64 * MB)
    if raw == b"starves":
        bytearray(1 << 40)
    if raw == b"raises":
        raise RuntimeError("no adapter's exception")
    return ("accepted", len(raw), "") if raw != b"bad" else ("key-nul", 0, "why")


def answers(files: list[bytes], reader: Read = read) -> Parsed:
    return parse_answer(parse_forked(reader, files, LIMITS), len(files))


def test_files_are_packed_and_unpacked_in_order() -> None:
    files = [b"a", b"", b"bcd"]
    assert list(files_of(*pack_files(files))) == files
    assert list(files_of(*pack_files([]))) == []


def test_endings_digests_and_reasons_come_back() -> None:
    found = answers([b"abc", b"bad", b""])
    assert [found.ending(i) for i in range(3)] == ["accepted", "key-nul", "accepted"]
    assert found.digests.tolist() == [3, 0, 0]
    assert found.words == {1: "why"}


@pytest.mark.parametrize(
    ("file", "ending", "words"),
    [
        (b"dies", "crashed", "was killed by SIGSEGV; assertion of the parser"),
        (b"leaves", "crashed", "exited with status 0"),
        (b"loops", "hung", "was killed by SIGPROF"),
        (b"starves", "crashed", "exited with status 1; MemoryError"),
        (b"raises", "crashed", "exited with status 1; RuntimeError: no adapter's exception"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_death_is_reported_only_for_its_file(
    file: bytes, ending: str, words: str, place: int
) -> None:
    files = [b"a", b"b"]
    files.insert(place, file)
    found = answers(files)
    want = ["accepted", "accepted"]
    want.insert(place, ending)
    assert [found.ending(i) for i in range(3)] == want
    assert found.words[place].startswith(words)


def test_memory_counts_for_the_file_that_allocated_it() -> None:
    found = answers([b"a", b"eats", b"b", b"eats", b"c"])
    assert (found.peaks > SPARE_MEMORY).tolist() == [False, True, False, True, False]
    assert found.peaks[1] >= 60 * MB


def test_many_files_need_few_processes_and_give_no_reasons() -> None:
    parents = set()

    def tell(raw: bytes) -> tuple[str, int, str]:
        parents.add(os.getpid())
        return "accepted", len(parents), "words"

    found = answers([b"x"] * (FEW + 1), tell)
    assert set(found.digests.tolist()) == {1}
    assert found.words == {}


def test_file_that_is_parsed_forever_counts_as_hung() -> None:
    found = parse_answer(parse_forked(read, [b"a", b"sleeps", b"b"], CostLimits(seconds=0.03)), 3)
    assert [found.ending(i) for i in range(3)] == ["accepted", "hung", "accepted"]
    assert found.words == {1: "was killed by SIGALRM"}


def test_a_long_file_may_take_more_memory_and_time() -> None:
    def read(raw: bytes) -> tuple[str, int, str]:
        bytearray(64 * MB)
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        return "accepted", 1, ""

    each = CostLimits(seconds=0.1, seconds_per_byte=0.01, memory=MB, memory_per_byte=2 * MB)
    found = parse_answer(parse_forked(read, [b"x", b"x" * 100], each), 2)
    assert [found.ending(i) for i in range(2)] == ["crashed", "accepted"]


def test_answer_about_other_files_is_rejected() -> None:
    with pytest.raises(ValueError, match="not about 4 files"):
        parse_answer(parse_forked(read, [b"a"] * 3), 4)
    bad = parse_forked(read, [b"a"]) | {"endings": np.array([250], np.uint8)}
    with pytest.raises(ValueError, match="an unknown ending"):
        parse_answer(bad, 1)


def test_time_limit_is_per_file() -> None:
    def slow(raw: bytes) -> tuple[str, int, str]:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        return "accepted", 1, ""

    found = answers([b"x"] * 4, slow)
    assert set(found.digests.tolist()) == {1}
