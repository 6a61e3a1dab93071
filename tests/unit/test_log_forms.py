"""Every message family in every form: what programs put around a message changes nothing of what it is."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable

import pytest

from netdoctor.nccl.log import nccl_patterns
from netdoctor.nccl.log.parser import parse_text
from netdoctor.nccl.log.pattern import Pattern
from netdoctor.nccl.log.patterns import PATTERNS
from tests.unit.test_log_needles import ways
from tests.unit.test_log_rules import LOGS

pytestmark = pytest.mark.slow

HEAD = "node01:100:130 [0] transport/net.cc:12 NCCL WARN "
LONG = "step 1 of many, loss 2.0\n" * 12000
# As ranks, launchers and log collectors print one message.
FORMS: dict[str, Callable[[str], str]] = {
    "with a time": lambda m: f"[2026-01-02 10:00:00] {HEAD}{m}\n",
    "torch's last error": lambda m: f"ncclSystemError: System call failed.\nLast error:\n{m}\n",
    "torch's last error of a rank": lambda m: f"[rank3]: Last error:\n[rank3]: {m}\n",
    "an exception": lambda m: f"torch.distributed.DistBackendError: NCCL error in: x.cpp:1, internal error\n{m}\n",
    "nccl-tests": lambda m: f"node01: Test NCCL failure common.cu:961 'unhandled system error / {m}'\n",
    "Ray": lambda m: f"(RayWorkerWrapper pid=12, ip=10.0.0.2) {HEAD}{m} [repeated 15x across cluster]\n",
    "Ray in colour": lambda m: f"\x1b[36m(Worker pid=12)\x1b[0m {HEAD}{m}\x1b[32m [repeated 15x across cluster]\x1b[0m\n",
    "srun": lambda m: f"3: {HEAD}{m}\n",
    "pdsh": lambda m: f"node01: {HEAD}{m}\n",
    "mpirun": lambda m: f"[1,3]<stderr>:{HEAD}{m}\n",
    "kubectl": lambda m: f"[pod/job-0/main] {HEAD}{m}\n",
    "containerd": lambda m: f"2026-01-02T10:00:00.123456789Z stderr F {HEAD}{m}\n",
    "Docker's JSON": lambda m: json.dumps({"log": f"{HEAD}{m}\n", "stream": "stderr"}) + "\n",
    "a logger's JSON": lambda m: "2026-01-02 " + json.dumps({"level": "error", "msg": HEAD + m}) + "\n",
    "behind a progress bar": lambda m: "  0%|   | 0/9\r 11%|#  | 1/9" * 1000 + f"\r{HEAD}{m}\n",
    "with a carriage return": lambda m: f"{HEAD}{m}\r\n",
    "without an end": lambda m: HEAD + m,
    "behind another rank's line": lambda m: f"node02:7:8 [1] NCCL INFO Using network IB{HEAD}{m}\n",
    "before another rank's line": lambda m: f"node02:7:8 [1] NCCL INFO x\n{HEAD}{m}node02:7:8 [1] NCCL INFO Using network IB\n",
    "in the middle of a long log": lambda m: LONG + HEAD + m + "\n" + LONG,
    "at the end of a long log": lambda m: LONG + HEAD + m,
}
MESSAGES = sorted({m for text in LOGS.values() for m in re.findall(r"NCCL WARN (.+)$", text, flags=re.MULTILINE)})


def kinds(text: str) -> set[str]:
    return {e.kind for e in parse_text(text).events} - {"warning"}


@pytest.mark.parametrize("form", FORMS)
def test_a_message_is_the_same_in_every_form(form: str) -> None:
    assert len(MESSAGES) > 60
    long = len(FORMS[form]("")) >= len(LONG)
    messages = MESSAGES[::8] if long else [*MESSAGES, *_families()]  # in long logs all of them: below, all in one
    missed = [m for m in messages if not _alone(m) <= kinds(FORMS[form](m))]
    assert not missed


@functools.cache
def _families() -> tuple[str, ...]:
    return tuple(text for _, text in _samples(nccl_patterns.PATTERNS, f"{HEAD}{{}}\n"))


@functools.cache
def _alone(message: str) -> set[str]:
    return kinds(f"{HEAD}{message}\n")


def test_quotes_that_a_forum_changed_or_lost() -> None:
    for quoted in (
        "'out of memory'",
        "\u2018out of memory\u2019",
        "\u201cout of memory\u201d",
        "out of memory",
        "'out of memory",
    ):
        (event,) = parse_text(f"{HEAD}Cuda failure {quoted}\n").of("cuda")
        assert event.data["what"] == "out of memory"


# Forms of lines that are not NCCL's own: torch's, launchers', the kernel's.
PLAIN: dict[str, Callable[[str], str]] = {
    "as it is": lambda m: f"{m}\n",
    "torch's rank": lambda m: f"[rank3]: {m}\n",
    "Ray": lambda m: f"(RayWorkerWrapper pid=12, ip=10.0.0.2) {m} [repeated 15x across cluster]\n",
    "srun": lambda m: f"3: {m}\n",
    "horovodrun": lambda m: f"[3]<stderr>:{m}\n",
    "pdsh": lambda m: f"node01: {m}\n",
    "mpirun": lambda m: f"[1,3]<stderr>:{m}\n",
    "kubectl": lambda m: f"[pod/job-0/main] {m}\n",
    "containerd": lambda m: f"2026-01-02T10:00:00.123456789Z stderr F {m}\n",
    "Docker's JSON": lambda m: json.dumps({"log": f"{m}\n", "stream": "stderr"}) + "\n",
    "in colour": lambda m: f"\x1b[36m{m}\x1b[0m\n",
    "behind a progress bar": lambda m: "  0%|   | 0/9\r 11%|#  | 1/9" * 100 + f"\r{m}\n",
}


def _samples(patterns: tuple[Pattern, ...] = PATTERNS, form: str = "{}\n") -> list[tuple[str, str]]:
    """Lines of every family, made from its pattern; what is none in this form is left out."""
    found: list[tuple[str, str]] = []
    for pattern in patterns:
        # Ray's own mark is put there by the form: nothing prints it twice.
        plain = [text for text in ways(pattern) if not re.match(r"[\[(]", text) and "across cluster]" not in text]
        lines = [text for text in plain if pattern.regex.search(text.encode())]
        found += [(pattern.kind, text) for text in lines[:: len(lines) // 8 + 1]]
    return [(kind, text) for kind, text in found if kind in kinds(form.format(text)) and kind != "trail"]


@functools.cache
def _plain() -> list[tuple[str, str]]:
    return _samples()


@pytest.mark.parametrize("form", PLAIN)
def test_every_family_is_known_in_every_form(form: str) -> None:
    samples = _plain()
    assert {kind for kind, _ in samples} >= {p.kind for p in PATTERNS} - {"trail", "diag", "raised"}
    assert [(kind, text) for kind, text in samples if kind not in kinds(PLAIN[form](text))] == []


@pytest.mark.parametrize("alike", [True, False])
def test_every_family_is_found_between_megabytes_of_others(alike: bool) -> None:
    """What stands neither at the begin nor at the end of a long log is looked for by words; each family has its own there."""
    spelled = str.maketrans("0123456789", "bcdghjkpqw")
    rows = [f"batch {n:7d} of {n * 7919 % 104729} gave {n * 15485863 % 999983}" for n in range(36000)]
    filler = rows if alike else [row.translate(spelled) for row in rows]
    samples = _samples()
    lines = [line for n, (_, text) in enumerate(samples) for line in (*filler[3 * n : 3 * n + 3], text, "")]
    text = "\n".join([*filler[:17000], *lines, *filler[17000:]])
    assert len("\n".join(filler[:17000])) > 1 << 19  # more than is read with everything at either end
    assert {kind for kind, _ in samples} - kinds(text) == set()
