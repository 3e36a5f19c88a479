"""Quick commands that show text and ids from any engine, without a comparison."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lockstep.engine.batch import Batch
from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.tokenizers.base import Tokenizer, tokenizer_of
from lockstep.harness.asking.facts import ModelFacts, facts_of_model, vocabulary_of
from lockstep.harness.check.check import REFERENCE, REPLAY, BadInput
from lockstep.harness.check.inputs import check_file
from lockstep.harness.context.runner import Runner, Session
from lockstep.harness.context.suite import no_answer
from lockstep.harness.context.ties import LOOKED_AT, close_choices
from lockstep.harness.records import (
    PRESETS,
    Answered,
    Outcome,
    Rejected,
    Request,
    Settings,
    Unanswerable,
)

USUAL, ELSE = "fast", "llama.cpp"  # engines for models with and without a graph of ours
NO_VOCABULARY = "the file has no vocabulary (tokenizer.ggml.model), so it has no text"


def answer(session: Session, question: str, *args: Any, **kwargs: Any) -> Any:
    """Return the value of an answer. Raises BadInput, with the reason, if there is no answer."""
    return value_of(session, question, session.ask(question, *args, **kwargs))


def value_of(session: Session, question: str, outcome: Outcome) -> Any:
    if isinstance(outcome, Answered):
        return outcome.value
    if isinstance(outcome, Rejected | Unanswerable):
        raise BadInput(f"{session.model}: {session.name}: {outcome.message}")
    raise BadInput(no_answer(session.name, question, outcome).summary)


def open_session(path: Path, engine: str, settings: Settings) -> Session:
    return Runner().open(engine, check_file(path), settings)


def facts_to_run(path: Path) -> ModelFacts:
    """Return the facts of a model. Raises BadInput, with the model's name, if no engine can run
    it."""
    try:
        facts = facts_of_model(check_file(path))
    except EngineError as error:
        raise BadInput(f"{path}: {error}") from error
    if facts.no_run:
        raise BadInput(f"{path}: {facts.no_run}, so there is nothing to run")
    return facts


def who_runs(engine: str | None, facts: ModelFacts) -> tuple[str, str]:
    """Return the engine to use, and the reason if it is not the usual engine ("" if it is)."""
    if not facts.not_ours:
        return engine or USUAL, ""
    if engine is None:
        return ELSE, f"{facts.not_ours}, so {ELSE} runs it"
    if engine == USUAL:
        raise BadInput(f"{USUAL}: {facts.not_ours}; --engine {ELSE} or {REPLAY} runs any")
    if engine == REFERENCE:
        return REPLAY, f"{facts.not_ours}, so {REPLAY} follows llama.cpp's graph"
    return engine, ""


def generate(
    path: Path,
    engine: str | None,
    preset: str,
    prompt: str | Sequence[int],
    n: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Generate text. `prompt` is a text, or ids for a model without a vocabulary."""
    facts = facts_to_run(path)
    name, why = who_runs(engine, facts)
    try:
        return generate_texts(path, facts, (name, why), preset, prompt, n, progress)
    except BadInput as error:
        if not why:
            raise
        raise BadInput(f"{error}; {why}") from error


