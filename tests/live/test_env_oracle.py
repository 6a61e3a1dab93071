"""The table of verdicts against two real libnccl: what it echoes, refuses and ignores.  No GPU is needed.

Integer parameters, distances, algorithm lists and selectors are asked of the library's own functions (tools/libnccl_params.py,
in a child), the rest of ncclGetUniqueId with NCCL_DEBUG=INFO.  What only a communicator reads and no function shows alone
(NCCL_NET, NCCL_DEBUG_SUBSYS, NCCL_SOCKET_FAMILY, files) is left to the table.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netdoctor.facts.nccl_version import parse as parse_version
from netdoctor.nccl import selector
from netdoctor.nccl.integers import strtoll
from netdoctor.variables import catalogue
from tests.support.facts.variables import NEW, OLD, ROWS, Row
from tests.support.machines.libnccl import libraries

pytestmark = [pytest.mark.live, pytest.mark.nccl]
ROOT = Path(__file__).parents[2]
NAMES = ("unknown-name", "never-existed", "removed", "not-yet")
# eth0 need not be there: only names that no machine has, and lo, which every machine has as its first.
SELECTED_NOTHING = ("10.0.0.5", '"eth0"', "mlx5_0")


def kind_of(row: Row) -> str | None:
    """How a row is proven; None: it is left to the table."""
    name, value, version, _, rule = row
    known = catalogue.lookup(name)
    if version not in (OLD, NEW) or not name.startswith("NCCL_"):
        return None
    if rule in NAMES or (rule == "another-program" and known and known.program != "nccl"):
        return "name"
    if known is None or known.program != "nccl":
        return None
    if name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
        return "level"
    if known.accepts in ("algo", "proto", "debug"):
        return known.accepts
    if known.accepts == "commid":
        return "commid"
    if known.accepts in ("ifname", "hca"):
        return "select" if selector.parse(value) else None
    from netdoctor.nccl.integers import ranges

    return "int" if known.accepts in ("flag", "one", "int", "bool") or ranges(known.accepts) else None


PROVEN = [row for row in ROWS if kind_of(row)]


def test_enough_rows_are_proven() -> None:
    assert len(PROVEN) >= 40
    assert {row[2] for row in PROVEN} == {OLD, NEW}


@functools.cache
def library(version: str) -> str:
    path = libraries().get(tuple(int(part) for part in version.split(".")))
    if path is None:
        pytest.skip(f"no libnccl {version} in build/nccl (make libnccl)")
    return str(path)


def ask(version: str, *arguments: str, **variables: str) -> tuple[Any, str]:
    """The answer of tools/libnccl_params.py, and NCCL's log lines."""
    import json

    clean = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
    extra = {"NCCL_CONF_FILE": "/dev/null", **variables}
    program = [sys.executable, str(ROOT / "tools/libnccl_params.py"), library(version), *arguments]
    done = subprocess.run(program, env={**clean, **extra}, capture_output=True, text=True, timeout=60, check=True)
    text = done.stdout + done.stderr
    start = re.search(r'[\[{](?="|\}|\])', done.stdout)
    assert start, text
    return json.JSONDecoder().raw_decode(done.stdout[start.start() :])[0], text


@functools.cache
def read_names(version: str) -> frozenset[str]:
    return frozenset(ask(version, "strings")[0])


