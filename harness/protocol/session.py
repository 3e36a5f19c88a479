"""A program under test, started with a command and asked through the protocol. Its answers are
untrusted."""

import json
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.engine.errors import Unsupported
from lockstep.harness.answers import MalformedAnswer
from lockstep.harness.asking.put_in import comes_to_the_same
from lockstep.harness.asking.session import Session, in_words
from lockstep.harness.foreign import building
from lockstep.harness.processes.engine_process import of_memory
from lockstep.harness.processes.spare import SPARE
from lockstep.harness.processes.wire import Closed, WireError
from lockstep.harness.protocol.frames import Message
from lockstep.harness.protocol.messages import (
    QUESTIONS,
    Introduction,
    Question,
    introduction,
    printable,
    question_of,
    start,
)
from lockstep.harness.protocol.program import ENDINGS, EngineProgram
from lockstep.harness.records import (
    Answered,
    Crashed,
    Malformed,
    Outcome,
    Rejected,
    Request,
    Settings,
    TimedOut,
    Unanswerable,
)

START_SECONDS = 300.0  # for loading a model; this time does not count for the first question
# questions outside the protocol, with a description instead of their name
UNASKED = {
    "parse": "to parse many files at once",
    "schedule": "operations on its cache",
    "restore": "to read state files of llama.cpp",
}


def command_of(engine: str) -> list[str] | None:
    """Return the words of a command; None if the engine is not a command. A command is a path, a
    program with arguments, or an engine of harness.foreign.

    Raises Unsupported if there is no such program. No shell interprets the command.
    """
    if command := building.command_of(engine):
        return command
    if is_file_with_spaces(engine):
        return [engine]
    try:
        words = shlex.split(engine)
    except ValueError as error:
        if "/" not in engine.split(" ")[0]:
            return None
        raise Unsupported(f"{engine!r} is not a command: {error}") from error
    if not words or not ("/" in words[0] or (len(words) > 1 and shutil.which(words[0]))):
        return None
    return found_command(words)


def is_file_with_spaces(engine: str) -> bool:
    """Return True if the text is a program's path with spaces, whose quotes the user's shell has
    removed.

    If the first word alone names a program, return False, because the other words are its
    arguments.
    """
    first = engine.split(" ")[0]
    return (
        first != engine and "/" in engine and not shutil.which(first) and bool(shutil.which(engine))
    )


def found_command(words: Sequence[str]) -> list[str]:
    """Return the words unchanged if the first is a program. Raises Unsupported if it is not."""
    if shutil.which(words[0]) is None:
        found = "it cannot be executed (chmod +x?)" if Path(words[0]).exists() else "no such file"
        raise Unsupported(f"{words[0]} cannot be started: {found}")
    return list(words)


def name_of(command: Sequence[str]) -> str:
    """Return a short name for reports. If an interpreter runs a script, the name is the
    script's."""
    files = [word for word in command[1:] if Path(word).is_file()]
    return Path((files or command)[0]).name


