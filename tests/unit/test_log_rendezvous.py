"""torch's store, by its warnings: a rank that asked again and came in, and one that is still asking."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.diagnosis.rendezvous import store
from netdoctor.nccl.log.parser import parse_text
from tests.unit.test_log_rules import CAME_UP

ASKS = "[{level}101 10:00:00.123 socket.cpp:752] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 111).\n"
MILD, GRAVE = ASKS.format(level="W"), ASKS.format(level="E")


@pytest.mark.parametrize(
    ("text", "silent"),
    [
        pytest.param(MILD + CAME_UP, True, id="it asked again, and came in"),
        pytest.param(MILD, False, id="it asked, and nothing came up"),
        pytest.param(GRAVE + CAME_UP, False, id="it gave up, whatever came up"),
        pytest.param(MILD + GRAVE + CAME_UP, False, id="it asked again, and gave up"),
    ],
)
def test_a_warning_of_the_store_is_silent_where_all_came_up(text: str, silent: bool) -> None:
    assert (not [*store(parse_text(text))]) is silent


def test_a_job_that_came_in_at_the_second_try_passes() -> None:
    steps = "".join(f"step {n} loss 2.0\n" for n in range(9))
    assert [f.status for f in diagnose(parse_text(MILD + CAME_UP + steps))] == [Status.PASS]


# elastic/rendezvous/dynamic_rendezvous.py: an agent keeps alive, and shuts down, only what it has joined
LOST = (
    "W0403 16:15:06.176000 538977 site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1331] "
    "The node 'n2_538977_0' has failed to {} the rendezvous '1365' due to an error of type Rendezvous{}Error.\n"
)


@pytest.mark.parametrize("what", ["send a keep-alive heartbeat to", "shutdown"])
@pytest.mark.parametrize("kind", ["Timeout", "Connection", "State"])
def test_an_agent_that_had_joined_raises_no_alarm(what: str, kind: str) -> None:
    steps, lost = "".join(f"step {n}/9 loss 2.0\n" for n in range(1, 10)), LOST.format(what, kind)
    assert [f.status for f in diagnose(parse_text(f"{steps}Training finished\n{lost}"))] == [Status.PASS]
    assert Status.FAIL not in {f.status for f in diagnose(parse_text(steps[:40] + lost))}


def test_a_rendezvous_that_did_not_come_about_fails() -> None:
    raised = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"
    assert diagnose(parse_text(raised))[0].cause == "hang"
