"""Files selected by the branches of our reader that they reach, until no new branch appears.

libFuzzer makes and keeps the files (harness.fuzzers.gguf.guided_reader), round after round. The
last round is the first that reaches no new branch. Then every parser reads the kept files. The
folder holds the whole state of a run, because libFuzzer writes each file at once.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from lockstep.harness.check.check import BadInput
from lockstep.harness.fuzzers.base import Checkpoint, FuzzPlan
from lockstep.harness.fuzzers.gguf.campaign import FileCampaign
from lockstep.harness.fuzzers.gguf.faults import FAULTS
from lockstep.harness.fuzzers.gguf.grammar import LARGEST, FileCase, alone, cases
from lockstep.harness.fuzzers.gguf.reached import MODULES, Reached, find_reached
from lockstep.harness.records import Verdict

LONGEST = 2 * LARGEST  # bytes of a file, more than a key may have
STATUS = re.compile(r"#(\d+)\s+(\w+)\s+cov: (\d+)")
COMPLAINT = re.compile(r"[\w.]+(Error|Exception)\b|.*ERROR: ")
LAST_WORDS = 12
OF_LIBFUZZER = re.compile("((crash|leak|timeout|oom|slow-unit)-)?[0-9a-f]{40}")
Say = Callable[[str], None]


def check_guided(plan: FuzzPlan) -> None:
    """Check the options of a guided run. Raises BadInput."""
    if plan.engine != "reference":
        raise BadInput(f"a guided run follows the branches of our reader, not of {plan.engine!r}")
    if plan.keep is None:
        raise BadInput("a guided run needs a folder to keep files in: --guided FOLDER")
    if find_spec("atheris") is None:
        raise BadInput("a guided run needs atheris: pip install 'gguf-lockstep[dev]' installs it")


def run_guided(plan: FuzzPlan, campaign: FileCampaign) -> Iterator[Verdict | Checkpoint]:
    """Run rounds of `plan.cases` files, and yield verdicts on them and then on the kept files."""
    folder = plan.keep
    assert folder is not None  # check_guided requires a folder
    if not any(folder.glob("*")):
        seed_folder(folder, campaign.corpus, plan.seed)
    for done in rounds(plan, folder, lambda text: campaign.say(campaign.family, text)):
        yield about_round(done, campaign)
    files = [FileCase(i, path.read_bytes(), again=("--file", str(path)))
             for i, path in enumerate(files_kept(folder))]  # fmt: skip
    yield about_lines(find_reached(case.raw for case in files), len(files), campaign)
    yield from campaign.judge_kept(files)


def rounds(plan: FuzzPlan, folder: Path, say: Say) -> Iterator["Round"]:
    end = None if plan.seconds is None else time.monotonic() + plan.seconds
    for number in count(plan.seed):
        left = None if end is None else end - time.monotonic()
        if left is not None and left < 1:
            return
        done = guided_round(folder, plan.cases, number, left, say)
        yield done
        if done.ended or done.is_last(plan.cases):
            return


def about_round(done: "Round", campaign: FileCampaign) -> Verdict:
    text = f"{done.files:,} files in {done.seconds:,.0f} s, {done.branches} branches reached, "
    text += f"{done.branches - done.branches_before} of them new"
    again = campaign.all_again()
    if not done.ended:
        return campaign.verdict("agreed", text, asdict(done), again=again)
    key = "fuzz-gguf/reference/crashes/guided"
    return campaign.verdict("diverged", f"{text}; {done.ended}", asdict(done), key, again)


def about_lines(found: Reached, files: int, campaign: FileCampaign) -> Verdict:
    text = f"{files} files reach {found.lines} lines of the reader, "
    text += (
        f"and never reach {len(found.never)} lines: {'; '.join(found.never)}"
        if found.never
        else "which are all lines of the called functions"
    )
    return campaign.verdict("agreed", text, asdict(found))


# --- the folder -------------------------------------------------------------------------------


def seed_folder(folder: Path, corpus: Sequence[bytes], seed: int) -> None:
    """Fill the folder with a file for each fault, some plain files, and the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = [case.raw for case in cases(seed, "valid", 0, 64)]
    short = [raw for raw in corpus if len(raw) <= LARGEST]
    for at, raw in enumerate([*map(alone, FAULTS), *plain, *short]):
        (folder / f"seed-{at}.gguf").write_bytes(raw)


def files_kept(folder: Path) -> list[Path]:
    """Return the kept files. libFuzzer's files have no suffix and are renamed to .gguf. Other files
    in the folder belong to the user."""
    for path in folder.iterdir():
        if OF_LIBFUZZER.fullmatch(path.name) and path.is_file():
            path.rename(path.with_name(f"{path.name}.gguf"))
    return sorted(folder.glob("*.gguf"))


# --- a round ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Round:
    """The result of a round of libFuzzer. branches: the reader's branches, as atheris counts
    them."""

    files: int
    branches_before: int  # number of branches that the folder's files reach
    branches: int
    seconds: float
    ended: str  # last words of the process if a file ended it; else ""

    def is_last(self, files: int) -> bool:
        return self.files >= files and self.branches == self.branches_before


def guided_round(
    folder: Path,
    files: int,
    seed: int,
    seconds: float | None,
    say: Say,
    modules: Sequence[str] = MODULES,
) -> Round:
    """Run one round of libFuzzer. files: the number of new files, in addition to those in the
    folder; seconds: the time limit."""
    started = time.perf_counter()
    runs = len(files_kept(folder)) + files
    options = [f"-runs={runs}", f"-seed={1 + seed % (2**32 - 1)}", f"-max_len={LONGEST}"]
    options += ["-mutate_depth=1", "-timeout=0", f"-artifact_prefix={folder}{os.sep}"]
    options += [] if seconds is None else [f"-max_total_time={int(seconds)}"]
    words: deque[str] = deque(maxlen=LAST_WORDS)
    n, branches, before = 0, 0, 0
    with started_child([",".join(modules), str(os.getpid()), *options, str(folder)]) as process:
        for line in process.stdout or ():
            words.append(line.strip())
            if found := STATUS.match(line):
                n, branches = int(found[1]), int(found[3])
                before = branches if found[2] == "INITED" else before
                rate = n / (time.perf_counter() - started)
                say(f"{n:,} files, {branches} branches, {rate:,.0f} a second")
        status = process.wait()
    return Round(
        files=n,
        branches_before=before,
        branches=branches,
        seconds=time.perf_counter() - started,
        ended=complaint(words, status) if status else "",
    )


def complaint(words: Sequence[str], status: int) -> str:
    said = [line for line in words if COMPLAINT.match(line)]
    last = words[-1] if words else "nothing said"
    return said[0] if said else f"libFuzzer ended with status {status}: {last}"


@contextmanager
def started_child(arguments: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """Run the child in a separate process group, so that the user's interrupt does not reach it.

    The child ends when this context ends, for any reason.
    """
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", f"{__package__}.guided_reader", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
