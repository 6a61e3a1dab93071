"""net.plugin: pass, fail, skip and unknown each for a true reason."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.checks.net_plugin import plugins as check
from netdoctor.facts.environ import Environ
from netdoctor.facts.intent import Intent
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.plugins import FoundBy
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.model import Finding, Kind, Severity, Status, Unavailable
from netdoctor.nccl import transport
from tests.support import facts as f

LOST = Unavailable("not recorded")
Changes = dict[type, object]


def judged(changes: Changes) -> dict[str, Finding]:
    return {x.subject: x for x in f.judge(check, f.machine({Intent: f.job(), **changes}))}


NOWHERE = Unavailable("not read", "libtorch_cuda.so was not looked at")
SEVERAL = f.job(nodes=2)
EFA = f.rdma(devices=tuple(f.hca(i, name=f"rdmap{i}s0", driver="efa") for i in range(8)))
OFI = f.run(log=f.log(network="Libfabric", net="Libfabric"))
SOCKETS = f.baseline(f.run(log=f.log(network="Socket")))
BROKEN = f.baseline(f.run(log=f.log(network="IB", plugin_error="libfabric.so.1: cannot open shared object file")))
OFI_NAMED = f.libraries(plugins=(f.plugin("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"),))


def plugins(*symbols: str, **changes: Any) -> Libraries:
    return f.libraries(plugins=(f.plugin(**{**({"symbols": symbols} if symbols else {}), **changes}),))


def named(name: str) -> Environ:
    return f.environ({"NCCL_NET_PLUGIN": name})


def by_list(names: str, version: tuple[int, int, int] | Unavailable) -> Changes:
    """A plugin of AWS's name, NCCL of this version, and no run of it."""
    have = f.libraries(plugins=OFI_NAMED.plugins, nccl=(f.library(version=version),), torch=f.torch(nccl_compiled=None))
    return {Environ: named(names), Libraries: have, Baseline: f.baseline(nccl_ran=False)}


