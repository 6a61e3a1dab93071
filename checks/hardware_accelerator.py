"""The accelerators and HCAs that the machine has are all there, and every layer sees the same ones.

An accelerator that netdoctor does not judge is never "no GPU": it is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    Baseline,
    Bound,
    Environ,
    Expected,
    Finding,
    Fix,
    Gift,
    Gpu,
    GpuLayers,
    Gpus,
    Intent,
    Kind,
    Pci,
    PciDevice,
    Said,
    Unavailable,
    Vantage,
    check,
    count,
    devices,
    fail,
    hcas,
    layers,
    missing,
    ok,
    others,
    record,
    skip,
    unknown,
)

LOST = "a GPU that the driver lost (fell off the bus, or failed at start) stays away until a reset"
LOST_OR_NOT = "lost, or another job's"
GIFTS = {
    Gift.UNSET: "the container toolkit gives no GPU to a container that does not ask (docker run --gpus all, or -e)",
    Gift.VOID: "the container toolkit leaves it alone, and nothing else (CDI, Enroot's hook) gave it a GPU",
    Gift.NONE: "it has the driver's libraries, and was given no GPU on purpose",
    Gift.ALL: "it was to be given all, and NVML shows none",
    Gift.LIST: "NVML shows none of them",
}
THREE_D = 0x0302  # PCI class of a GPU without a screen

WITHOUT_NVML = "NCCL opens libnvidia-ml.so.1 at init, and ends where it is not there (src/misc/nvmlwrap.cc)"
UTILITY = Fix("give the container the driver's tools, too", ("docker run -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",))
ELSEWHERE = Fix("name them as nvidia-smi -L does here, or leave the variable to the launcher", ("nvidia-smi -L",))
LEFT_OUT = Fix("see why libcuda leaves it out", ("nvidia-smi -q -d COMPUTE,ECC", "dmesg | grep -i xid"))
# NVIDIA Multi-Instance GPU User Guide, CUDA Device Enumeration
ONE_INSTANCE = "CUDA shows a process one MIG instance, from driver R570 on one compute instance of each GPU instance"
APART = Fix("name one MIG instance for each rank", ("nvidia-smi -L", "CUDA_VISIBLE_DEVICES=MIG-UUID"))


@check(id="hardware.accelerator", title="Accelerators and HCAs are all there, and every layer sees them", cause="inventory")
def accelerator(
    pci: Pci, gpus: Gpus, expected: Expected, vantage: Vantage, environ: Environ, job: Intent, baseline: Baseline
) -> Iterator[Finding]:
    if hcas.no_accelerator(pci, gpus):
        yield skip("no accelerator: PCI was read and shows none of any vendor")
    elif hcas.nothing_for_nccl(pci, gpus):  # others' alone: one line says so
        yield from _foreign(pci)
    else:
        yield from _foreign(pci)
        run = baseline.nccl_run
        yield _gpus(pci, gpus, vantage, environ, run is not None and run.finished, devices.gpus_meant(expected, job, environ))
        yield from _drivers(pci, gpus, expected, vantage)
        rows = layers.gpu_layers(pci, gpus, baseline)
        if (found := _of_the_job(rows, gpus, vantage, environ, job, expected, baseline)) is not None:
            yield replace(found, subject="GPUs of the job")


def _foreign(pci: Pci) -> Iterator[Finding]:
    """Accelerators of other vendors, or what keeps from saying that there are none."""
    subject = "other accelerators"
    if isinstance(pci.devices, Unavailable):
        yield unknown(f"PCI could not be read: {pci.devices}", subject=subject)
    elif isinstance(pci.foreign_accelerators, Unavailable):
        text = f"whether there are accelerators of other vendors could not be read: {pci.foreign_accelerators}"
        yield unknown(text, subject=subject)
    elif pci.foreign_accelerators:
        yield unknown(
            f"accelerators that netdoctor does not judge: {others(pci.foreign_accelerators)}",
            subject=subject,
            how="use the vendor's tools: rocm-smi, hl-smi, neuron-ls",
            found=list(pci.foreign_accelerators),
        )
    elif pci.unclassified:
        text = f"the class of {', '.join(pci.unclassified)} on PCI could not be read: it may be an accelerator"
        yield unknown(text, subject=subject)


def _gpus(pci: Pci, gpus: Gpus, vantage: Vantage, environ: Environ, ran: bool, meant: bool) -> Finding:
    """PCI, the driver and NVML show the same GPUs."""
    if isinstance(pci.gpus, Unavailable):
        return unknown(f"PCI could not be read to compare: {pci.gpus}", subject="GPUs")
    every = [d for d in pci.gpus if d.physical_function is None]
    own = [d for d in every if layers.bound(d) is Bound.OWN]
    on_bus = own or [d for d in every if layers.bound(d) is Bound.NONE]  # see `_drivers` of those that differ from their like
    if not on_bus and not pci.unclassified and gpus.visible == () and gpus.all == ():
        return skip("no NVIDIA GPU that this machine itself may use: PCI was read", subject="GPUs")
    if isinstance(gpus.all, Unavailable):
        if not on_bus and not gpus.visible:
            return unknown(f"PCI shows no NVIDIA GPU for this machine, NVML could not be read: {gpus.all}", subject="GPUs")
        if (misfit := devices.misfit(gpus, on_bus, vantage, ran, meant)) is not None:
            return replace(misfit, subject="GPUs")
        text = f"PCI shows {count(len(on_bus), 'GPU')}, NVML could not be read: {gpus.all}"
        if vantage.job_environment and not vantage.outside and gpus.all.kind == Kind.ABSENT and len(gpus.visible or ()) > 1:
            text = f"libcuda shows {len(gpus.visible or ())} GPUs, and there is no NVML: {gpus.all}"
            return fail(text, subject="GPUs", cause="cuda_driver_mismatch", why=WITHOUT_NVML, fix=UTILITY)
        said = environ.get("NVIDIA_VISIBLE_DEVICES")
        if vantage.in_container and not isinstance(said, Unavailable) and gpus.all.kind == Kind.ABSENT:
            text += f"; NVIDIA_VISIBLE_DEVICES is {said or 'not set'}: {GIFTS[layers.gift(said)]}"
        return unknown(text, subject="GPUs", how=layers.look_for_gpus(gpus, vantage))
    evidence: dict[str, Any] = {"pci": len(every), "driver": len(on_bus), "nvml": len(gpus.all)}
    lost = _lost_by_nvml(on_bus, gpus.all, vantage, environ)
    if lost is not None:
        return replace(lost, subject="GPUs")
    if len(gpus.all) > len(on_bus) and not pci.by_wsl:
        text = f"NVML shows {count(len(gpus.all), 'GPU')}, PCI {len(on_bus)}: they disagree"
        return unknown(text, subject="GPUs", how="lspci -d 10de:", **evidence)
    apart = f" with its driver, of {len(every)}" if len(every) > len(on_bus) else ""
    return ok(f"{count(len(gpus.all), 'GPU')} in NVML, {len(on_bus)} on PCI{apart}", subject="GPUs", **evidence)


def _drivers(pci: Pci, gpus: Gpus, expected: Expected, vantage: Vantage) -> Iterator[Finding]:
    """GPUs that another driver has, or none: NVML does not know that they are there."""
    every = [d for d in pci.gpus or () if d.physical_function is None]
    own = {d.device for d in every if layers.bound(d) is Bound.OWN}
    by = {kind: [d for d in every if layers.bound(d) is kind] for kind in Bound}
    # A VGA card of another kind beside the accelerators may be there for its screen.
    taken = [d for d in by[Bound.OTHER] if d.klass >> 8 == THREE_D or d.device in own]
    if taken:
        names = ", ".join(f"{d.address} ({d.driver})" for d in taken)
        yield fail(
            f"PCI shows {names}, which NVML lacks: the driver that they are bound to knows no CUDA",
            subject="GPUs on another driver",
            expected="nvidia",
            fix=Fix(
                "keep that driver away from them, and bind them to nvidia",
                (f"lspci -k -s {taken[0].address}", "modprobe -r nouveau; modprobe nvidia"),
                ("echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf; update-initramfs -u   # or dracut -f",),
            ),
            missing=[d.address for d in taken],
        )
    known = {gpu.pci for gpu in gpus.all or ()}
    bare = [d for d in by[Bound.NONE] if d.device in own and d.address not in known]
    text = f"PCI shows {', '.join(d.address for d in bare)}, which NVML lacks: no driver is bound"
    if bare and isinstance(vantage.runtime, Unavailable):  # a container may be given the others alone
        yield unknown(f"{text}, and whether this is a container is not known", subject="GPUs without a driver")
    elif bare and vantage.runtime is None:
        yield fail(
            text,
            subject="GPUs without a driver",
            expected="nvidia, as on its like",
            why=LOST,
            fix=Fix("see why nvidia did not take it", (f"dmesg | grep -i -e {bare[0].address} -e nvrm", "lspci -k -d 10de:")),
            missing=[d.address for d in bare],
        )
    if (given := by[Bound.GIVEN]) and own:
        names = ", ".join(f"{d.address} ({d.driver})" for d in given)
        text = f"PCI shows {names}, which NVML lacks: a virtual machine may have them"
        if gpus.all and expected.gpus == len(gpus.all):
            yield ok(f"{text}; the others are as many as are expected", subject="GPUs of virtual machines")
        else:
            how = "is that meant?  expected.gpus says how many this machine keeps; driverctl list-overrides; lspci -k -d 10de:"
            yield unknown(f"{text}, and nothing says how many are meant", subject="GPUs of virtual machines", how=how)


def _lost_by_nvml(on_bus: list[PciDevice], nvml: tuple[Gpu, ...], vantage: Vantage, environ: Environ) -> Finding | None:
    """GPUs that PCI shows and NVML does not."""
    known = {gpu.pci for gpu in nvml if isinstance(gpu.pci, str)}
    gone = [device.address for device in on_bus if device.address not in known]
    if not gone:
        return None
    counts: dict[str, Any] = {"pci": len(on_bus), "nvml": len(nvml)}
    if len(nvml) < len(on_bus) and (share := _share(len(nvml), len(on_bus), vantage, environ)) is not None:
        return replace(share, evidence=counts)
    fix = devices.BACK
    # NVML counts a lost GPU and tells nothing of it (NVML_ERROR_GPU_IS_LOST): it is one of those that PCI alone shows.
    lost = [gpu for gpu in nvml if isinstance(gpu.pci, Unavailable) and gpu.pci.kind == Kind.ABSENT]
    # It counts those that a device cgroup keeps from this process, too (NVML_ERROR_NO_PERMISSION).
    kept = [gpu for gpu in nvml if isinstance(gpu.pci, Unavailable) and gpu.pci.kind == Kind.DENIED]
    if kept and known and len(kept) == len(gone):
        note = f"NVML counts {len(kept)} more, which this process may not open: another job's"
        return ok(f"NVML shows this job {len(known)} of {len(on_bus)} GPUs", notes=(note,), **counts)
    if len(nvml) >= len(on_bus) and len(known) + len(lost) < len(nvml):
        return unknown("NVML did not say where every GPU sits", how="nvidia-smi -L")
    if lost and len(lost) == len(gone):
        return fail(f"the driver has lost {', '.join(gone)}: {lost[0].pci}", why=LOST, fix=fix, missing=gone)
    if len(nvml) >= len(on_bus):  # as many, but not the same
        return fail(f"NVML does not show {', '.join(gone)}, which PCI shows", fix=fix, missing=gone)
    return fail(
        f"PCI shows {count(len(on_bus), 'GPU')}, NVML {len(nvml)}: {', '.join(gone)} missing",
        expected=count(len(on_bus), "GPU"),
        why=LOST,
        fix=fix,
        missing=gone,
        **counts,
    )


def _share(shown: int, there: int, vantage: Vantage, environ: Environ) -> Finding | None:
    """A job that is given some of the GPUs."""
    if not layers.may_share(vantage):
        return None
    name = "NVIDIA_VISIBLE_DEVICES" if vantage.in_container else "SLURM_GPUS_ON_NODE"  # cgroup.conf(5) ConstrainDevices
    said = environ.get(name)
    text = f"PCI shows {count(there, 'GPU')}, NVML {shown}"
    if isinstance(said, Unavailable):
        return unknown(f"{text}, and how many this job was given could not be read: {said}")
    gift, named = layers.gift(said), layers.named_gpus(said or "")
    if not vantage.in_container:
        enough = said is not None and said.isdecimal() and shown >= int(said)
    else:  # images of CUDA say "all", whatever a pod is given
        enough = shown >= len(named) and not (gift is Gift.ALL and vantage.runtime in ("docker", "podman"))
    if gift is Gift.LIST and 0 < shown < len(named) <= there and vantage.in_container and vantage.lost is None:
        fix = Fix("look for their Xid on the node, and start the container again", ("nvidia-smi -L", "dmesg | grep -i xid"))
        return fail(f"{text}: this container was given {len(named)} ({name}={said})", why=LOST, fix=fix)
    if not shown or not enough or vantage.lost is not None:
        given = f"{name} is {said or 'not set'}: {GIFTS[gift] if vantage.in_container and not shown else LOST_OR_NOT}"
        return unknown(f"{text}, {given}", how="nvidia-smi -L; dmesg | grep -i xid")
    return ok(f"NVML shows this job {count(shown, 'GPU')}", notes=(f"PCI shows {there}: the others are not this job's",))


def _of_the_job(
    rows: tuple[GpuLayers, ...],
    gpus: Gpus,
    vantage: Vantage,
    environ: Environ,
    job: Intent,
    expected: Expected,
    baseline: Baseline,
) -> Finding | None:
    """NVML, libcuda, torch and the ranks that ran show the job the same GPUs; None: this is not where the job's are seen."""
    nvml, seen = gpus.all, gpus.visible
    misfit = devices.cuda_misfit(gpus, vantage)
    if vantage.outside or (not nvml and not seen and misfit is None):
        return None
    if not vantage.job_environment:
        return unknown(f"which GPUs the job gets is not seen: {vantage.elsewhere}", how=FROM_JOB)
    if misfit is not None:
        return misfit
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if (lost := missing(nvml, seen)) is not None:
        return unknown(f"{'NVML' if seen else 'libcuda'} could not be asked: {lost}")
    if isinstance(mask, Unavailable):
        return unknown(f"CUDA_VISIBLE_DEVICES could not be read: {mask}")
    here = Job(rows, len(nvml or ()), len(seen or ()), mask, environ, layers.lost(rows, vantage))
    said = layers.said_gpus(job, environ)
    found = here.unmade() or here.contradiction(said) or here.parted() or here.short(said, expected)
    return found or _used(here, gpus, baseline, job)


