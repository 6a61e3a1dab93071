"""Whether plain TCP sockets carry the data between nodes, and what shows it."""

from __future__ import annotations

from typing import Final, NamedTuple

from netdoctor.config.keys import NETWORKS, unversioned
from netdoctor.facts.environ import Environ
from netdoctor.facts.intent import Intent
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.net import Net
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline, CommonRun, PathRun, Run
from netdoctor.model import Kind, Unavailable, missing
from netdoctor.nccl.hcas import selected
from netdoctor.nccl.integers import integer
from netdoctor.nccl.log.facts import SOCKET, LogFacts, NetSource, family
from netdoctor.nccl.plugins import NET, opened
from netdoctor.nccl.rdma_access import usable
from netdoctor.nccl.selector import parse_hcas


class Carrier(NamedTuple):
    """`sockets` is None where nothing shows it; `why` is the evidence, or what is missing."""

    sockets: bool | None
    why: str


def data_by_sockets(
    rdma: Rdma, environ: Environ, libraries: Libraries, runs: tuple[Baseline, PathRun], net: Net, intent: Intent
) -> Carrier:
    """What a run's log says counts most; then what the environment forces; then the lack of anything else.

    Of a job of one node none crosses the network.

    NCCL takes a plugin's network before its own, NET/IB before NET/Socket, and NET/Socket where the others find no device
    (src/plugin/net.cc).
    """
    if intent.others is False:
        return Carrier(False, f"{intent.why}: no data crosses the network")
    return _by_log(*runs) or _by_settings(environ, libraries) or _by_devices(rdma, environ, net)


def sockets_measured(baseline: Baseline, paths: PathRun) -> bool:
    """Whether an all-reduce between nodes went over sockets: what they give is measured."""
    runs = (baseline.run, *(paths.runs or ()))
    return any(isinstance(run, CommonRun) and run.finished and shown_network(run) == SOCKET for run in runs)


def log_of(run: Run | Unavailable | None) -> LogFacts | None:
    """What NCCL said in a run; None where there is no run, or NCCL did not run in it."""
    return run.log if run and isinstance(run.log, LogFacts) else None


def _by_log(baseline: Baseline, paths: PathRun) -> Carrier | None:
    runs = (*((baseline.run,) if baseline.run else ()), *(paths.runs or ()))
    logged = {log.net for run in runs if (log := log_of(run)) is not None and log.net and not _tried_alone(run, log)}
    if not logged:
        return None
    names = ", ".join(sorted(logged))
    lost = missing(baseline.run, paths.runs)
    if SOCKET not in logged and lost is not None:  # NCCL falls back to sockets run by run
        return Carrier(None, f"NCCL's log of one all-reduce says network {names}, another is not there: {lost}")
    return Carrier(SOCKET in logged, f"NCCL's log of the all-reduce says network {names}")


def _by_settings(environ: Environ, libraries: Libraries) -> Carrier | None:
    forced, ib_off = environ.get("NCCL_NET"), environ.get("NCCL_IB_DISABLE")
    if (lost := missing(forced, ib_off)) is not None:
        return Carrier(None, f"the job's variables: {lost}")
    if forced and forced.lower() == SOCKET.lower():
        return Carrier(True, f"NCCL_NET={forced}")
    named, have = environ.get(NET.variable), libraries.plugins
    if (lost := missing(named, have)) is not None:
        return Carrier(None, f"network plugins: {lost}")
    plugin = opened(have or (), NET.names(named or None, Unavailable(Kind.NOT_READ)))
    if plugin and not plugin.refused:
        return Carrier(None, f"a network plugin is installed ({plugin.name}), and no log says whether it carries the data")
    if ib_off and integer(ib_off):
        return Carrier(True, f"NCCL_IB_DISABLE={ib_off}, and no network plugin is {'taken' if have else 'installed'}")
    return None


def own_network(environ: Environ, libraries: Libraries) -> bool:
    """Whether NCCL tries its own NET/IB for certain: not switched off, no plugin stands before it, no other is asked for."""
    forced = environ.get("NCCL_NET")
    return _by_settings(environ, libraries) is None and (not forced or forced.lower() == "ib")


def _by_devices(rdma: Rdma, environ: Environ, net: Net) -> Carrier:
    devices, wanted = rdma.devices, environ.get("NCCL_IB_HCA")
    if isinstance(devices, Unavailable):
        return Carrier(None, f"RDMA devices: {devices}")
    if not devices:
        return Carrier(True, "no RDMA device and no network plugin")
    if isinstance(wanted, Unavailable):
        return Carrier(None, f"the job's variables: {wanted}")
    choice = parse_hcas(wanted or "")
    steps = [(one, usable(one, rdma, net)) for one in (selected(devices, choice) if choice else devices)]
    if good := next((one.name for one, step in steps if step.yes), None):
        # Not a no: NCCL falls back to sockets silently, and only a log shows that it did not.
        return Carrier(None, f"RDMA device {good} can be used, and no all-reduce shows that NCCL uses it")
    if all(step.yes is False for _, step in steps):
        reason = f"{steps[0][0].name}: {steps[0][1].text}" if steps else f"NCCL_IB_HCA={wanted} selects none"
        return Carrier(True, f"no RDMA device can be used ({reason}), and no network plugin is installed")
    return Carrier(None, "whether the RDMA devices can be used could not be told")


_FAMILIES: Final = {name.lower(): known for name, known in NETWORKS.items()}


def network_family(name: str) -> str:
    """The family of a network as a site or a log may call it; names that are not known stand for themselves."""
    bare = unversioned(name)
    return _FAMILIES.get(bare.lower(), family(bare))


def needs_rdma(name: str) -> bool:
    """Whether a network of this name goes over devices of /sys/class/infiniband; libfabric's others (CXI) do not."""
    return network_family(name) == "IB" or name.lower() == "efa"


def idle_hcas(intent: Intent, environ: Environ, libraries: Libraries) -> str | None:
    """Why the job sends nothing over RDMA devices of /sys/class/infiniband; None: it does, or may."""
    if intent.others is False:
        return intent.why
    meant = intent.network
    if meant and sockets_meant(meant):
        return f"{meant} is meant to carry the data"
    forced = _by_settings(environ, libraries)
    return forced.why if forced and forced.sockets else None


def sockets_meant(name: str) -> bool:
    """Whether a network of this name, as a site or a variable calls it, is plain sockets."""
    return network_family(name) == SOCKET


def shown_network(run: Run) -> str | None:
    """The family of the network that this run's log says was taken."""
    log = log_of(run)
    return None if log is None or not log.net or _tried_alone(run, log) else network_family(log.net)


def _tried_alone(run: Run, log: LogFacts) -> bool:
    """An error's source file shows no more than a try.  So do the devices that NET/IB lists: it does so before NCCL chooses,
    and where NCCL_NET names another network, too (ncclNetInit)."""
    return log.net_inferred is NetSource.ERRORS or (log.net_inferred is NetSource.DEVICES and not run.finished)
