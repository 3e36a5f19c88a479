"""The child process of a program under test, and the pipes to it."""

import json
import os
import re
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from lockstep.harness.processes.engine_process import EngineProcess, keep_tail
from lockstep.harness.processes.kept_process import KeptProcess
from lockstep.harness.processes.variables import NO_BACKTRACE
from lockstep.harness.processes.wire import Closed, WireError
from lockstep.harness.protocol.frames import PIECE, Message, NoJson, Pipe, head_of, wait_for
from lockstep.harness.protocol.messages import printable

DESCRIPTOR = "LOCKSTEP_ANSWERS"  # variable with a descriptor for answers, see PROTOCOL.md
SHOWN = 60  # characters of a line that is no answer
ENDINGS = ("answer", "refused", "unsupported", "failed")
MOST_STARTS = 8  # positions in a line at which a message is sought
# a message begins with its number or its ending; Python prints a dict with single quotes
MEANT = re.compile(rf"""\{{\s*["'](?:id["']\s*:\s*\d|(?:{"|".join(ENDINGS)})["'])""".encode())


def is_message(line: bytes) -> bool:
    """Return True for an object of the protocol; False for an object of a JSON log."""
    with suppress(WireError):
        head = head_of(line)
        return not head or type(head.get("id")) is int or any(key in head for key in ENDINGS)
    return False


def words_for_banner(who: str, printed: str) -> str:
    """Return a sentence on the engine's output before its first message, with advice."""
    return (
        f"{who} printed {printed} on standard output before its first message. Lockstep "
        f"skips this text. Write answers to the descriptor in {DESCRIPTOR}, or print on "
        "standard error"
    )


class EngineProgram(EngineProcess):
    """The child process, and the pipes to it."""

    def __init__(self, command: Sequence[str], memory_limit: int | None) -> None:
        from_engine, answers = os.pipe()
        try:
            process = KeptProcess(
                command,
                memory_limit,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(answers,),
                env={**NO_BACKTRACE, **os.environ, DESCRIPTOR: str(answers)},
            )
        except BaseException:
            os.close(from_engine)
            raise
        finally:
            os.close(answers)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.output, self.answers = process.stdout, os.fdopen(from_engine, "rb", 0)
        self.pipe: Pipe | None = None  # None before the first answer
        super().__init__(process, process.stderr, process.stdin, self.output, self.answers)
        self.asked = 0
        self.announced: int | None = None  # bytes of arrays that the last answer announced
        # number of lines before the first message, and the last of them
        self.n_printed, self.printed = 0, ""

    def strange(self) -> str:
        """Describe the text that the program wrote instead of a message; "" if it wrote nothing."""
        if not self.printed:
            return ""
        text = f"the engine wrote {self.printed[:SHOWN]!r}, expected a line of JSON"
        return f"{text} (lockstep protocol prints the format)"

    def exchange(self, message: Message, deadline: float) -> Message:
        """Send a question, and return its answer. Raises WireError, Closed or TimeoutError."""
        self.asked += 1
        numbered = Message(head={"id": self.asked, **message.head}, arrays=message.arrays)
        pipe = self.pipe or self.pipe_of(self.output.fileno())
        pipe.send(numbered, deadline)
        try:
            answer = self.pipe.receive(deadline) if self.pipe else self.first(deadline)
        except NoJson as error:
            raise WireError(f"{error}{self.left_over()}{self.who_else()}") from error
        self.announced = sum(array.nbytes for array in answer.arrays.values())
        head = answer.head
        if type(head.get("id")) is not int or head["id"] != self.asked:
            twice = "; did the engine answer the previous question twice?"
            raise WireError(
                f'expected "id":{self.asked}, got {head.get("id")!r:.60}, as answer to '
                f"{message.head['ask']}: {json.dumps(head)[:SHOWN]}"
                + (twice if head.get("id") == self.asked - 1 else "")
            )
        if sum(key in head for key in ENDINGS) != 1:
            raise WireError(f"expected one of {', '.join(ENDINGS)}, got {list(head)!r:.200}")
        return answer

    def left_over(self) -> str:
        """Return a note that the unreadable line may be the end of the previous answer's arrays; ""
        if this is impossible."""
        if self.announced is None:
            return ""
        return f"; did the previous answer send more than its {self.announced} bytes of arrays?"

    def who_else(self) -> str:
        """Return a note that a library may have printed the text, if answers go to standard output;
        else ""."""
        if self.pipe is None or self.pipe.from_engine != self.output.fileno():
            return ""
        return (
            f"; did a library print this? Write answers to the descriptor in {DESCRIPTOR} instead"
        )

    def first(self, deadline: float) -> Message:
        """Return the first message, which comes from the dedicated descriptor or from standard
        output. On standard output, a banner or a library's log may precede the message."""
        offered, output = (self.pipe_of(end.fileno()) for end in (self.answers, self.output))
        waiting = {pipe.from_engine: pipe for pipe in (offered, output)}
        while waiting:
            for descriptor in wait_for(deadline, reads=tuple(waiting)):
                pipe = waiting[descriptor]
                try:
                    pipe.ahead += pipe.read(PIECE, deadline)
                except Closed:
                    del waiting[descriptor]
                    continue
                while (line := pipe.whole_line()) is not None:
                    if pipe is output and (line := self.message_in(line)) == b"":
                        continue
                    self.pipe = pipe
                    if pipe is offered:
                        self.log_output()
                    return pipe.message(line, deadline)
        raise Closed("the engine closed its output")

    def message_in(self, line: bytes) -> bytes:
        """Return the message at the end of a line of standard output. Return a malformed message
        too, so that it is reported at once. Text before the message goes into the log."""
        inside = (found.start() for found in islice(MEANT.finditer(line), MOST_STARTS))
        at = next((at for at in (0, *inside) if is_message(line[at:])), len(line))
        at = 0 if MEANT.match(line) else at
        if text := printable(line[:at].decode(errors="replace")):
            self.n_printed += 1
            self.printed = text
            self.tail.append(text)
        return line[at:]

    def banner(self) -> str:
        """Return the text that preceded the first message; "" if there was none."""
        if not self.n_printed:
            return ""
        more = f", the last of {self.n_printed} lines" if self.n_printed > 1 else ""
        return f"{self.printed[:SHOWN]!r}{more}"

    def log_output(self) -> None:
        """Read standard output to its end, as a second log."""
        os.set_blocking(self.output.fileno(), True)
        output = os.fdopen(os.dup(self.output.fileno()), "rb")
        threading.Thread(target=keep_tail, args=(output, self.tail), daemon=True).start()

    def pipe_of(self, from_engine: int) -> Pipe:
        assert isinstance(self.process, subprocess.Popen)
        assert self.process.stdin
        return Pipe(self.process.stdin.fileno(), from_engine)
