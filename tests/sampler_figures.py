"""Figures of a comparison of llama.cpp's sampler chains with our mirror and our definitions.

python -m tests.sampler_figures 1000 MODEL runs 1,000 chains on 10 rows each; a fifth of the chains
reads the model's vocabulary.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.samplers.parts.constructors import BY_SAMPLER
from lockstep.engine.samplers.parts.vocabulary import TokenizerWords
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import EXACT, Answered
from lockstep.harness.samplers.cases import CaseLimits, SampleCase, make_case
from lockstep.harness.samplers.judgement import count_mirror_differences, judge_answer

ROWS, WITH_WORDS = 10, 5  # every fifth chain reads a vocabulary


@dataclass(kw_only=True)
class Figures:
    """Counts of comparisons and of differences."""

    chains: int = 0
    rows: int = 0
    lists: int = 0
    undefined: int = 0
    samplers: Counter[str] = field(default_factory=Counter)
    mirror: Counter[str] = field(default_factory=Counter)  # lists that are not bit-identical
    accidents: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)


def cases(n: int, model: Path) -> list[tuple[SampleCase, CaseLimits]]:
    words = TokenizerWords(tokenizer_of(open_model(model).metadata))
    plain = CaseLimits(samplers=frozenset(BY_SAMPLER))
    read = CaseLimits(samplers=frozenset(BY_SAMPLER), words=words)
    chosen = [(seed, plain if seed % WITH_WORDS else read) for seed in range(n)]
    return [(make_case(10_000 + seed, ROWS, limits), limits) for seed, limits in chosen]


def measure(n: int, model: Path, engine: str = "llama.cpp") -> Figures:
    found = Figures()
    with Runner().open(engine, model, EXACT) as session:
        for case, limits in cases(n, model):
            outcome = session.ask("sample", case.request)
            assert isinstance(outcome, Answered), outcome
            judged = judge_answer(case.request, outcome.value, limits.words)
            found.chains, found.rows = found.chains + 1, found.rows + len(case.kinds)
            found.lists, found.undefined = (
                found.lists + judged.judged,
                found.undefined + judged.undefined,
            )
            found.samplers.update(case.samplers)
            found.accidents.update(f.accident.name for f in judged.findings if f.accident)
            found.unexplained += [f"chain {case.seed}: {each}" for each in judged.unexplained]
            if engine == "llama.cpp":
                found.mirror += Counter(
                    count_mirror_differences(case.request, outcome.value, limits.words)
                )
    return found


if __name__ == "__main__":
    for name in ("llama.cpp", "reference"):
        figures = measure(int(sys.argv[1]), Path(sys.argv[2]), name)
        sys.stdout.write(f"{name}: {figures}\n")
        sys.stdout.flush()
