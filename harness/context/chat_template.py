"""The prompt of a chat, which is the model's own chat template with a message in it."""

from lockstep.engine.errors import EngineError
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.processes.chat_template import NoText, render_apart

KEY = "tokenizer.chat_template"


def prompt_ids(context: Context, prompt: bytes) -> list[int]:
    """Return the oracle's token ids of the text that the subject's model reads for this prompt.
    Raises NoAnswer if the subject takes only chats and the model's template gives no text."""
    if not context.subject_info.chat_only:
        return list(context.ask(context.oracle, "tokenize", [prompt])[0])
    text = rendered_prompt(context, prompt)
    return list(context.ask(context.oracle, "tokenize", [text], parse_special=True)[0])


def rendered_prompt(context: Context, message: bytes) -> bytes:
    """Return the text of a chat with this message, without the BOS that the tokenizer adds. Raises
    NoAnswer if the template gives no text."""
    held = context.file.metadata.get(KEY)
    if held is None:
        why = f"{context.subject.name} takes only chats, and the model has no {KEY}"
        raise NoAnswer("not-compared", why, {"key": KEY})
    try:
        vocabulary = context.tokenizer.vocabulary
    except EngineError as error:
        raise NoAnswer("not-compared", f"{KEY}: {error}", {"key": KEY}) from error
    bos, eos = (
        "" if token is None else vocabulary.texts[token].decode("utf-8", "replace")
        for token in (vocabulary.bos, vocabulary.eos)
    )
    try:
        text = render_apart(str(held.data), message.decode("utf-8", "replace"), bos, eos)
    except NoText as error:
        raise NoAnswer(
            "not-compared", f"{KEY} cannot be rendered: {error}", {"key": KEY}
        ) from error
    return (text.removeprefix(bos) if vocabulary.add_bos else text).encode()
