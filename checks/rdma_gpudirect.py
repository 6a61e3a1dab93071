"""RDMA reaches GPU memory directly, pair by pair, where NCCL would use it.

Either mechanism serves: a peer-memory module that this NCCL version looks at, or DMA-BUF.  The path run's log is the proof
(``/GDRDMA`` on a connection); what is able but unused is told apart from what is not able.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    Baseline,
    Cure,
    Environ,
    Finding,
    Fix,
    GdrProof,
    Gpus,
    JobShape,
    Kernel,
    Kind,
    Libraries,
    PathRun,
    Pci,
    Rdma,
    RdmaDevice,
    Run,
    Severity,
    Unavailable,
    Vantage,
    check,
    fail,
    fix_environment,
    fix_module,
    gdr_proof,
    gpudirect,
    hcas,
    ok,
    parse_selector,
    skip,
    unknown,
    used_nccl,
    version_text,
)

HOW = "run an all-reduce over two nodes with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH and look for /GDRDMA"
NEWER = "use a GPU driver (CUDA 11.7 or newer), kernel, HCA driver and NCCL (2.13.4 or newer) with DMA-BUF"
# Instances whose EFA does GPUDirect RDMA carry these GPUs (AWS EFA documentation, supported instance types).
EFA_GPUS = ("A100", "H100", "H200", "B200", "B300", "GB200", "GB300")


@dataclass(frozen=True)
class Node:
    """The facts that all pairs of a node share."""

    version: tuple[int, int, int] | Unavailable
    kernel: Kernel
    gpus: Gpus
    environ: Environ
    vantage: Vantage
    runs: tuple[Run, ...]
    why_no_run: str
    single: bool
    count: int
    virtual_topology: bool
    efa: bool  # every RDMA device is an EFA, and where each sits is known

    def setting(self, name: str) -> str | None:
        known = self.environ.nccl
        return known[name].value if not isinstance(known, Unavailable) and name in known else None

    @property
    def settings_unread(self) -> Unavailable | None:
        return self.environ.nccl if isinstance(self.environ.nccl, Unavailable) else None


@check(id="rdma.gpudirect", title="RDMA reaches GPU memory directly (GPUDirect) where NCCL uses it", cause="gdr_disabled")
def gpudirect_rdma(
    rdma: Rdma,
    pci: Pci | Unavailable,
    gpus: Gpus,
    kernel: Kernel,
    environ: Environ,
    libraries: Libraries | Unavailable,
    vantage: Vantage,
    job: JobShape,
    baseline: Baseline | Unavailable,
    path: PathRun | Unavailable,
) -> Iterator[Finding]:
    gate = _does_not_apply(rdma, pci, gpus)
    if gate is not None:
        yield gate
        return
    places = hcas.places(gpus, pci)
    devices = rdma.devices
    if isinstance(places, Unavailable) or isinstance(devices, Unavailable):
        yield unknown(f"GPUs or RDMA devices could not be read: {places if isinstance(places, Unavailable) else devices}")
        return
    if not places:
        yield unknown(f"PCI shows no GPU, and libcuda could not be asked: {gpus.visible}")
        return
    taken_runs = path if isinstance(path, Unavailable) else path.runs
    runs, why = ((), str(taken_runs)) if isinstance(taken_runs, Unavailable) else (taken_runs, "")
    node = Node(
        used_nccl(libraries, baseline),
        kernel,
        gpus,
        environ,
        vantage,
        runs,
        why,
        job.nodes_stated and job.nodes == 1,
        len(places),
        isinstance(pci, Unavailable) or pci.virtual_topology is not False,
        all(d.driver == "efa" for d in devices) and isinstance(pci, Pci) and not hcas.unplaced(devices, pci),
    )
    choice = parse_selector(node.setting("NCCL_IB_HCA") or "")
    candidates = hcas.selected(devices, choice) if choice else devices
    if not candidates:
        yield unknown("NCCL_IB_HCA selects none of the RDMA devices", how="netdoctor preflight --only rdma.dev_infiniband")
        return
    taken: list[str] = []
    unpaired = False  # GPUs share the nearest devices in turn: where one is lost, so is the order of the others
    for gpu in places:
        if any(word in gpu.name for word in gpudirect.NO_PLATFORM):
            yield _no_platform(gpu)
            continue
        kind, near = hcas.nearest(gpu, candidates, pci)
        if len(near) > 1 and (unpaired or not kind or not all(map(hcas.rates_read, near))):  # any pair would be a guess
            unpaired = True
            text = "which RDMA device is its own could not be told"
            yield unknown(text if isinstance(pci, Pci) else f"{text}: PCI: {pci}", subject=gpu.label, how=HOW)
            continue
        device = min(near, key=lambda d: taken.count(d.name))
        taken.append(device.name)
        yield _pair(gpu, device, kind, node)


def _does_not_apply(rdma: Rdma, pci: Pci | Unavailable, gpus: Gpus) -> Finding | None:
    """Skip on positive evidence only; unknown where the layers do not agree."""
    if isinstance(pci, Pci):
        foreign = pci.foreign_accelerators
        if not pci.gpus and not isinstance(foreign, Unavailable) and foreign:
            return unknown(f"accelerators that netdoctor does not judge: {', '.join(foreign)}")
        if hcas.no_accelerator(pci, gpus):
            return skip("no GPU: PCI was read and shows none, and libcuda shows the job none")
        if not pci.rdma and not pci.unclassified and rdma.devices == ():
            return skip("no RDMA device: PCI was read and shows none, and /sys/class/infiniband was read empty")
        if pci.rdma and rdma.devices == ():
            return unknown("PCI shows RDMA hardware, /sys/class/infiniband shows none", how="see rdma.dev_infiniband")
    elif rdma.devices == ():
        return unknown(f"no RDMA device in sysfs, but PCI could not be read: {pci}")
    if gpus.visible == ():
        other = f"PCI could not be read: {pci}" if isinstance(pci, Unavailable) else "PCI does"
        return unknown(f"libcuda shows the job no GPU, {other}", how="nvidia-smi; CUDA_VISIBLE_DEVICES")
    return None


def _pair(gpu: hcas.GpuPlace, device: RdmaDevice, kind: str, node: Node) -> Finding:
    subject = f"{gpu.label}–{device.name}"
    # aws-ofi-nccl names no device in the log, and whether EFA does GPUDirect it finds out once a process (support_gdr).
    proof = gdr_proof(node.runs, gpu.ordinal, device.name, unnamed=node.efa)
    own = _own_rules(gpu, device, node, proof, subject)
    if own is not None:
        return own
    if node.setting("NCCL_TOPO_FILE") or node.virtual_topology:
        kind = ""  # NCCL takes distances from that file
    if isinstance(node.version, Unavailable):
        if proof.send and proof.receive:
            return _passed(subject, node, "NCCL's log shows /GDRDMA both ways", kind)
        return unknown(f"the job's NCCL version is not known: {node.version}", subject=subject, how="give --python")
    limit, by_user = gpudirect.level(node.version, node.setting("NCCL_NET_GDR_LEVEL"), node.setting("NCCL_NET_GDR_C2C"))
    near = gpudirect.within(kind, limit) if kind else None
    able = _able(gpu, device, node)
    evidence: dict[str, Any] = {
        "nccl": version_text(node.version),
        "distance": kind or "not known",
        "level": limit,
        "peermem": able.peermem.why,
        "dmabuf": able.dmabuf.why,
    }
    if proof.send and proof.receive:
        return _passed(subject, node, "NCCL's log shows /GDRDMA both ways", kind, able.yes, **evidence)
    if node.settings_unread is not None:
        return unknown(f"NCCL's settings could not be read: {node.settings_unread}", subject=subject, **evidence)
    if near is False and not proof.receive:
        return _too_far(subject, node, kind, limit, by_user, proof, evidence)
    if proof.shown:
        return _shown(subject, gpu, device, node, proof, able, near, evidence)
    return _static(subject, gpu, node, able, near, evidence)


def _no_platform(gpu: hcas.GpuPlace) -> Finding:
    if gpu.visible is None:
        return unknown(f"whether the job uses {gpu.name} could not be read", subject=gpu.label)
    text = "has no GPUDirect RDMA by design: NCCL stages through memory that CPU and GPU share"
    return skip(f"{gpu.name} {text}", subject=gpu.label)


def _own_rules(gpu: hcas.GpuPlace, device: RdmaDevice, node: Node, proof: GdrProof, subject: str) -> Finding | None:
    """GPUs without GPUDirect, and networks of which another library decides."""
    if device.pci is None:
        return skip(f"{device.name} is a software device: its data passes through host memory by design", subject=subject)
    seen = gpu.visible
    if seen is not None and seen.gpudirect_rdma is False and seen.dmabuf is False and not proof.receive:
        if seen.integrated is True or any(word in gpu.name for word in gpudirect.CONSUMER):
            return skip(f"the driver offers no GPUDirect RDMA on {gpu.name} (attributes 116 and 124 are 0)", subject=subject)
        return unknown(
            f"the driver offers no GPUDirect RDMA on {gpu.name} (attributes 116 and 124 are 0): usual on a vGPU, in a VM "
            "without peer-to-peer, and on workstation models",
            subject=subject,
            how="ask the platform's owner whether this machine type offers GPUDirect RDMA",
        )
    if device.driver != "efa":
        return None
    if proof.send and proof.receive:
        return _passed(subject, node, f"EFA: the log shows /GDRDMA both ways (NET/{proof.network})", "")
    chosen = node.settings_unread is not None or node.setting("NCCL_NET_GDR_LEVEL") or node.setting("NCCL_NET_GDR_READ")
    # an instance with a single one of these GPUs has no GPUDirect RDMA (p5.4xlarge)
    if proof.shown and not chosen and node.count > 1 and any(word in gpu.name for word in EFA_GPUS):
        return fail(
            f"EFA without GPUDirect: NET/{proof.network} staged through host memory on {gpu.name}",
            subject=subject,
            expected="/GDRDMA on NET lines",
            why="aws-ofi-nccl turns it off where libfabric or the efa module lacks peer-to-peer",
            fix=Fix("update the EFA installer (efa module, libfabric, aws-ofi-nccl)", ("fi_info -p efa -c FI_HMEM",)),
        )
    return unknown(
        "EFA: libfabric and aws-ofi-nccl decide about GPUDirect, NCCL's own rules do not apply", subject=subject, how=HOW
    )


def _able(gpu: hcas.GpuPlace, device: RdmaDevice, node: Node) -> gpudirect.Mechanisms:
    """Whether one of the two mechanisms would serve this pair, and why."""
    assert not isinstance(node.version, Unavailable)
    missing = Unavailable(Kind.NOT_READ, "libcuda")
    errno = device.provider if isinstance(device.provider, Unavailable) else device.provider.dmabuf_errno
    peer = gpudirect.peermem(node.version, node.kernel.modules, node.kernel.memory_peers)
    dmabuf = gpudirect.dmabuf(
        node.version,
        node.gpus.cuda_driver,
        gpu.visible.dmabuf if gpu.visible else missing,
        errno,
        node.setting("NCCL_DMABUF_ENABLE"),
    )
    gpu_side = gpu.visible.gpudirect_rdma if gpu.visible else missing
    if peer.yes and gpu_side is not True:  # the module serves GPUs that offer it (attribute 116)
        no = isinstance(gpu_side, bool)
        peer = replace(
            peer, rule=None, yes=False if no else None, why=f"attribute 116 of this GPU{' is 0' if no else f': {gpu_side}'}"
        )
    return gpudirect.Mechanisms(peer, dmabuf)


def _passed(subject: str, node: Node, text: str, kind: str, able: bool | None = None, **evidence: Any) -> Finding:
    notes = ("the files that NCCL looks at say no, the run says yes: the run counts",) if able is False else ()
    if not node.vantage.job_environment:
        elsewhere = node.vantage.why_not or "seen outside the job"
        return unknown(f"{text}, {elsewhere}", subject=subject, how=FROM_JOB, **evidence)
    return ok(f"{text}{f' ({kind})' if kind else ''}", subject=subject, notes=notes, **evidence)


def _too_far(
    subject: str, node: Node, kind: str, limit: str, by_user: bool, proof: GdrProof, evidence: dict[str, Any]
) -> Finding:
    assert not isinstance(node.version, Unavailable)
    default = gpudirect.level(node.version, None, node.setting("NCCL_NET_GDR_C2C"))[0]
    if by_user and gpudirect.within(kind, default):
        cure = None
        if proof.run is not None:
            base = proof.run.experiment
            change = replace(base, env=(*base.env, ("NCCL_NET_GDR_LEVEL", None)))
            cure = Cure(change, base, "without NCCL_NET_GDR_LEVEL")
        return fail(
            f"NCCL_NET_GDR_LEVEL={limit} keeps GPUDirect off at distance {kind}; NCCL's default is {default}",
            subject=subject,
            fix=fix_environment(node.vantage, "NCCL_NET_GDR_LEVEL", unset=True),
            cure=cure,
            **evidence,
        )
    return skip(
        f"their path is {kind}, farther than {limit}: NCCL stages through host memory by design",
        subject=subject,
        **evidence,
    )


def _shown(
    subject: str,
    gpu: hcas.GpuPlace,
    device: RdmaDevice,
    node: Node,
    proof: GdrProof,
    able: gpudirect.Mechanisms,
    near: bool | None,
    evidence: dict[str, Any],
) -> Finding:
    """The run's log shows this pair without GPUDirect on at least one side."""
    gpu_fact = gpu.gpu
    links = Unavailable(Kind.NOT_READ) if gpu_fact is None else gpu_fact.nvlinks
    nvlink = links if isinstance(links, Unavailable) else any(links)
    capability = Unavailable(Kind.NOT_READ) if gpu_fact is None else gpu_fact.capability
    read = gpudirect.reads(capability, nvlink, node.count, node.setting("NCCL_NET_GDR_READ"))
    if proof.receive and read.yes is False:
        return ok(f"GPUDirect on receive; sends stage through host memory: {read.why}", subject=subject, **evidence)
    if proof.receive and (proof.send is None or read.yes is None):
        return unknown(
            f"GPUDirect on receive, sends not shown or not decided: {read.why}", subject=subject, how=HOW, **evidence
        )
    if proof.send and proof.receive is None:
        return unknown("GPUDirect on send, receives not shown", subject=subject, how=HOW, **evidence)
    if near is None:
        return unknown(
            "the run staged through host memory, and how far GPU and HCA are apart for NCCL is not known",
            subject=subject,
            **evidence,
        )
    side = "one side only: " + ("receive" if proof.receive else "send") if proof.receive or proof.send else "neither side"
    if able.yes is False:
        return _unable(subject, node, able, evidence, f"the run's log shows GPUDirect on {side}")
    if able.yes is None:  # a GPU or an HCA that cannot is no fault
        text = f"the run's log shows GPUDirect on {side}, and whether it could be used is not known: {_reasons(able)}"
        return unknown(text, subject=subject, **evidence)
    return fail(
        f"able to use GPUDirect, but the run's log shows it on {side}",
        subject=subject,
        severity=Severity.INFO if node.single else None,
        expected="/GDRDMA on sends and receives",
        how="dmesg | grep -i -e peermem -e ib_core; NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH names the distance and the HCA's support",
        **evidence,
    )


