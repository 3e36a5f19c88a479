"""The interface shared by processes and clusters: no message is lost or repeated."""

import os
from typing import Any

import pytest

from lockstep.harness.check.check import BadInput
from lockstep.harness.parallel.children import Said
from lockstep.harness.parallel.works import Forks, Processes, as_done, events_of
from tests.parallel_works import WRONG, Counting, Deadly, check_death, check_executor

HERE = [Forks(1), Forks(2), Processes(1), Processes(2)]


@pytest.mark.parametrize("executor", HERE, ids=str)
def test_every_work_reports_in_order_and_ends(executor: Any) -> None:
    check_executor(executor)


@pytest.mark.parametrize("executor", HERE, ids=str)
def test_death_of_one_work_does_not_affect_other_works(executor: Any) -> None:
    check_death(executor)


@pytest.mark.parametrize("wrong", WRONG)
def test_executor_that_loses_or_repeats_is_caught(wrong: Any) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        check_executor(wrong(Forks(1)))


def test_unfinished_work_is_a_defect_and_not_a_success() -> None:
    (loses, *_) = WRONG
    with pytest.raises(RuntimeError, match=r"1 of 3 works were lost: \[1\]"):
        list(events_of(loses(Forks(1)), [Counting(n) for n in range(3)]))


def process_id(_: int) -> int:
    return os.getpid()


def test_fresh_process_is_reused_for_the_next_work() -> None:
    ids = set(as_done(process_id, range(6), Processes(1)))
    assert len(ids) == 1
    assert os.getpid() not in ids


def refuse(part: int) -> int:
    raise BadInput(f"part {part} cannot be had")


def test_refusal_in_a_process_is_raised_in_the_caller() -> None:
    with pytest.raises(BadInput, match="part 7 cannot be had"):
        list(as_done(refuse, [7], Processes(1)))


def die(part: int) -> str:
    Deadly()(lambda said: None)
    return "unreachable"


def test_death_is_an_error_unless_the_caller_makes_it_a_result() -> None:
    said = list(as_done(die, [3], Processes(1), died=lambda part, how: f"{part} {how}"))
    assert said == ["3 was killed by SIGKILL"]
    with pytest.raises(ChildProcessError, match="a process of the run was killed by SIGKILL"):
        list(as_done(die, [3], Processes(1)))


def test_ending_the_iteration_ends_the_running_works() -> None:
    works = [Counting(n) for n in range(50)]
    for _, event in Processes(2).run(works):
        if isinstance(event, Said):
            break
    children = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    if os.path.exists(children):
        with open(children) as file:
            for child in file.read().split():
                with open(f"/proc/{child}/cmdline", "rb") as line:
                    assert b"work_process" not in line.read()
