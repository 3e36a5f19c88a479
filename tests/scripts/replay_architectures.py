"""Replay a small model of every architecture, and compare its outputs with llama.cpp's.

    python tests/scripts/replay_architectures.py                  # all variants, preset exact
    python tests/scripts/replay_architectures.py -p default t5 bert

Each model is recorded once and run five times: honestly, in float64, and three times with random
errors, which gives its noise floor. Two honest runs may differ by two floors. The exit code is 1 if
a run differs by more, or if a node was not computed. Set OPENBLAS_NUM_THREADS=1 on a busy machine.
"""

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.harness.check.check import lanes_of
from lockstep.harness.context.runner import Runner
from lockstep.harness.graph.floor import replay_floor, whole
from lockstep.harness.graph.program import Place, Program
from lockstep.harness.graph.record import record
from lockstep.harness.graph.replay import replay
from lockstep.harness.graph.ways import Wide
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.records import PRESETS, Answered, Settings
from lockstep.harness.runs.shadow import settings_for
from lockstep.harness.shadow.batches import Work, batches_of
from lockstep.harness.shadow.known import known_crash
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import variant_named, variants

HEAD = f"{'variant':24} {'nodes':>6} {'honest':>9} {'float64':>9} {'floor':>9} {'seconds':>8}"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("variants", nargs="*", help="all, if none is named")
    arguments.add_argument("-p", "--preset", choices=PRESETS, default="exact")
    arguments.add_argument("--tokens", type=int, default=24)
    arguments.add_argument("--sequences", type=int, default=1)
    arguments.add_argument("--ubatch", type=int, help="encoders need all tokens in one")
    given = arguments.parse_args()
    work = Work(tokens=given.tokens, sequences=given.sequences)
    settings = settings_for(work, PRESETS[given.preset], ubatch=given.ubatch)
    wrong = 0
    say(HEAD)
    with TemporaryDirectory() as folder, open_for_variants() as namer:
        for name in given.variants or variants():
            path = Path(folder) / f"{name}.gguf"
            make_variant(variant_named(name), path, session=namer)
            started = time.perf_counter()
            try:
                line, good = replayed(path, settings, work)
            except EngineError as error:
                known = known_crash(name, settings.name)
                line, good = f"known: {known}" if known else str(error), False
            wrong += not good
            mark = "" if good else "  <--"
            say(f"{name:24} {line} {time.perf_counter() - started:8.1f}{mark}")
            path.unlink()
    say(f"{wrong} of these runs have wrong or missing results")
    return int(wrong > 0)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def replayed(path: Path, settings: Settings, work: Work) -> tuple[str, bool]:
    """Replay a model; return a line with its errors, relative to the largest output, and whether
    they are allowed. Raises EngineError if the run is incomplete."""
    shown: dict[Place, Node] = {}
    with GgufFile.open(path) as file, Runner().open("llama.cpp", path, settings) as session:
        info = session.ask("describe")
        assert isinstance(info, Answered), info
        build = Build(
            lanes=lanes_of(info.value.build),
            n_threads=settings.n_threads,
            generic=info.value.generic,
        )
        batches = batches_of(work, 0, file)
        program = record(session, batches, watch=lambda node, at: shown.__setitem__(at, node))
        if not isinstance(program, Program):
            raise EngineError(str(program).partition(", log=")[0])
        floor = replay_floor(program, file, build, seed=0)
        wide = whole(replay(program, file, build, Wide()))
    theirs = program.in_order({at: node.value for at, node in shown.items()})
    assert all(value is not None for value in theirs)
    size = max(largest(value) for value in theirs if value is not None)
    off = [
        max(worst_distance(a, b) for a, b in zip(run, theirs, strict=True) if b is not None) / size
        for run in (floor.outputs, wide)
    ]
    text = f"{program.nodes:6} {off[0]:9.1e} {off[1]:9.1e} {floor.relative:9.1e}"
    return text, max(off) <= 2 * floor.relative


if __name__ == "__main__":
    sys.exit(main())
