"""The RDMA devices that the job will use can be used where it runs: node, library, context, port, GID, locked memory.

Devices that are not the job's (virtual functions of others, storage and management ports) say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netdoctor.api import (
    FROM_JOB,
    UNLIMITED,
    Environ,
    Expected,
    Finding,
    Fix,
    Gpus,
    JobShape,
    Kernel,
    Kind,
    Net,
    PathRun,
    Pci,
    Rdma,
    RdmaDevice,
    Run,
    Selector,
    Severity,
    Unavailable,
    Usable,
    Vantage,
    check,
    fail,
    fix_container,
    fix_environment,
    fix_module,
    hcas,
    ok,
    parse_selector,
    size_text,
    skip,
    unknown,
    usable,
)

# NCCL's host buffers per connection: 4 MiB Simple + 4.7 MiB LL128 + 0.5 MiB LL (src/include/device.h, src/init.cc), on 2 to
# 32 channels, a few peers and two directions: a rank that stages needs tens of MiB at least, and up to some GiB.
MEMLOCK_LEAST = 64 << 20
MEMLOCK_PLENTY = 4 << 30
NO_GPU = "is it meant for a job with GPUs?  Without one, NCCL has nothing to do here"
# What is true for the node whoever looks; the rest (rights, mapping, libraries) is the job's own affair.
OF_THE_NODE = frozenset({"no-uverbs", "ENXIO", "port"})


@dataclass(frozen=True)
class Here:
    """What all devices share."""

    rdma: Rdma
    net: Net | Unavailable
    vantage: Vantage
    settings_unread: Unavailable | None
    no_gpu: bool  # libcuda shows this container none: it need not be for a job of NCCL's
    gpus_unread: Unavailable | None  # which GPUs are the job's; those of PCI stand for them

    @property
    def mine(self) -> bool:
        """Whether rights, interfaces and libraries are those that the job will have."""
        return self.vantage.job_user and self.vantage.job_network and self.vantage.job_environment

    @property
    def elsewhere(self) -> str:
        return self.vantage.why_not or "seen outside the job"


@check(
    id="rdma.dev_infiniband",
    title="The RDMA devices of the job can be used where it runs",
    cause="dev_infiniband_missing",
)
def dev_infiniband(
    rdma: Rdma,
    pci: Pci | Unavailable,
    gpus: Gpus | Unavailable,
    net: Net | Unavailable,
    environ: Environ | Unavailable,
    kernel: Kernel | Unavailable,
    vantage: Vantage,
    expected: Expected | Unavailable,
    job: JobShape | Unavailable,
    path: PathRun | Unavailable,
) -> Iterator[Finding]:
    if isinstance(rdma.devices, Unavailable):
        yield unknown(f"/sys/class/infiniband could not be read: {rdma.devices}")
        return
    if not rdma.devices:
        yield _nothing(pci, vantage) if isinstance(expected, Expected) and not expected.hcas else _none(pci, vantage, expected)
        if isinstance(expected, Expected) and not hcas.no_accelerator(pci, gpus):
            yield from _rate([], None, expected)
        return
    if hcas.no_accelerator(pci, gpus) and not (isinstance(expected, Expected) and expected.hcas):
        yield _idle(expected)
        return
    setting = environ.get("NCCL_IB_HCA") if isinstance(environ, Environ) else environ
    unread = environ.nccl if isinstance(environ, Environ) else environ
    seen = gpus if isinstance(gpus, Unavailable) else gpus.visible
    no_gpu = vantage.in_container and (seen.kind == Kind.ABSENT if isinstance(seen, Unavailable) else not seen)
    jobs = gpus if isinstance(gpus, Unavailable) else gpus.of_the_job
    jobs_unread = jobs if isinstance(jobs, Unavailable) and not isinstance(setting, str) else None
    here = Here(rdma, net, vantage, unread if isinstance(unread, Unavailable) else None, no_gpu, jobs_unread)
    choice = parse_selector(setting) if isinstance(setting, str) else None
    chosen = hcas.subjects(rdma.devices, hcas.places(gpus, pci), pci, choice)
    if not chosen:
        yield fail(
            f"NCCL_IB_HCA={setting} selects none of {', '.join(d.name for d in rdma.devices)}",
            severity=Severity.CRITICAL,
            cause="env_misuse",
            why="NCCL says 'NET/IB : No device found.' and takes TCP sockets",
            fix=fix_environment(vantage, "NCCL_IB_HCA", unset=True),
        )
        yield _memlock(kernel, here, job, path)
        return
    states = [(one, usable(one.device, rdma, net)) for one in chosen]
    if vantage.in_container:
        states = _given(states, hcas.selected(rdma.devices, choice) if choice else rdma.devices, here)
    yield from _devices(states, here, gpus)
    if isinstance(expected, Expected) and isinstance(expected.hcas, int):
        yield _count(rdma, here, expected.hcas)
    yield from _rate([one.device for one, _ in states], choice, expected)
    yield _memlock(kernel, here, job, path)


def _idle(expected: Expected | Unavailable) -> Finding:
    """RDMA devices (storage, MPI) of a machine that NCCL has nothing to do on; Gloo uses sockets alone."""
    if isinstance(expected, Unavailable):
        return unknown(f"no accelerator, and whether RDMA devices are expected could not be read: {expected}", subject="count")
    return skip("no accelerator: PCI was read and shows none, libcuda shows none; NCCL has nothing to do")


def _nothing(pci: Pci | Unavailable, vantage: Vantage) -> Finding:
    if isinstance(pci, Unavailable):
        return unknown(f"/sys/class/infiniband is empty, and PCI could not be read to compare: {pci}")
    if not pci.rdma and pci.unclassified:
        return unknown(
            f"/sys/class/infiniband is empty, and the class of {', '.join(pci.unclassified)} on PCI could not be read"
        )
    if not pci.rdma:
        return skip("no RDMA device: PCI was read and shows none, and /sys/class/infiniband was read empty")
    have = ", ".join(f"{d.address} ({d.driver or 'no driver'})" for d in pci.rdma)
    return unknown(
        f"PCI shows RDMA hardware ({have}), /sys/class/infiniband shows no device",
        how="on the node: rdma link; rdma system (an exclusive namespace mode hides devices); lsmod | grep -e mlx5_ib -e _ib",
    )


def _none(pci: Pci | Unavailable, vantage: Vantage, expected: Expected | Unavailable) -> Finding:
    """No device, where the site expects some, or where it could not be read whether it does."""
    if isinstance(expected, Unavailable):
        return unknown(f"no RDMA device, and how many are expected could not be read: {expected}", subject="count")
    if isinstance(pci, Unavailable) or (pci.rdma and not vantage.job_network):
        return _nothing(pci, vantage)  # the job's network namespace may show devices that this one does not
    hardware = f"PCI shows {len(pci.rdma)}" if pci.rdma else "PCI shows none"
    return fail(
        f"no RDMA device at all, {expected.hcas} expected; {hardware}",
        subject="count",
        severity=Severity.CRITICAL,
        expected=str(expected.hcas),
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
    withheld = [one.device for one, state in states if state.step in ("not-mapped", "EPERM")]
    near = {one.device.name for one, _ in states}
    like = [d for d in devices if d.name not in near and any(_alike(d, other) for other in withheld)]
    spare = [(d, state) for d in like if (state := usable(d, here.rdma, here.net)).yes is True]
    if not withheld or len(spare) < len(withheld):
        return states
    kept = [(one, state) for one, state in states if one.device not in withheld]
    return kept + [(hcas.Subject(d, "given to this container instead of a nearer one", True), state) for d, state in spare]


def _alike(one: RdmaDevice, other: RdmaDevice) -> bool:
    """Of one network as far as can be told: driver and link layer, and at least half the rate."""
    ports = [hcas.active_ports(d) for d in (one, other)]
    layers = [{p.link_layer for p in some} for some in ports]
    return one.driver == other.driver and layers[0] == layers[1] and hcas.rate(one) >= hcas.rate(other) / 2


def _devices(states: list[tuple[hcas.Subject, Usable]], here: Here, gpus: Gpus | Unavailable) -> Iterator[Finding]:
    working = sum(state.yes is True for _, state in states)
    seen = gpus if isinstance(gpus, Unavailable) else gpus.visible
    needed = len(states) if isinstance(seen, Unavailable) or not seen else min(len(seen), len(states))
    for one, state in states:
        if state.yes is None:
            yield unknown(f"{state.text}; {one.why}", subject=one.device.name, how="netdoctor preflight as the job's user")
        elif not one.certain:
            yield unknown(f"{state.text}; {one.why}", subject=one.device.name, how="is it a device of the job?")
        elif state.yes:
            yield _usable(one.device, one.why, here)
        elif not working or working < needed:
            yield _refused(one.device, one.why, state, here, Severity.WARNING if working else Severity.CRITICAL)
        # else: as many work as there are GPUs; this one is another's, or a spare


def _usable(device: RdmaDevice, why: str, here: Here) -> Finding:
    port = next(iter(hcas.active_ports(device)), None)
    evidence = {} if port is None else {"link_layer": str(port.link_layer), "port": port.number}
    if not here.mine:
        return unknown(f"usable, {here.elsewhere}", subject=device.name, how=FROM_JOB, measured=None, **evidence)
    if here.settings_unread is not None:
        return unknown(f"usable, but NCCL_IB_HCA could not be read: {here.settings_unread}", subject=device.name)
    if here.gpus_unread is not None:
        text = f"usable, but which GPUs are the job's could not be read: {here.gpus_unread}; {why}"
        return unknown(text, subject=device.name, how="nvidia-smi -L in the job")
    notes = []
    if port is not None and port.link_layer == "Ethernet" and not isinstance(port.gids, Unavailable):
        kinds = {g.kind for g in port.gids}
        if "RoCE v2" not in kinds and not any(isinstance(k, Unavailable) for k in kinds):
            notes.append("its GIDs are RoCE v1 only: not routable")
    return ok(f"opens, has a context and an ACTIVE port; {why}", subject=device.name, notes=notes, measured=None, **evidence)


def _refused(device: RdmaDevice, why: str, state: Usable, here: Here, severity: Severity) -> Finding:
    if not here.mine and state.step not in OF_THE_NODE:
        return unknown(f"{state.text}, {here.elsewhere}", subject=device.name, how=FROM_JOB)
    if here.no_gpu and state.step not in OF_THE_NODE:
        return unknown(f"{state.text}; libcuda shows this container no GPU either", subject=device.name, how=NO_GPU)
    cause = {"port": "link_degraded", "gid": "roce_gid"}.get(state.step)
    return fail(
        f"{state.text}; {why}",
        subject=device.name,
        severity=severity,
        cause=cause,
        expected="its node opens, libibverbs gets a context, a port is ACTIVE, on Ethernet with a GID of this namespace",
        fix=_fix(state, here.vantage, device),
        step=state.step,
    )


def _fix(state: Usable, vantage: Vantage, device: RdmaDevice) -> Fix:
    """Each errno has its own mend, said for where netdoctor looks from."""
    inside = vantage.in_container
    if state.step == "not-mapped":
        # sysfs has its uverbs device, so the module is loaded: what lacks is the node, which udev makes.
        remake = Fix(
            "have udev make the nodes", ("udevadm trigger --subsystem-match=infiniband_verbs", "ls -l /dev/infiniband")
        )
        return fix_container(vantage, "devices") if inside else remake
    if state.step == "EPERM":
        if inside:
            return fix_container(vantage, "devices")
        return Fix(
            "let the job's cgroup use the device",
            ("scontrol show config | grep -i constraindevices   # Slurm: cgroup.conf ConstrainDevices, gres.conf",),
        )
    if state.step == "EACCES":
        if inside:
            return Fix(
                "give the container the host's group of the device (or a mode that lets it in), and /dev without nodev",
                ("docker run --group-add $(stat -c %g /dev/infiniband/uverbs0) …", "podman run --group-add keep-groups …"),
                ("securityContext: {supplementalGroups: [GID of the device on the node]}",),
            )
        return Fix(
            "let the job's user open the device: rdma-core's udev rules give mode 0666",
            ("udevadm trigger --subsystem-match=infiniband_verbs",),
            ("apt-get install rdma-core   # ships the udev rules",),
        )
    if state.step in ("ENXIO", "stale"):
        words = "start the container again: its nodes are from before a driver reload" if inside else "load the driver again"
        return Fix(words, () if inside else (f"modprobe {_module(device)} ib_uverbs", "udevadm trigger"))
    if state.step == "no-uverbs":
        return fix_module("ib_uverbs")
    if state.step in ("no-library", "no-provider", "context"):
        return Fix(
            "install rdma-core's libraries where the job runs (in its image)",
            ("apt-get install libibverbs1 ibverbs-providers   # or: dnf install libibverbs rdma-core",),
        )
    if state.step == "gid":
        return Fix(
            "give the job the network namespace of the interface, or the interface to its namespace",
            ("docker run --network=host …", "rdma system set netns exclusive; rdma dev set DEV netns NS"),
            ("hostNetwork: true, or an SR-IOV network whose RDMA device moves with its interface",),
        )
    if state.step == "port":
        return Fix("bring the port up: cable, switch port, subnet manager", (f"ibstat {device.name}", "sminfo"))
    return Fix("see why the node does not open", (f"strace -f -e openat ibv_devinfo -d {device.name}",))


def _module(device: RdmaDevice) -> str:
    return device.driver if isinstance(device.driver, str) else "the HCA's driver"


def _count(rdma: Rdma, here: Here, expected: int) -> Finding:
    assert not isinstance(rdma.devices, Unavailable)
    states = [usable(d, rdma, here.net) for d in rdma.devices]
    working, unclear = sum(s.yes is True for s in states), sum(s.yes is None for s in states)
    if working >= expected:
        if here.mine:
            return ok(f"{working} usable RDMA devices, {expected} expected", subject="count")
        return unknown(f"{working} usable RDMA devices, {here.elsewhere}", subject="count", how=FROM_JOB)
    if working + unclear >= expected or not here.mine:
        return unknown(f"{working} usable RDMA devices, {unclear} not known, {expected} expected", subject="count")
    text = f"{working} usable RDMA devices, {expected} expected"
    return fail(text, subject="count", severity=Severity.WARNING, cause="inventory", expected=str(expected))


def _rate(devices: list[RdmaDevice], choice: Selector | None, expected: Expected | Unavailable) -> Iterator[Finding]:
    """What the job's ports run at (sysfs: rate, width times lane speed), against what the site says that they should."""
    if isinstance(expected, Unavailable):
        yield unknown(f"whether a rate is expected could not be read: {expected}", subject="rate")
    if isinstance(expected, Unavailable) or not (wanted := expected.hca_rate_gbps):
        return
    ports = [(d.name, p) for d in devices for p in hcas.active_ports(d) if choice is None or choice.takes(d.name, p.number)]
    rates = [(f"{name}:{port.number}", port.rate_gbps) for name, port in ports]
    rates += [(d.name, d.ports) for d in devices if isinstance(d.ports, Unavailable)]
    slow = [f"{at} runs at {rate:g} Gb/s" for at, rate in rates if not isinstance(rate, Unavailable) and rate < wanted]
    unread = [f"{at}: {rate}" for at, rate in rates if isinstance(rate, Unavailable)]
    if slow:
        how = "ibstatus; the cable, the transceiver, and the speed that the switch port is set to"
        text = f"{', '.join(slow)}; {wanted:g} expected"
        yield fail(text, subject="rate", cause="link_degraded", expected=f"{wanted:g} Gb/s", how=how)
    elif unread or not rates:
        yield unknown(f"{wanted:g} Gb/s expected, not read: {'; '.join(unread) or 'no active port'}", subject="rate")
    else:
        yield ok(f"{', '.join(at for at, _ in rates)}: at least {wanted:g} Gb/s, as expected", subject="rate")