def generate_texts(
    path: Path,
    facts: ModelFacts,
    runner: tuple[str, str],
    preset: str,
    prompt: str | Sequence[int],
    n: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    name, why = runner
    raw = prompt.encode("utf-8", "surrogateescape") if isinstance(prompt, str) else b""
    if isinstance(prompt, str) and not facts.has_vocabulary:
        raise BadInput(f"{path}: {NO_VOCABULARY}; give its prompt as ids: --ids '[1, 2, 3]'")
    settings = PRESETS[preset]
    # each token has at least one byte, except for BOS and the space before the text
    room = max(len(raw) + 2, len(prompt)) + n
    settings = replace(settings, n_ctx=max(settings.n_ctx, -(-room // 256) * 256))
    with open_session(path, name, settings) as session:
        progress("tokenising")
        by_us: list[str] = []
        ids = ids_in(session, path, raw, by_us) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise BadInput("the prompt is empty and the model adds no BOS: give a prompt")
        progress(f"generating {n} tokens")
        new = tokens_behind(session, ids, n, by_us)
        text = None
        if facts.has_vocabulary:
            text = text_of(session, path, ids + new, by_us)
        progress("looking for ties")
        ties = close_choices(session, ids, new, facts.decoder_start)
    return {
        "engine": name,
        "why": "; ".join([*filter(None, [why]), *by_us]),
        "settings": preset,
        "prompt_ids": ids,
        "ids": new,
        "text": text,
        "ties": None if ties is None else [asdict(tie) for tie in ties],
        "ties_looked_for_in": 0 if ties is None else min(len(new), LOOKED_AT),
    }


def ids_in(session: Session, path: Path, text: bytes, by_us: list[str]) -> list[int]:
    """Return the ids of a text. `by_us` gets a sentence if the engine has no tokenizer and our own
    tokenizer is used."""
    said = session.ask("tokenize", [text])
    if isinstance(said, Unanswerable) and (ours := tokenizer_in(path)):
        by_us.append(f"{session.name} offers no tokenizer, so our tokenizer made the prompt's ids")
        return ours.encode(text, add_special=True, parse_special=False)
    found: list[int] = value_of(session, "tokenize", said)[0]
    return found


def tokens_behind(session: Session, ids: list[int], n: int, by_us: list[str]) -> list[int]:
    """Return n greedy tokens. An engine that shows only logits must process the whole prefix again
    for each token, so n tokens take as long as n prompts. For such an engine, `by_us` gets a
    sentence."""
    said = session.ask("greedy", ids, n)
    if not isinstance(said, Unanswerable):
        found: list[int] = value_of(session, "greedy", said)
        return found
    every = list(ids)
    for _ in range(n):
        batch = Batch.of(every)
        batch.outputs[:-1] = False
        run = session.ask("evaluate", Request(batches=(batch,)))
        if isinstance(run, Unanswerable):
            value_of(session, "greedy", said)  # raises, because the engine offers neither
        every.append(int(value_of(session, "evaluate", run).logits[0][-1].argmax()))
    by_us.append(f"{session.name} does not choose tokens, so the largest logit decides")
    return every[len(ids) :]


def text_of(session: Session, path: Path, ids: list[int], by_us: list[str]) -> str | None:
    flags = {"remove_special": True, "unparse_special": False}
    said = session.ask("detokenize", [ids], **flags)
    if not isinstance(said, Unanswerable):
        raw: bytes = value_of(session, "detokenize", said)[0]
    elif ours := tokenizer_in(path):
        by_us.append(f"{session.name} shows ids, and our tokenizer made the text")
        raw = ours.decode(ids, **flags)
    else:
        return None
    return raw.decode("utf-8", "replace")


def tokenizer_in(path: Path) -> Tokenizer | None:
    """Return our tokenizer; None for a vocabulary that it does not support."""
    try:
        with GgufFile.open(path) as file:
            return tokenizer_of(file.metadata)
    except EngineError:
        return None


def check_vocabulary(path: Path) -> None:
    """Raise BadInput for a file without a vocabulary. Accept a file that our reader refuses,
    because the engine may be able to read it."""
    try:
        with GgufFile.open(check_file(path)) as file:
            if not vocabulary_of(file):
                raise BadInput(f"{path}: {NO_VOCABULARY}")
    except EngineError:
        return


def encode_texts(
    path: Path, engine: str, inputs: Sequence[bytes], special: bool, parse_special: bool
) -> Iterator[str]:
    check_vocabulary(path)
    with open_session(path, engine, PRESETS["exact"]) as session:
        flags = {"add_special": special, "parse_special": parse_special}
        for ids in answer(session, "tokenize", inputs, **flags):
            yield json.dumps(ids)


def decode_ids(
    path: Path, engine: str, inputs: Sequence[bytes], special: bool, parse_special: bool
) -> Iterator[str]:
    """Decode JSON lists of ids. Bytes that are not UTF-8 are written as \\xNN."""
    rows = [ids_of(raw) for raw in inputs]
    check_vocabulary(path)
    with open_session(path, engine, PRESETS["exact"]) as session:
        flags = {"remove_special": special, "unparse_special": parse_special}
        for text in answer(session, "detokenize", rows, **flags):
            yield text.decode("utf-8", "backslashreplace")


def ids_of(raw: bytes) -> list[int]:
    try:
        ids = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not a JSON list of ids: {raw[:60]!r} ({error})") from error
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise BadInput(f"not a JSON list of ids: {raw[:60]!r}")
    return ids
