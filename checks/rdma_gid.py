"""The GID that NCCL takes on each RoCE rail is there, leads to an interface of this namespace, and is like its siblings'.

NCCL's own rule says which it takes (netdoctor/nccl/gid.py); the kernel makes the table of the addresses of the port's interface
(drivers/infiniband/core/roce_gid_mgmt.c).  That a port has no GID of this namespace at all is rdma.dev_infiniband's to say.
Where a card trusts DSCP and pauses some priorities (PFC), the class that is set for NCCL (NCCL_IB_TC) must be one of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from netdoctor.api import (
    FROM_JOB,
    Baseline,
    Environ,
    Finding,
    Fix,
    FlatRails,
    Gpus,
    Intent,
    Kernel,
    Kind,
    Libraries,
    Net,
    Pci,
    Rdma,
    RdmaDevice,
    Status,
    Step,
    Unavailable,
    Vantage,
    between_nodes,
    check,
    cost,
    count,
    expectation,
    fail,
    fix_environment,
    gids,
    hcas,
    missing,
    ok,
    one_subnet,
    parse_hcas,
    rails,
    skip,
    traffic_class,
    transport,
    unknown,
    usable,
    used_nccl,
)

SUBJECT, PIN = "GIDs", gids.PINNED
HOW = "show_gids; netdoctor preflight in the job"


@check(id="rdma.gid", title="The GID that NCCL takes on each RoCE rail is usable and like its siblings'", cause="roce_gid")
def gid(
    rdma: Rdma,
    pci: Pci,
    gpus: Gpus,
    net: Net,
    environ: Environ,
    libraries: Libraries,
    baseline: Baseline,
    vantage: Vantage,
    intent: Intent,
    kernel: Kernel,
    flat: FlatRails,
) -> Iterator[Finding]:
    if (idle := transport.idle_hcas(intent, environ, libraries)) or (idle := hcas.nothing_for_nccl(pci, gpus)):
        yield skip(f"{idle}: RDMA devices carry nothing")
        return
    if isinstance(rdma.devices, Unavailable):
        yield unknown(f"/sys/class/infiniband could not be read: {rdma.devices}", subject=SUBJECT)
        return
    own = environ if vantage.job_environment else environ.of_the_node
    setting = own.get("NCCL_IB_HCA")
    if not rdma.devices and rails.may_hide(pci, kernel):
        yield unknown("sysfs shows no RDMA device, PCI hardware: see rdma.dev_infiniband", subject=SUBJECT, how=FROM_JOB)
        return
    if rdma.devices and isinstance(setting, Unavailable):
        yield unknown(f"NCCL_IB_HCA could not be read: {setting}", subject=SUBJECT, how=FROM_JOB)
        return
    choice = parse_hcas(setting or "")
    subjects = hcas.subjects(rdma.devices, hcas.places(gpus, pci), pci, choice)
    devices = [one.device for one in subjects]
    opens = [d for d in devices if usable(d, rdma, net).yes is not False]
    ports = [(d, p) for d in opens for p in hcas.active_ports(d) if p.link_layer == "Ethernet"]
    active = [p.link_layer for d in devices for p in hcas.active_ports(d)]
    if not ports or 2 * active.count("InfiniBand") > len(devices):
        closed = [d.name for d in devices if usable(d, rdma, net).step not in (Step.NONE, Step.UNREAD, Step.GID, Step.PORT)]
        found = _no_port(devices, active, closed)
        if devices and not vantage.job_environment:  # the job's NCCL_IB_HCA may select others
            found = unknown(f"{found.message}, {vantage.elsewhere}", subject=SUBJECT, how=FROM_JOB)
        yield found
        return
    wishes = gids.wishes(own, used_nccl(libraries, baseline))
    if isinstance(wishes, Unavailable):
        yield unknown(f"NCCL's settings could not be read: {wishes}", subject=SUBJECT, how=FROM_JOB)
        return
    found_rails = list[gids.Rail]()
    chosen = rdma.devices if choice is None else hcas.selected(rdma.devices, choice)  # unread, none is nearest to a GPU
    cards = [one for one in chosen if one.pci is not None and usable(one, rdma, net).yes is not False]
    lost = {one.name: why for one in cards if (why := gids.unread(one)) is not None}
    unsure = {one.device.name: Unavailable(Kind.NOT_READ, one.why) for one in subjects if not one.certain}
    for device, port in ((d, p) for d, p in ports if d.name not in lost):
        one = unsure[device.name] if device.name in unsure else gids.rail(device, port, wishes)
        if isinstance(one, gids.Rail):
            found_rails.append(one)
        else:
            lost[device.name] = one
    all_found = [*_judged(found_rails, wishes, net, vantage, bool(lost))]
    if intent.others:
        all_found += [_near(one) for one in found_rails if one.near and one.device.name not in {f.subject for f in all_found}]
    all_found += [unknown(f"which GID NCCL takes is not known: {why}", subject=name, how=HOW) for name, why in lost.items()]
    all_found = (
        [*all_found, *one_subnet.judge(flat, [rail.netdev for rail in found_rails])] if vantage.job_network else all_found
    )
    all_found = all_found or [_passed(found_rails, wishes, vantage)]
    if vantage.job_environment and (sent := traffic_class.judge(found_rails, net, own)) is not None:
        all_found.append(sent)
    yield from (between_nodes(one, intent) for one in all_found)


def _no_port(devices: Sequence[RdmaDevice], active: Sequence[object], closed: Sequence[str]) -> Finding:
    if 2 * active.count("InfiniBand") > len(devices):
        return skip("the rails are InfiniBand: its subnet manager gives the GIDs")
    ports = [p for d in devices for p in d.ports or ()]
    lost = missing(*(d.ports for d in devices), *(x for p in ports for x in (p.state, p.link_layer)))
    if lost is not None:
        return unknown(f"which ports are RoCE's could not be read: {lost}", subject=SUBJECT)
    if closed:
        return unknown(f"{', '.join(closed)} cannot be used from here: see rdma.dev_infiniband", subject=SUBJECT)
    return skip("no port of the job's RDMA devices is ACTIVE, Ethernet and has a GID of this namespace")


def _judged(
    rails: Sequence[gids.Rail], wishes: Sequence[gids.Wish], net: Net, vantage: Vantage, unread: bool
) -> Iterator[Finding]:
    for rail in rails:
        alike = [one for one in rails if (one.device.driver, one.port.rate_gbps) == (rail.device.driver, rail.port.rate_gbps)]
        if (found := _alone(rail, net, vantage) or _among(rail, alike, unread)) is None:
            continue
        if not vantage.job_environment:
            yield unknown(f"{found.message}; the job's NCCL_IB_HCA may leave it out", subject=found.subject, how=FROM_JOB)
        else:
            yield replace(found, fix=_mend(rail, wishes, vantage)) if found.status is Status.FAIL else found


def _alone(rail: gids.Rail, net: Net, vantage: Vantage) -> Finding | None:
    """What is wrong with the entry itself."""
    name = rail.device.name
    if rail.gid is None:
        short = 0 < rail.port.gid_slots <= rail.index  # ibv_query_gid fails, and NCCL with it (src/misc/ibvwrap.cc)
        there = f"the port's table ends at {rail.port.gid_slots - 1}" if short else "that entry is empty"
        return fail(f"NCCL takes the GID of {rail.words}, and {there}", subject=name, loss=cost.STOPS)
    netdev, links = rail.gid.netdev, net.links
    # EINVAL, or an interface of the same name that has other addresses: of another namespace, see rdma_access.
    foreign = (isinstance(netdev, Unavailable) and netdev.kind is Kind.FAILED) or gids.not_its_address(rail, net)
    if not foreign and (lost := missing(netdev, links)) is not None:
        return unknown(f"the interface of its GID could not be read: {lost}", subject=name, how=HOW)
    if foreign or (netdev and netdev not in {one.name for one in links or ()}):
        text = f"NCCL takes the GID of {rail.words}, whose interface is not in this network namespace"
        elsewhere = unknown(f"{text}; {vantage.network_elsewhere}", subject=name, how=FROM_JOB)
        return fail(text, subject=name, loss=cost.STOPS) if vantage.job_network else elsewhere
    return None


def _among(rail: gids.Rail, alike: Sequence[gids.Rail], unread: bool) -> Finding | None:
    """What its siblings say of it: same kind and reach, an address of its own."""
    name, usual = rail.device.name, gids.usual([one.grade for one in alike if one.gid])
    if usual is not None and rail.grade < usual and not unread:
        text = f"NCCL takes {gids.words(rail.grade)} ({rail.words}), and {gids.words(usual)} on the other rails"
        return fail(text, subject=name, expected=gids.words(usual), loss=cost.STOPS)
    if same := [one.device.name for one in alike if gids.same_address(one, rail)]:
        return fail(f"the address of its GID is that of {', '.join(same)} as well", subject=name, loss=cost.STOPS)
    return None


def _mend(rail: gids.Rail, wishes: Sequence[gids.Wish], vantage: Vantage) -> Fix:
    """Another index where one would do, else an address for the interface."""
    best = gids.Wish(None).takes(rail.port.gids or ())
    better = None if isinstance(best, Unavailable) else replace(rail, index=best, gid=rail.port.gid(best) or None)
    if better is not None and better.index != rail.index and better.grade >= max(rail.grade, (2, 1)):
        if rail.pinned and any(wish.automatic for wish in wishes):
            return fix_environment(vantage, PIN, unset=True)
        return fix_environment(vantage, f"{PIN}={better.index}")
    interface = rail.netdev or expectation.netdev_of(rail.device.name, rail.port.number)
    return Fix(
        f"{expectation.place(vantage)}give its interface an address of its own in the subnet of its rail: its GIDs follow it",
        (f"ip address show dev {interface}", "rdma link", "show_gids"),
        ("netplan, NetworkManager or the operator's network of the rail: the same on every node",),
    )


def _near(rail: gids.Rail) -> Finding:
    text = f"NCCL takes {gids.words(rail.grade)} ({rail.words}): it reaches peers on its own Ethernet segment alone"
    text = f"{text}, and whether the job's are is not known"
    return unknown(text, subject=rail.device.name, how="netdoctor allreduce of two nodes")


def _passed(rails: Sequence[gids.Rail], wishes: Sequence[gids.Wish], vantage: Vantage) -> Finding:
    notes = []
    if any(rail.near for rail in rails):
        notes.append("link-local or RoCE v1: peers are reached on the same Ethernet segment alone")
    if any(rail.pinned for rail in rails) and all(wish.automatic for wish in wishes):
        chosen = all(gids.Wish(None).takes(rail.port.gids or ()) == rail.index for rail in rails)
        notes += [f"{PIN} is needless: NCCL takes the same by itself"] if chosen else []
    if not (vantage.job_environment and vantage.job_network):
        return unknown(
            f"the GIDs of {count(len(rails), 'rail')} are usable, {vantage.elsewhere}", subject=SUBJECT, how=FROM_JOB
        )
    indexes = sorted({rail.index for rail in rails})
    return ok(
        f"{count(len(rails), 'rail')} with a usable GID where NCCL takes it", subject=SUBJECT, notes=notes, indexes=indexes
    )
