"""Engines without logits, honest and wrong: they show only lists of candidates, greedy tokens or
text.

Each uses one of our engines internally, and declares only these levels.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.engine.batch import Batch
from lockstep.engine.ops.mirror import Mirror
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.fast import FastEngine
from lockstep.harness.adapters.parts.replaced_methods import put
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.graph.engine import ReplayEngine
from lockstep.harness.mutants.attention import MissingScale
from lockstep.harness.mutants.heads import KvHeadModulo
from lockstep.harness.mutants.parts.mistakes import OPS, Mistake
from lockstep.harness.mutants.rope import RopeHalfSplit
from lockstep.harness.records import EngineInfo, Evaluation, Request

Row = list[tuple[Any, float]]
Change = Callable[[Any, Row], Row]


def showing(run: Evaluation, names: Sequence[str]) -> Evaluation:
    """Return the run with only the tensors of these names."""
    if run.trace is None:
        return run
    shown = tuple(each for each in run.trace.records if each.site.name in names)
    return replace(run, trace=replace(run.trace, records=shown))


def log_softmax(logits: Any) -> Any:
    with np.errstate(all="ignore"):
        x = logits - logits.max()
        return (x - np.log(np.exp(x, dtype=np.float32).sum(dtype=np.float32))).astype(np.float32)


class Quiet(FastEngine, name="quiet"):
    """An honest engine; each subclass changes one thing."""

    levels: tuple[str, ...] = ("logprobs", "greedy", "generate", "tokenize")
    text_only = False

    def describe(self) -> EngineInfo:
        return replace(super().describe(), levels=self.levels, text_only=self.text_only)

    def logprobs(self, prefixes: Sequence[Any], k: int) -> list[Row]:
        ids = [self.tokenize([p])[0] if isinstance(p, bytes) else p for p in prefixes]
        return [self.change(self.listed(prefix, k)) for prefix in ids]

    def listed(self, prefix: Sequence[int], k: int) -> Row:
        logits = self.evaluate(Request(batches=(Batch.of(prefix),))).logits[0][-1]
        values = log_softmax(logits)
        order = np.argsort(-values, kind="stable")[:k]
        return [(int(token), float(values[token])) for token in order]

    def change(self, row: Row) -> Row:
        return row

    def generate(self, prompt: bytes, n: int) -> bytes:
        ids = self.greedy(self.tokenize([prompt])[0], n)
        return self.write([self.tokenizer.piece(token, special=False) for token in ids])

    def write(self, pieces: list[bytes]) -> bytes:
        return b"".join(pieces)


def ops_with(**methods: Callable[..., Any]) -> type[Mirror]:
    """Return the ops with some of them replaced."""
    return type("Wrong", (Mirror,), methods)


HalfSplit = ops_with(
    rope=lambda ops, x, at, params: Mirror.rope(
        ops, x, at, replace(params, halves=not params.halves)
    )
)


def made(name: str, base: type[Adapter] = Quiet, **changes: Any) -> str:
    """Make an engine with these methods and attributes; return its name."""
    type("Made", (base,), changes, name=name)
    return name


def wrong(name: str, mutant: type[Mistake], **changes: Any) -> str:
    """Make an engine that computes as the mutant. It is not registered as a mutant, because
    selftest would list it."""
    kinds = [cls for cls in reversed(mutant.__mro__) if issubclass(cls, Mistake)]
    own = {k: v for cls in kinds[1:] for k, v in vars(cls).items() if not k.startswith("__")}

    def make_ops(engine: Any) -> Any:
        ops: Any = Reference.make_ops(engine)
        ops.flash = None  # fused attention has no place for some mistakes
        for op in own.keys() & {*OPS}:
            put(ops, op, getattr(engine, op))
        return ops

    type("Made", (Quiet,), {**own, "ops": Mirror, "make_ops": make_ops, **changes}, name=name)
    return name


def never_choosing(*tokens: int) -> Callable[[Any, Sequence[int], int], list[int]]:
    """Return a greedy generator that never chooses these tokens."""

    def greedy(self: Any, prompt: Sequence[int], n: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < n:
            (logits,) = self.evaluate(Request(batches=(Batch.of([*prompt, *ids]),))).logits
            row = logits[-1].copy()
            row[list(tokens)] = -np.inf
            ids.append(int(row.argmax()))
        return ids

    return greedy


def changed(change: Change) -> dict[str, Change]:
    return {"change": change}


def shown(engine: Any, token: int) -> bytes:
    """Return a token in a server's form, with U+FFFD for invalid UTF-8."""
    piece: bytes = engine.tokenizer.piece(token, special=True)
    return piece.decode("utf-8", "replace").encode()


