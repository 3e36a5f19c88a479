"""Figures of a comparison of grammars with llama.cpp's, over a whole vocabulary.

python -m tests.grammar_figures 500 reads 500 grammars, 20 tokens each, and compares the allowed
tokens at every step. They must equal our mirror's bit for bit, and our definition's except for
known differences.
"""

import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from lockstep.engine.errors import InvalidGrammar
from lockstep.engine.gguf.split_files import open_model
from lockstep.engine.grammars.parser import parse_grammar
from lockstep.engine.grammars.table import GrammarTable
from lockstep.engine.samplers.grammar import Grammar
from lockstep.engine.samplers.parts.chain import make_chain
from lockstep.engine.samplers.parts.vocabulary import TokenizerWords
from lockstep.engine.samplers.parts.ways import LLAMA_CPP
from lockstep.engine.tokenizers.base import tokenizer_of
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.records import EXACT, Answered, Rejected, SampleRequest
from lockstep.harness.samplers.grammars import grammar_stage
from lockstep.harness.samplers.judgement import count_mirror_differences, judge_answer
from tests.random_grammars import grammar_vocabulary, grammars

STEPS = 20
END_SHARE = 0.1  # share of texts that end where they may


@dataclass(kw_only=True)
class GrammarFigures:
    """Counts of comparisons and differences."""

    grammars: int = 0
    steps: int = 0
    tokens: int = 0  # number of tokens whose verdict was compared
    allowed: int = 0
    refused_by_both: list[str] = field(default_factory=list)
    refused_by_us: list[str] = field(default_factory=list)
    refused_by_engine: list[str] = field(default_factory=list)
    repeats_nothing: int = 0  # number of grammars that llama.cpp refuses as known
    mirror: list[str] = field(default_factory=list)  # lists that are not bit-identical
    accidents: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)  # the engine crashed, or gave no answer


def request_for(text: str, words: TokenizerWords, seed: int) -> SampleRequest:
    """Return a request whose tokens are drawn from the tokens that the grammar allows."""
    rng = np.random.default_rng(seed)
    stage = grammar_stage(text)
    n = len(words.spellings)
    chain = make_chain([stage], n, words, LLAMA_CPP)
    accepted: list[tuple[int, ...]] = [()]
    long = np.array([len(word) for word in words.spellings], np.float64)
    ends = np.isin(np.arange(n), [*words.ends])
    for _ in range(STEPS - 1):
        (sampler,) = chain.samplers
        assert isinstance(sampler, Grammar)
        may = sampler.find_permitted()
        if not may.any() or (may[ends].any() and rng.random() < END_SHARE):
            break
        may = may & ~ends if (may & ~ends).any() else may
        token = int(rng.choice(n, p=may * long / (may * long).sum()))
        if not chain.permits(token):
            continue
        chain.accept(token)
        accepted.append((token,))
    rows = len(accepted)
    return SampleRequest(
        chain=(stage,),
        logits=np.zeros((rows, n), np.float32),
        accepted=tuple(accepted),
        draws=np.full((rows, 1), np.nan),
    )


def compare_grammar(
    name: str, text: str, words: TokenizerWords, session: Session, found: GrammarFigures, seed: int
) -> None:
    found.grammars += 1
    request, is_refused = first_step(text, len(words.spellings)), True
    with suppress(InvalidGrammar):
        request, is_refused = request_for(text, words, seed), False
    outcome = session.ask("sample", request)
    if isinstance(outcome, Rejected):
        if not is_refused and repeats_nothing(text):
            found.repeats_nothing += 1
        else:
            (found.refused_by_both if is_refused else found.refused_by_engine).append(name)
        return
    if is_refused:
        found.refused_by_us.append(name)
        return
    if not isinstance(outcome, Answered):
        found.ended.append(f"{name}: {outcome}")
        return
    rows, n = request.logits.shape
    found.steps, found.tokens = found.steps + rows, found.tokens + rows * n
    found.allowed += int(np.count_nonzero(np.isfinite(outcome.value.logits)))
    if session.name == "llama.cpp" and any(
        count_mirror_differences(request, outcome.value, words).values()
    ):
        found.mirror.append(name)
    judged = judge_answer(request, outcome.value, words)
    found.accidents.update(each.accident.name for each in judged.findings if each.accident)
    found.unexplained += [f"{name}: {each}" for each in judged.unexplained]


def first_step(text: str, n: int) -> SampleRequest:
    return SampleRequest(
        chain=(grammar_stage(text),),
        logits=np.zeros((1, n), np.float32),
        accepted=((),),
        draws=np.full((1, 1), np.nan),
    )


def repeats_nothing(text: str) -> bool:
    """Return True if a repetition's item may be empty, because llama.cpp refuses some such
    grammars."""
    table = GrammarTable(parse_grammar(text), "root", lambda _: 0)
    empty = table.find_empty()
    return any(table.places[table.starts[rule][0]].symbol in empty for rule in table.repeats)


def measure_grammars(n: int, engine: str = "llama.cpp", every: int = 1) -> GrammarFigures:
    """Return the figures of n grammars. every: only one in `every` grammars is read."""
    found = GrammarFigures()
    with TemporaryDirectory() as folder:
        model = grammar_vocabulary(Path(folder) / "vocabulary.gguf")
        words = TokenizerWords(tokenizer_of(open_model(model).metadata))
        with Runner().open(engine, model, EXACT) as session:
            for seed, (name, text) in enumerate(list(grammars(n).items())[::every]):
                compare_grammar(name, text, words, session, found, seed)
    return found


if __name__ == "__main__":
    sys.stdout.write(f"{measure_grammars(int(sys.argv[1]))}\n")
