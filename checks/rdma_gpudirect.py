"""RDMA reaches GPU memory directly, pair by pair, where NCCL would use it.

A peer-memory module that this NCCL version looks at serves, or DMA-BUF.  A path run's log is the proof: ``/GDRDMA``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    GIVE_PYTHON,
    SOCKET,
    Baseline,
    Cure,
    Environ,
    Finding,
    Fix,
    GdrProof,
    Gpus,
    Intent,
    Kernel,
    Libraries,
    Nccl,
    PathRun,
    Pci,
    Plugin,
    Rdma,
    RdmaDevice,
    Run,
    State,
    Status,
    Unavailable,
    Vantage,
    Version,
    assigned,
    between_nodes,
    check,
    cost,
    fail,
    fix_environment,
    fix_gpudirect,
    gdr_mechanisms,
    gdr_proof,
    gdr_sends,
    gpudirect,
    hcas,
    missing,
    nccl_param,
    ok,
    parse_hcas,
    rails,
    record,
    skip,
    transport,
    unknown,
    used_nccl,
    version_text,
)

HOW = "run an all-reduce over two nodes with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH and look for /GDRDMA"
# Instances whose EFA does GPUDirect RDMA carry these GPUs (AWS EFA documentation, supported instance types).
EFA_GPUS = ("A100", "H100", "H200", "B200", "B300", "GB200", "GB300")


@record
class Node:
    """What all pairs of a node share."""

    version: Version | Unavailable
    kernel: Kernel
    gpus: Gpus
    environ: Environ
    vantage: Vantage
    runs: tuple[Run, ...] | Unavailable
    count: int
    own_topology: bool  # NCCL takes distances from a file of the hypervisor's or the user's, or may do so
    efa: bool  # every RDMA device is an EFA, and where each sits is known
    plugins: tuple[Plugin, ...] | Unavailable

    def setting(self, name: str) -> str | None:
        """A variable of NCCL's; None where it is not set, or not known."""
        found = (self.environ.nccl or {}).get(name)
        return found.value if found else None

    @property
    def unasked(self) -> Finding | None:
        """Where NCCL asks no RDMA device (src/plugin/net.cc; ncclIbInit)."""
        network, off = self.setting("NCCL_NET"), self.setting("NCCL_IB_DISABLE")
        if network is not None and network.lower() == "socket":
            return skip(f"NCCL_NET={network}: NCCL asks no RDMA device")
        if off is None or not nccl_param(off, 0):
            return None
        text = f"NCCL_IB_DISABLE={off}: NCCL's own network asks no RDMA device"
        return skip(text) if self.plugins == () else unknown(f"{text}, and whether a plugin does is not known", how=HOW)

    def direct(self, gpu: hcas.GpuPlace) -> hcas.Direct:
        """Whether NCCL would use GPUDirect: without it its way is another (src/graph/paths.cc).  Not known counts as yes."""

        def uses(device: RdmaDevice, kind: str) -> bool:
            if isinstance(self.version, Unavailable) or gdr_proof(self.runs or (), gpu.ordinal, device.name).receive:
                return True
            pair = Pair(gpu, device, self, GdrProof(), self.version, kind)
            return pair.able.yes is not False and pair.near is not False

        return uses


@record
class Pair:
    """A GPU and its HCA, what NCCL would ask about them, and what the runs showed."""

    gpu: hcas.GpuPlace
    device: RdmaDevice
    node: Node
    proof: GdrProof
    version: Version
    kind: str  # their distance, "" not known

    @property
    def level(self) -> tuple[str, bool]:
        setting = self.node.setting
        return gpudirect.level(self.version, setting("NCCL_NET_GDR_LEVEL"), setting("NCCL_NET_GDR_C2C"))

    @property
    def near(self) -> bool | None:
        return gpudirect.within(self.kind, self.level[0]) if self.kind else None

    @property
    def able(self) -> gpudirect.Mechanisms:
        return gdr_mechanisms(
            self.version, self.node.kernel, self.node.gpus, self.gpu, self.device, self.node.setting("NCCL_DMABUF_ENABLE")
        )

    @property
    def evidence(self) -> dict[str, Any]:
        return {
            "nccl": version_text(self.version),
            "distance": self.kind or "not known",
            "level": self.level[0],
            "peermem": self.able.peermem.why,
            "dmabuf": self.able.dmabuf.why,
        }