def _static(
    subject: str, gpu: hcas.GpuPlace, node: Node, able: gpudirect.Mechanisms, near: bool | None, evidence: dict[str, Any]
) -> Finding:
    """No run showed this pair: only what NCCL would ask."""
    if able.yes is False:
        return _unable(subject, node, able, evidence, "")
    later = f"no run showed this pair ({node.why_no_run or 'the path run did not use it'})"
    if able.yes is None or near is None:
        missing = "how far GPU and HCA are apart for NCCL is not known" if able.yes else _reasons(able)
        return unknown(f"{missing}; {later}", subject=subject, how=HOW, **evidence)
    if not able.dmabuf.yes:
        # A module built against another ib_core is there and fails at registration (EINVAL): only a run can tell.
        return unknown(f"a peer-memory module is loaded; {later}", subject=subject, how=HOW, **evidence)
    text = f"everything that NCCL asks says DMA-BUF; {later}"
    if node.why_no_run:  # what a run showed may differ from what the files say
        return unknown(text, subject=subject, how=HOW, **evidence)
    return _passed(subject, node, text, evidence["distance"], able.yes, **evidence)


def _reasons(able: gpudirect.Mechanisms) -> str:
    return f"peer memory: {able.peermem.why}. DMA-BUF: {able.dmabuf.why}"


