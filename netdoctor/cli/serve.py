"""``netdoctor preflight --serve``: the metrics of the last look over HTTP, for Prometheus.  By prometheus-client.

Each look is a process of its own, as `preflight -f prometheus`: what a look does to its process (rights, signals, ranks) ends
with it.  A look that gave no report leaves nothing of the one before: an old verdict is no verdict.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from netdoctor import policy
from netdoctor.cli import deliver
from netdoctor.cli.options import Options
from netdoctor.cli.setup import UsageError
from netdoctor.process import signals
from netdoctor.report import formats
from netdoctor.textsafe import clean

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LIMIT: Final = 3600.0  # seconds for one look: more than any budget that anybody gives
_OWN: Final = ("--serve", "--every")


def serve(options: Options, listen: str | None, every: float | None, *, plan: bool = False) -> int:
    """Look, serve, wait, look again; the exit code where it cannot begin."""
    if listen is None:
        return deliver.refuse("--every: of --serve alone; without it there is one look", options)
    every = 600.0 if every is None else every
    try:
        if plan:
            raise UsageError("a plan has no metrics: without --plan")
        host, port = _address(listen)
        if not 10 <= every <= 86400:
            raise UsageError("--every: seconds, from 10 to 86400")
        if options.output is not None or options.form is not None:
            raise UsageError("it serves metrics, and writes no report: no --output, --format, --brief")
        if reason := formats.lacking("prometheus"):
            raise UsageError(reason)
        from prometheus_client import CollectorRegistry, start_http_server

        registry, last = CollectorRegistry(auto_describe=False), Last()
        registry.register(last)
        server, _ = start_http_server(port, host, registry)
    except (UsageError, OSError) as error:
        return deliver.refuse(f"--serve {listen}: {getattr(error, 'strerror', None) or error}", options)
    print(f"netdoctor: metrics on {host}:{server.server_port}, a look every {every:g} s", file=sys.stderr, flush=True)
    command = [*again(), *own_words(sys.argv[1:]), "--format", "prometheus", "--quiet"]
    try:
        with signals.interruptible():  # as process 1 of a container, too, of which the kernel takes no default action
            while True:
                begun = time.monotonic()
                said, code = look(command)
                last.take(said)
                if said is None and last.looks == 1 and code == policy.styled(deliver.USAGE, options.exit_style):
                    return code  # the command line is refused, now and at every look; why stands on stderr
                time.sleep(max(0.0, begun + every - time.monotonic()))
    except signals.Interrupted as end:
        return 128 + end.number


class Last:
    """What the last look said, as metrics."""

    def __init__(self) -> None:
        self._families: tuple[Metric, ...] = ()
        self._failed, self.looks = 0.0, 0

    def take(self, said: str | None) -> None:
        """`None`: a look without a report."""
        from prometheus_client.parser import text_string_to_metric_families

        try:
            self._families = tuple(text_string_to_metric_families(said)) if said else ()
        except ValueError:
            self._families = ()
        self._failed, self.looks = float(not self._families), self.looks + 1

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield from self._families
        if self.looks:
            yield GaugeMetricFamily("netdoctor_look_failed", "1 where the last look gave no report.", self._failed)
        yield CounterMetricFamily("netdoctor_looks", "Looks since this process began.", self.looks)


def look(command: Sequence[str]) -> tuple[str | None, int | None]:
    """What one look prints, None where it gave no report, and its exit code, None where it had none."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"netdoctor: the look: {clean(str(error))}", file=sys.stderr, flush=True)
        return None, None
    if told := done.stderr.decode(errors="replace").strip():
        print(clean(told[-2000:]), file=sys.stderr, flush=True)
    said = done.stdout.decode(errors="replace")
    return said if "netdoctor_verdict" in said else None, done.returncode


def again() -> list[str]:
    """How this program is called once more: the one file and the script by their path, the module by its name."""
    isolated = ["-I"] if sys.flags.isolated else []
    if os.path.basename(sys.argv[0]) == "__main__.py":
        return [sys.executable, *isolated, "-m", "netdoctor"]
    return [sys.executable, *isolated, sys.argv[0]]


def own_words(words: Sequence[str]) -> list[str]:
    """The command line without what only this command reads."""
    kept, skip = [], False
    for word in words:
        if not skip and word.partition("=")[0] not in _OWN:
            kept.append(word)
        skip = not skip and word in _OWN
    return kept


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) < 65536:
        raise UsageError("[HOST:]PORT is expected")
    return host.strip("[]") or "0.0.0.0", int(port)
