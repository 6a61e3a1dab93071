"""`netdoctor allreduce` on hosts that have IPv6 alone: they meet, reach each other both ways, and their sums are right."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.namespaces.hosts import Hosts
from tests.support.namespaces.marks import all_gone

pytestmark = [pytest.mark.live, pytest.mark.root]
pytest.importorskip("torch")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(2, tmp_path, ipv6=True)
    try:
        yield made
        assert all_gone(made.mark), "processes were left behind"
    finally:
        made.close()


def meet(hosts: Hosts, master: str) -> list[dict[str, Any]]:
    words = ("allreduce", "--nodes", "2", "--master", master, "--wait", "40", "--python", sys.executable, "-f", "json", "-q")
    begun = [hosts.start(n, *words, "--node-rank", str(n)) for n in range(2)]
    return [json.loads(process.communicate(timeout=180)[0]) for process in begun]


@pytest.mark.parametrize("master", ["h0:29400", "[fd00:99::1]:29400"])
def test_hosts_of_ipv6_alone_meet_and_reach_each_other(hosts: Hosts, master: str) -> None:
    for made in meet(hosts, master):
        found = [one for check in made["checks"] for one in check["findings"]]
        assert [one["message"] for one in found if one["status"] == "fail"] == []
        not_known = [one["message"] for one in found if one["status"] == "unknown"]
        assert [(run["ranks"], run["state"], run["verified"]) for run in made["runs"]] == [(2, "finished", True)], not_known
        others = {
            one["subject"]: one["status"]
            for check in made["checks"]
            if check["id"] == "allreduce.nodes"
            for one in check["findings"]
        }
        assert {status for name, status in others.items() if name in ("h0", "h1")} == {"pass"}