@check(id="rdma.gpudirect", title="RDMA reaches GPU memory directly (GPUDirect) where NCCL uses it", cause="gdr_disabled")
def gpudirect_rdma(
    rdma: Rdma,
    pci: Pci,
    gpus: Gpus,
    kernel: Kernel,
    environ: Environ,
    libraries: Libraries,
    vantage: Vantage,
    intent: Intent,
    baseline: Baseline,
    path: PathRun,
) -> Iterator[Finding]:
    own = pci.virtual_topology is not False or environ.get("NCCL_TOPO_FILE") not in (None, "")
    node = Node(used_nccl(libraries, baseline), kernel, gpus, environ, vantage, path.runs, 0, own, False, libraries.plugins)
    found = tuple(_judged(rdma, pci, node))
    if (idle := transport.idle_hcas(intent, environ, libraries)) is not None:  # what a run showed counts all the same
        shown = [one for one in found if one.status is Status.PASS]
        yield from shown or [skip(f"{idle}: nothing goes from a GPU to an RDMA device")]
    else:
        yield from (between_nodes(one, intent) for one in found)


def _judged(rdma: Rdma, pci: Pci, node: Node) -> Iterator[Finding]:
    gate = _does_not_apply(rdma, pci, node)
    if gate is not None:
        yield gate
        return
    places, devices = hcas.places(node.gpus, pci), rdma.devices
    if isinstance(places, Unavailable) or isinstance(devices, Unavailable):
        yield unknown(f"GPUs or RDMA devices could not be read: {missing(places, devices)}")
        return
    if not places:
        yield unknown(f"PCI shows no GPU, and libcuda could not be asked: {node.gpus.visible}")
        return
    node = replace(node, count=len(places), efa=rdma.efa and not hcas.unplaced(devices, pci))
    choice = None if rdma.efa else parse_hcas(node.setting("NCCL_IB_HCA") or "", node.version or None)
    candidates = hcas.selected(devices, choice) if choice else devices
    if not candidates:
        yield unknown("NCCL_IB_HCA selects none of the RDMA devices", how="netdoctor preflight --only rdma.dev_infiniband")
    else:
        yield from _pairs(places, candidates, pci, node)


def _pairs(places: tuple[hcas.GpuPlace, ...], candidates: tuple[RdmaDevice, ...], pci: Pci, node: Node) -> Iterator[Finding]:
    """Each GPU with the devices that NCCL gives it where GPUDirect works, and with those that it takes instead."""
    by_place = node.own_topology or node.efa
    for one in assigned(places, candidates, pci, Nccl.told(node.version, node.setting), node.direct, by_place=by_place):
        gpu = one.gpu
        if any(word in gpu.name for word in gpudirect.NO_PLATFORM):
            yield _no_platform(gpu)
            continue
        if not one.own:
            why = "" if pci.devices else f": PCI: {missing(pci.devices)}"
            yield unknown(f"which RDMA device is its own could not be told{why}", subject=gpu.label, how=HOW)
        for device in (*one.own, *one.instead):
            found = _pair(gpu, device, one.kind if device in one.own else one.taken_kind, node)
            if device in one.own and one.taken and device not in one.taken:
                text = f"without GPUDirect NCCL's way from {gpu.label} is by {', '.join(d.name for d in one.taken)}"
                found = replace(found, notes=(*found.notes, text))
            yield replace(found, subject=f"{gpu.label}–{device.name}")


def _does_not_apply(rdma: Rdma, pci: Pci, node: Node) -> Finding | None:
    """Skip on positive evidence only; unknown where the layers do not agree."""
    gpus = node.gpus
    if why := hcas.nothing_for_nccl(pci, gpus):
        return skip(why)
    if rdma.devices == ():
        if isinstance(pci.rdma, Unavailable):
            return unknown(f"no RDMA device in sysfs, but PCI could not be read: {pci.rdma}")
        if set(pci.rdma) - set(rails.ethernet_alone(pci, node.kernel)):
            return unknown("PCI shows RDMA hardware, /sys/class/infiniband shows none", how="see rdma.dev_infiniband")
        if pci.rdma:
            return skip("no RDMA device: the cards of PCI are Ethernet alone, see rdma.dev_infiniband")
        if not pci.unclassified:
            return skip("no RDMA device: PCI was read and shows none, and /sys/class/infiniband was read empty")
    if gpus.visible == ():
        lost = missing(pci.devices)
        other = "PCI does" if lost is None else f"PCI could not be read: {lost}"
        return unknown(f"libcuda shows the job no GPU, {other}", how="nvidia-smi; CUDA_VISIBLE_DEVICES")
    return None if gpus.lost is None else unknown(f"GPUs or RDMA devices could not be read: {gpus.lost}")


