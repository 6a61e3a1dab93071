"""Every message family in every form: what programs put around a message changes nothing of what it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from netdoctor.nccl.log.parser import parse_text
from tests.unit.test_log_rules import LOGS

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
    "in the middle of a long log": lambda m: LONG + HEAD + m + "\n" + LONG,
    "at the end of a long log": lambda m: LONG + HEAD + m,
}
MESSAGES = sorted({m for text in LOGS.values() for m in re.findall(r"NCCL WARN (.+)$", text, flags=re.MULTILINE)})


def kinds(text: str) -> set[str]:
    return {e.kind for e in parse_text(text).events} - {"warning"}


@pytest.mark.parametrize("form", FORMS)
def test_a_message_is_the_same_in_every_form(form: str) -> None:
    assert len(MESSAGES) > 60
    missed = [m for m in MESSAGES if not kinds(f"{HEAD}{m}\n") <= kinds(FORMS[form](m))]
    assert not missed


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
