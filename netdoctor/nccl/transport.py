"""Whether plain TCP sockets carry the data between nodes, and what shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from netdoctor.facts.environ import Environ
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.net import Net
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline, PathRun, Run
from netdoctor.model import Unavailable
from netdoctor.nccl.hcas import selected
from netdoctor.nccl.integers import integer
from netdoctor.nccl.log.facts import SOCKET, NetSource
from netdoctor.nccl.log.merge import family
from netdoctor.nccl.rdma_access import usable
from netdoctor.nccl.selector import parse


class Carrier(NamedTuple):
    """`sockets` is None where nothing shows it; `why` is the evidence, or what is missing."""

    sockets: bool | None
    why: str


def data_by_sockets(
    rdma: Rdma | Unavailable,
    environ: Environ | Unavailable,
    libraries: Libraries | Unavailable,
    baseline: Baseline | Unavailable,
    paths: PathRun | Unavailable,
    net: Net | Unavailable,
) -> Carrier:
    """What a run's log says counts most; then what the environment forces; then the lack of anything else.

    NCCL takes a plugin's network before its own, NET/IB before NET/Socket, and NET/Socket where the others find no device
    (src/plugin/net.cc).
    """
    logged = {str(seen) for run in _runs(baseline, paths) if (seen := getattr(run.log, "net", None))}
    if logged:
        names = ", ".join(sorted(logged))
        lost = next(
            (x for x in (getattr(baseline, "run", baseline), getattr(paths, "runs", paths)) if isinstance(x, Unavailable)), None
        )
        if "Socket" not in logged and lost is not None:  # NCCL falls back to sockets run by run
            return Carrier(None, f"NCCL's log of one all-reduce says network {names}, another is not there: {lost}")
        return Carrier("Socket" in logged, f"NCCL's log of the all-reduce says network {names}")
    if isinstance(environ, Unavailable):
        return Carrier(None, f"the job's variables: {environ}")
    forced, ib_off = environ.get("NCCL_NET"), environ.get("NCCL_IB_DISABLE")
    if isinstance(forced, Unavailable) or isinstance(ib_off, Unavailable):
        return Carrier(None, f"the job's variables: {forced if isinstance(forced, Unavailable) else ib_off}")
    if forced and forced.lower() == "socket":
        return Carrier(True, f"NCCL_NET={forced}")
    plugins = libraries if isinstance(libraries, Unavailable) else libraries.plugins
    if isinstance(plugins, Unavailable):
        return Carrier(None, f"network plugins: {plugins}")
    if plugins:
        return Carrier(None, f"a network plugin is installed ({plugins[0].name}), and no log says whether it carries the data")
    if ib_off is not None and integer(ib_off):
        return Carrier(True, f"NCCL_IB_DISABLE={ib_off}, and no network plugin is installed")
    devices = rdma if isinstance(rdma, Unavailable) else rdma.devices
    if isinstance(devices, Unavailable):
        return Carrier(None, f"RDMA devices: {devices}")
    if not devices:
        return Carrier(True, "no RDMA device and no network plugin")
    wanted = environ.get("NCCL_IB_HCA")
    if isinstance(wanted, Unavailable):
        return Carrier(None, f"the job's variables: {wanted}")
    choice = parse(wanted or "")
    chosen = devices if choice is None else selected(devices, choice)
    steps = [(one, usable(one, rdma, net)) for one in chosen] if not isinstance(rdma, Unavailable) else []
    if good := next((one.name for one, step in steps if step.yes), None):
        # Not a no: NCCL falls back to sockets silently, and only a log shows that it did not.
        return Carrier(None, f"RDMA device {good} can be used, and no all-reduce shows that NCCL uses it")
    if all(step.yes is False for _, step in steps):
        reason = f"{steps[0][0].name}: {steps[0][1].text}" if steps else f"NCCL_IB_HCA={wanted} selects none"
        return Carrier(True, f"no RDMA device can be used ({reason}), and no network plugin is installed")
    return Carrier(None, "whether the RDMA devices can be used could not be told")


# What sites and launchers call a network, and NCCL's own name of it: RoCE is NET/IB too, and EFA goes by aws-ofi-nccl.
_ALSO: Final = {"roce": "IB", "infiniband": "IB", "rdma": "IB", "efa": "Libfabric", "ofi": "Libfabric", "tcp": SOCKET}


def network_family(name: str) -> str:
    """The family of a network as a site may call it; names that are not known stand for themselves."""
    return _ALSO.get(name.strip().lower(), family(name.strip()))


def shown_network(run: Run) -> str | None:
    """The family of the network that this run's log says was taken; an error's source file shows no more than a try."""
    log = run.log
    return None if log is None or not log.net or log.net_inferred is NetSource.ERRORS else network_family(log.net)


def _runs(baseline: Baseline | Unavailable, paths: PathRun | Unavailable) -> Iterator[Run]:
    if not isinstance(baseline, Unavailable) and not isinstance(baseline.run, Unavailable):
        yield baseline.run
    if not isinstance(paths, Unavailable) and not isinstance(paths.runs, Unavailable):
        yield from paths.runs