PLUGIN: dict[str, tuple[Changes, Status, str]] = {
    "none needed": ({}, Status.SKIP, "no device needs one"),
    "EFA with its plugin in use": ({Rdma: EFA, Baseline: f.baseline(OFI), Libraries: plugins()}, Status.PASS, "Libfabric"),
    "fits, NCCL did not run": ({Baseline: f.baseline(nccl_ran=False), Libraries: plugins()}, Status.PASS, "fits NCCL 2.27.5"),
    "fits, no run": ({Baseline: LOST, Libraries: plugins()}, Status.UNKNOWN, "fits NCCL 2.27.5; no run showed it"),
    "there, the run used sockets, devices lost": (
        {Rdma: LOST, Baseline: SOCKETS, Libraries: plugins()},
        Status.UNKNOWN,
        "whether EFA needs it",
    ),
    "there, nothing needs it, the run used sockets": ({Baseline: SOCKETS, Libraries: plugins()}, Status.PASS, "fits"),
    "there, and the run says why it was not loaded": ({Baseline: BROKEN, Libraries: plugins()}, Status.FAIL, "NCCL's own IB"),
    "EFA without a plugin, of one node": ({Rdma: EFA, Intent: f.job(nodes=1)}, Status.SKIP, "one node"),
    "EFA without a plugin, and nobody says how many nodes": ({Rdma: EFA}, Status.UNKNOWN, "if the job has other nodes"),
    "EFA without a plugin": ({Rdma: EFA, Intent: SEVERAL}, Status.FAIL, "EFA needs aws-ofi-nccl"),
    "EFA without a plugin, not everything was searched": (
        {Rdma: EFA, Libraries: f.libraries(incomplete=("the loader's cache: denied",))},
        Status.UNKNOWN,
        "the loader's cache: denied",
    ),
    "none found, not everything was searched, and NCCL did not run": (
        {Baseline: f.baseline(nccl_ran=False), Libraries: f.libraries(incomplete=("/opt/lib: Input/output error",))},
        Status.UNKNOWN,
        "no plugin was found, but /opt/lib: Input/output error",
    ),
    "none found, not everything was searched, and none is wanted": (
        {Environ: named("none"), Baseline: LOST, Libraries: f.libraries(incomplete=("/opt/lib: Input/output error",))},
        Status.SKIP,
        "no network plugin is taken",
    ),
    "none found, not everything was searched, and the run used sockets": (
        {Baseline: SOCKETS, Libraries: f.libraries(incomplete=("/opt/lib: Input/output error",))},
        Status.SKIP,
        "no network plugin is taken",
    ),
    "EFA without a plugin, not everything was searched, and the run used sockets": (
        {Rdma: EFA, Intent: SEVERAL, Baseline: SOCKETS, Libraries: f.libraries(incomplete=("the loader's cache: denied",))},
        Status.FAIL,
        "EFA needs aws-ofi-nccl",
    ),
    "EFA, the plugin is there and unused": (
        {Rdma: EFA, Intent: SEVERAL, Baseline: SOCKETS, Libraries: plugins()},
        Status.FAIL,
        "own Socket",
    ),
    # NCCL 2.27 looks for v6 to v10 (src/plugin/net.cc, getNcclNet_v6 to getNcclNet_v10).
    "the oldest interface that fits": ({Libraries: plugins("ncclNetPlugin_v6")}, Status.PASS, "fits"),
    "the newest interface that fits": ({Libraries: plugins("ncclNetPlugin_v10")}, Status.PASS, "fits"),
    "too old an interface": (
        {Libraries: plugins("ncclNetPlugin_v5")},
        Status.FAIL,
        "offers v5; NCCL 2.27.5 looks for v6 to v10",
    ),
    "too new an interface": ({Libraries: plugins("ncclNetPlugin_v11")}, Status.FAIL, "offers v11"),
    "no interface at all": ({Libraries: plugins("ncclNetPlugin")}, Status.FAIL, "offers no interface"),
    "its symbols are lost": ({Libraries: plugins(symbols=NOWHERE)}, Status.UNKNOWN, str(NOWHERE)),
    "the version of NCCL is lost": (
        {
            Baseline: f.baseline(nccl_ran=False),
            Libraries: f.libraries(plugins=(f.plugin(),), nccl=(f.library(version=NOWHERE),)),
        },
        Status.UNKNOWN,
        f"fits could not be told: {NOWHERE}",
    ),
    "plugins lost": ({Libraries: f.libraries(plugins=LOST)}, Status.UNKNOWN, "could not be looked for"),
    "no plugin, devices lost": ({Rdma: LOST}, Status.UNKNOWN, "whether one is needed"),
    # dlopen("libnccl-net.so") looks where the loader looks, and not into another package's folder.
    "one in site-packages, where the loader does not look": (
        {Libraries: plugins(found_by=(FoundBy.SITE_PACKAGES,), opened_as=())},
        Status.SKIP,
        "no network plugin is taken",
    ),
    "one of another name, and none is named": ({Libraries: OFI_NAMED}, Status.SKIP, "no network plugin is taken"),
    # src/plugin/plugin_open.cc: the value itself, then libnccl-net-VALUE.so.
    "named by its ending": ({Environ: named("ofi"), Libraries: OFI_NAMED}, Status.PASS, "libnccl-net-ofi.so fits"),
    "named by its file": ({Environ: named("libnccl-net-ofi.so"), Libraries: OFI_NAMED}, Status.PASS, "libnccl-net-ofi.so fits"),
    "named by its path": (
        {Environ: named("/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"), Libraries: OFI_NAMED},
        Status.PASS,
        "libnccl-net-ofi.so fits",
    ),
    "named by its path, and built for another CPU": (
        {
            Environ: named("/opt/amazon/ofi-nccl/lib/libnccl-net.so"),
            Libraries: plugins(foreign="aarch64", opened_as=()),
        },
        Status.FAIL,
        "is built for aarch64, which NCCL is not",
    ),
    "named by its ending, and built for another CPU": (
        {
            Environ: named("ofi"),
            Libraries: f.libraries(plugins=(f.plugin("/x/libnccl-net-ofi.so", foreign="aarch64", opened_as=()),)),
            Baseline: f.baseline(nccl_ran=False),
        },
        Status.FAIL,
        "names no file that NCCL finds",
    ),
    "of another CPU, and EFA needs one": (
        {Rdma: EFA, Intent: SEVERAL, Libraries: plugins(foreign="aarch64", opened_as=())},
        Status.FAIL,
        "EFA needs aws-ofi-nccl",
    ),
    "named second in a list": (by_list("gib,ofi", (2, 28, 3)), Status.PASS, "libnccl-net-ofi.so fits NCCL 2.28.3"),
    "a list of one": (by_list("ofi,", (2, 28, 3)), Status.PASS, "libnccl-net-ofi.so fits NCCL 2.28.3"),
    "a list for an NCCL that takes it for one name": (
        by_list("gib,ofi", (2, 27, 7)),
        Status.FAIL,
        "(gib,ofi, libnccl-net-gib,ofi.so)",
    ),
    "a list, and the version of NCCL is lost": (
        by_list("gib,ofi", NOWHERE),
        Status.UNKNOWN,
        f"fits could not be told: {NOWHERE}",
    ),
    "no plugin is wanted": (by_list("None", (2, 28, 3)), Status.SKIP, "no device needs one"),
    "another one is named, and the run used sockets": (
        {Environ: named("gib"), Libraries: OFI_NAMED, Baseline: SOCKETS},
        Status.FAIL,
        "NCCL_NET_PLUGIN=gib names no plugin that NCCL finds; the run used NCCL's own Socket",
    ),
    "what it needs is lost, and NCCL did not run": (
        {Libraries: plugins(lacks=LOST), Baseline: f.baseline(nccl_ran=False)},
        Status.UNKNOWN,
        "needs is there could not be read",
    ),
    "what it needs is lost, and the run did without it": (
        {Libraries: plugins(lacks=LOST), Baseline: SOCKETS},
        Status.PASS,
        "fits",
    ),
    "EFA, libfabric's provider is lost, and NCCL did not run": (
        {Rdma: EFA, Libraries: plugins(efa=LOST), Baseline: f.baseline(nccl_ran=False)},
        Status.UNKNOWN,
        "libfabric's provider for EFA is there could not be read",
    ),
    "EFA, libfabric's provider is lost, and the run used sockets": (
        {Rdma: EFA, Intent: SEVERAL, Libraries: plugins(efa=LOST), Baseline: SOCKETS},
        Status.FAIL,
        "own Socket",
    ),
    "another one is named": (
        {Environ: named("gib"), Libraries: OFI_NAMED, Baseline: f.baseline()},
        Status.FAIL,
        "NCCL_NET_PLUGIN=gib names no file that NCCL finds (gib, libnccl-net-gib.so)",
    ),
    "named, not found, no run": ({Baseline: LOST, Environ: named("ofi")}, Status.FAIL, "NCCL_NET_PLUGIN=ofi"),
    "environment lost": ({Environ: LOST}, Status.UNKNOWN, "NCCL_NET_PLUGIN could not be read"),
}