def _pair(gpu: hcas.GpuPlace, device: RdmaDevice, kind: str, node: Node) -> Finding:
    # aws-ofi-nccl names no device in the log, and whether EFA does GPUDirect it finds out once a process (support_gdr).
    proof = gdr_proof(node.runs or (), gpu.ordinal, device.name, unnamed=node.efa)
    own = _own_rules(gpu, device, node, proof)
    if own is not None:
        return own
    idle = (None if proof.shown else node.unasked) or _carries_nothing(device, node)
    if idle is not None:
        return idle
    kind = "" if node.own_topology else kind
    both = proof.send and proof.receive
    if isinstance(node.version, Unavailable):
        if both:
            return _passed(node, "NCCL's log shows /GDRDMA both ways", kind)
        return unknown(f"the job's NCCL version is not known: {node.version}", how=GIVE_PYTHON)
    pair = Pair(gpu, device, node, proof, node.version, kind)
    if both:
        return _passed(node, "NCCL's log shows /GDRDMA both ways", kind, pair.able.yes, **pair.evidence)
    if isinstance(node.environ.nccl, Unavailable):
        return unknown(f"NCCL's settings could not be read: {node.environ.nccl}", **pair.evidence)
    if pair.near is False and not proof.receive:
        return _too_far(pair)
    return _shown(pair) if proof.shown else _static(pair)


def _carries_nothing(device: RdmaDevice, node: Node) -> Finding | None:
    """A device that carries nothing: what the files say of it is no GPUDirect."""
    if not hcas.active_ports(device):
        ports = device.ports or ()
        lost = missing(device.ports, *(p.state for p in ports), *(p.link_layer for p in ports))
        text = "has no ACTIVE port: nothing goes through it" if lost is None else f"its ports could not be read: {lost}"
        return unknown(f"{device.name} {text}", how="netdoctor preflight --only rdma.dev_infiniband")
    runs = [run for run in node.runs or () if run.experiment.path.device in ("", device.name)]
    if any(transport.shown_network(run) == SOCKET for run in runs):
        return unknown("its run went by plain sockets: GPUDirect had no part in it", how="see allreduce.run")
    broken = [run for run in runs if run.state not in (State.FINISHED, State.NOT_STARTED) or run.verified is False]
    if any(run.experiment.path.device for run in broken):
        return unknown("its run did not finish with right data: nothing is proven of it", how="see allreduce.run")
    return None


def _no_platform(gpu: hcas.GpuPlace) -> Finding:
    if gpu.visible is None:
        return unknown(f"whether the job uses {gpu.name} could not be read", subject=gpu.label)
    text = "has no GPUDirect RDMA by design: NCCL stages through memory that CPU and GPU share"
    return skip(f"{gpu.name} {text}", subject=gpu.label)


def _own_rules(gpu: hcas.GpuPlace, device: RdmaDevice, node: Node, proof: GdrProof) -> Finding | None:
    """GPUs without GPUDirect, and networks of which another library decides."""
    if device.pci is None:
        return skip(f"{device.name} is a software device: its data passes through host memory by design")
    seen = gpu.visible
    if seen is not None and seen.gpudirect_rdma is False and not proof.receive:
        which = "attributes 116 and 124 are 0" if seen.dmabuf is False else "attribute 116 is 0, which NCCL asks first"
        text = f"the driver offers no GPUDirect RDMA on {gpu.name} ({which})"
        if seen.integrated is True or any(word in gpu.name for word in gpudirect.CONSUMER):
            return skip(text)
        return unknown(
            f"{text}: usual on a vGPU, in a VM without peer-to-peer, and on workstation models",
            how="ask the platform's owner whether this machine type offers GPUDirect RDMA",
        )
    return _efa(gpu, node, proof) if device.driver == "efa" else None


def _efa(gpu: hcas.GpuPlace, node: Node, proof: GdrProof) -> Finding:
    if proof.send and proof.receive:
        return _passed(node, f"EFA: the log shows /GDRDMA both ways (NET/{proof.network})", "")
    unread = missing(node.environ.nccl) is not None
    chosen = unread or node.setting("NCCL_NET_GDR_LEVEL") or node.setting("NCCL_NET_GDR_READ")
    # an instance with a single one of these GPUs has no GPUDirect RDMA (p5.4xlarge)
    if proof.shown and not chosen and node.count > 1 and any(word in gpu.name for word in EFA_GPUS):
        return fail(
            f"EFA without GPUDirect: NET/{proof.network} staged through host memory on {gpu.name}",
            loss=cost.staged(),
            expected="/GDRDMA on NET lines",
            why="aws-ofi-nccl turns it off where libfabric or the efa module lacks peer-to-peer",
            fix=Fix("update the EFA installer (efa module, libfabric, aws-ofi-nccl)", ("fi_info -p efa -c FI_HMEM",)),
        )
    return unknown("EFA: libfabric and aws-ofi-nccl decide about GPUDirect, NCCL's own rules do not apply", how=HOW)