def as_dictionary(engine: Any, row: Row) -> Row:
    """Return a list in which each text occurs once, with the value of its last token."""
    return list({shown(engine, token): value for token, value in row}.items())


def swap(_: Any, row: Row) -> Row:
    (a, x), (b, y), *rest = row
    return [(b, x), (a, y), *rest]


def moved(by: float, at: int = 3) -> Change:
    return lambda _, row: [(t, v + by if i == at else v) for i, (t, v) in enumerate(row)]


def over_itself(_: Any, row: Row) -> Row:
    """Return the list with values normalised over the list."""
    total = float(np.log(sum(np.exp(v) for _, v in row)))
    return [(token, value - total) for token, value in row]


def in_digits(_: Any, row: Row) -> Row:
    """Return the list with values rounded as by printf's %.4g."""
    return [(token, float(f"{value:.4g}")) for token, value in row]


def late(_: Any, row: Row) -> Row:
    """Return the list with its likeliest token at the end."""
    return [*row[1:], row[0]]


HONEST_LISTS = [
    "quiet",
    made("lists: unnormalised", **changed(lambda _, row: [(t, v + 17.25) for t, v in row])),
    made("lists: of five", **changed(lambda _, row: row[:5])),
    made("lists: normalised over five", **changed(lambda e, row: over_itself(e, row[:5]))),
    made("lists: four decimals", **changed(lambda _, row: [(t, round(v, 4)) for t, v in row])),
    made("lists: four digits", **changed(in_digits)),
    made("lists: texts", **changed(lambda e, row: [(shown(e, t), v) for t, v in row])),
    made("lists: a dictionary of texts", **changed(as_dictionary)),
    made("lists: five texts", **changed(lambda e, row: as_dictionary(e, row[:5]))),
    made("lists: of text prompts", text_only=True),
]
WRONG_LISTS = {
    wrong("lists: wrong rope", RopeHalfSplit): "value",
    wrong("lists: heads modulo", KvHeadModulo): "value",
    wrong("lists: no scale", MissingScale): "value",
    made("lists: two swapped", **changed(swap)): "value",
    made("lists: one moved", **changed(moved(0.01))): "value",
    made("lists: warm", **changed(lambda _, row: [(t, v * 1.01) for t, v in row])): "value",
    made("lists: the second missing", **changed(lambda _, r: [r[0], *r[2:9]])): "missing",
    made("lists: the likeliest missing", **changed(lambda _, r: r[1:])): "missing",
    made("lists: unlikeliest first", **changed(lambda _, row: row[::-1])): "order",
    made("lists: likeliest last", **changed(late)): "order",
    made(
        "lists: two digits too few", **changed(lambda _, r: [(t, float(f"{v:.1g}")) for t, v in r])
    ): "value",
    made("lists: NaN", **changed(lambda _, r: [(r[0][0], float("nan")), *r[1:]])): "not finite",
    made("lists: impossible", **changed(moved(float("-inf"), 0))): "value",
    made(
        "lists: texts, one moved",
        **changed(lambda e, row: as_dictionary(e, moved(0.01, 0)(e, row))),
    ): "value",
    made(
        "lists: texts, one missing",
        **changed(lambda e, row: as_dictionary(e, [row[0], *row[2:9]])),
    ): "missing",
}


class OnlyEmbeds(ReplayEngine, name="embeds, and nothing else"):
    def describe(self) -> EngineInfo:
        return replace(super().describe(), levels=("embed",), shows=(), shows_nodes=False)
