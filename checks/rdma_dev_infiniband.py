"""The RDMA devices that the job will use can be used where it runs: node, library, context, port, GID, locked memory.

Locked memory (ulimit -l) holds for each rank by itself, against what NCCL registers at this job's size.  Devices that are not
the job's (virtual functions of others, storage and management ports) say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    UNLIMITED,
    DeviceNames,
    Environ,
    Expected,
    Finding,
    Fix,
    Gpus,
    Intent,
    Kernel,
    Libraries,
    Loss,
    Net,
    PathRun,
    Pci,
    Rdma,
    RdmaDevice,
    Selector,
    Status,
    Step,
    Unavailable,
    Usable,
    Vantage,
    between_nodes,
    check,
    cost,
    fail,
    fix_container,
    fix_environment,
    fix_rdma_device,
    gpudirect,
    hcas,
    locked_memory,
    missing,
    ok,
    parse_hcas,
    partition,
    rails,
    record,
    size_text,
    skip,
    transport,
    unknown,
    usable,
)

NO_GPU = "is it meant for a job with GPUs?  Without one, NCCL has nothing to do here"
SITE = frozenset({"count", "rate"})  # subjects of what the site states itself, whatever a job needs
# What is true for the node whoever looks; the rest (rights, mapping, libraries) is the job's own affair.
OF_THE_NODE = frozenset({Step.NO_UVERBS, Step.ENXIO, Step.PORT})


@record
class Here:
    """What all devices share."""

    rdma: Rdma
    gpus: Gpus
    net: Net
    environ: Environ
    vantage: Vantage
    intent: Intent

    @property
    def no_gpu(self) -> bool:
        """libcuda shows this container none: it need not be for a job of NCCL's."""
        return self.vantage.in_container and self.gpus.none_visible


@check(id="rdma.dev_infiniband", title="The RDMA devices of the job can be used where it runs", cause="dev_infiniband_missing")
def dev_infiniband(
    rdma: Rdma,
    pci: Pci,
    gpus: Gpus,
    net: Net,
    environ: Environ,
    kernel: Kernel,
    vantage: Vantage,
    expected: Expected,
    intent: Intent,
    path: PathRun,
    names: DeviceNames,
    libraries: Libraries,
) -> Iterator[Finding]:
    here = Here(rdma, gpus, net, environ, vantage, intent)
    found = _judged(here, pci, kernel, expected, path, names)
    if (idle := transport.idle_hcas(intent, environ, libraries)) is not None:  # what the site says must be there is judged
        yield skip(f"{idle}: RDMA devices carry nothing")
        yield from (one for one in found if one.subject in SITE and one.status is not Status.SKIP)
    else:
        yield from (one if one.subject in SITE else between_nodes(one, intent) for one in found)


def _judged(here: Here, pci: Pci, kernel: Kernel, expected: Expected, path: PathRun, names: DeviceNames) -> Iterator[Finding]:
    rdma, gpus, environ, vantage = here.rdma, here.gpus, here.environ, here.vantage
    if isinstance(rdma.devices, Unavailable):
        yield unknown(f"/sys/class/infiniband could not be read: {rdma.devices}")
        return
    if not rdma.devices:
        yield _none(pci, kernel, vantage, expected, names)
        return
    setting = environ.get("NCCL_IB_HCA") or ""
    choice = None if rdma.efa else parse_hcas(setting)
    chosen = hcas.subjects(rdma.devices, hcas.places(gpus, pci), pci, choice)
    if (why := hcas.nothing_for_nccl(pci, gpus)) and not expected.hcas:
        yield _idle(expected, why)
        yield from _rate([one.device for one in chosen], choice, expected)
        return
    if not chosen:
        yield fail(
            f"NCCL_IB_HCA={setting} selects none of {', '.join(d.name for d in rdma.devices)}{names.why_no_hca()}",
            loss=cost.sockets(),
            cause="env_misuse",
            why="NCCL says 'NET/IB : No device found.' and takes TCP sockets",
            fix=fix_environment(vantage, "NCCL_IB_HCA", unset=True),
        )
    elif choice is None and _wanted(expected) is None and rails.uncabled(rdma):
        yield _uncabled(rdma.devices, here.intent)
        return
    else:
        states = [(one, usable(one.device, rdma, here.net)) for one in chosen]
        if vantage.runtime is not None:  # a container, or whether it is one is not known
            states = _given(states, hcas.selected(rdma.devices, choice) if choice else rdma.devices, here)
        yield from _devices(states, here)
        yield from _across(chosen, states, here, pci)
        if vantage.of_the_job:
            yield from partition.judge((one.device for one in chosen), environ, path, lambda it: fix_environment(vantage, it))
        if isinstance(expected.hcas, int):
            yield _count(rdma.devices, here, pci, expected.hcas)
        yield from _rate([one.device for one, _ in states], choice, expected)
    yield replace(_memlock(kernel.limit("memlock"), here, path), subject="memlock")


