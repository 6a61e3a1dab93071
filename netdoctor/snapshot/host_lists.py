"""The hosts of a job as its launcher and its batch system write them down, for a snapshot that names nobody."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from itertools import islice
from typing import Any, Final

from netdoctor.environment import Role, named
from netdoctor.facts import nodelist
from netdoctor.facts.peers import host_port

_NOBODYS: Final = frozenset({"", "localhost", "localhost.localdomain"})
# "31.pbsserver": the number, and the host that gave it (pbs_job_attributes(7)).
_OF_SERVER: Final = "PBS_JOBID"


def words(answers: Mapping[str, Any]) -> Iterator[str]:
    """Each name of a host that a variable, a batch system's file or the configuration has; of a full one the short one, too."""
    for name in _names(answers):
        for word in dict.fromkeys((name, name.partition(".")[0])):
            if word not in _NOBODYS and not word.isdecimal() and not _is_address(word):
                yield word


def jobs(answers: Mapping[str, Any]) -> dict[str, str]:
    """The number of a job with its server, by number and server apart."""
    number, dot, server = str(_variables(answers).get(_OF_SERVER, "")).partition(".")
    return {f"{number}.{server}": server} if dot and server else {}


def written_out(variables: Mapping[str, Any]) -> dict[str, str]:
    """The variables whose list has its names in brackets ("gpu[03-04]"), with a name each; what is no such list stays none."""
    out = {}
    for name in (*nodelist.SLURM, *nodelist.WORKERS):
        text = variables.get(name)
        if isinstance(text, str) and text:
            out[name] = ",".join(_listed(text)) if nodelist.understood(text) else "["
    return out


def _listed(text: str) -> Iterable[str]:
    return islice(nodelist.hosts(text), nodelist.MOST)


def _names(answers: Mapping[str, Any]) -> Iterator[str]:
    variables = _variables(answers)
    for name in (*nodelist.SLURM, *nodelist.WORKERS):
        if nodelist.understood(str(variables.get(name, ""))):
            yield from _listed(str(variables[name]))
    for name in nodelist.LISTS:
        yield from (word for word in str(variables.get(name, "")).split() if not word.isdecimal())
    for name in named(Role.MASTER):
        yield host_port(str(variables.get(name, "")))[0]
    for text in files(answers):
        yield from (line.split()[0] for line in text.splitlines() if line.strip())
    config = answers.get("config:")
    expected = config.get("expected") if isinstance(config, dict) else None
    peers = expected.get("peers") if isinstance(expected, dict) else None
    yield from (host_port(str(peer))[0] for peer in (peers if isinstance(peers, list) else ()))


def files(answers: Mapping[str, Any]) -> Iterator[str]:
    """The text of each list of hosts that a batch system's variable names."""
    for name in named(Role.NODELIST):
        path = str(_variables(answers).get(name, ""))
        text = answers.get(f"file:{path}") if os.path.isabs(path) else None
        if isinstance(text, str):
            yield text


def _variables(answers: Mapping[str, Any]) -> Mapping[str, Any]:
    told = answers.get("env:")
    return told if isinstance(told, dict) else {}


def _is_address(text: str) -> bool:
    try:
        return bool(ip_address(text.partition("%")[0]))
    except ValueError:
        return False
