"""Which process failed first, where launchers mark lines, lines are torn, or only a peer is named."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text


def first(text: str) -> Finding:
    return diagnose(parse_text(text))[0]


def thrown(rank: int, what: str, by: str = "gloo::IoException") -> str:
    mark = f"[{rank}]<stderr>:"
    return (
        f"{mark}terminate called after throwing an instance of '{by}'\n{mark}  what():  {what}\n{mark}Aborted (core dumped)\n"
    )


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [127.0.0.1]:3977: Connection reset by peer"


def test_horovodruns_mark_says_whose_a_line_is() -> None:
    text = "[0]<stderr>:Killed\n" + "".join(thrown(rank, GLOO) for rank in (1, 2, 3))
    found = first(text)
    assert (found.cause, found.subject) == ("rank_died", "rank 0")
    assert not any("watchdog" in f.message for f in diagnose(parse_text(text))), "nobody has torch's watchdog here"


def test_what_was_thrown_is_read_before_it_is_called_an_echo() -> None:
    text = thrown(25, "cudaEventQuery failed: an illegal memory access was encountered", by="std::logic_error")
    found = first(text.replace("[25]", "[1,25]"))
    assert (found.status, found.subject) == (Status.FAIL, "rank 25")
    assert "an illegal memory access was encountered" in found.message


def agent(rank: int, time: str) -> str:
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED\n"
        f"Root Cause (first observed failure):\n[0]:\n  time      : 2023-06-03_{time}\n  host      : n1\n"
        f"  rank      : {rank} (local_rank: 0)\n  exitcode  : 1 (pid: 19414)\n  error_file: <N/A>\n"
    )


@pytest.mark.parametrize("text", [agent(0, "22:45:52") + agent(4, "22:45:01"), agent(4, "22:45:01") + agent(0, "22:45:52")])
def test_of_several_agents_the_earliest_names_the_first(text: str) -> None:
    found = first(text)
    assert found.subject == "rank 4"
    assert found.message.startswith(
        "rank 4 failed first (exit code 1); by their agents' clocks it was at 22:45:01, rank 0 at 22:45:52"
    )
    assert "clocks" not in first(agent(4, "22:45:01")).message


def test_ranks_below_one_that_waits_exist_also_in_torn_lines() -> None:
    line = (
        "[rank{0}]:[E424 01:11:21.160832730 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=4, OpTy\npe=BROADCAST, NumelIn=112, NumelOut=112, Timeout(ms)=1800000) ran for 1800010 milliseconds.\n"
    )
    found = first("".join(map(line.format, (1, 2, 3, 5, 6))))
    assert found.subject == "ranks 0, 4" and "ranks 0, 4 are silent" in found.message


def test_open_mpis_words_of_a_peer_are_no_document() -> None:
    text = """An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).

Although this local MPI process will likely now behave unpredictably
(it may even hang or crash), the root cause of this problem is the
failure of the peer -- that is what you need to investigate.  For
example, there may be a core file that you can examine.  More
generally: such peer hangups are frequently caused by application bugs
or other external events.

  Local host: gpu-a13
  Local PID:  7720
  Peer host:  gpu-a16
"""
    found = first(text)
    assert found.status is Status.FAIL and found.message.startswith("gpu-a16 closed its connection")


def test_a_refused_connection_of_gloos_is_no_firewall() -> None:
    refused = (
        "RuntimeError: [/w/third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [172.31.71.170]:13195: Connection refused\n"
    )
    findings = diagnose(parse_text(refused))
    assert findings[0].message.startswith("172.31.71.170 refused Gloo's connection: that host is reached")
    assert not {f.cause for f in findings} & {"firewall_connect", "socket_ifname"}
    late = diagnose(parse_text(refused.replace("Connection refused", "Connection timed out")))
    assert "firewall_connect" in {f.cause for f in late}


SSH = "subprocess.CalledProcessError: Command 'ssh {} hostname' returned non-zero exit status 255.\n"


@pytest.mark.parametrize(
    ("text", "words", "mend"),
    [
        (
            f"ssh: Could not resolve hostname node-0: Name or service not known\n{SSH.format('node-0')}",
            "the name node-0 does not resolve",
            "getent hosts node-0",
        ),
        (
            SSH.format("-o PasswordAuthentication=no 192.168.3.100"),
            "does not get into 192.168.3.100 over ssh",
            "ssh -o BatchMode=yes 192.168.3.100",
        ),
        (
            "slurmstepd: error: execve(): /home/u/run.bash: Permission denied\n",
            "/home/u/run.bash: Permission denied",
            "chmod +x /home/u/run.bash",
        ),
        (
            "RuntimeError: The client socket has failed to connect to any network address of (10.28.1.16, 29500).\n",
            "cannot reach the rendezvous at 10.28.1.16",
            "nc -zv 10.28.1.16 29500",
        ),
    ],
)
def test_the_mend_fits_what_kept_it_from_starting(text: str, words: str, mend: str) -> None:
    found = first(text)
    assert words in found.message
    assert found.fix is not None and mend in " ".join(found.fix.commands)


def test_a_torn_tracebacks_statement_is_no_message() -> None:
    trace = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\n'
    found = first(trace + "KeyError: 'width'\n    args, loss, time = main()\n" + trace)
    assert found.message.endswith("KeyError: 'width'")


def test_nodes_that_pdsh_marks_are_all_named() -> None:
    line = "{}: [ERROR] [launch.py:321:sigkill_handler] exits with return code = 1\n"
    found = first("".join(map(line.format, ("vm-07-14", "vm-07-05"))))
    assert found.message.startswith("processes on vm-07-05, vm-07-14 ended with exit code 1")
