"""No fixture tells who recorded it: people, paths, host names, addresses, hardware addresses, serial numbers, GPUs' UUIDs."""

from __future__ import annotations

import functools
import getpass
import os
import pathlib
import pwd
import socket

import pytest

from tests.fakegpu import record
from tests.lab import fixtures
from tests.support.machines import composed, traces

pytestmark = pytest.mark.slow

FOLDER = fixtures.ROOT / "fixtures"
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file())
RECORDED = {
    path
    for path in FILES
    if path.parent.name == "trees" or (path.parent.parent.name == "hosts" and path.parent.name not in composed.NAMES)
}


@functools.cache
def of_here() -> set[str]:
    """What tells this machine and whoever runs this; on the machine where a recording was made this is what bites."""
    words = {str(fixtures.ROOT), str(pathlib.Path.home()), socket.gethostname(), socket.getfqdn(), getpass.getuser()}
    words |= {one.pw_name for one in pwd.getpwall() if 1000 <= one.pw_uid < 60000}
    words |= {one.pw_dir for one in pwd.getpwall() if 1000 <= one.pw_uid < 60000}
    for path in (
        *pathlib.Path("/sys/class/net").glob("*/address"),
        pathlib.Path("/etc/machine-id"),
        pathlib.Path("/etc/hostname"),
    ):
        if path.is_file() and os.access(path, os.R_OK):
            words.add(path.read_text(encoding="utf-8", errors="replace").strip())
    common = {"", "/", "/root", "root", "localhost", "user", "node", "ubuntu", "runner", "00:00:00:00:00:00", "/nonexistent"}
    return {word for word in words if word not in common and not word.startswith("localhost.")}


@functools.cache
def made() -> set[str]:
    """GPUs of composed machines."""
    texts = [(fixtures.HOSTS / slug / "snapshot.json").read_text(encoding="utf-8") for slug in composed.NAMES]
    return {gpu for text in texts for gpu in traces.gpus(text)}


def found(path: pathlib.Path, text: str) -> list[str]:
    more = list(traces.of_recording(text) if path in RECORDED else traces.of_composition(text, made()))
    if path.parent.name in record.RECORDINGS:  # no GPU was there that could have a UUID
        more = [one for one in more if not one.startswith("GPU ")]
    return [*traces.of_form(text), *more, *traces.words(text, of_here())]


def test_there_are_recordings_and_compositions() -> None:
    assert len(RECORDED) >= 5 and len(FILES) - len(RECORDED) >= 40


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_trace(path: pathlib.Path) -> None:
    assert found(path, path.read_text(encoding="utf-8")) == []


EVERYWHERE = {
    "public address": '"ip": "8.8.4.4"',
    "public IPv6 address": '"ip": "2a00:1450:4001:82b::200e"',
    "mapped public address": '"gid": "0000:0000:0000:0000:0000:ffff:0808:0404"',
    "hardware address": '"address": "b8:59:9f:12:34:56"',
    "InfiniBand hardware address": f'"address": "00:00:10:49:fe:80:{":".join(["00"] * 13)}:01"',
    "home": '"PATH": "/home/grace/bin:/bin"',
    "mail": '"note": "grace@navy.example.org"',
    "serial number": '"serial": "1564220001234"',
    "board": '"file:/sys/class/dmi/id/product_uuid": "4c4c4544"',
    "machine id": '"file:/etc/machine-id": {\n   "ok": "0123456789abcdef0123456789abcdef"',
}
IN_RECORDINGS = {
    "GPU": '"uuid": "GPU-0498e3d8-4916-87f7-08c8-06477f9ad939"',
    "GUID": '"ok": "fe80:0000:0000:0000:0002:c903:00f9:bfa1\\n"',
    "host name": '"file:/proc/sys/kernel/hostname": {\n   "ok": "analysis17\\n"',
    "host name in a log": '"log": "analysis17:4711:4711 [0] NCCL INFO x\\nnode-0123abcd:1:1 [0] NCCL INFO y"',
}


@pytest.mark.parametrize("planted", EVERYWHERE.values(), ids=EVERYWHERE)
def test_a_planted_trace_is_found_in_any_file(planted: str) -> None:
    for path in (min(RECORDED), min(set(FILES) - RECORDED)):
        assert len(found(path, planted)) == 1


@pytest.mark.parametrize("planted", IN_RECORDINGS.values(), ids=IN_RECORDINGS)
def test_a_planted_trace_is_found_in_a_recording(planted: str) -> None:
    assert len(found(fixtures.HOSTS / "this-machine" / "snapshot.json", planted)) == 1


def test_what_this_machine_is_called_is_found() -> None:
    name = socket.gethostname()
    text = f'"ok": "{name}"' if name in of_here() else f'"ok": "{fixtures.ROOT}"'
    assert list(traces.words(text, of_here()))
    assert list(traces.words(f'"x": "{fixtures.ROOT}/y"', of_here())) == [str(fixtures.ROOT)]
    assert list(traces.words('"log": "vm:1:2 [0] NCCL INFO"', {"vm"})) == ["vm"]
    assert not list(traces.words('"vm.overcommit_memory"', {"vm"}))


def test_what_names_nobody_stays() -> None:
    text = """10.0.0.1 192.0.2.9 203.0.113.7 127.0.0.1 fe80::1 2001:db8::1 ::1 02:00:5e:00:53:01 00:00:00:00:00:00 580.95.05
0000:1b:00.0 /home/ada/x 0::/user.slice 13:15:24 "serial": null"""
    assert found(min(RECORDED), text) == []
