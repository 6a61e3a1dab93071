"""Machines that are healthy in unusual ways, and faults beside which they look alike: each row was judged wrongly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from netdoctor.allreduce.experiment import Baseline
from netdoctor.checks.nccl_version import nccl_version
from netdoctor.model import Finding, Status, Unavailable
from netdoctor.probes.environ import Environ
from netdoctor.probes.libraries import Libraries, Plugin
from netdoctor.probes.libraries import probe as probe_libraries
from netdoctor.probes.rdma import Rdma
from tests.support import facts as f
from tests.support.hosts_away import aws_p5

Changes = dict[type, object]
Check = Callable[..., Iterable[Finding]]


def found(check: Check, changes: Changes) -> dict[str, Finding]:
    return {one.subject: one for one in f.judge(check, f.machine(changes))}


EFA = f.rdma(devices=tuple(f.hca(i, name=f"rdmap{i}s0", driver="efa") for i in range(8)))
OFI_LIB = "/opt/amazon/ofi-nccl/lib"
LINKED = f.plugin(f"{OFI_LIB}/libnccl-net-ofi.so", aliases=(f"{OFI_LIB}/libnccl-net.so",))


def on_efa(plugin: Plugin, version: tuple[int, int, int] = (2, 27, 5), **variables: str) -> Changes:
    """EFA devices, one plugin, and no run of NCCL."""
    have = f.libraries(plugins=(plugin,), nccl=(f.library(version=version),))
    return {Rdma: EFA, Libraries: have, Environ: f.environ(variables), Baseline: f.baseline(nccl_ran=False)}


PLUGINS: dict[str, tuple[Changes, Status]] = {
    "the default name is a link": (on_efa(LINKED), Status.PASS),
    "named by the path of a link": (on_efa(LINKED, NCCL_NET_PLUGIN=f"{OFI_LIB}/libnccl-net.so"), Status.PASS),
    "found under the second name of a list": (on_efa(LINKED, (2, 28, 9), NCCL_NET_PLUGIN="missing,ofi"), Status.PASS),
    "a list before NCCL knew lists": (on_efa(LINKED, NCCL_NET_PLUGIN="missing,ofi"), Status.FAIL),
    "an empty list": (on_efa(LINKED, (2, 28, 9), NCCL_NET_PLUGIN=""), Status.FAIL),
    "an empty name before NCCL knew lists": (on_efa(LINKED, NCCL_NET_PLUGIN=""), Status.PASS),
    "no plugin wanted": (on_efa(LINKED, NCCL_NET_PLUGIN="None"), Status.FAIL),
    "none under the default name": (on_efa(f.plugin(f"{OFI_LIB}/libnccl-net-ofi.so")), Status.FAIL),
}


@pytest.mark.parametrize(("changes", "status"), PLUGINS.values(), ids=PLUGINS)
def test_plugin_of_efa(changes: Changes, status: Status) -> None:
    assert found(nccl_version, changes)["plugin"].status is status


def test_a_plugin_keeps_the_names_of_its_links() -> None:
    node = aws_p5().node
    folder = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu"
    row = node.host.elf.pop(f"{folder}/libnccl-net.so")
    node.host.elf[f"{folder}/libnccl-net-ofi.so"] = row
    node.files.write(f"{folder}/libnccl-net-ofi.so", "")
    del node.files.files[f"{folder}/libnccl-net.so"]
    node.files.link(f"{folder}/libnccl-net.so", "libnccl-net-ofi.so")
    node.host.cache.append(["libnccl-net-ofi.so", f"{folder}/libnccl-net-ofi.so"])
    libraries = probe_libraries(node.finish())
    assert isinstance(libraries, Libraries) and not isinstance(libraries.plugins, Unavailable)
    assert {p for one in libraries.plugins for p in (one.path, *one.aliases)} == {
        f"{folder}/libnccl-net.so",
        f"{folder}/libnccl-net-ofi.so",
    }
