"""Runs helper programs (`netdoctor/host/helpers/NAME.py`) in children: concurrently, and never for longer than allowed.

No threads: the caller of `HelperPool.answer` turns the event loop.  A child has its own session, dies with us, is ended with
TERM and then KILL, and a child that does not even die of KILL (stuck in a driver) is left behind and named in the answer.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final, NoReturn

from netdoctor.host.base import Answer, split_question
from netdoctor.host.programs import Withheld, environment, program
from netdoctor.model import Kind, Unavailable, unavailable_in
from netdoctor.process import proc
from netdoctor.textsafe import line

AT_ONCE: Final = 5  # children alive at the same time; more gain nothing on a busy node
MAX_ANSWER: Final = 4 << 20  # bytes
DEADLINE: Final = 5.0  # seconds a helper may take
# nvmlInit and cuInit bring up every GPU, which takes seconds per node without persistence mode
# (https://docs.nvidia.com/deploy/driver-persistence/).
DEADLINES: Final[Mapping[str, float]] = {
    "nvml": 10.0,
    "cuda": 12.0,
    "ibverbs": 8.0,
    "nccl": 8.0,
    "elf": 10.0,
    "gpu_load": 630.0,
    "net_errors": 630.0,
    "imex": 12.0,
    "shm": 20.0,  # the kernel hands out 3 GB/s and more, and job.shm_bytes may be tens
}
ON_REQUEST: Final = "dcgm_diag"  # has the seconds of its question and 30 to end what it began; no patience is taken for it
PATIENCE: Final = 40.0  # seconds that all answers together may keep the caller waiting
GRACE: Final = 0.3  # seconds between TERM and KILL, and after an answer until KILL
LEAVE: Final = 1.0  # seconds after KILL until a child is left behind
TAIL: Final = 4096  # bytes kept of what a library prints


class _Stage(Enum):
    """How near its end a child is."""

    RUNNING = auto()
    LEAVING = auto()  # its answer is whole, or it closed the descriptor
    TERMED = auto()
    KILLED = auto()


class _Child:
    """One helper that runs, or is on its way out."""

    def __init__(self, question: str, pid: int, answer_fd: int, print_fd: int, deadline: float) -> None:
        self.question = question
        self.pid = pid
        self.fds = {answer_fd: bytearray(), print_fd: bytearray()}
        self.answer_fd = answer_fd
        self.print_fd = print_fd
        self.deadline = deadline  # of the present stage
        self.stage = _Stage.RUNNING
        self.verdict: Answer | None = None  # why it was ended, or its answer
        try:
            self.exit_fd = os.pidfd_open(pid)  # readable once it has ended
        except OSError:  # before Linux 5.3, or forbidden by a seccomp profile: its closed descriptor tells as well
            self.exit_fd = -1

    @property
    def answer(self) -> bytearray:
        return self.fds[self.answer_fd]


class HelperPool:
    """Answers ``ask:`` questions; see the module."""

    def __init__(
        self,
        at_once: int = AT_ONCE,
        patience: float = PATIENCE,
        deadlines: Mapping[str, float] = DEADLINES,
        *,
        trust: bool = False,
    ) -> None:
        """`trust`: what the environment names runs in the next second anyway, as this user: nothing of it is withheld."""
        self._at_once = at_once
        self._trust = trust
        self._patience = patience
        self._deadlines = deadlines
        self._queue: deque[str] = deque()
        self._children: dict[str, _Child] = {}
        self._answers: dict[str, Answer] = {}
        self._variables: dict[str, str] | None = None
        self._withheld: list[Withheld] = []
        self._closed = False

    def start(self, questions: Iterable[str]) -> None:
        """Begin answering `questions`; at most `at_once` children at a time, the rest in this order."""
        for question in questions:
            if question not in self._answers and question not in self._children and question not in self._queue:
                self._queue.append(question)
        self._fill()

    def answer(self, question: str) -> Answer:
        """The answer to `question`, begun earlier or now; waits, within its deadline and the common patience."""
        began, patience = time.monotonic(), self._patience
        if asked := split_question(question)[0] == ON_REQUEST:
            patience = self._limit(question) + LEAVE
        if question not in self._answers and question not in self._children:
            if question in self._queue:
                self._queue.remove(question)
            self._queue.appendleft(question)
        try:
            while question not in self._answers:
                self._step(began + patience)
                if question not in self._answers and time.monotonic() - began >= patience:
                    self._give_up(question)
        finally:
            self._patience -= 0 if asked else time.monotonic() - began
        return self._answers[question]

    def finish(self, question: str) -> None:
        """Tell a helper that looks on until it is told to end (`gpu_load`, `net_errors`) that now is the time."""
        if question in self._queue:
            self._queue.remove(question)
            self._answers[question] = Unavailable(Kind.NOT_READ, "its helper program did not come to begin")
        if child := self._children.get(question):
            child.deadline = time.monotonic() + DEADLINE
            try:
                os.kill(child.pid, signal.SIGUSR1)
            except OSError:  # it has ended, and is reaped in its time
                pass

    def close(self) -> None:
        """End every child; bounded by `GRACE` + `LEAVE` seconds."""
        self._closed = True
        self._queue.clear()
        for child in self._children.values():
            self._end(child, Unavailable(Kind.NO_BUDGET, "ended early"), signal.SIGKILL)
        while self._children:
            self._step(time.monotonic() + LEAVE)

    # The event loop.

    def _fill(self) -> None:
        while self._queue and len(self._children) < self._at_once and not self._closed:
            self._spawn(self._queue.popleft())

    def _give_up(self, question: str) -> None:
        text = "netdoctor waited long enough for its helper programs"
        if child := self._children.get(question):
            self._end(child, Unavailable(Kind.NO_BUDGET, text), signal.SIGKILL)
        if question in self._queue:
            self._queue.remove(question)
        self._answers[question] = Unavailable(Kind.NO_BUDGET, text)

    def _step(self, until: float) -> None:
        """Wait for one event: output, an exit or a deadline; at `until` at the latest (time.monotonic)."""
        self._fill()
        now = time.monotonic()
        poll = select.poll()
        owner: dict[int, _Child] = {}
        for child in self._children.values():
            for fd in (*child.fds, child.exit_fd):
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
                    owner[fd] = child
        wait = min((c.deadline - now for c in self._children.values()), default=0.0)
        wait = min(wait, until - now)
        if any(c.stage is not _Stage.RUNNING and c.exit_fd < 0 for c in self._children.values()):
            wait = min(wait, 0.002)  # the exit follows the closed descriptor at once
        ready = [fd for fd, _ in poll.poll(max(0, wait) * 1000)]
        ended = {owner[fd].question for fd in ready if fd == owner[fd].exit_fd}
        for fd in ready:
            if fd != owner[fd].exit_fd and fd in owner[fd].fds:
                self._receive(owner[fd], fd)
        for child in list(self._children.values()):
            if child.question in ended:
                self._drain(child)
            if child.question in ended or child.stage is not _Stage.RUNNING:
                self._reap(child)
            if child.question in self._children and time.monotonic() >= child.deadline:
                self._overdue(child)
        self._fill()

    def _receive(self, child: _Child, fd: int) -> None:
        try:
            data = os.read(fd, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        kept = child.fds[fd]
        kept += data
        if fd == child.print_fd:
            del kept[:-TAIL]
        elif len(kept) > MAX_ANSWER:
            self._end(child, Unavailable(Kind.MALFORMED, f"the answer is larger than {MAX_ANSWER >> 20} MiB"), signal.SIGKILL)
            return
        if data:
            child.deadline = max(child.deadline, time.monotonic() + 0.2)  # it speaks: let it finish the sentence
            return
        os.close(fd)
        if fd == child.answer_fd:
            child.fds[-1] = child.fds.pop(fd)
            child.answer_fd = -1
            if child.stage is _Stage.RUNNING:
                child.stage, child.deadline = _Stage.LEAVING, time.monotonic() + GRACE
                if (reply := _decoded(kept)) is not None:
                    self._say(child, reply)
        else:
            child.fds[-2] = child.fds.pop(fd)
            child.print_fd = -2

    def _drain(self, child: _Child) -> None:
        """Read what an ended child has written; something that it started may still hold the descriptors open."""
        for fd in [fd for fd in child.fds if fd >= 0]:
            ready = select.poll()
            ready.register(fd, select.POLLIN)
            while fd in child.fds and child.stage is not _Stage.KILLED and ready.poll(0):
                self._receive(child, fd)
        if child.stage is _Stage.RUNNING and (reply := _decoded(child.answer)) is not None:
            self._say(child, reply)

    def _say(self, child: _Child, reply: Answer) -> None:
        name, parameters = split_question(child.question)
        absent = isinstance(reply, Unavailable) and reply.kind == Kind.ABSENT
        # The job may well find it in what root may not load, and what root found instead is not what the job loads.
        if "user" not in parameters and (
            lost := [one.why for one in self._withheld if (absent and one.path) or one.serves(name)]
        ):
            reply = Unavailable(Kind.REFUSED, "; ".join(lost))
        child.verdict = reply
        self._answers.setdefault(child.question, reply)

    def _end(self, child: _Child, why: Unavailable, number: int) -> None:
        child.verdict = child.verdict if child.verdict is not None else why
        child.stage = _Stage.KILLED if number == signal.SIGKILL else _Stage.TERMED
        child.deadline = time.monotonic() + (LEAVE if number == signal.SIGKILL else GRACE)
        try:
            os.killpg(child.pid, number)  # its own session, and not yet reaped: the number is still its own
        except ProcessLookupError:  # it has not come to setsid yet
            os.kill(child.pid, number)
        except OSError:  # not ours any more: it changed its user
            pass

    def _overdue(self, child: _Child) -> None:
        if child.stage is _Stage.RUNNING:
            limit = self._limit(child.question)
            self._end(child, Unavailable(Kind.TIMED_OUT, f"no answer within {limit:g} s"), signal.SIGTERM)
        elif child.stage in (_Stage.LEAVING, _Stage.TERMED):
            self._end(child, Unavailable(Kind.CRASHED, "closed its answer and went on running"), signal.SIGKILL)
        else:
            why = child.verdict if isinstance(child.verdict, Unavailable) else Unavailable(Kind.TIMED_OUT)
            state = proc.state(child.pid) or "unknown"
            detail = f"{why.detail}; PID {child.pid} is stuck in the kernel (state {state}) and was left behind"
            self._answers.setdefault(child.question, Unavailable(why.kind, detail.removeprefix("; ")))
            self._forget(child)

    def _reap(self, child: _Child) -> None:
        """Collect the exit of `child`, if it has ended; what is left of its group goes first."""
        try:
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except OSError:
                pass
            status: int | None = os.waitpid(child.pid, 0)[1]
        except ChildProcessError:  # SIGCHLD is ignored, or somebody else reaped it
            status = None
        self._answers.setdefault(child.question, child.verdict if child.verdict is not None else _post_mortem(child, status))
        self._forget(child)

    def _forget(self, child: _Child) -> None:
        for fd in (*child.fds, child.exit_fd):
            if fd >= 0:
                os.close(fd)
        del self._children[child.question]

    # Starting a child.

    def _spawn(self, question: str) -> None:
        name, parameters = split_question(question)
        user = parameters.pop("user", None)
        text = program(name, parameters, user)
        refused = self._refusal(parameters, user)
        if text is None or refused is not None:
            self._answers[question] = (
                Unavailable(Kind.MALFORMED, f"no such question: {question}") if refused is None else refused
            )
            return
        argv = [sys.executable, "-I", "-S", "-B", "-c", text]
        environment = self._environment(user)
        ends: list[int] = []
        try:
            answer_fd, answer_end = _pipe(ends)
            print_fd, print_end = _pipe(ends)
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))  # see `_become`: from the fork on
            pid = os.fork()  # not posix_spawn, which waits until the child has had its turn on a CPU
            if pid:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR1,))
            for fd in ends:
                os.close(fd)
            self._answers[question] = Unavailable(Kind.FAILED, f"cannot start a child: {error}")
            return
        if pid == 0:
            _become(argv, environment, answer_end, print_end)
        os.close(answer_end)
        os.close(print_end)
        self._children[question] = _Child(question, pid, answer_fd, print_fd, time.monotonic() + self._limit(question))

    def _limit(self, question: str) -> float:
        name, parameters = split_question(question)
        return float(parameters["seconds"]) + 30 if name == ON_REQUEST else self._deadlines.get(name, DEADLINE)

    def _refusal(self, parameters: Mapping[str, str], user: str | None) -> Unavailable | None:
        if user is not None and os.geteuid() != 0:
            return Unavailable(Kind.REFUSED, f"only root can become {user}")
        if user is None and os.geteuid() == 0 and "path" in parameters and not self._trust:
            from netdoctor.host.trust import trusted

            if reason := trusted(parameters["path"]):
                return Unavailable(Kind.REFUSED, f"root does not load {parameters['path']}: {reason}")
        return None

    def _environment(self, user: str | None) -> dict[str, str]:
        if user is not None:
            return environment(user)[0]
        if self._variables is None:
            self._variables, self._withheld = environment(None, withhold_code=not self._trust)
        return self._variables


def _become(argv: list[str], environment: dict[str, str], answer_end: int, print_end: int) -> NoReturn:
    """In the child: stdin from nowhere, what is printed to `print_end`, descriptor 3 for the answer, then the interpreter."""
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):  # an ignored one would stay ignored
            signal.signal(number, signal.SIG_DFL)
        # `finish` may come before the helper is ready for it: it waits for whoever takes it.
        signal.pthread_sigmask(signal.SIG_SETMASK, (signal.SIGUSR1,))
        for source, target in ((print_end, 1), (print_end, 2), (answer_end, 3)):
            os.dup2(source, target)
        try:
            nowhere = os.open("/dev/null", os.O_RDONLY)
        except OSError:  # a container without one: the end of a pipe that nobody writes to reads the same
            nowhere, other = os.pipe()
            os.close(other)
        os.dup2(nowhere, 0)
        os.execve(argv[0], argv, environment)
    except BaseException as error:  # noqa: BLE001 - nothing of the parent's may run here
        os.write(2, f"cannot start {argv[0]}: {error}".encode(errors="replace"))
    finally:
        os._exit(127)


def _pipe(ends: list[int]) -> tuple[int, int]:
    """A pipe whose descriptors are above those that the child uses (0 to 3); both are added to `ends`."""
    pair: list[int] = []
    for fd in os.pipe():
        pair.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10))
        ends.append(pair[-1])
        os.close(fd)
    os.set_blocking(pair[0], False)
    return pair[0], pair[1]


def _decoded(data: bytearray) -> Answer | None:
    """A helper's answer; None where there is no whole JSON value."""
    try:
        got = json.loads(data)
    except (ValueError, RecursionError):  # includes UnicodeDecodeError
        return None
    if (lost := unavailable_in(got)) is not None:
        return Unavailable(lost.kind, line(lost.detail, 300))
    return Unavailable(Kind.MALFORMED, "the answer is null") if got is None else got


def _post_mortem(child: _Child, status: int | None) -> Unavailable:
    lines = bytes(child.fds[child.print_fd]).decode("utf-8", "replace").strip().splitlines()
    said = f": {line(lines[-1], 300)}" if lines else ""
    if status is None:
        return Unavailable(Kind.CRASHED, f"gone, exit status lost{said}")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in signal.valid_signals() and number < signal.SIGRTMIN else str(number)
        return Unavailable(Kind.CRASHED, f"{name}{said}")
    if code := os.WEXITSTATUS(status):
        return Unavailable(Kind.CRASHED, f"exit status {code}{said}")
    return Unavailable(Kind.MALFORMED if child.answer else Kind.CRASHED, f"ended without a whole answer{said}")
