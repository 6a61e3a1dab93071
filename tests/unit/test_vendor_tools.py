"""Programs of NVIDIA's that helpers ask: what they print, as their sources write it, and one that does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from netdoctor.checks.gpu_dcgm import gpu_dcgm
from netdoctor.facts import dcgm, fabric, gpu_health
from netdoctor.facts.dcgm import Dcgm, Health, Incident
from netdoctor.facts.fabric import ImexDomain
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.net import Net
from netdoctor.host.base import ReplayHost
from netdoctor.host.helpers import dcgm as asks_dcgm, imex
from netdoctor.model import Kind, Status, Unavailable, unavailable_in
from tests.support import facts as f

# As nvidia-imex-ctl -N -j prints it (IMEX Service Command Service; NVIDIA/ai-cloud-validation, imex_departure_test.py).
DOMAIN = """{"nodes": {"0": {"status": "READY", "host": "10.0.0.1", "hostName": "a", "connections": {
  "0": {"host": "10.0.0.1", "status": "CONNECTED"}, "1": {"host": "10.0.0.2", "status": "%s"}}},
 "1": {"status": "UNAVAILABLE", "host": "10.0.0.2", "hostName": "b", "connections": {}}}, "status": "DEGRADED"}"""
RACK = {"fabric": {"state": 3, "status": 0, "clique": 1, "cluster": "6d" * 16, "health": 0}}


def program(folder: Path, name: str, text: str) -> str:
    """A program of that name; the folder."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(folder)


def imex_says(folder: Path, monkeypatch: pytest.MonkeyPatch, daemon: str, domain: str) -> Any:
    text = f"case $1 in -q) {daemon} ;; *) {domain} ;; esac"
    monkeypatch.setattr(imex, "FOLDERS", (program(folder, "nvidia-imex-ctl", text),))
    monkeypatch.setattr(imex, "SHORT", 0.5)
    monkeypatch.setattr(imex, "LONG", 0.5)
    return imex.answer({})


def read(told: Any) -> ImexDomain | Unavailable:
    lost = unavailable_in(told)
    host = ReplayHost({"ask:nvml": {"devices": [RACK]}, "ask:imex": told if lost is None else lost})
    state = gpu_health.probe(host)
    assert not isinstance(state, Unavailable)
    net: Net = f.net(f.netlink_link("eth0", 2, "10.0.0.1"))
    return fabric.probe(host, state, net).imex


