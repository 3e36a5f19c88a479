"""Random models and runs without any mistake, for every architecture that our engine supports."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.random import Philox

from lockstep.engine.architectures.base import Architecture
from lockstep.engine.gguf.types import type_by_name
from lockstep.engine.quants.base import NO_PRODUCT, WeightFormat
from lockstep.engine.registry import import_members
from lockstep.harness.check.check import Plan, open_plan, run_suites
from lockstep.harness.check.halves_told import halves_told
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.parallel.row_files import add_rows, make_row, read_rows
from lockstep.harness.parallel.works import Executor, as_done
from lockstep.harness.records import DEFAULT, EXACT
from lockstep.harness.shadow.models import make_variant, open_for_variants
from lockstep.harness.synth.any_arch import Variant, variant_named, with_vocabulary
from lockstep.harness.synth.generator import MAKERS, stream
from lockstep.harness.synth.llama import LlamaRecipe, write_llama
from lockstep.harness.synth.vocabulary import SMALLEST

HEAD_SIZES = (2, 6, 8, 16, 20, 32, 64, 128, 256)
WIDEST = 512  # limit for all heads together, if blocks allow it
ALIKE = ("gpt2", "bert")  # queries, keys and values have the same number of heads
ONE_KEY = ("deepseek2",)  # one KV head for all heads
Pick = Callable[..., int]


def picker(seed: int, what: str) -> Pick:
    """Return a function that picks one of its arguments. The choice depends only on the seed."""
    bits = stream(seed, what)

    def pick(*choices: int) -> int:
        return choices[int(bits.random_raw(1)[0] >> np.uint64(33)) % len(choices)]

    return pick


def types_multiplied() -> list[str]:
    """Return every weight type that synth can write and llama.cpp can multiply."""
    import_members("lockstep.engine.quants")
    kinds = sorted(WeightFormat.family.values(), key=lambda kind: kind.type_id)
    return [k.name for k in kinds if k.name in MAKERS and k.vec_dot_type != NO_PRODUCT]


def random_type(pick: Pick) -> str:
    types = types_multiplied()
    return types[pick(*range(len(types)))]


# --- llama --------------------------------------------------------------------------------------


def random_recipe(seed: int) -> LlamaRecipe:
    """Return a random small llama model of any legal shape and type."""
    pick = picker(seed, "clean case")
    quant = random_type(pick)
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


def random_shape(quant: str, pick: Pick) -> LlamaRecipe:
    """Return random sizes that are whole blocks. If a block is a single weight, the sizes include
    unusual numbers, such as 7 and 129. If blocks are long, the sizes are few blocks."""
    block = type_by_name(quant).block
    counts: tuple[int, ...] = (1, 2, 3, 4)  # numbers of heads
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


# --- the others ---------------------------------------------------------------------------------


def random_variant(arch: str, seed: int) -> tuple[Variant, str]:
    """Return a random small model of an architecture, and the type of its matrices."""
    pick = picker(seed, "clean variant")
    n_head_kv = 1 if arch in ONE_KEY else pick(1, 2, 3)
    n_head = n_head_kv * (1 if arch in ALIKE else pick(1, 2, 3))
    quant = random_type(pick)
    block = type_by_name(quant).block
    head = pick(8, 16, 24, 32) if block <= 32 else pick(32, 64)
    sizes = {
        "n_layer": pick(2, 3, 4),
        "n_head": n_head,
        "n_head_kv": n_head_kv,
        "n_embd": n_head * head,
        "n_ff": max(block, 8) * pick(1, 2, 3),
        "n_expert": pick(2, 4, 5),
        "n_expert_used": pick(1, 2),
    }
    variant = replace(variant_named(arch), sizes=tuple(sizes.items()))
    return with_vocabulary(variant, pick(0, 384, 500)), quant


def own_architectures() -> list[str]:
    import_members("lockstep.engine.architectures")
    return sorted(Architecture.family)


# --- cases --------------------------------------------------------------------------------------


def write_model(seed: int, path: Path) -> str:
    """Write a model, and return its architecture. Successive seeds cycle through all
    architectures."""
    known = own_architectures()
    arch = known[seed % len(known)]
    if arch == "llama":
        write_llama(random_recipe(seed), path)
        return arch
    variant, quant = random_variant(arch, seed)
    with open_for_variants() as session:
        make_variant(variant, path, seed=seed, quant=quant, session=session)
    return arch


def clean_plan(seed: int, folder: Path) -> Plan:
    """Return a plan with a random model, prompt length and preset."""
    path = folder / f"clean-{seed}.gguf"
    arch = write_model(seed, path)
    bits = Philox(key=seed)
    lengths = (1, 2, 3, 7, 16, 31, 33, 63, 64, 65, 100)
    return Plan(
        case=f"clean:{seed}:{arch}",
        model=path,
        subject_model=path,
        settings=(EXACT, DEFAULT)[int(bits.random_raw(1)[0] >> np.uint64(40)) % 2],
        n_tokens=lengths[int(bits.random_raw(1)[0] >> np.uint64(40)) % len(lengths)],
        n_steps=8,
        seed=seed,
    )


@dataclass(frozen=True, kw_only=True)
class TriedCase:
    seed: int
    case: str
    code: int  # exit code
    wrong: tuple[str, ...]  # descriptions of differences
    untold: tuple[
        str, ...
        # suites without a verdict, because in some random models every answer is within the limits
    ] = ()

    @property
    def alarm(self) -> bool:
        return bool(self.wrong)


def try_clean(seed: int) -> TriedCase:
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        plan = clean_plan(seed, Path(folder))
        with closing(open_plan(plan, lambda _: None)) as run:
            verdicts = list(run_suites(run.context, ()))
            verdicts += halves_told(run.context, verdicts)
    fine = ("agreed", "excused", "not-applicable", "not-compared")
    wrong = [f"{v.suite}: {v.summary}" for v in verdicts if v.status not in fine]
    untold = [f"{v.suite}: {v.summary}" for v in verdicts if v.status == "not-compared"]
    agreed = {v.suite for v in verdicts if v.status == "agreed"}
    lacking = ({"logits", "embeddings"}, {"trace"}, {"products"})
    untold += [f"nothing compared by {' or '.join(sorted(s))}" for s in lacking if not s & agreed]
    code = exit_code(verdicts)
    return TriedCase(seed=seed, case=plan.case, code=code, wrong=tuple(wrong), untold=tuple(untold))


def clean_results(
    seeds: range, executor: Executor | None = None, file: Path | None = None
) -> Iterator[TriedCase]:
    """Run the cases, and yield the results. `file` stores a JSON line for each case. Cases in this
    file are not run again."""
    rows = read_rows(file, make_row(TriedCase))
    before = {tried.seed: tried for tried in rows if tried.seed in seeds}
    yield from before.values()
    for tried in as_done(try_clean, [seed for seed in seeds if seed not in before], executor):
        add_rows(file, [tried])
        yield tried
