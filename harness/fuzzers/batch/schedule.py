"""A schedule as a value: the shape of a context and the steps, with conversion to and from JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.harness.check.check import BadInput

Step = tuple[Any, ...]  # see `Adapter.schedule`; rows and their sequences are tuples
Row = tuple[int, int, tuple[int, ...], bool]  # token, position, sequences, output
SIZES = {"decode": 2, "rm": 4, "cp": 5, "keep": 2, "add": 5, "div": 5, "clear": 1, "save": 2}
SIZES |= {"load": 3}
SBATCH_SPLITS = ("simple", "equal", "seq")
MOST = {"n_ctx": 4096, "n_ubatch": 512, "n_seq": 8}


@dataclass(frozen=True)
class ScheduleCase:
    n_ctx: int
    n_ubatch: int
    n_seq: int
    unified: bool
    steps: tuple[Step, ...]
    sbatch: str = ""  # the split of the older llama_sbatch; "": none

    @property
    def names(self) -> str:
        return "-".join(str(step[0]) for step in self.steps)

    @property
    def size(self) -> tuple[int, ...]:
        """Return a measure that orders schedules by the number of steps, then of tokens, then of
        sequences, and then by how simple their numbers are."""
        rows = [row for step in self.steps if step[0] == "decode" for row in step[1]]
        numbers = [n for step in self.steps if step[0] != "decode" for n in step[1:]]
        shape = (self.n_seq, self.n_ctx, self.n_ubatch, self.unified)
        simple = sum(abs(n) for n in numbers) + sum(row[0] + 2 * row[1] + row[3] for row in rows)
        return len(self.steps), len(rows), sum(len(row[2]) for row in rows), *shape, simple

    def plan(self) -> dict[str, Any]:
        """Return the schedule in the form of the question `schedule`."""
        older = {"sbatch": self.sbatch} if self.sbatch else {}
        return {
            "n_ctx": self.n_ctx,
            "n_ubatch": self.n_ubatch,
            "n_seq": self.n_seq,
            "unified": self.unified,
            "steps": [as_lists(step) for step in self.steps],
            **older,
        }

    def text(self) -> str:
        return json.dumps(self.plan(), separators=(",", ":"))

    def with_steps(self, steps: Sequence[Step]) -> "ScheduleCase":
        return replace(self, steps=tuple(steps))


def as_lists(value: Any) -> Any:
    return [as_lists(item) for item in value] if isinstance(value, tuple | list) else value


def schedule_from(text: bytes | str) -> ScheduleCase:
    """Read a schedule from JSON. Raises BadInput, because users write schedules, and some would
    make llama.cpp abort."""
    try:
        made = json.loads(text)
        n_ctx, n_ubatch, n_seq = (made[name] for name in MOST)
        steps = tuple(step_from(step) for step in made["steps"])
        unified, sbatch = made["unified"], made.get("sbatch", "")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"not a schedule: {type(error).__name__}: {error}") from error
    for (name, most), n in zip(MOST.items(), (n_ctx, n_ubatch, n_seq), strict=True):
        if type(n) is not int or not 1 <= n <= most:
            raise BadInput(f"not a schedule: {name} is {n!r:.40}; expected 1 to {most}")
    if type(unified) is not bool:
        raise BadInput(f"not a schedule: unified is {unified!r:.40}; expected true or false")
    if sbatch not in ("", *SBATCH_SPLITS):
        raise BadInput(f"not a schedule: sbatch is {sbatch!r:.40}; expected one of {SBATCH_SPLITS}")
    saves: list[int] = []
    for step in steps:
        if step[0] == "save":
            saves.append(step[1])
        if step[0] == "load" and not 0 <= step[2] < len(saves):
            raise BadInput(f"not a schedule: {list(step)} loads a state that is not saved yet")
        if step[0] == "load" and (step[1] < 0) != (saves[step[2]] < 0):
            raise BadInput(
                f"not a schedule: {list(step)} loads one sequence from a state of all, or "
                "all from a state of one"
            )
    return ScheduleCase(n_ctx, n_ubatch, n_seq, unified, steps, sbatch)


def step_from(step: Any) -> Step:
    name, *rest = step
    if SIZES[name] != len(step):
        raise ValueError(f"{name} takes {SIZES[name] - 1} values, got {len(rest)}")
    if name == "decode":
        return name, tuple(one for row in rest[0] for one in rows_from(row))
    return name, *(whole(n) for n in rest)


def rows_from(row: Any) -> Iterator[Row]:
    """Yield a row, or the number of rows that it states, at consecutive positions."""
    n = whole(row[4]) if len(row) == 5 else 1
    if not 1 <= n <= MOST["n_ctx"]:
        raise ValueError(f"a row is repeated {n} times; expected 1 to {MOST['n_ctx']}")
    token, pos, seqs, output = row_from(row[:4])
    yield from ((token, pos + i, seqs, output) for i in range(n))


def row_from(row: Any) -> Row:
    token, pos, seqs, output = row
    if len(seqs) > MOST["n_seq"]:
        raise ValueError(f"a token of {len(seqs)} sequences; expected {MOST['n_seq']} at most")
    return whole(token), whole(pos), tuple(whole(seq) for seq in seqs), bool(output)


def whole(n: Any) -> int:
    if type(n) is not int or not -(2**31) <= n < 2**31:
        raise ValueError(f"{n!r:.40} is not a 32-bit integer")
    return n
