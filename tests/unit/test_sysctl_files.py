"""What sysctl.d says: which file counts, and which line."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.facts.sysctl_files import FOLDERS, Said, SysctlFiles, probe
from netdoctor.host.base import Answer, ReplayHost
from netdoctor.model import Kind, Unavailable
from tests.support import facts as f

NAME = "net.ipv4.tcp_congestion_control"
GONE, DENIED = Unavailable(Kind.ABSENT), Unavailable(Kind.DENIED)
ETC, RUN, LOCAL, LIB = FOLDERS


def probed(files: dict[str, Any], **vantage: Any) -> SysctlFiles | Unavailable:
    """`files`: by path; folders without one are not there."""
    answers: dict[str, Answer] = {f"file:{path}": text for path, text in files.items()}
    for folder in FOLDERS:
        inside = [path.rpartition("/")[2] for path in files if path.rpartition("/")[0] == folder]
        answers[f"dir:{folder}"] = [*inside] if inside else GONE
    return probe(ReplayHost(answers), f.vantage(**vantage))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, None),
        ({f"{LIB}/50-a.conf": f"{NAME} = bbr\n"}, Said("bbr", f"{LIB}/50-a.conf")),
        ({f"{ETC}/10.conf": f"{NAME}=bbr", f"{LIB}/20.conf": f"{NAME}=cubic"}, Said("cubic", f"{LIB}/20.conf")),  # by name
        ({f"{ETC}/20.conf": "", f"{LIB}/20.conf": f"{NAME}=cubic"}, None),  # masked by one of its name
        ({f"{ETC}/20.conf": GONE, f"{LIB}/20.conf": f"{NAME}=cubic"}, None),  # a link to nothing
        ({f"{ETC}/a.conf": f"# {NAME}=bbr\n; {NAME}=bbr\n"}, None),
        ({f"{ETC}/a.conf": f"-{NAME} = bbr\n"}, Said("bbr", f"{ETC}/a.conf")),
        ({f"{ETC}/a.conf": "net/ipv4/tcp_congestion_control=bbr\n"}, Said("bbr", f"{ETC}/a.conf")),
        ({f"{ETC}/a.conf": f"{NAME}=bbr\n{NAME}=reno\n"}, Said("reno", f"{ETC}/a.conf")),
        ({f"{ETC}/README": f"{NAME}=bbr\n", f"{ETC}/a.conf.bak": f"{NAME}=bbr\n"}, None),
    ],
)
def test_the_last_that_counts(files: dict[str, Any], said: Said | None) -> None:
    found = probed(files)
    assert isinstance(found, SysctlFiles) and not isinstance(found.said, Unavailable)
    assert found.said.get(NAME) == said


def test_what_may_not_be_read_is_lost() -> None:
    assert isinstance(probed({f"{ETC}/a.conf": DENIED}), Unavailable)
    answers: dict[str, Answer] = {f"dir:{folder}": DENIED for folder in FOLDERS}
    assert isinstance(probe(ReplayHost(answers), f.vantage()), Unavailable)


@pytest.mark.parametrize("vantage", [{"runtime": "docker"}, {"job_network": False}])
def test_not_those_of_an_image_nor_of_another_network(vantage: dict[str, Any]) -> None:
    found = probed({f"{ETC}/a.conf": f"{NAME}=bbr"}, **vantage)
    assert isinstance(found, Unavailable) and found.kind is Kind.UNSUPPORTED
