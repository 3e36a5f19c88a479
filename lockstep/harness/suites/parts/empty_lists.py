"""Lists of nothing: where the text ends they may be empty, and else they agree with anything."""

from collections.abc import Sequence

from lockstep.engine.errors import EngineError
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.candidates import Listed


def ends(context: Context, listed: Sequence[Listed], logits: F32, allowed: float) -> list[int]:
    """The empty lists behind whose prefix the text ends for the oracle too: the likeliest token is
    one that ends it, or ties with one within the noise (twice the limit of a logit). Servers that
    stop there list nothing."""
    rows = [row for row, each in enumerate(listed) if is_empty(each)]
    try:
        tokens = sorted(context.tokenizer.vocabulary.eog) if rows else []
    except EngineError:
        return []
    if not tokens:
        return []
    return [row for row in rows if logits[row, tokens].max() >= logits[row].max() - 2 * allowed]


def ending(listed: Sequence[Listed], ended: Sequence[int]) -> str:
    return (
        f"{len(ended)} of {len(listed)} lists are empty, where the text ends for the oracle too: "
        "nothing else is known of them"
    )


def is_empty(listed: Listed) -> bool:
    return not listed.candidates and not listed.unknown


def left_open(listed: Sequence[Listed], ended: Sequence[int]) -> str:
    """A list of nothing agrees with anything, and a text that no token has may be one written
    wrongly; "": there are none. ended: the lists that may be empty."""
    empty = sum(map(is_empty, listed)) - len(ended)
    unknown = sum(each.unknown for each in listed)
    found = [f"{empty} of {len(listed)} lists, which are empty"] if empty else []
    found += [f"{unknown} candidates whose texts no token has"] if unknown else []
    return f"not compared were {' and '.join(found)}" if found else ""