@pytest.mark.parametrize(
    ("daemon", "domain", "said"),
    [
        ("echo READY", f"echo '{DOMAIN % 'CONNECTED'}'", ImexDomain("READY", ("10.0.0.2",))),
        ("echo READY", f"echo '{DOMAIN % 'RECOVERING'}'", ImexDomain("READY", ("10.0.0.2",), ("10.0.0.2",))),
        ("echo WAITING_FOR_PEERS", "exit 1", ImexDomain("WAITING_FOR_PEERS", ())),
        ("echo Failed to read node configuration file /etc/x; exit 1", "exit 1", ImexDomain("NOT_CONFIGURED", ())),
    ],
)
def test_what_imex_says(daemon: str, domain: str, said: ImexDomain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(imex_says(tmp_path, monkeypatch, daemon, domain)) == said


@pytest.mark.parametrize(
    ("daemon", "domain", "kind"),
    [
        ("exec sleep 9", "", Kind.TIMED_OUT),
        ("echo cannot connect: refused >&2; exit 1", "", Kind.FAILED),
        ("echo READY", "exec sleep 9", Kind.TIMED_OUT),
        ("echo READY", "echo '{}'", Kind.MALFORMED),
        ("echo READY", "echo no JSON", Kind.MALFORMED),
        ("echo READY", f"echo '{DOMAIN.replace('10.0.0.1', '10.9.9.9') % 'CONNECTED'}'", Kind.NOT_READ),
    ],
)
def test_what_imex_does_not_say(daemon: str, domain: str, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(imex_says(tmp_path, monkeypatch, daemon, domain))
    lost = found.peers if isinstance(found, ImexDomain) else found
    assert isinstance(lost, Unavailable)
    assert lost.kind is kind


def test_where_there_is_no_imex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imex, "FOLDERS", (str(tmp_path),))
    lost: Any = imex.answer({})
    assert lost["unavailable"] == "absent"


@pytest.mark.parametrize(
    "told", [{"cluster": "garbage"}, {"cluster": ""}, {"cluster": None}, {"clique": None}, {"state": "3"}, {"health": True}]
)
def test_a_place_in_a_fabric_that_is_none(told: dict[str, Any]) -> None:
    """Else a GPU of rubbish would be in another fabric than its siblings."""
    state = gpu_health.probe(ReplayHost({"ask:nvml": {"devices": [{"fabric": {**RACK["fabric"], **told}}]}}))
    assert not isinstance(state, Unavailable) and state.gpus
    assert getattr(state.gpus[0].fabric, "kind", None) is Kind.MALFORMED


HUNG = Unavailable(Kind.TIMED_OUT, "5 s")


@pytest.mark.parametrize(
    ("answers", "channels"),
    [
        ([{"errno": 0, "name": ""}, {"errno": 13, "name": "EACCES"}], ("channel0",)),
        ([{"errno": 13, "name": "EACCES"}, {"errno": 1, "name": "EPERM"}], ()),
        ([{"errno": 0, "name": ""}, HUNG], ("channel0",)),  # one is enough
        ([{"errno": 13, "name": "EACCES"}, HUNG], HUNG),
        ([{"errno": 13, "name": "EACCES"}, {}], Unavailable(Kind.NOT_READ, "whether channel1 opens: not told")),
    ],
)
def test_a_channel_that_was_not_tried_may_open(answers: list[Any], channels: Any) -> None:
    tried = {f"open:{fabric.CHANNELS}/channel{n}:rw": one for n, one in enumerate(answers)}
    host = ReplayHost({"ask:nvml": {"devices": [RACK]}, f"dir:{fabric.CHANNELS}": ["channel0", "channel1"], **tried})
    state = gpu_health.probe(host)
    assert not isinstance(state, Unavailable) and fabric.probe(host, state, f.net()).channels == channels


# As dcgmi health -c -j prints it (dcgmi/Health.cpp and DcgmiOutput.h): texts in lines of 54 characters.
INCIDENTS = """{"body": {"GPU": {"children": {
  "0": {"value": "Failure", "children": {"Errors": {"children": {
    "NVLINK system": {"value": "Failure", "overflow": ["IMEX daemon status is -3 (not READY)",
      "Check IMEX installation, configuration, domain and", "daemon status, and network connectivity."]}}}}},
  "3": {"value": "Failure", "children": {"Errors": {"children": {
    "Memory system": {"value": "Failure", "overflow": ["Detected 1 volatile double-bit ECC error(s) in GPU", "3."]},
    "PCIe system": {"value": "Warning", "overflow": ["Detected 9 replays"]}}}}}}},
 "Overall Health": {"value": "Failure"}}, "header": ["Health Monitor Report"]}"""
HEALTHY = """{"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}"""
WITH: dict[str, Any] = {"stat:/usr/bin/dcgmi": {}, "config:": {}}
QUESTION = "ask:dcgm?program=%2Fusr%2Fbin%2Fdcgmi"


def dcgm_says(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Dcgm | Unavailable:
    monkeypatch.setattr(asks_dcgm, "SECONDS", 0.5)
    told: Any = asks_dcgm.answer({"program": f"{program(folder, 'dcgmi', text)}/dcgmi"})
    lost = unavailable_in(told)
    return dcgm.probe(ReplayHost({**WITH, QUESTION: told if lost is None else lost}), f.gpus(), f.vantage(), f.environ())


def test_what_dcgm_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = dcgm_says(
        tmp_path,
        monkeypatch,
        f"""[ "$*" = "health -c -j" ] && cat << 'X'
{INCIDENTS}
X""",
    )
    assert found == Dcgm(
        True,
        True,
        (
            Incident("GPU 3", "Memory system", Health.FAILURE, "Detected 1 volatile double-bit ECC error(s) in GPU 3"),
            Incident("GPU 3", "PCIe system", Health.WARNING, "Detected 9 replays"),
        ),
    )
    assert dcgm_says(tmp_path, monkeypatch, f"echo '{HEALTHY}'") == Dcgm(True, True, ())
    unwatched = "echo 'Error: Health watches not enabled. Please enable watches. '; exit 255"
    assert dcgm_says(tmp_path, monkeypatch, unwatched) == Dcgm(True, False, ())


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("exec sleep 9", Kind.TIMED_OUT, "s"),
        ("echo 'Error: Unable to connect to host engine. Host engine connection invalid.'; exit 1", Kind.FAILED, "host engine"),
        ("exit 0", Kind.FAILED, "says nothing"),
        ("echo '{}'", Kind.MALFORMED, "KeyError"),
    ],
)
def test_what_dcgm_does_not_say(text: str, kind: Kind, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = getattr(dcgm_says(tmp_path, monkeypatch, text), "watching", None)
    assert isinstance(lost, Unavailable)
    assert (lost.kind, words in lost.detail) == (kind, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # Another version's form: it calls the whole a failure, and what it found is not where it was.
        (f"echo '{HEALTHY.replace('Healthy', 'Failure')}'", "calls the whole Failure, and names nothing"),
        ("""echo '{"body": {"Overall Health": {"value": "Warning"}, "GPU": {"children": {}}}}'""", "calls the whole Warning"),
        ("""echo '{"body": {"Overall Health": {"value": ""}}}'""", "calls the whole nothing"),
    ],
)
def test_what_dcgm_found_and_does_not_say(text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = dcgm_says(tmp_path, monkeypatch, text)
    assert isinstance(found, Dcgm) and isinstance(found.incidents, Unavailable) and words in found.incidents.detail


@pytest.mark.parametrize(
    "told",
    [
        {"incidents": []},
        {"incidents": [], "overall": 7},
        {"incidents": [], "overall": "Failure"},
        {"incidents": ["GPU 3"]},
        {"incidents": [None], "overall": "Healthy"},
        {"overall": "Healthy"},
    ],
)
def test_rubbish_of_dcgm_is_no_health(told: dict[str, Any]) -> None:
    found = dcgm.probe(ReplayHost({**WITH, QUESTION: {"watching": True, **told}}), f.gpus(), f.vantage(), f.environ())
    assert isinstance(found, Dcgm) and isinstance(found.incidents, Unavailable)


def test_programs_that_die_have_said_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    died = dcgm_says(tmp_path, monkeypatch, f"echo '{HEALTHY}'; kill -SEGV $$")
    assert isinstance(died, Dcgm) and isinstance(died.watching, Unavailable) and "SIGSEGV" in died.watching.detail
    lost = read(imex_says(tmp_path, monkeypatch, "echo READY; kill -BUS $$", "exit 1"))
    assert isinstance(lost, Unavailable) and "SIGBUS" in lost.detail


def test_imex_that_this_user_may_not_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imex, "FOLDERS", (program(tmp_path, "nvidia-imex-ctl", "echo READY"),))
    (tmp_path / "nvidia-imex-ctl").chmod(0o644)
    lost: Any = imex.answer({})
    assert lost["unavailable"] == "denied"