def _idle(expected: Expected, why: str) -> Finding:
    """RDMA devices (storage, MPI) of a machine that NCCL has nothing to do on; Gloo uses sockets alone."""
    if isinstance(expected.hcas, Unavailable):
        text = f"no accelerator, and whether RDMA devices are expected could not be read: {expected.hcas}"
        return unknown(text, subject="count")
    return skip(f"{why}; NCCL has nothing to do")


def _uncabled(devices: tuple[RdmaDevice, ...], intent: Intent) -> Finding:
    """Nobody said that they are meant: what a job of several nodes loses by it is not known before it is there."""
    return fail(
        f"no port of {', '.join(one.name for one in devices)} has a link: no cable, or nothing at its other end",
        loss=cost.sockets() if intent.others else cost.SOMETIMES,
        cause="link_degraded",
        how="ibstatus; the cables; expected: {hcas: 0} in the configuration, where none is meant",
    )


def _none(pci: Pci, kernel: Kernel, vantage: Vantage, expected: Expected, names: DeviceNames) -> Finding:
    """No device at all: a fault where the site expects some, unless the job's network namespace may show more."""
    if isinstance(expected.hcas, Unavailable):
        return unknown(f"no RDMA device, and how many are expected could not be read: {expected.hcas}", subject="count")
    if isinstance(pci.rdma, Unavailable):
        return unknown(f"/sys/class/infiniband is empty, and PCI could not be read to compare: {pci.rdma}")
    if (wanted := _wanted(expected)) and (not pci.rdma or vantage.job_network):
        return _lost(wanted, f"PCI shows {len(pci.rdma) or 'none'}")
    alone = rails.ethernet_alone(pci, kernel)
    if meant := [one for one in pci.rdma if one not in alone]:
        have = ", ".join(f"{names.at(d.address)} ({d.driver or 'no driver'})" for d in meant)
        how = "on the node: rdma link; rdma system (an exclusive namespace mode hides devices); lsmod | grep -e mlx5_ib -e _ib"
        return unknown(f"PCI shows RDMA hardware ({have}), /sys/class/infiniband shows no device", how=how)
    if pci.unclassified:
        which = ", ".join(pci.unclassified)
        return unknown(f"/sys/class/infiniband is empty, and the class of {which} on PCI could not be read")
    if alone:
        cards = ", ".join(f"{one.address} ({one.driver})" for one in alone)
        return skip(f"no RDMA device: {cards} is Ethernet alone, its RDMA module is not loaded and it is no GPU's neighbour")
    return skip("no RDMA device: PCI was read and shows none, and /sys/class/infiniband was read empty")


def _wanted(expected: Expected) -> str | None:
    """What the site says that needs an RDMA device; None: it needs none, or says that there is none or no GPU."""
    if expected.hcas is not None:
        return str(expected.hcas) if expected.hcas else None
    if expected.hca_rate_gbps:
        return f"{expected.hca_rate_gbps:g} Gb/s"
    network = expected.transport if expected.gpus != 0 else None
    return network if network and transport.needs_rdma(network) else None