def _memlock(kernel: Kernel | Unavailable, here: Here, job: JobShape | Unavailable, path: PathRun | Unavailable) -> Finding:
    """Registered memory counts against RLIMIT_MEMLOCK (drivers/infiniband/core/umem.c) unless CAP_IPC_LOCK is held in the
    initial user namespace: capable(), not ns_capable()."""
    vantage = here.vantage
    limit: int | Unavailable = (
        kernel if isinstance(kernel, Unavailable) else kernel.limits.get("memlock", Unavailable(Kind.NOT_READ))
    )
    if not vantage.job_user:
        return unknown(f"the job's own locked-memory limit is not seen from here: {vantage.why_not}", subject="memlock")
    if isinstance(limit, Unavailable):
        return unknown(f"the locked-memory limit could not be read: {limit}", subject="memlock", how="ulimit -l in the job")
    if limit == UNLIMITED:
        return ok("locked memory is unlimited", subject="memlock")
    if isinstance(vantage.capabilities, Unavailable) or "CAP_IPC_LOCK" in vantage.capabilities:
        if isinstance(vantage.capabilities, Unavailable) or isinstance(vantage.root_is_root, Unavailable):
            return unknown("whether CAP_IPC_LOCK of the initial user namespace is held could not be read", subject="memlock")
        if vantage.root_is_root:
            return ok("CAP_IPC_LOCK lifts the locked-memory limit", subject="memlock", limit=limit)
    size = size_text(limit)
    if limit >= MEMLOCK_PLENTY:
        return ok(f"locked memory is limited to {size}, which is plenty", subject="memlock", limit=limit)
    if any(_carried(run) for run in _runs(path)):
        note = f"the limit is {size}: more channels or peers may need more"
        return ok("the path run registered its memory and finished over RDMA", subject="memlock", notes=(note,), limit=limit)
    if limit >= MEMLOCK_LEAST:
        return unknown(
            f"locked memory is limited to {size}: enough for some jobs", subject="memlock", how="ulimit -l unlimited"
        )
    if here.no_gpu:
        text = f"locked memory is limited to {size}; libcuda shows this container no GPU"
        return unknown(text, subject="memlock", how=NO_GPU, limit=limit)
    if isinstance(job, JobShape) and job.nodes_stated and job.nodes == 1:
        text = f"the configuration says that the job has one node, where HCAs carry nothing; locked memory is limited to {size}"
        return skip(text, subject="memlock", limit=limit)
    fix = fix_container(vantage, "memlock")
    if not vantage.in_container:
        fix = Fix(
            "lift the locked-memory limit of the job",
            ("ulimit -l unlimited",),
            ("'* - memlock unlimited' in /etc/security/limits.d/rdma.conf", "LimitMEMLOCK=infinity in slurmd's systemd unit"),
        )
    return fail(
        f"locked memory is limited to {size}: NCCL cannot register its buffers",
        subject="memlock",
        cause="memlock",
        expected="unlimited",
        fix=fix,
        limit=limit,
    )


def _runs(path: PathRun | Unavailable) -> tuple[Run, ...]:
    return () if isinstance(path, Unavailable) or isinstance(path.runs, Unavailable) else path.runs


def _carried(run: Run) -> bool:
    return run.finished and run.log is not None and run.log.net == "IB"