@pytest.mark.parametrize(("changes", "status", "words"), PLUGIN.values(), ids=PLUGIN)
def test_plugin(changes: Changes, status: Status, words: str) -> None:
    found = judged(changes)["network"]
    assert found.status is status and words in found.message, found


@pytest.mark.parametrize(
    ("changes", "severity", "why"),
    [
        ({Baseline: BROKEN, Libraries: plugins()}, Severity.WARNING, "libfabric.so.1: cannot open shared object file"),
        (
            {Rdma: EFA, Intent: SEVERAL, Baseline: SOCKETS, Libraries: plugins()},
            Severity.CRITICAL,
            None,
        ),  # the log does not say why
    ],
)
def test_a_plugin_that_was_not_loaded_costs_what_needs_it(changes: Changes, severity: Severity, why: str | None) -> None:
    found = judged(changes)["network"]
    assert (found.severity, found.why) == (severity, why)


def test_a_plugin_of_another_cpu_that_is_not_taken_is_told() -> None:
    found = judged({Libraries: plugins(foreign="aarch64", opened_as=())})["network"]
    assert found.status is Status.SKIP
    assert found.notes == ("/opt/amazon/ofi-nccl/lib/libnccl-net.so is there and not taken: it is built for aarch64",)


@pytest.mark.parametrize(
    "changes", [{"lacks": ("libfabric.so.1",)}, {"foreign": "aarch64"}, {"symbols": ("ncclNetPlugin_v3",)}]
)
@pytest.mark.parametrize(("network", "severity"), [("AWS Libfabric", Severity.CRITICAL), ("ib", Severity.WARNING)])
def test_a_network_that_is_asked_for_and_not_loaded(changes: dict[str, Any], network: str, severity: Severity) -> None:
    """NCCL 2.27.5 ends with ncclInvalidUsage; by a network of its own it goes on."""
    environ, run = f.environ({"NCCL_NET": network}), f.baseline(nccl_ran=False)
    found = judged({Environ: environ, Baseline: run, Libraries: plugins(**changes)})["network"]
    assert (found.status, found.severity) == (Status.FAIL, severity)
    assert ("stops at start" in found.message) is (severity is Severity.CRITICAL)