def _lost(expected: str, hardware: str) -> Finding:
    return fail(
        f"no RDMA device at all, {expected} expected; {hardware}",
        subject="count",
        expected=expected,
        fix=Fix(
            "find out where they are lost: the bus, the driver, or a namespace",
            (
                "lspci -nn | grep -i -e infiniband -e mellanox -e ethernet",
                "lsmod | grep -e _ib -e mlx5",
                "rdma system; rdma link",
            ),
        ),
    )


def _given(
    states: list[tuple[hcas.Subject, Usable]], devices: tuple[RdmaDevice, ...], here: Here
) -> list[tuple[hcas.Subject, Usable]]:
    """A container may be given other devices than the nearest, and sysfs shows it all (RDMA namespaces in shared mode): NCCL
    uses those that open."""
    withheld = [one.device for one, state in states if state.step in (Step.NOT_MAPPED, Step.EPERM)]
    near = {one.device.name for one, _ in states}
    like = [d for d in devices if d.name not in near and any(hcas.alike(d, other) for other in withheld)]
    spare = [(d, state) for d in like if (state := usable(d, here.rdma, here.net)).yes is True]
    if not withheld or len(spare) < len(withheld):
        return states
    kept = [(one, state) for one, state in states if one.device not in withheld]
    return kept + [(hcas.Subject(d, "given to this container instead of a nearer one", True), state) for d, state in spare]


def _across(
    chosen: tuple[hcas.Subject, ...], states: list[tuple[hcas.Subject, Usable]], here: Here, pci: Pci
) -> Iterator[Finding]:
    """Whoever gives GPUs and devices without a look at both may give those of two sockets."""
    given = {one.device.name: one.device for one, state in states if state.yes}
    gpus = [gpu.device for gpu in hcas.places(here.gpus, pci) or () if not isinstance(gpu.device, Unavailable)]

    def kinds(devices: Iterable[RdmaDevice]) -> set[str]:
        places = [pci.at(one.pci) if isinstance(one.pci, str) else None for one in devices]
        return {gpudirect.distance(gpu, one) if gpu and one else "" for gpu in gpus for one in places}

    by_switch = kinds(one.device for one in chosen) & {"PIX", "PXB"}
    if by_switch and kinds(given.values()) == {"SYS"} and here.environ.get("NCCL_NET_GDR_LEVEL") is None:
        yield fail(
            f"{', '.join(sorted(given))}: no GPU is on their NUMA node, and the nearer ones were not given",
            subject="devices that were given",
            loss=cost.staged(),
            expected="RDMA devices near the GPUs",
            why="NCCL does no GPUDirect between NUMA nodes, but where NCCL_NET_GDR_LEVEL is SYS",
            fix=Fix(
                "give GPUs and RDMA devices together: kubelet's topologyManagerPolicy single-numa-node, or a claim for both"
            ),
        )


def _devices(states: list[tuple[hcas.Subject, Usable]], here: Here) -> Iterator[Finding]:
    good = [one for one, state in states if state.yes is True]
    needed = min(len(here.gpus.visible), len(states)) if here.gpus.visible else len(states)
    gpus, served = (frozenset[str]().union(*(one.gpus for one in some)) for some in ((x for x, _ in states), good))
    if not good:
        loss = cost.sockets()
    elif len(good) < needed:
        loss = cost.less(len(good), needed, "rails of the job work")
    else:
        loss = cost.less(len(served), len(gpus), "GPUs have an RDMA device near them that works")
    for one, state in states:
        if state.yes is None:
            yield unknown(f"{state.text}; {one.why}", subject=one.device.name, how="netdoctor preflight as the job's user")
        elif not one.certain:
            yield unknown(f"{state.text}; {one.why}", subject=one.device.name, how="is it a device of the job?")
        elif state.yes:
            yield _usable(one.device, one.why, here)
        elif len(good) < needed or one.gpus - served:
            yield _refused(one.device, one.why, state, here, loss)
        elif not one.device.virtual_function and any(hcas.alike(one.device, other.device) for other in good):
            # src/graph/topo.cc, ncclTopoGetLocalNet: channels take turns over all devices that are as near.
            text = f"{state.text}; {one.why}, as others like it that work: NCCL spreads over all of them"
            yield unknown(text, subject=one.device.name, how="is it meant to be left out?")
        # else: as many work as there are GPUs; this one is another's, or a spare