def test_an_error_beside_that_of_imex_is_told() -> None:
    imex_too = "IMEX daemon status is 1 (not READY) Check IMEX installation, configuration, domain and daemon status, and "
    row = {"entity": "GPU", "id": "1", "system": "NVLINK system", "health": "Failure"}
    text = f"{imex_too}network connectivity., GPU 1's NvLink link 4 is currently down."
    told = {"watching": True, "incidents": [{**row, "text": text}]}
    found = dcgm.probe(ReplayHost({**WITH, QUESTION: told}), f.gpus(), f.vantage(), f.environ())
    assert found == Dcgm(
        True, True, (Incident("GPU 1", "NVLINK system", Health.FAILURE, "GPU 1's NvLink link 4 is currently down"),)
    )


def test_where_there_is_no_dcgm() -> None:
    absent = Unavailable(Kind.ABSENT)
    host = ReplayHost({"config:": {}, **dict.fromkeys((f"stat:{path}" for path in dcgm.PROGRAMS), absent)})
    assert dcgm.probe(host, f.gpus(), f.vantage(), f.environ()) == Dcgm(False, False, ())
    assert getattr(dcgm.probe(ReplayHost({}), f.gpus(), f.vantage(), f.environ()), "kind", None) is Kind.NOT_RECORDED


