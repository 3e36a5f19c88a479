"""`lockstep selftest`: the harness proves that it can fail, and does not fail for nothing."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.random import Philox

from engine.ggml_types import type_by_name
from engine.quants.base import NO_PRODUCT, WeightFormat
from engine.registry import import_members
from harness.adapters.base import Adapter
from harness.bisect.bisection import bisect
from harness.check import Plan, open_plan, run_suites
from harness.exit_codes import exit_code
from harness.mutants.base import Mutant
from harness.processes import processes
from harness.records import DEFAULT, EXACT
from harness.run import builtin_model
from harness.selftest_tokens import in_words, try_wrong_tokenizer, wrong_tokenizers
from harness.synth.generator import MAKERS, stream
from harness.synth.llama import LlamaRecipe, write_llama
from harness.synth.vocabulary import SMALLEST

HEAD_SIZES = (2, 6, 8, 16, 20, 32, 64, 128, 256)
WIDEST = 512  # all heads together, if blocks allow it


class Output(Protocol):
    def line(self, text: str) -> None: ...
    def progress(self, case: str, text: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class MutantResult:
    name: str
    mistake: str
    caught: bool  # check says divergence
    found: str  # where bisect saw it first
    expected: str
    confirmed: bool  # patching the culprits heals the run, where there is anything to heal

    @property
    def located(self) -> bool:
        return self.found == self.expected


def mutants() -> list[type[Mutant]]:
    import_members("harness.mutants")
    found = [c for c in Adapter.family.values() if issubclass(c, Mutant)]
    return sorted(found, key=lambda c: c.name)


def place(layer: int | None, site: str) -> str:
    return site if layer is None else f"{site}-{layer}"


def try_mutant(cls: type[Mutant], folder: Path) -> MutantResult:
    """Check it on the model that shows it, then bisect."""
    model = builtin_model(cls.shows_on, folder)
    plan = Plan(
        case=f"builtin:{cls.shows_on}",
        model=model,
        subject_model=model,
        engine=cls.name,
        settings=EXACT,
        n_steps=8,
    )
    opened = open_plan(plan, lambda _: None)
    try:
        verdicts = list(run_suites(opened.context, ()))
        result = bisect(opened.context)
    finally:
        opened.close()
    first = result.first
    return MutantResult(
        name=cls.name,
        mistake=cls.mistake,
        caught=exit_code(verdicts) == 1,
        found=place(first.site.layer, first.site.name) if first else "nowhere",
        expected=place(cls.layer, cls.site),
        confirmed=result.patched is not None and result.patched.confirms is cls.moves_logits,
    )


# --- clean cases --------------------------------------------------------------------------------


def types_multiplied() -> list[str]:
    """Every type that synth makes and llama.cpp can multiply by."""
    import_members("engine.quants")
    kinds = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
    return [k.name for k in kinds if k.name in MAKERS and k.vec_dot_type != NO_PRODUCT]


def random_recipe(seed: int) -> LlamaRecipe:
    """A small llama of any legal shape and type, decided by the seed alone."""
    bits = stream(seed, "clean case")

    def pick(*choices: int) -> int:
        return choices[int(bits.random_raw(1)[0] >> np.uint64(33)) % len(choices)]

    types = types_multiplied()
    quant = types[pick(*range(len(types)))]
    n_expert = pick(0, 0, 0, 2, 4, 5)
    return replace(
        random_shape(quant, pick),
        seed=seed,
        n_layer=pick(1, 2, 3),
        n_vocab=SMALLEST + pick(0, 1, 30, 100, 333),
        n_expert=n_expert,
        n_expert_used=min(n_expert, pick(1, 2, 3)) if n_expert else 0,
        tied=bool(pick(0, 1)),
        rope_freq_base=float(pick(10000, 500000, 100, 1234567)),
        rope_linear_factor=float(pick(0, 0, 2, 3, 8)),
        rope_freqs=bool(pick(0, 0, 1)),
        f_norm_rms_eps=(1e-5, 1e-6, 1e-3)[pick(0, 1, 2)],
    )


def random_shape(quant: str, pick: Callable[..., int]) -> LlamaRecipe:
    """Widths of whole blocks, odd where a block is one weight, and few blocks where it is long."""
    block = type_by_name(quant).block
    counts: tuple[int, ...] = (1, 2, 3, 4)  # of heads
    if block == 1:
        width, n_ff = pick(10, 24, 48, 64, 100), pick(7, 20, 64, 129, 172)
    elif block <= 64:
        width, n_ff = block * pick(1, 2, 3, 5), block * pick(1, 2, 4, 7)
    else:
        width, n_ff, counts = block * pick(1, 1, 2), block * pick(1, 2), (1, 2, 4)
    n_head_kv, group = pick(*counts), pick(*counts)
    n_head = n_head_kv * group
    whole = [size for size in HEAD_SIZES if n_head * size % block == 0]
    head_size = pick(*[size for size in whole if n_head * size <= WIDEST] or whole[:1])
    return LlamaRecipe(
        quant=quant,
        n_embd=width,
        n_ff=n_ff,
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head=head_size,
    )


def clean_plan(seed: int, folder: Path) -> Plan:
    """A random model, prompt length and preset."""
    path = folder / f"clean-{seed}.gguf"
    write_llama(random_recipe(seed), path)
    bits = Philox(key=seed)
    lengths = (1, 2, 3, 7, 16, 31, 33, 63, 64, 65, 100)
    return Plan(
        case=f"clean:{seed}",
        model=path,
        subject_model=path,
        settings=(EXACT, DEFAULT)[int(bits.random_raw(1)[0] >> np.uint64(40)) % 2],
        n_tokens=lengths[int(bits.random_raw(1)[0] >> np.uint64(40)) % len(lengths)],
        n_steps=8,
        seed=seed,
    )


def try_clean(seed: int) -> tuple[int, int, list[str]]:
    """seed, exit code, what was not well."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        opened = open_plan(clean_plan(seed, Path(folder)), lambda _: None)
        try:
            verdicts = list(run_suites(opened.context, ()))
        finally:
            opened.close()
    alarms = [f"{v.suite}: {v.summary}" for v in verdicts if v.status not in ("agreed", "excused")]
    return seed, exit_code(verdicts), alarms


