"""What this process owes its standard streams: closed ones, full ones, readers that went away or are slow."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO, TypeGuard, TypeVar

    Code = TypeVar("Code", bound=str | int | None)


def ensure_open() -> None:
    """Put something in the place of a standard stream that the caller closed.

    Else the next file or pipe that is opened takes its number, and progress or a child's output goes into it; and Python's
    print(file=None) would put progress into the report.  A closed stdout stays one that cannot be written.
    """
    import os

    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if (stream := getattr(sys, name)) is not None:
            if (number == 2 and stream is sys.__stderr__) or (number and _not_waiting(number)):
                setattr(sys, name, _patient(number, stream))
        else:
            os.dup2(opened := os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_WRONLY), number)
            if opened != number:
                os.close(opened)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


# What a font of Latin letters alone has in the place of these; ours, in the order of how often they are used.
_PLAIN: Final = {"…": "...", "–": "-", "—": "-", "×": "x", "→": "->", "←": "<-", "µ": "u", "σ": "sigma", "≥": ">=", "≤": "<="}


def plain_signs() -> None:
    """A locale without UTF-8 must not end a report in a traceback: our signs in letters that it has, others' as escapes."""
    import codecs

    def instead(error: UnicodeError) -> tuple[str | bytes, int]:
        if isinstance(error, UnicodeEncodeError) and (sign := _PLAIN.get(error.object[error.start])):
            return sign, error.start + 1
        return codecs.backslashreplace_errors(error)

    codecs.register_error("netdoctor.plain_signs", instead)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="netdoctor.plain_signs")


def readable(fd: int, seconds: float) -> bool:
    """Whether something, or the end, can be read within that time.  By poll(2): select(2) takes no descriptor from 1024 on."""
    import select

    asked = select.poll()
    asked.register(fd, select.POLLIN)
    return bool(asked.poll(max(0.0, seconds) * 1000))


def _not_waiting(number: int) -> bool:
    import os

    try:
        return not os.get_blocking(number)
    except OSError:
        return False


def _patient(number: int, like: TextIO) -> TextIO:
    """A stream that waits for its reader though whoever shares it set O_NONBLOCK (ssh, node, an event loop's socket): the flag
    is theirs too, so it stays.

    What stderr does not take (a log on a full disk) is lost, and no more than that: neither the look nor the job ends by it.
    """
    import io
    import select

    class Patient(io.FileIO):
        def write(self, data: Any) -> int:
            try:
                while (written := super().write(data)) is None:
                    waiting = select.poll()
                    waiting.register(self, select.POLLOUT)
                    waiting.poll()
            except OSError as error:
                if number != 2 or not is_write_error(error) or isinstance(error, BrokenPipeError):
                    raise
                return len(data)
            return written

    raw = io.BufferedWriter(Patient(number, "w", closefd=False))
    return io.TextIOWrapper(raw, like.encoding, like.errors, line_buffering=number == 2 or like.isatty())


def short(error: BaseException) -> str | None:
    """What this process had too little of, where it failed of that: no defect, and nothing about the node."""
    import errno

    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "netdoctor had too little memory (ulimit -v, memory.max of the cgroup)"
    if number in (errno.EMFILE, errno.ENFILE):
        return "netdoctor had too few descriptors (ulimit -n)"
    if number == errno.EAGAIN or (isinstance(error, RuntimeError) and "start new thread" in str(error)):
        return "netdoctor had too few processes (ulimit -u, pids.max of the cgroup)"
    return None


def defect(error: Exception) -> int:
    """One line about an exception that nobody foresaw; the exit code."""
    import os

    if why := short(error):
        print(f"netdoctor: inconclusive: {why}", file=sys.stderr)
        return 4
    if os.environ.get("NETDOCTOR_DEBUG"):
        raise error
    from netdoctor.process.imported import hidden_by

    if hides := hidden_by(error):
        print(f"netdoctor: {hides}", file=sys.stderr)
        return 2
    print(f"netdoctor: a defect of netdoctor: {type(error).__name__}: {error}", file=sys.stderr)
    print("netdoctor: set NETDOCTOR_DEBUG=1 for the traceback, and please report it", file=sys.stderr)
    return 1


def broken(error: Exception, styled: Callable[[int], int]) -> int:
    """The exit code of a command that ended in an exception."""
    return report_write_error(error, 0) if is_write_error(error) else styled(defect(error))


def ended(work: Callable[[], int], styled: Callable[[int], int]) -> int:
    """The exit code of `work`, whose output got out."""
    try:
        code = work()
    except Exception as error:  # noqa: BLE001 - as at the end of the console script
        code = broken(error, styled)
    gone = lost()
    return report_write_error(gone, code) if gone else code


def is_write_error(error: Exception) -> TypeGuard[OSError]:
    """A write to a stream failed: without a file's name."""
    import errno

    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)
    return isinstance(error, OSError) and error.filename is None and error.errno in full


def lost() -> OSError | None:
    """Why stdout takes nothing more; it is then /dev/null, so that Python's own end does not fail again (exit 120)."""
    import os

    try:
        sys.stdout.flush()
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return error
    return None


def report_write_error(error: OSError, code: Code) -> Code | int:
    """The exit code where the output did not get out: 141 as a shell's where the reader went away, else 1; worse news stay."""
    if isinstance(error, BrokenPipeError):
        return 141
    if code == 0 or code is None:
        print(f"netdoctor: the output could not be printed: {error.strerror}", file=sys.stderr)
        return 1
    return code