class NotStarted(Exception):
    """Error: at its start, the engine sent an error message instead of its introduction."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class ProgramSession(Session):
    """A session with a program, which starts at the first question and restarts after its death."""

    def __init__(
        self,
        command: Sequence[str],
        model: Path | None,
        settings: Settings,
        *,
        time_limit: float,
        memory_limit: int | None,
        start_limit: float = START_SECONDS,
        name: str = "",
    ) -> None:
        self.name, self.command = name or name_of(command), tuple(command)
        self.model, self.settings = model, settings
        self.time_limit, self.start_limit = time_limit, start_limit
        self.memory_limit = memory_limit
        self.program: EngineProgram | None = None
        self.said: Introduction | None = None
        self.heeds = False  # True: the engine was seen to continue with values that were put in

    @property
    def pid(self) -> int | None:
        return self.program.process.pid if self.program else None

    def another(self) -> "ProgramSession":
        return ProgramSession(
            self.command,
            self.model,
            self.settings,
            time_limit=self.time_limit,
            memory_limit=self.memory_limit,
            start_limit=self.start_limit,
            name=self.name,
        )

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        limit = self.start_limit
        try:
            program = self.start_program(time.monotonic() + limit)
            assert self.said is not None
            if question == "describe":
                return Answered(value=self.said.info, seconds=0.0)
            if lacking := self.lacks(question, args):
                text = f"{self.name} does not offer {lacking}"
                return Unanswerable(message=text, declared=True)
            limit = self.time_limit
            asked = question_of(question, args, self.said.can)
            outcome = self.exchange(program, asked, args, kwargs, limit)
            if question == "evaluate" and self.ignores(program, args[0], outcome, limit):
                text = f"{self.name} offers replace, but ignores the values that are put in"
                return Unanswerable(message=text, declared=True)
            return outcome
        except TimeoutError:
            note = self.program.strange() if self.program and not self.said else ""
            return TimedOut(seconds=limit, log=self.end(), note=note)
        except Closed:
            death = self.program.death() if self.program else "did not start"
            signal = self.program.signal if self.program else ""
            at = in_words(question) if self.said else "start"
            message, log = f"{self.name} {death} during {at}", self.end()
            message += of_memory(log, self.memory_limit)
            return Crashed(message=message, log=log, signal=signal)
        except NotStarted as error:
            self.end()
            return error.outcome
        except (WireError, MalformedAnswer) as error:
            self.end()
            return Malformed(message=printable(str(error)))
        except BaseException:
            self.end()  # otherwise its answer would be taken for the answer to the next question
            raise

    def lacks(self, question: str, args: tuple[Any, ...]) -> str:
        """Return the level that the question needs but the engine does not offer; "" if the engine
        can be asked."""
        assert self.said is not None
        if question not in QUESTIONS:
            return f"{UNASKED.get(question, question)}, for which the protocol has no question"
        needed = [question_of(question, args, self.said.can).level]
        if question == "evaluate":
            request: Request = args[0]
            needed += ["trace"] if request.capture else []
            needed += ["replace"] if request.replace else []
        return next((level for level in needed if level not in self.said.can), "")

    def ignores(
        self, program: EngineProgram, request: Request, found: Outcome, limit: float
    ) -> bool:
        """Return True if the engine's answer ignores the replaced values. Without this test, a
        suite would accuse a correct engine. For comparison, the same question is asked without
        replacement, until an answer shows that the engine uses replaced values."""
        assert self.said is not None
        if self.heeds or not (request.replace and isinstance(found, Answered)):
            return False
        alone = replace(request, replace={})
        asked = question_of("evaluate", (alone,), self.said.can)
        own = self.exchange(program, asked, (alone,), {}, limit)
        if not isinstance(own, Answered):
            return False
        self.heeds = not comes_to_the_same(request, found.value, own.value)
        return not self.heeds

    def exchange(
        self,
        program: EngineProgram,
        question: Question,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        limit: float,
    ) -> Outcome:
        started = time.perf_counter()
        answer = program.exchange(question.send(*args, **kwargs), time.monotonic() + limit)
        seconds = time.perf_counter() - started
        if outcome := self.no_answer(answer):
            return outcome
        return Answered(value=read(question, answer), seconds=seconds)

    def no_answer(self, answer: Message) -> Outcome | None:
        """Return the outcome if the engine refused or failed, with its own message; None if it
        answered."""
        (ending,) = (key for key in ENDINGS if key in answer.head)
        if ending == "answer":
            return None
        said = answer.head[ending]
        if type(said) is not str:
            raise MalformedAnswer(f'"{ending}"', "a sentence", said)
        words = printable(said)
        if ending == "refused":
            return Rejected(message=words)
        if ending == "unsupported":
            return Unanswerable(message=words)
        assert self.program is not None
        return Crashed(message=words, log=tuple(self.program.tail), said=True)

    def start_program(self, deadline: float) -> EngineProgram:
        if self.program is None:
            begin = partial(EngineProgram, self.command, self.memory_limit)
            self.program = SPARE.take((self.command, self.memory_limit), begin)
            model = None if self.model is None else str(self.model.resolve())
            answer = self.program.exchange(start(model, self.settings), deadline)
            if outcome := self.no_answer(answer):
                raise NotStarted(outcome)
            said = introduction(self.name, self.settings, answer)
            if lacking := sorted({each.kind for each in self.settings.adapters} - said.can):
                text = f"{self.name} does not offer {lacking[0]}"
                raise NotStarted(Unanswerable(message=text, declared=True))
            info = replace(said.info, printed=self.program.banner())
            self.said = replace(said, info=info)
            SPARE.start_next(begin)
        return self.program

    def end(self) -> tuple[str, ...]:
        """Kill the program, and return the last lines of its output."""
        program, self.program = self.program, None
        return program.kill() if program else ()

    def close(self) -> None:
        if self.program is not None:
            self.program.dismiss()
            self.program = None


UNFIT = (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError)


def read(question: Question, answer: Message) -> Any:
    where, said = f'"answer" to {question.level}', answer.head["answer"]
    if type(said) is not dict:
        raise MalformedAnswer(where, "an object", said)
    try:
        return question.read(answer)
    except UNFIT as error:
        missing = f"no {error}" if isinstance(error, KeyError) else json.dumps(said)
        raise MalformedAnswer(where, "what PROTOCOL.md says", missing) from error