def clean_results(seeds: range, jobs: int) -> Iterator[tuple[int, int, list[str]]]:
    if jobs == 1:
        yield from map(try_clean, seeds)
        return
    with processes(jobs) as pool:
        yield from pool.map(try_clean, seeds, chunksize=4)


# --- the command --------------------------------------------------------------------------------


def run_selftest(out: Output, *, list_only: bool, clean: int, seed: int, jobs: int) -> int:
    """0: all caught and located, no false alarm; 1 otherwise."""
    if list_only:
        for cls in mutants():
            out.line(f"{cls.name:<34} {cls.mistake}")
        for wrong in wrong_tokenizers():
            out.line(f"{wrong.name:<34} {wrong.mistake}")
        return 0
    results = []
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        for cls in mutants():
            out.progress("selftest", f"suite {cls.name}")
            results.append(try_mutant(cls, Path(folder)))
    for r in results:
        words = (
            "caught" if r.caught else "MISSED",
            f"at {r.found}" if r.located else f"at {r.found}, EXPECTED {r.expected}",
            "confirmed" if r.confirmed else "NOT CONFIRMED",
        )
        out.line(f"{r.name:<34} {', '.join(words)}")
    n = len(results)
    caught, located = sum(r.caught for r in results), sum(r.located for r in results)
    confirmed = sum(r.confirmed for r in results)
    out.line(f"caught {caught} of {n}, located {located}, confirmed by patching {confirmed}")
    tokens_well = tokenizers_are_caught(out)
    alarms = 0
    if clean:
        for at, code, texts in clean_results(range(seed, seed + clean), jobs):
            out.progress("selftest", f"clean case {at - seed + 1} of {clean}")
            alarms += code != 0
            for text in texts:
                out.line(f"clean:{at}: {text}")
        out.line(f"false alarms: {alarms} in {clean} clean cases from seed {seed}")
    return 0 if caught == located == confirmed == n and tokens_well and not alarms else 1


def tokenizers_are_caught(out: Output) -> bool:
    """Whether all wrong tokenizers are, with a small text each; they compute like the reference."""
    results = []
    for wrong in wrong_tokenizers():
        out.progress("selftest", f"fuzz tokens {wrong.name}")
        results.append(try_wrong_tokenizer(wrong))
        out.line(f"{wrong.name:<34} {in_words(results[-1])}")
    n = len(results)
    caught, small = sum(r.caught for r in results), sum(r.located for r in results)
    out.line(f"wrong tokenizers: caught {caught} of {n}, made small {small}")
    return caught == small == n