def _passed(node: Node, text: str, kind: str, able: bool | None = None, **evidence: Any) -> Finding:
    notes = ("the files that NCCL looks at say no, the run says yes: the run counts",) if able is False else ()
    if not node.vantage.job_environment:
        return unknown(f"{text}, {node.vantage.elsewhere}", how=FROM_JOB, **evidence)
    return ok(f"{text}{f' ({kind})' if kind else ''}", notes=notes, **evidence)


def _too_far(pair: Pair) -> Finding:
    limit, by_user = pair.level
    default = gpudirect.level(pair.version, None, pair.node.setting("NCCL_NET_GDR_C2C"))[0]
    if by_user and gpudirect.within(pair.kind, default):
        cure = None
        if pair.proof.run is not None:
            base = pair.proof.run.experiment
            change = replace(base, env=(*base.env, ("NCCL_NET_GDR_LEVEL", None)))
            cure = Cure(change, base, "without NCCL_NET_GDR_LEVEL")
        return fail(
            f"NCCL_NET_GDR_LEVEL={limit} keeps GPUDirect off at distance {pair.kind}; NCCL's default is {default}",
            fix=fix_environment(pair.node.vantage, "NCCL_NET_GDR_LEVEL", unset=True),
            cure=cure,
            loss=cost.staged(),
            **pair.evidence,
        )
    return skip(f"their path is {pair.kind}, farther than {limit}: NCCL stages through host memory by design", **pair.evidence)


def _shown(pair: Pair) -> Finding:
    """The run's log shows this pair without GPUDirect on at least one side."""
    proof, able, evidence = pair.proof, pair.able, pair.evidence
    read = gdr_sends(pair.gpu, pair.node.count, pair.node.setting("NCCL_NET_GDR_READ"), pair.version)
    if proof.receive and read.yes is False:
        return ok(f"GPUDirect on receive; sends stage through host memory: {read.why}", **evidence)
    if proof.receive and (proof.send is None or read.yes is None):
        return unknown(f"GPUDirect on receive, sends not shown or not decided: {read.why}", how=HOW, **evidence)
    if proof.send and proof.receive is None:
        return unknown("GPUDirect on send, receives not shown", how=HOW, **evidence)
    if pair.near is None:
        text = "the run staged through host memory, and how far GPU and HCA are apart for NCCL is not known"
        return unknown(text, **evidence)
    side = "one side only: " + ("receive" if proof.receive else "send") if proof.receive or proof.send else "neither side"
    if able.yes is False:
        return _unable(pair, f"the run's log shows GPUDirect on {side}; ")
    if able.yes is None:  # a GPU or an HCA that cannot is no fault
        text = f"the run's log shows GPUDirect on {side}, and whether it could be used is not known: {able.why}"
        return unknown(text, **evidence)
    return fail(
        f"able to use GPUDirect, but the run's log shows it on {side}",
        loss=cost.staged(),
        expected="/GDRDMA on sends and receives",
        how="dmesg | grep -i -e peermem -e ib_core; NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH names the distance and the HCA's support",
        **evidence,
    )


def _static(pair: Pair) -> Finding:
    """No run showed this pair: only what NCCL would ask."""
    able, lost = pair.able, missing(pair.node.runs)
    if pair.proof.unplaced:
        text = "a run's connections of this GPU were without GPUDirect, and its log does not name their device"
        return unknown(text, how=HOW, **pair.evidence)
    if able.yes is False:
        return _unable(pair)
    later = f"no run showed this pair ({'the path run did not use it' if lost is None else lost})"
    if able.yes is None or pair.near is None:
        unread = "how far GPU and HCA are apart for NCCL is not known" if able.yes else able.why
        return unknown(f"{unread}; {later}", how=HOW, **pair.evidence)
    if not able.dmabuf.yes:
        # A module built against another ib_core is there and fails at registration (EINVAL): only a run can tell.
        return unknown(f"a peer-memory module is loaded; {later}", how=HOW, **pair.evidence)
    text = f"everything that NCCL asks says DMA-BUF; {later}"
    if pair.version < gpudirect.LIBCUDA_1:
        return unknown(f"{text}; this NCCL opens libcuda.so, and without that name has no GPUDirect", how=HOW, **pair.evidence)
    if lost is not None:  # what a run showed may differ from what the files say
        return unknown(text, how=HOW, **pair.evidence)
    return _passed(pair.node, text, pair.evidence["distance"], able.yes, **pair.evidence)


def _unable(pair: Pair, shown: str = "") -> Finding:
    """Neither mechanism."""
    return fail(
        f"no GPUDirect: {shown}no peer-memory module that NCCL can use, and no DMA-BUF",
        loss=cost.staged(),
        expected="a peer-memory module or DMA-BUF",
        why=f"{pair.able.why}.",
        fix=fix_gpudirect(pair.node.vantage, pair.able),
        **pair.evidence,
    )
