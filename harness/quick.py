"""The quick looks: text and ids from any engine, without a comparison."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.check import BadInput
from harness.inputs import check_file
from harness.records import PRESETS, Answered, Rejected, Settings, Unanswerable
from harness.runner import Runner, Session
from harness.suites.base import no_answer
from harness.ties import LOOKED_AT, close_choices


def answer(session: Session, question: str, *args: Any, **kwargs: Any) -> Any:
    """The value, or one sentence saying why there is none."""
    outcome = session.ask(question, *args, **kwargs)
    if isinstance(outcome, Answered):
        return outcome.value
    if isinstance(outcome, Rejected | Unanswerable):
        raise BadInput(f"{session.name}: {outcome.message}")
    raise BadInput(no_answer(session.name, question, outcome).summary)


def opened(path: Path, engine: str, settings: Settings) -> Session:
    return Runner().open(engine, check_file(path), settings)


def generate(
    path: Path, engine: str, preset: str, prompt: str, n: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    settings = PRESETS[preset]
    raw = prompt.encode("utf-8", "surrogateescape")
    room = len(raw) + 2 + n  # a token is at least a byte, but for BOS and the space before
    settings = replace(settings, n_ctx=max(settings.n_ctx, -(-room // 256) * 256))
    with opened(path, engine, settings) as session:
        progress("tokenising")
        ids = answer(session, "tokenize", [raw])[0]
        if not ids:
            raise BadInput("the prompt is empty and the model adds no BOS: nothing to go on from")
        progress(f"generating {n} tokens")
        new = answer(session, "greedy", ids, n)
        text = answer(
            session, "detokenize", [ids + new], remove_special=True, unparse_special=False
        )[0]
        progress("looking for ties")
        ties = close_choices(session, ids, new)
    return {
        "engine": engine,
        "settings": preset,
        "prompt_ids": ids,
        "ids": new,
        "text": text.decode("utf-8", "replace"),
        "ties": None if ties is None else [asdict(tie) for tie in ties],
        "ties_looked_for_in": 0 if ties is None else min(len(new), LOOKED_AT),
    }


def encode_texts(
    path: Path, engine: str, inputs: Sequence[bytes], special: bool, parse_special: bool
) -> Iterator[str]:
    with opened(path, engine, PRESETS["exact"]) as session:
        flags = {"add_special": special, "parse_special": parse_special}
        for ids in answer(session, "tokenize", inputs, **flags):
            yield json.dumps(ids)


def decode_ids(
    path: Path, engine: str, inputs: Sequence[bytes], special: bool, parse_special: bool
) -> Iterator[str]:
    """The inputs are JSON lists of ids. Bytes that are no UTF-8 come out as \\xNN."""
    rows = [ids_of(raw) for raw in inputs]
    with opened(path, engine, PRESETS["exact"]) as session:
        flags = {"remove_special": special, "unparse_special": parse_special}
        for text in answer(session, "detokenize", rows, **flags):
            yield text.decode("utf-8", "backslashreplace")


def ids_of(raw: bytes) -> list[int]:
    try:
        ids = json.loads(raw)
    except ValueError as error:
        raise BadInput(f"not a JSON list of ids: {raw[:60]!r} ({error})") from error
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise BadInput(f"not a JSON list of ids: {raw[:60]!r}")
    return ids