def test_a_network_that_is_asked_for_where_the_run_had_another() -> None:
    """NCCL did not stop: NCCL_NET was set for the job alone, or only now."""
    changes: Changes = {Environ: f.environ({"NCCL_NET": "AWS Libfabric"}), Baseline: SOCKETS}
    found = judged({**changes, Libraries: plugins(lacks=("libfabric.so.1",))})["network"]
    assert (found.status, found.severity, "stops at start" in found.message) == (Status.FAIL, Severity.WARNING, False)


def test_a_plugin_that_nobody_wants_is_not_taken() -> None:
    (note,) = judged({Environ: named("none"), Libraries: plugins(opened_as=())})["network"].notes
    assert note.endswith("is there and not taken: NCCL_NET_PLUGIN=none")


@pytest.mark.parametrize(
    ("environ", "plugin", "says"),
    [
        ({}, {}, "a network plugin is installed"),
        ({"NCCL_NET_PLUGIN": "none"}, {}, "no network plugin is taken"),
        ({}, {"symbols": Unavailable(Kind.MALFORMED, "not an ELF file")}, "no network plugin is taken"),
        ({}, {"foreign": "aarch64"}, "no network plugin is taken"),
        ({}, {"path": "/opt/x/libnccl-tuner.so", "opened_as": ("libnccl-tuner.so",)}, "no network plugin is taken"),
    ],
)
def test_what_carries_the_data_beside_a_plugin(environ: dict[str, str], plugin: dict[str, Any], says: str) -> None:
    job, runs = f.environ({"NCCL_IB_DISABLE": "1", **environ}), (f.baseline(nccl_ran=False), PathRun(()))
    have = f.libraries(plugins=(f.plugin(**plugin),))
    carrier = transport.data_by_sockets(f.rdma(), job, have, runs, f.net(), Intent(nodes=2))
    assert says in carrier.why and carrier.sockets is (None if says.startswith("a network") else True)


@pytest.mark.parametrize(("nccl", "asked"), [((f.library(),), False), ((), True)])
def test_a_job_without_torch_may_bring_its_nccl(nccl: Any, asked: bool) -> None:
    have = f.libraries(torch=Unavailable("absent"), nccl=nccl)
    (found,) = judged({Libraries: have, Baseline: f.baseline(nccl_ran=False)}).values()
    assert found.status is (Status.UNKNOWN if asked else Status.SKIP), found