@record
class Job:
    """What the layers that depend on the job's place show of its GPUs."""

    rows: tuple[GpuLayers, ...]
    nvml: int
    cuda: int
    mask: str | None  # CUDA_VISIBLE_DEVICES
    environ: Environ
    lost: tuple[str, ...]  # by the driver

    @property
    def hidden(self) -> str:
        some = [row.name for row in self.rows if row.nvml is not None and not row.cuda]
        parts = (f"{', '.join(names)} {what}" for names, what in ((some, "hidden"), (self.lost, "lost")) if names)
        return ", ".join(parts)

    @property
    def mend(self) -> Fix:
        """Of fewer GPUs in libcuda than the job is said to have."""
        return devices.UNMASK if self.mask is not None else devices.BACK if self.lost else LEFT_OUT

    @property
    def by(self) -> str:
        return "CUDA_VISIBLE_DEVICES is not set" if self.mask is None else f"CUDA_VISIBLE_DEVICES is {self.mask or 'empty'}"

    @property
    def mps(self) -> bool:
        """Its server has numbered the devices anew, and may have fewer (NVIDIA MPS documentation, CUDA_VISIBLE_DEVICES)."""
        return bool(self.environ.get("CUDA_MPS_PIPE_DIRECTORY"))

    def instances(self, names: tuple[str, ...]) -> bool:
        """Whether there are MIG instances among them, and each is here."""
        known = [uuid for row in self.rows if row.nvml is not None for uuid in row.nvml.mig_uuids or ()]
        parts = [name for name in names if name.startswith("MIG-")]
        return bool(parts) and all(any(one.startswith(name) for one in known) for name in parts)

    def contradiction(self, said: Said | None | Unavailable) -> Finding | None:
        """The mask names what is not there, or leaves less than the job is said to have."""
        if self.cuda > self.nvml and not any(row.parted for row in self.rows):
            return unknown(f"libcuda shows {count(self.cuda, 'GPU')}, NVML {self.nvml}: they disagree", how="nvidia-smi -L")
        names = layers.named_gpus(self.mask or "")
        named = count(len(names), "GPU")
        if len(names) > self.cuda and not self.mps:
            text = f"CUDA_VISIBLE_DEVICES names {named}, libcuda shows {self.cuda}"
            if self.instances(names):
                return fail(text, expected="one MIG instance for each rank", why=ONE_INSTANCE, fix=APART)
            why = "CUDA ends the list at the first that is not there; numbers of the host mean others in a container"
            mend = devices.BACK if self.lost else ELSEWHERE
            return fail(f"{text}: not all of {self.mask} are here", expected=f"{named} in libcuda", why=why, fix=mend)
        if isinstance(said, Said) and self.cuda < said.gpus and (said.gpus <= self.nvml or (said.nccl and self.cuda)):
            wanted, ranks, there = (count(said.gpus, "GPU"), count(said.gpus, "rank"), count(self.cuda, "GPU"))
            text = f"the job has {wanted} here ({said.source}), libcuda shows it {self.cuda} of the {self.nvml} in NVML"
            crowd = f"{ranks} here ({said.source}), and {there}: NCCL takes no second rank on one"
            return fail(
                f"{text}, and {self.by}: {self.hidden}" if said.gpus <= self.nvml else crowd,
                expected=f"{count(said.gpus, 'GPU')} in libcuda",
                why="ranks without a GPU of their own stop NCCL (Duplicate GPU detected), or the job is smaller than meant",
                fix=self.mend if said.gpus <= self.nvml or self.lost else devices.fewer(self.environ.launcher, self.cuda),
            )
        return None

    def unmade(self) -> Finding | None:
        """GPUs in MIG mode without an instance, which no mask leaves out."""
        empty = [row for row in self.rows if row.parted and row.nvml is not None and row.nvml.mig_uuids == () and not row.cuda]
        if not empty or self.mask is not None:
            return None
        off = (f"nvidia-smi -i {one.address} -mig 0" for one in empty)
        return fail(
            f"NVML shows {layers.listed(empty)} in MIG mode without an instance: libcuda shows nobody anything of it",
            expected="instances, or MIG mode off",
            why="MIG mode outlives a restart, its instances do not",
            fix=Fix("make its instances, or turn MIG off", ("nvidia-smi mig -lgi", *off)),
        )

    def parted(self) -> Finding | None:
        """GPUs in MIG mode: what a job gets of them is an instance, never the GPU (NVIDIA MIG user guide)."""
        parted = [row for row in self.rows if row.parted]
        if not parted:
            return None
        instances = [one for row in parted for one in row.cuda]
        whole = [row for row in self.rows if row.cuda and not row.parted]
        meant = any("MIG-" in (self.environ.get(name) or "") for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"))
        text = (
            f"{count(len(instances), 'MIG instance')} and {len(whole)} of {self.nvml} GPUs; {layers.listed(parted)} in MIG mode"
        )
        if meant or (instances and len(parted) == self.nvml) or (whole and not instances and self.mask is not None):
            return ok(f"libcuda shows the job {text}", nvml=self.nvml, libcuda=self.cuda)
        how = "nvidia-smi -L; name the instances in CUDA_VISIBLE_DEVICES, or turn MIG off: nvidia-smi -i GPU -mig 0"
        return unknown(f"libcuda shows the job {text}, and nothing says that it is meant", how=how)

    def short(self, said: Said | None | Unavailable, expected: Expected) -> Finding | None:
        """Fewer GPUs in libcuda than in NVML: whether that is meant."""
        denied = self.nvml - sum(row.nvml is not None for row in self.rows)  # NVML tells nothing of these
        if self.cuda >= self.nvml - denied:
            return None
        text = f"libcuda shows the job {self.cuda} of {self.nvml} GPUs, and {self.by}"
        if isinstance(said, Unavailable):
            return unknown(f"{text}; how many it should have could not be read: {said}")
        if not self.cuda:
            return unknown(f"{text}: NVML shows GPUs, libcuda shows the job none", how="CUDA_VISIBLE_DEVICES")
        rank = self.environ.launcher and self.environ.launcher.local_rank is not None  # it may be given one of the job's
        if said is None and not rank and expected.gpus not in (None, self.cuda):
            how = "is it forgotten?  job.ranks_per_node says how many GPUs a job has on this node"
            return unknown(f"{text}; {expected.gpus} are expected here", how=how)
        if self.mask is not None or self.mps:
            return None
        how = "nvidia-smi -q -d COMPUTE,ECC; dmesg | grep -i xid; an MPS server with fewer devices"
        return unknown(f"{text}: {self.hidden}", how=how)


def _used(here: Job, gpus: Gpus, baseline: Baseline, job: Intent) -> Finding:
    """torch, and the ranks that really ran."""
    run, torch = baseline.run, layers.torch_count(baseline.run)
    counts: dict[str, Any] = {"nvml": here.nvml, "libcuda": here.cuda}
    said = f"{here.cuda} of {here.nvml} GPUs in NVML and libcuda"
    if torch is not None and torch < here.cuda:
        show = "import os, torch; print(os.environ.get('CUDA_VISIBLE_DEVICES'), torch.cuda.device_count())"
        return fail(
            f"libcuda shows the job {count(here.cuda, 'GPU')}, torch.cuda.device_count() {torch}",
            expected=f"torch.cuda.device_count() is {here.cuda}",
            why="the ranks of a job of torch's get no other GPUs than torch counts",
            fix=Fix("see what sets CUDA_VISIBLE_DEVICES where torch is imported", (f'python3 -c "{show}"',)),
            torch=torch,
            **counts,
        )
    if torch is not None and torch > here.cuda:
        return unknown(f"torch shows {count(torch, 'GPU')}, libcuda {here.cuda}: they disagree", **counts)
    if (lost := layers.lost_runs(run)) is not None:
        return unknown(f"{said}; what torch and an all-reduce showed could not be read: {lost}", **counts)
    if run and (lacks := layers.lacks(run, gpus, job)):
        return unknown(f"{said}; the all-reduce finished {lacks}", how="netdoctor preflight", **counts)
    ran = sum(bool(row.ranks) for row in here.rows)
    by = f"{f', {torch} in torch' if torch is not None else ''}{f', {ran} had a rank' if ran else ''}"
    return ok(f"{said}{by}", notes=(here.by,) if here.cuda < here.nvml else (), **counts, torch=torch, ranks=ran)