def _usable(device: RdmaDevice, why: str, here: Here) -> Finding:
    port = next(iter(hcas.active_ports(device)), None)
    evidence = {} if port is None else {"link_layer": str(port.link_layer), "port": port.number}
    if not here.vantage.of_the_job:
        text = f"usable, {here.vantage.elsewhere}"
        return unknown(text, subject=device.name, how=FROM_JOB, measured=None, **evidence)
    if isinstance(here.environ.nccl, Unavailable):
        return unknown(f"usable, but NCCL_IB_HCA could not be read: {here.environ.nccl}", subject=device.name)
    jobs = here.gpus.visible
    if isinstance(jobs, Unavailable) and "NCCL_IB_HCA" not in here.environ.nccl:
        text = f"usable ({why}), but which GPUs are the job's could not be read: {jobs}"
        return unknown(text, subject=device.name, how="nvidia-smi -L in the job")
    notes = []
    if port is not None and port.link_layer == "Ethernet":
        kinds = {g.kind for g in port.gids or ()}
        if port.gids and "RoCE v2" not in kinds and missing(*kinds) is None:
            notes.append("its GIDs are RoCE v1 only: not routable")
    return ok(f"opens, has a context and an ACTIVE port; {why}", subject=device.name, notes=notes, measured=None, **evidence)


def _refused(device: RdmaDevice, why: str, state: Usable, here: Here, loss: Loss) -> Finding:
    if not here.vantage.of_the_job and state.step not in OF_THE_NODE:
        return unknown(f"{state.text}, {here.vantage.elsewhere}", subject=device.name, how=FROM_JOB)
    if here.no_gpu and state.step not in OF_THE_NODE:
        return unknown(f"{state.text}; libcuda shows this container no GPU either", subject=device.name, how=NO_GPU)
    cause = {Step.PORT: "link_degraded", Step.GID: "roce_gid"}.get(state.step)
    return fail(
        f"{state.text}; {why}",
        subject=device.name,
        loss=loss,
        cause=cause,
        expected="its node opens, libibverbs gets a context, a port is ACTIVE, on Ethernet with a GID of this namespace",
        fix=fix_rdma_device(here.vantage, state.step, device),
        step=state.step,
    )


def _count(devices: tuple[RdmaDevice, ...], here: Here, pci: Pci, expected: int) -> Finding:
    """From outside the job: how many are there; what the job can use of them is each device's own finding."""
    states = [(d, usable(d, here.rdma, here.net).yes) for d in devices]
    good, unclear = [d for d, yes in states if yes], sum(yes is None for _, yes in states)
    working, text = len(good), f"{len(good)} usable RDMA devices"
    if not here.vantage.of_the_job:
        good, unclear, text = list(devices), 0, f"{len(devices)} RDMA devices"
    if (own := hcas.cards(good, pci)) >= expected:
        return ok(f"{text}, {expected} expected", subject="count")
    if len(good) + unclear >= expected:
        why = f"{unclear} not known" if len(good) < expected else f"some of {own} cards alone, by virtual functions"
        return unknown(f"{text}, {why}, {expected} expected", subject="count")
    loss = cost.less(working, expected, "RDMA devices are usable") if working else cost.sockets()
    return fail(f"{text}, {expected} expected", subject="count", cause="inventory", loss=loss, expected=str(expected))