@functools.cache
def symbol_of(version: str) -> dict[str, str]:
    """{name: the function that reads it}, as tools/refresh_catalogue.py finds it."""
    spec = importlib.util.spec_from_file_location("refresh_catalogue", ROOT / "tools/refresh_catalogue.py")
    assert spec and spec.loader
    refresh_catalogue = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(refresh_catalogue)
    names = sorted(n for n in read_names(version) if n not in ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"))
    return {name: symbol for symbol, name in refresh_catalogue.readers(library(version), names).items()}


@functools.cache
def defaults(version: str) -> dict[str, int]:
    found: dict[str, int] = ask(version, "params")[0]
    return found


@pytest.mark.parametrize("row", PROVEN, ids="-".join)
def test_the_library_agrees(row: Row) -> None:
    name, value, version, _, rule = row
    kind = kind_of(row)
    if kind == "name":
        assert name not in read_names(version)
    elif kind == "int":
        _integer(name, value, version, rule)
    elif kind == "level":
        _level(name, value, version, rule)
    elif kind in ("algo", "proto"):
        _list(kind, value, version, rule)
    elif kind == "debug":
        _debug(value, version, rule)
    elif kind == "commid":
        _commid(value, version, rule)
    else:
        _select(name, value, version, rule)


def _integer(name: str, value: str, version: str, rule: str) -> None:
    assert name in read_names(version)
    symbol = symbol_of(version).get(name)
    if symbol is None:
        pytest.skip(f"{name} has no function of its own in {version}")
    got, log = ask(version, "params", **{name: value, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"})
    echoed = re.findall(rf"{name} set by environment to (-?\d+)\.", log)
    if value == "" or rule == "overflow":
        assert got[symbol] == defaults(version)[symbol]
        assert not echoed
        assert (f"Invalid value {value} for {name}" in log) == (rule == "overflow")
        return
    assert got[symbol] == strtoll(value).value
    assert echoed == [str(got[symbol])]
    if rule == "read-as-zero":
        assert got[symbol] == 0
    if rule == "octal":
        assert got[symbol] != int(value)
    if rule == "is-default":
        assert got[symbol] == defaults(version)[symbol]


def _level(name: str, value: str, version: str, rule: str) -> None:
    disable = name if name.endswith("_DISABLE") else "NCCL_NOT_SET"
    level = "NCCL_NOT_SET" if name.endswith("_DISABLE") else name
    got, _ = ask(version, "level", disable, level, **{name: value})
    if rule in ("p2p-off", "gdr-off"):
        assert got["level"] == 0  # PATH_LOC
    elif rule in ("grammar", "read-as-zero", "out-of-range") or name.endswith("_DISABLE"):
        assert got["level"] == -2  # as if nothing were set
    else:
        assert got["level"] > 0


def _list(kind: str, value: str, version: str, rule: str) -> None:
    got, _ = ask(version, "list", kind, value)
    if version == NEW:
        assert (got["code"] != 0) == (rule == "grammar")
        return
    words = value.lower().removeprefix("^").split(",")
    on = [element.lower() for element, enabled in zip(got["elements"], got["list"], strict=True) if enabled]
    assert got["code"] == 0
    assert (sorted(on) == sorted(words)) == (rule != "grammar")


def _debug(value: str, version: str, rule: str) -> None:
    _, log = ask(version, "id", NCCL_DEBUG=value, NCCL_COMM_ID="bad")
    assert ("NCCL WARN" in log) == (rule != "grammar")
    assert ("NCCL INFO" in log) == (rule in ("debug-info", "debug-trace"))


def _commid(value: str, version: str, rule: str) -> None:
    answer, log = ask(version, "id", NCCL_COMM_ID=value, NCCL_DEBUG="INFO")
    refused = "please use format" in log
    assert refused == (rule in ("grammar", "empty"))
    assert answer["code"] != 0 or not refused
    if rule == "ok" and (not value.startswith("[") or Path("/proc/net/if_inet6").exists()):
        assert re.search(r"Bootstrap ?: Using lo:", log)
    if rule == "known-bug":  # 127.0.0.1 is on lo, and only there
        assert not re.search(r"Bootstrap ?: Using lo:", log)


def _select(name: str, value: str, version: str, rule: str) -> None:
    parsed = selector.parse(value)
    assert parsed
    wants = [want for want, _ in parsed.names]
    there = ["lo", "eth0", "eth1", "eth10", "docker0", "ib0", "mlx5_0", "mlx5_1", "mlx5_10", "mlx5_2", "mlx5_30", *wants]
    taken, _ = ask(version, "select", value, *there)
    assert taken == {one: parsed.takes(one) for one in there}
    if rule == "prefix":
        trap = next(want for want in wants if re.search(r"[1-9]$", want))
        assert taken[f"{trap}0"]
    if rule == "ok" and value.startswith("="):
        assert not taken.get("eth10", False) or wants == ["eth10"]
    if rule == "readmits-lo":
        assert taken["lo"]
        answer, log = ask(version, "id", NCCL_SOCKET_IFNAME=value, NCCL_DEBUG="INFO")
        assert answer["code"] == 0 and re.search(r"Bootstrap ?: Using lo:", log)
    if name == "NCCL_SOCKET_IFNAME" and value in SELECTED_NOTHING:
        answer, _ = ask(version, "id", NCCL_SOCKET_IFNAME=value)
        assert answer["code"] != 0 and "no socket interface found" in answer["error"]
    if rule == "blank":
        assert all(taken[want] and not taken[want.strip()] for want in wants if want != want.strip())


@pytest.mark.parametrize("version", [OLD, NEW])
def test_the_catalogue_names_what_the_library_reads(version: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/refresh_catalogue.py"), library(version)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", [OLD, NEW])
def test_the_catalogue_has_the_librarys_defaults(version: str) -> None:
    parsed = parse_version(version)
    wrong, compared = [], 0
    for name, symbol in symbol_of(version).items():
        row = catalogue.lookup(name)
        assert row is not None, name
        wanted = row.default_in(parsed)
        got = defaults(version)[symbol]
        compared += 1
        if wanted != ("undef" if got == -(1 << 31) else str(got)):
            wrong.append((name, wanted, got))
    assert compared > 80
    assert wrong == []


def test_conf_file_first_writer_wins(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_IB_TIMEOUT=9\nNCCL_IB_TIMEOUT=10\n #NCCL_IB_SL=3\nNCCL_IB_TC= 7\nNCCL_IB_RETRY_CNT=2\n")
    got, log = ask(NEW, "params", NCCL_CONF_FILE=str(conf), NCCL_IB_RETRY_CNT="5", NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="ENV")
    named = {name: got[symbol] for name, symbol in symbol_of(NEW).items()}
    assert [named[f"NCCL_IB_{n}"] for n in ("TIMEOUT", "SL", "TC", "RETRY_CNT")] == [9, -1, 7, 5]
    assert "NCCL_IB_TIMEOUT set by environment to 9." in log
