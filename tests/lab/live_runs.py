"""Live faults of all-reduces, as data: two real Gloo ranks on this machine (tests/lab/row.py)."""

from __future__ import annotations

from typing import Final

from tests.lab.row import BANDWIDTH, IFNAME, RUN, in_a_run, planted

RUN_ROWS: Final = (
    *(
        planted(f"a rank {what} {when}", f"{phase}:{how}", {RUN: "fail rank_died"})
        for phase, when in (
            ("rendezvous", "at the rendezvous"),
            ("init", "while it connects"),
            ("first", "in the first collective"),
            ("timed", "in the tenth collective"),
        )
        for what, how in (("is killed", "kill"), ("crashes", "segv"), ("exits with 0", "0"), ("raises", "raise"))
    ),
    planted("the ranks stop in the first collective", "first:stop", {RUN: "unknown"}, "--budget", "8"),
    planted("the ranks stop while they connect", "init:stop", {RUN: "unknown"}, "--budget", "8"),
    planted("wrong sums", "first:wrong", {RUN: "fail wrong_data"}),
    planted("ranks that print rubbish", "first:rubbish", {}),
    planted("ranks that flood stdout", "timed:flood", {}),
    *(
        in_a_run(f"torch {what}", {RUN: "unknown"}, PYTHONPATH="FAKES/broken_torch:ROOT", BROKEN=how)
        for what, how in (("cannot be imported", "raise"), ("is not installed", "absent"), ("crashes at import", "crash"))
    ),
    in_a_run(
        "a loopback of 400 Mbit/s",
        {BANDWIDTH: "fail low_bandwidth"},
        "tc qdisc add dev lo root tbf rate 400mbit burst 256k latency 50ms",
    ),
    in_a_run(
        "GLOO_SOCKET_IFNAME of no interface, in a run",
        {IFNAME: "fail socket_ifname", RUN: "fail socket_ifname"},
        GLOO_SOCKET_IFNAME="nosuch0",
    ),
    in_a_run("4 KiB in /dev/shm, and Gloo does without it", {}, "mount -t tmpfs -o size=4k none /dev/shm"),
)
