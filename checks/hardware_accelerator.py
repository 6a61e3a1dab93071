"""The accelerators and HCAs that the machine has are all there, and every layer sees the same ones.

An accelerator that netdoctor does not judge is never "no GPU": it is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from netdoctor.api import (
    Environ,
    Expected,
    Finding,
    Fix,
    Gpu,
    Gpus,
    Kind,
    Pci,
    PciDevice,
    Rdma,
    Unavailable,
    Vantage,
    VisibleGpu,
    check,
    fail,
    hcas,
    missing,
    ok,
    skip,
    unknown,
)

BATCH = re.compile(r"slurm|pbs|lsf|condor|sge", re.IGNORECASE)  # in the name of a job's cgroup
LOST = "a GPU that the driver lost (fell off the bus, or failed at start) stays away until a reset"
# Drivers that take a GPU away from NVML on purpose: for a virtual machine, for nobody, or for a screen.
GIVEN_AWAY = frozenset({"vfio-pci", "pci-stub", "nvgrace-gpu-vfio-pci", "nouveau"})


@check(id="hardware.accelerator", title="Accelerators and HCAs are all there, and every layer sees them", cause="inventory")
def accelerator(pci: Pci, gpus: Gpus, rdma: Rdma, expected: Expected, vantage: Vantage, environ: Environ) -> Iterator[Finding]:
    if hcas.no_accelerator(pci, gpus):
        yield skip("no accelerator: PCI was read and shows none of any vendor")
    else:
        yield from _foreign(pci)
        yield _gpus(pci, gpus, vantage, environ)
    if (lost := missing(expected.gpus, expected.hcas)) is not None:
        yield unknown(f"how many GPUs and RDMA devices are expected could not be read: {lost}", subject="expected")
    if isinstance(expected.gpus, int):
        yield _expected_gpus(pci, gpus, expected.gpus)
    if isinstance(expected.hcas, int):
        yield _expected_hcas(pci, rdma, expected.hcas)


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
            f"accelerators that netdoctor does not judge: {', '.join(pci.foreign_accelerators)}",
            subject=subject,
            how="use the vendor's tools: rocm-smi, hl-smi, neuron-ls",
            found=list(pci.foreign_accelerators),
        )
    elif pci.unclassified:
        text = f"the class of {', '.join(pci.unclassified)} on PCI could not be read: it may be an accelerator"
        yield unknown(text, subject=subject)


def _gpus(pci: Pci, gpus: Gpus, vantage: Vantage, environ: Environ) -> Finding:
    """PCI, NVML and libcuda count the same GPUs."""
    if isinstance(pci.gpus, Unavailable):
        return unknown(f"PCI could not be read to compare: {pci.gpus}", subject="GPUs")
    on_bus = [d for d in pci.gpus if d.driver not in GIVEN_AWAY and d.physical_function is None]
    if not on_bus and not pci.unclassified and gpus.visible == () and gpus.all == ():
        return skip("no NVIDIA GPU that this machine itself may use: PCI was read", subject="GPUs")
    if isinstance(gpus.all, Unavailable):
        if not on_bus and not gpus.visible:
            return unknown(f"PCI shows no NVIDIA GPU for this machine, NVML could not be read: {gpus.all}", subject="GPUs")
        text = f"PCI shows {len(on_bus)} GPUs, NVML could not be read: {gpus.all}"
        return unknown(text, subject="GPUs", how="nvidia-smi -L")
    evidence: dict[str, Any] = {"pci": len(on_bus), "nvml": len(gpus.all)}
    lost = _lost_by_nvml(on_bus, gpus.all, vantage, environ)
    if lost is not None:
        return replace(lost, subject="GPUs")
    if len(gpus.all) > len(on_bus) and not pci.by_wsl:
        text = f"NVML shows {len(gpus.all)} GPUs, PCI {len(on_bus)}: they disagree"
        return unknown(text, subject="GPUs", how="lspci -d 10de:", **evidence)
    lost = _lost_by_libcuda(gpus.all, gpus.visible, vantage, environ)
    if lost is not None:
        return replace(lost, subject="GPUs", evidence=evidence)
    return ok(f"{len(gpus.all)} GPUs in NVML, {len(on_bus)} on PCI", subject="GPUs", **evidence)


def _lost_by_nvml(on_bus: list[PciDevice], nvml: tuple[Gpu, ...], vantage: Vantage, environ: Environ) -> Finding | None:
    """GPUs that PCI shows and NVML does not."""
    known = {gpu.pci for gpu in nvml if isinstance(gpu.pci, str)}
    gone = [device.address for device in on_bus if device.address not in known]
    if not gone:
        return None
    counts: dict[str, Any] = {"pci": len(on_bus), "nvml": len(nvml)}
    if len(nvml) < len(on_bus) and (share := _share(len(nvml), len(on_bus), vantage, environ)) is not None:
        return replace(share, evidence=counts)
    fix = Fix("look for its Xid, then reset or reboot", ("dmesg | grep -i -e xid -e nvrm", "nvidia-smi -L"))
    # NVML counts a lost GPU and tells nothing of it (NVML_ERROR_GPU_IS_LOST): it is one of those that PCI alone shows.
    lost = [gpu for gpu in nvml if isinstance(gpu.pci, Unavailable) and gpu.pci.kind == Kind.ABSENT]
    if len(nvml) >= len(on_bus) and len(known) + len(lost) < len(nvml):
        return unknown("NVML did not say where every GPU sits", how="nvidia-smi -L")
    if lost and len(lost) == len(gone):
        return fail(f"the driver has lost {', '.join(gone)}: {lost[0].pci}", why=LOST, fix=fix, missing=gone)
    if len(nvml) >= len(on_bus):  # as many, but not the same
        return fail(f"NVML does not show {', '.join(gone)}, which PCI shows", fix=fix, missing=gone)
    return fail(
        f"PCI shows {len(on_bus)} GPUs, NVML {len(nvml)}: {', '.join(gone)} missing",
        expected=f"{len(on_bus)} GPUs",
        why=LOST,
        fix=fix,
        missing=gone,
        **counts,
    )


def _lost_by_libcuda(
    nvml: tuple[Gpu, ...], seen: tuple[VisibleGpu, ...] | Unavailable, vantage: Vantage, environ: Environ
) -> Finding | None:
    """GPUs that NVML shows and libcuda does not, though nothing says that they are kept from the job."""
    if isinstance(seen, Unavailable):
        return unknown(f"{len(nvml)} GPUs on PCI and in NVML, libcuda could not be asked: {seen}")
    if seen and not nvml:
        return unknown(f"libcuda shows {len(seen)} GPUs, NVML none: they disagree", how="nvidia-smi -L")
    if len(seen) >= len(nvml) or not vantage.job_environment:
        return None
    if not seen:
        return unknown("NVML shows GPUs, libcuda shows the job none", how="CUDA_VISIBLE_DEVICES")
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if isinstance(chosen, str) or any(gpu.mig is True for gpu in nvml):
        return None
    said = "not set" if chosen is None else chosen
    text = f"NVML shows {len(nvml)} GPUs, libcuda {len(seen)}, and CUDA_VISIBLE_DEVICES is {said}"
    return unknown(text, how="nvidia-smi -q -d COMPUTE,ECC; dmesg | grep -i xid")


def _share(shown: int, there: int, vantage: Vantage, environ: Environ) -> Finding | None:
    """A job that is given some of the GPUs: /sys shows it all of them, and NVML those that it may open."""
    batch = isinstance(vantage.cgroup, Unavailable) or BATCH.search(vantage.cgroup) is not None
    if not vantage.in_container and not (vantage.job_user and batch) and "pid" in (vantage.namespaces or ()):
        return None
    name = "NVIDIA_VISIBLE_DEVICES" if vantage.in_container else "SLURM_GPUS_ON_NODE"  # cgroup.conf(5) ConstrainDevices
    said = environ.get(name)
    text = f"PCI shows {there} GPUs, NVML {shown}"
    if isinstance(said, Unavailable):
        return unknown(f"{text}, and how many this job was given could not be read: {said}")
    if vantage.in_container:  # images of CUDA say "all", whatever a pod is given
        enough = shown >= len((said or "").split(",")) and not (said == "all" and vantage.runtime in ("docker", "podman"))
    else:
        enough = said is not None and said.isdecimal() and shown >= int(said)
    if not shown or not enough or vantage.lost is not None:
        how = "nvidia-smi -L; dmesg | grep -i xid"
        return unknown(f"{text}, {name} is {said or 'not set'}: lost, or another job's", how=how)
    return ok(f"NVML shows this job {shown} GPUs", notes=(f"PCI shows {there}: the others are not this job's",))


def _expected_gpus(pci: Pci, gpus: Gpus, wanted: int) -> Finding:
    subject = "expected GPUs"
    if not isinstance(gpus.all, Unavailable):
        count, where = len(gpus.all), "in NVML"
    elif isinstance(pci.gpus, Unavailable) or len(pci.gpus) >= wanted:
        return unknown(f"{wanted} GPUs expected, NVML could not be read: {gpus.all}", subject=subject)
    else:
        count, where = len(pci.gpus), "on PCI"
    if count < wanted:
        return _short(f"{count} GPUs {where}, {wanted} expected", subject, wanted, count)
    return ok(f"{count} GPUs, {wanted} expected", subject=subject, found=count)


def _expected_hcas(pci: Pci, rdma: Rdma, wanted: int) -> Finding:
    subject = "expected HCAs"
    if isinstance(rdma.devices, Unavailable):
        return unknown(f"{wanted} RDMA devices expected, sysfs could not be read: {rdma.devices}", subject=subject)
    count, on_bus = len(rdma.devices), len(pci.rdma or ())
    if count >= wanted:
        return ok(f"{count} RDMA devices, {wanted} expected", subject=subject, found=count)
    if on_bus >= wanted:
        text = f"PCI shows {on_bus} RDMA controllers, sysfs {count} RDMA devices, {wanted} expected"
        fix = Fix("load the HCA's RDMA driver", ("lsmod | grep -e mlx5_ib -e efa", "rdma link"))
        return fail(text, subject=subject, expected=str(wanted), fix=fix, found=count)
    return _short(f"{count} RDMA devices, {wanted} expected", subject, wanted, count)


def _short(message: str, subject: str, wanted: int, found: int) -> Finding:
    fix = Fix("find the missing ones: reseat, firmware, dmesg", ("lspci -nn | grep -i -e nvidia -e mellanox", "dmesg"))
    return fail(message, subject=subject, expected=str(wanted), fix=fix, found=found)