SYSTEMD = "/etc/systemd/system"
STOPPED = {"running": False}
UNIT = {"dir:/usr/lib/systemd/system": ["nvidia-dcgm.service", "sshd.service"]}
ABSENT = Unavailable(Kind.ABSENT, "no")
ETC, WANTS = f"dir:{SYSTEMD}", f"dir:{SYSTEMD}/multi-user.target.wants"
NOWHERE: dict[str, Any] = {ETC: [], "dir:/run/systemd/system": ABSENT, "dir:/usr/lib/systemd/system": []}


def wanted(*names: str) -> dict[str, Any]:
    return {**UNIT, ETC: ["multi-user.target.wants"], WANTS: list(names)}


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        pytest.param(UNIT, Status.SKIP, id="a unit that is not enabled"),
        pytest.param(wanted("sshd.service"), Status.SKIP, id="others are"),
        pytest.param(wanted("nvidia-dcgm.service"), Status.UNKNOWN, id="it was to run"),
        pytest.param(wanted("dcgm-exporter.service"), Status.UNKNOWN, id="what asks it was to run"),
        pytest.param({}, Status.UNKNOWN, id="no unit of it"),
        pytest.param({**UNIT, ETC: ABSENT}, Status.UNKNOWN, id="no systemd"),
        pytest.param({**wanted(), WANTS: Unavailable(Kind.DENIED, "x")}, Status.UNKNOWN, id="not read"),
        pytest.param({**wanted(), WANTS: ABSENT}, Status.UNKNOWN, id="gone meanwhile"),
        pytest.param({**UNIT, "dir:/run/systemd/system": Unavailable(Kind.DENIED, "x")}, Status.UNKNOWN, id="one not read"),
    ],
)
def test_a_daemon_of_dcgm_that_does_not_run(answers: dict[str, Any], status: Status) -> None:
    host = ReplayHost({**WITH, **NOWHERE, QUESTION: STOPPED, **answers})
    found = dcgm.probe(host, f.gpus(), f.vantage(), f.environ())
    assert [one.status for one in f.judge(gpu_dcgm, f.machine({Dcgm: found}))] == [status]


def test_that_nvml_lost_it_too_is_no_skip() -> None:
    found = Dcgm(True, Unavailable(Kind.FAILED), Unavailable(Kind.FAILED), meant=False)
    machine = f.machine({Dcgm: found, Gpus: f.gpus(all=Unavailable(Kind.TIMED_OUT, "x"))})
    assert {one.status for one in f.judge(gpu_dcgm, machine)} == {Status.UNKNOWN}


def test_that_dcgmi_finds_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks_dcgm, "SECONDS", 5)
    text = (
        "echo 'Error: unable to establish a connection to the specified host: localhost'; echo 'Error: Unable to connect' >&2"
    )
    assert asks_dcgm.answer({"program": f"{program(tmp_path, 'dcgmi', text)}/dcgmi"}) == STOPPED
