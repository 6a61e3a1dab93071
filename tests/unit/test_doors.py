"""What others wrote is clean at every door: no control character, escape sequence or bidirectional mark in any output."""

from __future__ import annotations

import json
import pathlib
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from netdoctor import engine, policy
from netdoctor.checks.allreduce_nodes import allreduce_nodes
from netdoctor.checks.allreduce_run import allreduce_run
from netdoctor.cli import setup
from netdoctor.config.load import Config
from netdoctor.report import formats
from netdoctor.snapshot.diagnose import diagnose
from netdoctor.snapshot.snapshot import Snapshot
from netdoctor.textsafe import clean
from tests.support.clusters import fleets
from tests.support.facts import baseline
from tests.unit.test_nodes_hostile import judged, told
from tests.unit.test_planted_secrets import PLACES, invoked, printed

# Escapes of both kinds, C1, a bell, bidirectional overrides and isolates, zero-width marks, a tag, line separators.
NASTY = "x\x9b31mred\x1b[2J\x1b]0;title\x07\u202egnp.exe\u2066i\u2069\u200bz\u200e\u061c\ufeff\U000e0041\x85\u2028\x00\x7fy"
UNSAFE = {
    *map(chr, [*range(9), 11, 12, *range(14, 32), *range(127, 160)]),
    *"\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff\u2028\u2029\U000e0041",
}
# As JSON always writes those below a space, and as HTML might write the others.
ESCAPED = ("\\u001b", "\\u0007", "\\u0000", "&#x9b;", "&#155;", "&#8238;", "&#x202e;")
SNAPSHOT = '\n{\n "answers": {\n'  # keeps answers as they were, in ASCII


def everywhere(value: Any) -> Any:
    """`value` with the text in every string but those by which a report is known, and in some names."""
    if isinstance(value, dict):
        kept = ("schema", "status", "exit_code", "tool_version")
        return {key: one if key in kept else everywhere(one) for key, one in value.items()} | {NASTY: NASTY}
    if isinstance(value, list):
        return [everywhere(one) for one in value]
    return f"{value}{NASTY}" if isinstance(value, str) else value


def reports_of_others(_: str, path: pathlib.Path) -> str:
    for number in range(1, 4):
        one = fleets.report(f"gpu-{number}", number=number)
        fleets.own_fail(one, message=NASTY)
        (path / f"{number}.json").write_text(json.dumps(everywhere(one) if number < 3 else one))
    (path / "broken.json").write_text(NASTY)
    return printed("fleet report", path)


def nodes_of_a_meeting(text: str, _: pathlib.Path) -> str:
    other: dict[str, Any] = {key: everywhere(value) for key, value in told().items()}
    heard, made = judged(told(), {**other, "ready": {**other["ready"], "backend": "gloo", "ranks": 2, "cannot": ""}})
    assert not isinstance(made, str) and heard.run is not None
    specs = [allreduce_nodes.__netdoctor_check__, allreduce_run.__netdoctor_check__]  # type: ignore[attr-defined]
    taken = Snapshot({}, {"Cluster": heard, "Baseline": baseline(heard.run)}, {})
    report = diagnose(taken, specs, lambda checks, _: policy.decide(checks), "default")
    return "".join(formats.render(report, name) for name in (*formats.names(), "termination"))


def a_ras_server(text: str, _: pathlib.Path) -> str:
    out = []
    for name in formats.names():
        with socket.create_server(("127.0.0.1", 0)) as server:

            def answer(server: socket.socket = server) -> None:
                with suppress(OSError), server.accept()[0] as guest:  # not every form is one that asks
                    guest.recv(4096)
                    guest.sendall(f"SERVER PROTOCOL 2 {text}\n{text}\n".encode("utf-8", "surrogatepass"))

            thread = threading.Thread(target=answer)
            thread.start()
            out.append(invoked("ras", "--address", f"127.0.0.1:{server.getsockname()[1]}", "-f", name))
            server.shutdown(socket.SHUT_RDWR)  # who waits for a guest still waits no more
            thread.join()
    return "".join(out)


def a_configuration(text: str, path: pathlib.Path) -> str:
    (path / "c.yaml").write_text(json.dumps({"job": {text: text}, text: 1}))
    return invoked("preflight", "--no-allreduce", "--config", str(path / "c.yaml"))


def a_recorded_machine(text: str, _: pathlib.Path) -> str:
    recorded = (pathlib.Path(__file__).parents[2] / "fixtures/hosts/cpu-node/snapshot.json").read_text()
    answers = {key: everywhere(value) for key, value in json.loads(recorded)["answers"].items()}
    config = Config(vantage="job")
    specs, extra = setup.load_checks(config, ())
    from netdoctor.facts import registry
    from netdoctor.host.base import ReplayHost

    work = engine.Work(ReplayHost({**answers, "config:": config.as_answer()}), specs, extra, {})
    engine.collect(work, [*engine.wanted(specs), *registry.SOURCES])
    engine.judge_all(work)
    report = engine.report(work, setup.decider(config), config.profile)
    return "".join(formats.render(report, name) for name in (*formats.names(), "termination"))


DOORS: dict[str, Callable[[str, pathlib.Path], str]] = {
    **{place: door for place, door in PLACES.items() if place != "a report that exists"},  # that file is given back as it is
    "every string of a node's report": reports_of_others,
    "every string of another node": nodes_of_a_meeting,
    "NCCL's RAS": a_ras_server,
    "a configuration": a_configuration,
    "every string of a machine": a_recorded_machine,
    "an argument": lambda text, _: invoked("preflight", "--only", text, "--no-allreduce"),
    "a name to explain": lambda text, _: invoked("explain", text),
    "a variable to explain": lambda text, _: invoked("env", "--explain", text),
    "a file to diagnose": lambda text, path: (
        (path / "s.json").write_text(json.dumps({"schema": text, text: text})) and invoked("diagnose", str(path / "s.json"))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_what_comes_in_comes_out_clean(door: str, tmp_path: pathlib.Path) -> None:
    text = DOORS[door](NASTY.replace("\x00", "") if door in ("an error", "an argument") else NASTY, tmp_path)
    assert text
    text = text.partition(SNAPSHOT)[0]
    found = {f"U+{ord(one):04X}" for one in UNSAFE & set(text)}
    assert not found, [line[:200] for line in text.splitlines() if UNSAFE & set(line)][:3] or found
    assert not [one for one in ESCAPED if one in text.lower()]


def test_the_text_is_as_bad_as_it_can_be() -> None:
    assert UNSAFE & set(NASTY) and not UNSAFE & set(clean(NASTY))