def _unable(subject: str, node: Node, able: gpudirect.Mechanisms, evidence: dict[str, Any], shown: str) -> Finding:
    """Neither mechanism: the mend that can help here, and no modprobe where it cannot."""
    dmabuf, peer = able.dmabuf.rule, able.peermem.rule
    if dmabuf is gpudirect.NoGdr.DMABUF_SWITCHED_OFF:
        fix = fix_environment(node.vantage, "NCCL_DMABUF_ENABLE", unset=True)
    elif peer is gpudirect.NoGdr.MODULE_NOT_LOOKED_AT:
        fix = Fix(
            "use NCCL 2.23.4 or newer, which looks at /sys/module/nvidia_peermem", ("pip install 'nvidia-nccl-cu12>=2.23.4'",)
        )
    elif dmabuf is gpudirect.NoGdr.DMABUF_NOT_OFFERED:
        fix = Fix(
            "install the driver's open kernel modules (DMA-BUF), or load nvidia_peermem where ib_core has the peer-memory API",
            ("cat /proc/driver/nvidia/version   # says 'Open Kernel Module' where they are in use", "modprobe nvidia-peermem"),
            ("echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf",),
        )
    elif dmabuf is gpudirect.NoGdr.VERBS_TOO_OLD:
        fix = Fix("install rdma-core 34 or newer where the job runs", ("apt-get install libibverbs1 ibverbs-providers",))
    else:
        fix = Fix(NEWER)
        if peer is gpudirect.NoGdr.NO_MODULE:  # whether ib_core has the API shows only when a module registers itself
            words = f"load nvidia_peermem where ib_core has the peer-memory API (MLNX_OFED, DOCA-OFED), or {NEWER}"
            fix = replace(fix_module("nvidia-peermem"), summary=words)
    return fail(
        f"no GPUDirect: {shown + '; ' if shown else ''}no peer-memory module that NCCL can use, and no DMA-BUF",
        subject=subject,
        severity=Severity.INFO if node.single else None,
        expected="a peer-memory module or DMA-BUF",
        why=f"{_reasons(able)}.",
        fix=fix,
        **evidence,
    )
