"""The tokenizer part of `lockstep selftest`: a campaign of `fuzz tokens` must catch each wrong
tokenizer, and shrink the text that shows its mistake."""

from dataclasses import dataclass

from lockstep.harness.fuzzers.base import FuzzPlan, fuzzer_named
from lockstep.harness.mutants.tokenizers import WRONG, WrongTokenizer
from lockstep.harness.records import Verdict

CASES = 1000  # texts for each tokenizer


@dataclass(frozen=True, kw_only=True)
class TokenResult:
    name: str
    caught: bool
    size: int | None  # bytes or ids of the smallest case in the wrong direction
    most: int  # limit for `size`
    again: str  # the command that reproduces it

    @property
    def located(self) -> bool:
        return self.size is not None and self.size <= self.most


def try_wrong_tokenizer(
    cls: type[WrongTokenizer], *, oracle: str = "llama.cpp", cases: int = CASES, seed: int = 3
) -> TokenResult:
    plan = FuzzPlan(
        targets=(f"builtin:{cls.shows_on}",), engine=cls.name, oracle=oracle, cases=cases, seed=seed
    )
    made = fuzzer_named("tokens").run(plan, lambda target, text: None)
    found = [v for v in made if isinstance(v, Verdict) and v.status == "diverged"]
    sizes = [(size_of(v.detail["input"]), v.repro) for v in found if v.detail["way"] == cls.way]
    size, again = min(sizes, default=(None, ""))
    return TokenResult(name=cls.name, caught=bool(found), size=size, most=cls.size, again=again)


def size_of(given: str | list[int]) -> int:
    """Return the number of bytes in a text written in hexadecimal digits, or the number of ids in a
    list."""
    return len(bytes.fromhex(given)) if isinstance(given, str) else len(given)


def wrong_tokenizers() -> list[type[WrongTokenizer]]:
    return list(WRONG.values())


def in_words(result: TokenResult) -> str:
    if not result.caught:
        return "MISSED"
    if result.size is None:
        return "caught, NOT IN THE EXPECTED DIRECTION"
    size = f"a case of {result.size} bytes or ids" if result.size else "the empty text or no ids"
    return f"caught, {size}" if result.located else f"caught, {size}, EXPECTED {result.most}"
