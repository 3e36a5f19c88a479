"""What an engine does to a prompt before it reads it: clauses for a text that is wrong."""

from lockstep.engine.errors import EngineError
from lockstep.engine.tokenizers.base import Tokenizer
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.suites.parts.prompts import FOREIGN, N_OTHERS, SPACED


def cut_off(context: Context) -> str:
    """A clause where the text is that behind the prompt without its spaces."""
    n = min(N_OTHERS, context.n_steps)
    texts = {}
    for name, prompt in {
        "": SPACED,
        "around it": SPACED.strip(),
        "at its end": SPACED.rstrip(),
    }.items():
        try:
            texts[name] = context.ask(context.subject, "generate", prompt, n)
        except NoAnswer:
            return ""
    whole = texts.pop("")
    where = next((name for name, text in texts.items() if text == whole), None)
    return f"; it is the same without the spaces {where}: are they cut off?" if where else ""


def keeps_characters(tokenizer: Tokenizer) -> bool:
    """Whether the vocabulary has tokens for all of FOREIGN: what is done without is a choice."""
    try:
        return FOREIGN in tokenizer.decode(tokenizer.encode(FOREIGN))
    except EngineError:  # there are texts that end llama.cpp's process
        return False


def read_otherwise(context: Context) -> str:
    """Asked last of the fixed ones: where it is wrong those before it were right."""
    return (
        "; behind prompts of ASCII alone it is right, so look at how other characters are read: as "
        "Latin-1, in halves of UTF-16, or without \\u escapes of two halves"
    )
