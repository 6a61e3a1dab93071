"""Which libnccl is asked, and what its answer becomes; the texts of its log per version."""

from typing import Any

import pytest

from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_choice import NcclChoice, probe, wanted
from netdoctor.host.base import ReplayHost, question
from netdoctor.host.helpers.nccl import address_of, taken, version
from netdoctor.model import Unavailable
from tests.support.facts import LIBNCCL, libraries, library, torch

LOST = Unavailable("denied")
TOLD = {"version": [2, 27, 5], "code": 0, "interface": "eth0", "address": "10.0.0.7", "error": "", "log": ["one line"]}


def asked(told: Any) -> NcclChoice | Unavailable:
    return probe(ReplayHost({question("nccl", path=LIBNCCL): told}), libraries())


def test_the_answer_of_the_library_that_torch_takes() -> None:
    assert asked(TOLD) == NcclChoice(LIBNCCL, (2, 27, 5), "eth0", "10.0.0.7", 0, "", ("one line",))


@pytest.mark.parametrize("told", [{}, {**TOLD, "version": None}, {**TOLD, "version": [2, 27]}, {**TOLD, "code": "x"}])
def test_an_answer_of_another_shape_is_malformed(told: Any) -> None:
    got = asked(told)
    assert isinstance(got, Unavailable) and got.kind == "malformed"


def test_no_answer_is_kept() -> None:
    assert asked(Unavailable("refused", "not trusted")) == Unavailable("refused", "not trusted")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (Libraries.unread(LOST), "not read"),
        (libraries(torch=LOST), "not read"),
        (libraries(torch=torch(nccl_path=LOST)), "not read"),
        (libraries(torch=torch(nccl_path=None, nccl_linkage="static")), "unsupported"),
        (libraries(torch=torch(nccl_path=None, nccl_linkage="none")), "absent"),
        (libraries(torch=Unavailable("absent"), nccl=()), "absent"),
        (libraries(torch=Unavailable("absent"), nccl=LOST), "not read"),
    ],
)
def test_without_a_library_the_reason_is_told(given: Any, kind: str) -> None:
    got = wanted(given)
    assert isinstance(got, Unavailable) and got.kind == kind


def test_without_torch_the_loaders_first_is_asked() -> None:
    assert wanted(libraries(torch=Unavailable("absent"), nccl=(library("/usr/lib/libnccl.so.2"),))) == "/usr/lib/libnccl.so.2"


@pytest.mark.parametrize(
    ("line", "name", "address"),
    [
        ("vm:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>", "eth0", "10.0.0.7"),
        ("vm:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.7<0>", "eth0", "10.0.0.7"),
        ("vm:1:1 [0] NCCL INFO Bootstrap: Using eth0:1:10.5.0.7<0>", "eth0:1", "10.5.0.7"),
        ("vm:1:1 [0] NCCL INFO Bootstrap: Using ib0:fe80::7%ib0<0>", "ib0", "fe80::7"),
        ("vm:1:1 [0] NCCL INFO Bootstrap: Using eth0:fd00::7<0>", "eth0", "fd00::7"),
        ("vm:1:1 [0] NCCL WARN Bootstrap : no socket interface found", None, None),
        ("Bootstrap : Using rubbish<0>", None, None),
    ],
)
def test_the_log_line_of_every_version(line: str, name: str | None, address: str | None) -> None:
    assert taken(["something else", line]) == (name, address)


def test_the_address_in_a_unique_id() -> None:
    four = bytes(8) + b"\x02\x00" + b"\x9c\x40" + bytes([10, 0, 0, 7])
    six = bytes(8) + b"\x0a\x00" + b"\x9c\x40" + bytes(4) + bytes.fromhex("fd00") + bytes(13) + b"\x07"
    assert address_of(four.ljust(128, b"\0")) == "10.0.0.7"
    assert address_of(six.ljust(128, b"\0")) == "fd00::7"
    assert address_of(bytes(128)) is None


def test_both_encodings_of_the_version() -> None:
    assert (version(2804), version(20906), version(23203)) == ([2, 8, 4], [2, 9, 6], [2, 32, 3])
