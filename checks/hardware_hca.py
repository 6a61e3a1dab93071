"""Every layer sees the same HCAs: PCI, driver, sysfs, libibverbs, NCCL's log, the path runs that were really made.

Whether the job may open and use one is rdma.dev_infiniband's: this compares what the layers show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from netdoctor.api import (
    Baseline,
    Bound,
    Environ,
    Finding,
    Fix,
    Gpus,
    Intent,
    Kind,
    LogFacts,
    Net,
    PathRun,
    Pci,
    PciDevice,
    Rdma,
    Unavailable,
    Vantage,
    between_nodes,
    check,
    fail,
    hcas,
    layers,
    missing,
    nccl_integer,
    ok,
    parse_hcas,
    skip,
    transport,
    unknown,
    usable,
)

RDMA_DRIVER = "load the HCA's RDMA driver, and see why it left this one out"
LIKE = "its like have one"

_PINNED: Final = frozenset({"IB", "gIB", "UCX"})  # networks that go by the devices of NCCL_IB_HCA; others' plugins pass over it


@check(id="hardware.hca", title="Every layer sees the same HCAs, and each that the job uses was tried", cause="inventory")
def hca(
    pci: Pci,
    rdma: Rdma,
    gpus: Gpus,
    net: Net,
    environ: Environ,
    vantage: Vantage,
    baseline: Baseline,
    path: PathRun,
    job: Intent,
) -> Iterator[Finding]:
    devices, functions = rdma.devices, pci.rdma
    if hcas.no_accelerator(pci, gpus):
        yield skip("no accelerator: PCI was read and shows none, libcuda shows none; NCCL has nothing to do")
    elif isinstance(devices, Unavailable) or isinstance(functions, Unavailable):
        yield unknown(f"sysfs or PCI could not be read to compare: {missing(devices, functions)}")
    elif not devices and not functions and not pci.unclassified:
        yield skip("no RDMA device: PCI was read and shows none, and /sys/class/infiniband was read empty")
    elif not devices:
        yield unknown("PCI shows or may have RDMA hardware, sysfs no RDMA device", how="see rdma.dev_infiniband")
    else:
        for found in _of_the_node(functions, rdma, vantage):  # a fault of the node, unless nobody needs it
            yield between_nodes(found, job) if job.across.needed is False else found
        for one in (_listed(rdma, gpus, pci, net, environ, baseline), _tried(rdma, gpus, pci, environ, path)):
            if one is not None:
                yield between_nodes(one, job)


def _of_the_node(functions: tuple[PciDevice, ...], rdma: Rdma, vantage: Vantage) -> Iterator[Finding]:
    """Functions of a kind that has RDMA devices here, in slots where sysfs shows none; a bond has one for both of its ports."""
    devices = rdma.devices or ()
    lacking = layers.hcas_without_device(functions, devices)
    evidence: dict[str, Any] = {"pci": len(functions), "sysfs": len(devices)}
    if rdma.verbs_devices:
        evidence["libibverbs"] = len(rdma.verbs_devices)
    lost = missing(*(d.pci for d in devices))
    if lost is not None:
        yield unknown(f"where an RDMA device sits on PCI could not be read: {lost}", **evidence)
        return
    if not lacking:
        stale = sorted(set(rdma.verbs_devices or ()) - {d.name for d in devices})
        if stale:
            text = f"libibverbs shows {', '.join(stale)}, sysfs does not: they disagree"
            yield unknown(text, how="rdma link; ls /sys/class/infiniband")
        elif isinstance(rdma.verbs_devices, Unavailable):
            yield unknown(f"PCI and sysfs show the same, libibverbs could not be asked: {rdma.verbs_devices}", **evidence)
        else:
            yield ok(f"{len(devices)} RDMA devices in sysfs; no function on PCI lacks what its like have", **evidence)
        return
    own = [d for d in lacking if layers.bound(d) is Bound.OWN]
    bare = [d for d in lacking if layers.bound(d) is Bound.NONE]
    given = [d for d in lacking if layers.bound(d) is Bound.GIVEN]
    names = ", ".join(f"{d.address} ({d.driver or 'no driver'})" for d in (*bare, *own, *given))
    text = f"PCI shows {names}, sysfs shows no RDMA device of it"
    how = "lspci -k; rdma system (an exclusive mode gives devices to other network namespaces); rdma link"
    if not bare and not own:
        yield unknown(f"{text}: a virtual machine may have it", how="is that meant?  driverctl list-overrides", **evidence)
    elif vantage.runtime is not None or vantage.lost is not None or rdma.shared is not True:
        what = "this container was given the others" if vantage.in_container else "another network namespace may have it"
        yield unknown(f"{text}: {what}, or it was lost", how=how, **evidence)
    else:
        yield fail(
            f"{text}, {LIKE}",
            expected="an RDMA device for each function of this kind",
            fix=Fix(
                RDMA_DRIVER if own else "see why the driver did not take it",
                (f"dmesg | grep -i -e {lacking[0].address} -e mlx5", "lsmod | grep -e mlx5_ib -e _ib", "rdma link"),
            ),
            missing=[d.address for d in (*bare, *own)],
            **evidence,
        )


def _ports(rdma: Rdma, gpus: Gpus, pci: Pci, environ: Environ) -> list[tuple[str, int]] | Unavailable:
    """(HCA, port) that NCCL's own network would take for the job's GPUs: as netdoctor/allreduce/plan.py has the paths tried."""
    named, network, off = (environ.get(name) for name in ("NCCL_IB_HCA", "NCCL_NET", "NCCL_IB_DISABLE"))
    if (lost := missing(named, network, off, gpus.visible)) is not None:
        return lost
    if (isinstance(network, str) and network.lower() != "ib") or (isinstance(off, str) and nccl_integer(off)):
        return []
    choice = parse_hcas(named if isinstance(named, str) else "")
    chosen = hcas.subjects(rdma.devices or (), hcas.places(gpus, pci), pci, choice)
    lost = missing(
        *(
            x
            for one in chosen
            for x in (one.device.ports, *(y for p in one.device.ports or () for y in (p.state, p.link_layer)))
        )
    )
    if lost is not None:
        return lost
    if doubt := next((one for one in chosen if not one.certain and hcas.active_ports(one.device)), None):
        return Unavailable(Kind.NOT_READ, f"{doubt.device.name}: {doubt.why}")
    ports = [(one.device.name, port.number) for one in chosen for port in hcas.active_ports(one.device)]
    return [(name, number) for name, number in ports if choice is None or choice.takes(name, number)]


def _listed(rdma: Rdma, gpus: Gpus, pci: Pci, net: Net, environ: Environ, baseline: Baseline) -> Finding | None:
    """NCCL's own list of devices (NET/IB : Using …), against the ACTIVE ports that can be used here."""
    subject = "HCAs in NCCL's log"
    if (lost := layers.lost_runs(baseline.run)) is not None:
        return unknown(f"what NCCL's log shows could not be read: {lost}", subject=subject)
    log: LogFacts | None = transport.log_of(baseline.nccl_run)
    if log is None or log.net != "IB" or not log.devices or log.plugin:
        return None
    ports = _ports(rdma, gpus, pci, environ)
    if isinstance(ports, Unavailable):
        return unknown(f"which HCAs the job uses could not be read: {ports}", subject=subject)
    ready = {d.name: usable(d, rdma, net).yes for d in rdma.devices or ()}
    shown = {(one.name, one.port) for one in log.devices}
    lacking = [(f"{name}:{number}", ready[name]) for name, number in ports if (name, number) not in shown]
    if gone := [at for at, yes in lacking if yes]:
        return fail(
            f"sysfs and libibverbs show {', '.join(gone)} ready, NCCL's log does not list it",
            subject=subject,
            cause="dev_infiniband_missing",
            expected="NET/IB : Using … with every HCA of the job",
            how="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET and what it says of it; NCCL_IB_HCA and nccl.conf of the ranks",
            missing=gone,
        )
    if unread := [at for at, yes in lacking if yes is None]:
        text = f"NCCL's log does not list {', '.join(unread)}, and whether it could be used is not known"
        return unknown(text, subject=subject, how="see rdma.dev_infiniband")
    strange = sorted({one.name for one in log.devices} - {d.name for d in rdma.devices or ()})
    if strange:
        return unknown(f"NCCL's log lists {', '.join(strange)}, sysfs does not: they disagree", subject=subject)
    return ok("NCCL's log lists each port that the job uses", subject=subject, ports=len(ports)) if ports else None


def _tried(rdma: Rdma, gpus: Gpus, pci: Pci, environ: Environ, path: PathRun) -> Finding | None:
    """A port that no path run went by is not proven by those of the others."""
    subject = "HCAs that were tried"
    if isinstance(path.runs, Unavailable):
        lost = layers.lost_runs(path.runs)
        return None if lost is None else unknown(f"which HCAs were tried could not be read: {lost}", subject=subject)
    ports = _ports(rdma, gpus, pci, environ)
    if isinstance(ports, Unavailable):
        return unknown(f"which HCAs the job uses could not be read: {ports}", subject=subject)
    good = (run for run in path.runs if run.finished and run.verified and transport.shown_network(run) in _PINNED)
    tried = {run.experiment.path.pinned for run in good}
    left = [at for name, number in ports if (at := f"{name}:{number}") not in tried]
    if left:
        text = f"no path run went by {', '.join(left)}: those of the others prove nothing of it"
        return unknown(text, subject=subject, how="netdoctor preflight; see allreduce.run for those that did not finish")
    return ok("a path run went by each port that the job uses", subject=subject, ports=len(ports)) if ports else None
