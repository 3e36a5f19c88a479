"""Mistakes in a prompt before the model runs. Ops, logits and the choice of tokens are right."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from lockstep.engine.batch import Batch
from lockstep.engine.model import Model
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.parts.replaced_methods import put
from lockstep.harness.mutants.base import Mutant
from lockstep.harness.records import Evaluation, Request


class WrongPrompt(Mutant):
    """A wrong reading of prompts. `read` returns the tokens that the engine reads instead of the
    prompt."""

    group = "prompts"
    site = "decode"  # name of the suite, because no op is wrong
    layer = None

    def read(self, ids: Sequence[int]) -> list[int]:
        raise NotImplementedError

    def make_model(self) -> Model:
        model = super().make_model()
        put(model, "choices", self.choices)
        return model

    def choices(
        self,
        right: Callable[[Sequence[int], int], Iterator[tuple[int, F32]]],
        prompt: Sequence[int],
        n: int,
    ) -> Iterator[tuple[int, F32]]:
        return right(self.read(prompt), n)

    def evaluate(self, request: Request) -> Evaluation:
        if is_for_the_next_token(request):
            read = self.read(request.batches[0].tokens.tolist())
            request = replace(request, batches=(Batch.for_next(read),))
        return super().evaluate(request)


def is_for_the_next_token(request: Request) -> bool:
    """Return True if the request asks only for the token after a single prompt, as an engine does
    for its own lists."""
    batch, *others = request.batches
    alone = not others and not batch.encoder and len(batch) > 1
    return alone and not request.capture and bool(batch.outputs[-1]) and batch.outputs.sum() == 1


class BosAdded(WrongPrompt, name="mutant:prompt-bos-added"):
    mistake = "BOS is put before a prompt of ids, which already has BOS if the model wants it"
    effect = "answers are a little off"

    def read(self, ids: Sequence[int]) -> list[int]:
        bos = self.tokenizer.vocabulary.bos
        return [*(() if bos is None else (bos,)), *map(int, ids)]


WrongPrompt.add_fault(
    "prompt-last-token-twice",
    "the last token of a prompt is computed with it, and once more to begin the answer",
    "the text stutters at its beginning",
    read=lambda self, ids: [*map(int, ids), int(ids[-1])],
)
WrongPrompt.add_fault(
    "prompt-without-last-token",
    "the last token of a prompt is not computed before the answer begins",
    "the answer repeats the end of the prompt",
    read=lambda self, ids: list(map(int, ids[:-1] if len(ids) > 1 else ids)),
)
WrongPrompt.add_fault(
    "prompt-without-first-token",
    "the first token of a prompt is treated as BOS and left out",
    "answers are a little off",
    read=lambda self, ids: list(map(int, ids[1:] if len(ids) > 1 else ids)),
)
WrongPrompt.add_fault(
    "prompt-middle-dropped",
    "a prompt longer than half the context keeps only its first 64 tokens and its end",
    "the middle of a long prompt is forgotten",
    read=lambda self, ids: drop_middle(list(map(int, ids)), self.settings.n_ctx // 2),
)


def drop_middle(ids: list[int], kept: int) -> list[int]:
    return [*ids[:64], *ids[64 - kept :]] if len(ids) > kept else ids


class CutInFront(WrongPrompt, name="mutant:prompt-keeps-last-32"):
    mistake = "a prompt of more than 32 tokens keeps only its last 32"
    effect = "the beginning of a long prompt is forgotten, with BOS"
    kept = 32

    def read(self, ids: Sequence[int]) -> list[int]:
        return list(map(int, ids[-self.kept :]))


class CutTo64(CutInFront, name="mutant:prompt-keeps-last-64"):
    mistake = "a prompt of more than 64 tokens keeps only its last 64"
    kept = 64


class TakenForLast(WrongPrompt, name="mutant:prompt-beginning-of-last"):
    """An engine that begins each prompt with the cached tokens of the previous prompt."""

    mistake = "the cache reuses all tokens of the last prompt without comparing them"
    effect = "the second prompt is answered as if it began like the first"
    remembers = True
    last: tuple[int, ...] = ()

    def read(self, ids: Sequence[int]) -> list[int]:
        n = min(len(self.last), len(ids) - 1)
        self.last = (*self.last[:n], *map(int, ids[n:]))
        return list(self.last)


class TakenByLength(WrongPrompt, name="mutant:prompt-of-the-same-length"):
    mistake = "the cache mistakes a prompt for an earlier one of the same length"
    effect = "now and then the answer to another question"
    remembers = True

    @cached_property
    def kept(self) -> dict[int, list[int]]:
        return {}

    def read(self, ids: Sequence[int]) -> list[int]:
        return self.kept.setdefault(len(ids), list(map(int, ids)))


class KeptPrompt(WrongPrompt):
    """An engine that caches a prompt. `taken` returns how many tokens of the last prompt it reuses
    as the beginning of this prompt."""

    remembers = True
    given: tuple[int, ...] = ()
    # the cached tokens, which differ from `given` if too many were reused
    held: tuple[int, ...] = ()

    def taken(self, ids: Sequence[int], alike: int) -> int:
        """Return how many cached tokens are reused. `alike` is the number of equal tokens at the
        beginning of both prompts."""
        raise NotImplementedError

    def read(self, ids: Sequence[int]) -> list[int]:
        rows = enumerate(zip(self.given, ids, strict=False))
        alike = next((i for i, (a, b) in rows if a != b), min(len(self.given), len(ids)))
        n = min(self.taken(ids, alike), len(self.held), len(ids) - 1)
        self.given, self.held = tuple(map(int, ids)), (*self.held[:n], *map(int, ids[n:]))
        return list(self.held)


class OneTooMany(KeptPrompt, name="mutant:prompt-one-kept-too-many"):
    mistake = "the cache keeps one token more than the common prefix with the last prompt"
    effect = "the answer to a similar question uses a word of the last question"

    def taken(self, ids: Sequence[int], alike: int) -> int:
        return alike + 1 if alike else 0


KeptPrompt.add_fault(
    "prompt-found-by-its-first-four",
    "a prompt with the first four tokens of the last one is taken to begin with all of it",
    "with the same system prompt, the second question is answered like the first",
    taken=lambda self, ids, alike: len(self.held) if alike >= 4 else alike,
)