def _rate(devices: list[RdmaDevice], choice: Selector | None, expected: Expected) -> Iterator[Finding]:
    """What the job's ports run at (sysfs: rate, width times lane speed), against what the site says that they should."""
    wanted = expected.hca_rate_gbps
    if isinstance(wanted, Unavailable):
        yield unknown(f"whether a rate is expected could not be read: {wanted}", subject="rate")
        return
    if wanted is None:
        return
    ports = [(d.name, p) for d in devices for p in hcas.active_ports(d) if choice is None or choice.takes(d.name, p.number)]
    rates = [(f"{name}:{port.number}", port.rate) for name, port in ports]
    rates += [(d.name, d.ports) for d in devices if isinstance(d.ports, Unavailable)]
    perhaps = [(d.name, p) for d in devices for p in d.ports or () if choice is None or choice.takes(d.name, p.number)]
    rates += [(f"{name}:{p.number}", lost) for name, p in perhaps if (lost := missing(p.state, p.link_layer)) is not None]
    slow = [f"{at} runs at {rate:g} Gb/s" for at, rate in rates if not isinstance(rate, Unavailable) and rate < wanted]
    unread = [f"{at}: {rate}" for at, rate in rates if isinstance(rate, Unavailable)]
    if slow:
        how = "ibstatus; the cable, the transceiver, and the speed that the switch port is set to"
        text = f"{', '.join(slow)}; {wanted:g} expected"
        pace = min(rate for _, rate in rates if not isinstance(rate, Unavailable))
        loss = cost.less(pace, wanted, "Gb/s: each rail carries as much as the slowest")
        yield fail(text, subject="rate", cause="link_degraded", loss=loss, expected=f"{wanted:g} Gb/s", how=how)
    elif unread or not rates:
        yield unknown(f"{wanted:g} Gb/s expected, not read: {'; '.join(unread) or 'no active port'}", subject="rate")
    else:
        yield ok(f"{', '.join(at for at, _ in rates)}: at least {wanted:g} Gb/s, as expected", subject="rate")


def _memlock(limit: int | Unavailable, here: Here, path: PathRun) -> Finding:
    """Registered memory counts against RLIMIT_MEMLOCK, of each rank by itself (drivers/infiniband/core/umem.c)."""
    vantage = here.vantage
    if not vantage.job_user:
        return unknown(f"the job's own locked-memory limit is not seen from here: {vantage.why_not}", how=FROM_JOB)
    if isinstance(limit, Unavailable):
        return unknown(f"the locked-memory limit could not be read: {limit}", how="ulimit -l in the job")
    if (lifted := _lifted(limit, vantage)) is not None:
        return lifted
    text, need = f"locked memory is limited to {size_text(limit)} a process", locked_memory.locked(here.intent, here.environ)
    notes = (need.what if need else f"what NCCL locks for this job could not be read: {need}",)
    said: dict[str, Any] = {"limit": limit, "least": locked_memory.LEAST}
    if need and limit >= need.plenty:
        return ok(f"{text}, which is plenty", notes=notes, **said)
    if need and need.plain and any(run.finished and transport.shown_network(run) == "IB" for run in path.runs or ()):
        if here.intent.uncounted or (here.intent.nodes or 0) > 2:  # a tree of more nodes has two peers more
            few = f"{text}: enough for the path run's two ranks, and those of more nodes may lock more"
            return replace(unknown(few, how="ulimit -l unlimited", **said), notes=notes)
        note = f"the limit is {size_text(limit)} a process: more channels or peers may need more"
        return ok("the path run registered its memory and finished over RDMA", notes=(note, *notes), **said)
    if limit >= locked_memory.LEAST:
        return replace(unknown(f"{text}: enough for some jobs", how="ulimit -l unlimited", **said), notes=notes)
    if here.no_gpu:
        return unknown(f"{text}; libcuda shows this container no GPU", how=NO_GPU, **said)
    fix = fix_container(vantage, "memlock")
    text = f"{text}: NCCL cannot register its buffers"
    return fail(text, cause="memlock", expected="unlimited", fix=fix, why=notes[0], **said)


def _lifted(limit: int, vantage: Vantage) -> Finding | None:
    """No limit, or one that CAP_IPC_LOCK lifts: in the initial user namespace alone (capable(), not ns_capable())."""
    if limit == UNLIMITED:
        return ok("locked memory is unlimited")
    held = vantage.capabilities
    if not isinstance(held, Unavailable) and "CAP_IPC_LOCK" not in held:
        return None
    if missing(held, vantage.root_is_root) is not None:
        return unknown("whether CAP_IPC_LOCK of the initial user namespace is held could not be read")
    return ok("CAP_IPC_LOCK lifts the locked-memory limit", limit=limit) if vantage.root_is_root else None
