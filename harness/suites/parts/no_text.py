"""Verdicts on an engine that writes nothing. An honest run may also write an empty text.

A single empty text accuses no engine, because the text may end there, or the engine may wait for
the end of a partial character. But if every honest run writes characters after several prompts, the
engine has chosen different tokens. If logits are NaN, argmax often gives 0, a control token without
a text.
"""

import numpy as np

from lockstep.engine.batch import steps_of
from lockstep.harness.context.chat_template import prompt_ids
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.judging.tolerances import between_two
from lockstep.harness.records import Verdict
from lockstep.harness.suites.parts.oracles_logits import oracles_logits
from lockstep.harness.suites.parts.prompts import N_OTHERS, OTHERS
from lockstep.harness.suites.parts.text_readings import Pieces

# number of different beginnings of honest texts. An engine that stops at certain texts by default
# (but not at a line end) writes nothing after the prompts whose honest text begins so.
FEWEST = 3


def no_text_at_all(context: Context) -> Verdict | None:
    """Return the verdict on an engine that writes nothing after any prompt, if honest runs would
    write at least FEWEST different texts; else None."""
    n, had_to = min(N_OTHERS, context.n_steps), {}
    for prompt in (context.prompt, *OTHERS):
        try:
            if context.ask(context.subject, "generate", prompt, n).strip():
                return None
            if begins := must_write(context, prompt):
                had_to[prompt] = begins
        except NoAnswer:  # nothing is known of this prompt
            continue
    if len({*had_to.values()}) < FEWEST:
        return None
    text = (
        f"the engine writes nothing after any of {len(had_to)} prompts, and honest runs "
        "write characters. It may choose a control token, end at once (an argmax of NaN "
        "is often 0), or accept only chats"
    )
    detail = {"at_fault": "subject", "prompts": [repr(prompt) for prompt in had_to]}
    return context.verdict("text", "diverged", text, detail, key=("text", "nothing"))


def must_write(context: Context, prompt: bytes) -> bytes:
    """Return the first whole characters that every honest run writes within N_OTHERS tokens; empty
    if there are none. Up to these characters the choice of each token is certain. No likely token
    may be without text, end the text, or end a line."""
    ids = prompt_ids(context, prompt)
    if not ids:
        return b""
    free = context.ask(context.oracle, "greedy", ids, min(N_OTHERS, context.n_steps))
    batches = steps_of(ids, free, context.facts.decoder_start)
    logits = oracles_logits(context, batches)
    if logits is None or not np.isfinite(logits).all():
        return b""
    noise, pieces = context.noise_on(batches), Pieces.of(context)
    ends = pieces.tokenizer.vocabulary.eog
    for row in logits[-len(free) :] if np.isfinite(noise) else ():
        allowed = between_two(noise, row)
        ids = np.flatnonzero(row.max() - row <= allowed).tolist()
        likely = [pieces[token] for token in ids]
        if any(b"\n" in piece for piece in likely) or not ends.isdisjoint(ids):
            return b""
        if all(map(is_written, likely)):
            return pieces[int(row.argmax())].strip()
        if len(likely) > 1 or not likely[0]:
            return b""
    return b""


def is_written(piece: bytes) -> bool:
    """Return True if engines show something of the piece. They may remove spaces, and hold back
    partial characters."""
    return any(each.isprintable() and not each.isspace() for each in piece.decode(errors="ignore"))
