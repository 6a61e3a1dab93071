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
    Gpus,
    Pci,
    Rdma,
    Severity,
    Unavailable,
    Vantage,
    check,
    fail,
    hcas,
    ok,
    skip,
    unknown,
)

BATCH = re.compile(r"slurm|pbs|lsf|condor|sge", re.IGNORECASE)  # in the name of a job's cgroup
# Drivers that take a GPU away from NVML on purpose: for a virtual machine, for nobody, or for a screen.
GIVEN_AWAY = frozenset({"vfio-pci", "pci-stub", "nvgrace-gpu-vfio-pci", "nouveau"})


@check(id="hardware.accelerator", title="Accelerators and HCAs are all there, and every layer sees them", cause="inventory")
def accelerator(
    pci: Pci | Unavailable,
    gpus: Gpus | Unavailable,
    rdma: Rdma | Unavailable,
    expected: Expected,
    vantage: Vantage,
    environ: Environ | Unavailable,
) -> Iterator[Finding]:
    yield from _foreign(pci, gpus)
    if not hcas.no_accelerator(pci, gpus):
        yield _gpus(pci, gpus, vantage, environ)
    if isinstance(expected.gpus, int):
        yield _expected_gpus(pci, gpus, expected.gpus)
    if isinstance(expected.hcas, int):
        yield _expected_hcas(pci, rdma, expected.hcas)


def _foreign(pci: Pci | Unavailable, gpus: Gpus | Unavailable) -> Iterator[Finding]:
    if hcas.no_accelerator(pci, gpus):
        yield skip("no accelerator: PCI was read and shows none of any vendor")
    elif isinstance(pci, Unavailable):
        yield unknown(f"PCI could not be read: {pci}", subject="other accelerators")
    elif isinstance(pci.foreign_accelerators, Unavailable):
        yield unknown(
            f"whether there are accelerators of other vendors could not be read: {pci.foreign_accelerators}",
            subject="other accelerators",
        )
    elif pci.foreign_accelerators:
        yield unknown(
            f"accelerators that netdoctor does not judge: {', '.join(pci.foreign_accelerators)}",
            subject="other accelerators",
            how="use the vendor's tools: rocm-smi, hl-smi, neuron-ls",
            found=list(pci.foreign_accelerators),
        )
    elif pci.unclassified:
        yield unknown(
            f"the class of {', '.join(pci.unclassified)} on PCI could not be read: it may be an accelerator",
            subject="other accelerators",
        )


def _gpus(pci: Pci | Unavailable, gpus: Gpus | Unavailable, vantage: Vantage, environ: Environ | Unavailable) -> Finding:
    """PCI, NVML and libcuda count the same GPUs."""
    if isinstance(pci, Unavailable):
        return unknown(f"PCI could not be read to compare: {pci}", subject="GPUs")
    on_bus = [d for d in pci.gpus or () if d.driver not in GIVEN_AWAY and d.physical_function is None]
    nvml = gpus if isinstance(gpus, Unavailable) else gpus.all
    seen = gpus if isinstance(gpus, Unavailable) else gpus.visible
    if not on_bus and not pci.unclassified and seen == () and nvml == ():
        return skip("no NVIDIA GPU that this machine itself may use: PCI was read", subject="GPUs")
    if isinstance(nvml, Unavailable):
        if not on_bus and not seen:
            return unknown(f"PCI shows no NVIDIA GPU for this machine, NVML could not be read: {nvml}", subject="GPUs")
        return unknown(f"PCI shows {len(on_bus)} GPUs, NVML could not be read: {nvml}", subject="GPUs", how="nvidia-smi -L")
    evidence: dict[str, Any] = {"pci": len(on_bus), "nvml": len(nvml)}
    known = {g.pci for g in nvml if isinstance(g.pci, str)}
    missing = [d.address for d in on_bus if d.address not in known]
    if len(nvml) < len(on_bus):
        if (share := _share(len(nvml), len(on_bus), vantage, environ)) is not None:
            return replace(share, subject="GPUs", evidence=evidence)
        return fail(
            f"PCI shows {len(on_bus)} GPUs, NVML {len(nvml)}: {', '.join(missing)} missing",
            subject="GPUs",
            expected=f"{len(on_bus)} GPUs",
            why="a GPU that the driver lost (fell off the bus, or failed at start) stays away until a reset",
            fix=Fix("look for its Xid, then reset or reboot", ("dmesg | grep -i -e xid -e nvrm", "nvidia-smi -L")),
            missing=missing,
            **evidence,
        )
    unreadable = _unreadable(nvml_count=len(nvml), known=len(known), missing=missing)
    if unreadable is not None:
        return unreadable
    # WSL2 gives GPUs by /dev/dxg, not on PCI (https://learn.microsoft.com/windows/wsl/tutorials/gpu-compute).
    paravirtual = not isinstance(pci.foreign_accelerators, Unavailable) and "/dev/dxg" in pci.foreign_accelerators
    if len(nvml) > len(on_bus) and not paravirtual:
        return unknown(
            f"NVML shows {len(nvml)} GPUs, PCI {len(on_bus)}: they disagree", subject="GPUs", how="lspci -d 10de:", **evidence
        )
    if isinstance(seen, Unavailable):
        return unknown(f"{len(nvml)} GPUs on PCI and in NVML, libcuda could not be asked: {seen}", subject="GPUs", **evidence)
    if seen and not nvml:
        return unknown(
            f"libcuda shows {len(seen)} GPUs, NVML none: they disagree", subject="GPUs", how="nvidia-smi -L", **evidence
        )
    if not seen and nvml and vantage.job_environment:
        return unknown("NVML shows GPUs, libcuda shows the job none", subject="GPUs", how="CUDA_VISIBLE_DEVICES", **evidence)
    if len(seen) < len(nvml) and vantage.job_environment and not any(gpu.mig is True for gpu in nvml):
        chosen = environ if isinstance(environ, Unavailable) else environ.get("CUDA_VISIBLE_DEVICES")
        if not isinstance(chosen, str):
            text = f"NVML shows {len(nvml)} GPUs, libcuda {len(seen)}, and CUDA_VISIBLE_DEVICES is {chosen or 'not set'}"
            return unknown(text, subject="GPUs", how="nvidia-smi -q -d COMPUTE,ECC; dmesg | grep -i xid", **evidence)
    return ok(f"{len(nvml)} GPUs in NVML, {len(on_bus)} on PCI", subject="GPUs", **evidence)


def _share(shown: int, there: int, vantage: Vantage, environ: Environ | Unavailable) -> Finding | None:
    """A job that is given some of the GPUs: /sys shows it all of them, and NVML those that it may open."""
    batch = isinstance(vantage.cgroup, Unavailable) or BATCH.search(vantage.cgroup) is not None
    if not vantage.in_container and not (vantage.job_user and batch) and "pid" in (vantage.namespaces or ()):
        return None
    name = "NVIDIA_VISIBLE_DEVICES" if vantage.in_container else "SLURM_GPUS_ON_NODE"  # cgroup.conf(5) ConstrainDevices
    said = environ if isinstance(environ, Unavailable) else environ.get(name)
    text = f"PCI shows {there} GPUs, NVML {shown}"
    if isinstance(said, Unavailable):
        return unknown(f"{text}, and how many this job was given could not be read: {said}")
    if vantage.in_container:  # images of CUDA say "all", whatever a pod is given
        enough = shown >= len((said or "").split(",")) and not (said == "all" and vantage.runtime in ("docker", "podman"))
    else:
        enough = said is not None and said.isdecimal() and shown >= int(said)
    if not shown or not enough:
        return unknown(
            f"{text}, {name} is {said or 'not set'}: lost, or another job's", how="nvidia-smi -L; dmesg | grep -i xid"
        )
    return ok(f"NVML shows this job {shown} GPUs", notes=(f"PCI shows {there}: the others are not this job's",))


def _unreadable(nvml_count: int, known: int, missing: list[str]) -> Finding | None:
    """NVML counts enough GPUs, but they are not known to be those of PCI."""
    if missing and known == nvml_count:
        return fail(
            f"NVML does not show {', '.join(missing)}, which PCI shows",
            subject="GPUs",
            fix=Fix("look for its Xid, then reset or reboot", ("dmesg | grep -i -e xid -e nvrm", "nvidia-smi -L")),
            missing=missing,
        )
    if missing:
        return unknown("NVML did not say where every GPU sits", subject="GPUs", how="nvidia-smi -L")
    return None


def _expected_gpus(pci: Pci | Unavailable, gpus: Gpus | Unavailable, wanted: int) -> Finding:
    nvml = gpus if isinstance(gpus, Unavailable) else gpus.all
    if isinstance(nvml, Unavailable):
        if isinstance(pci, Unavailable) or len(pci.gpus or ()) >= wanted:
            return unknown(f"{wanted} GPUs expected, NVML could not be read: {nvml}", subject="expected GPUs")
        return _short(f"{len(pci.gpus or ())} GPUs on PCI, {wanted} expected", "expected GPUs", wanted, len(pci.gpus or ()))
    if len(nvml) < wanted:
        return _short(f"{len(nvml)} GPUs in NVML, {wanted} expected", "expected GPUs", wanted, len(nvml))
    return ok(f"{len(nvml)} GPUs, {wanted} expected", subject="expected GPUs", found=len(nvml))


def _expected_hcas(pci: Pci | Unavailable, rdma: Rdma | Unavailable, wanted: int) -> Finding:
    devices = rdma if isinstance(rdma, Unavailable) else rdma.devices
    if isinstance(devices, Unavailable):
        return unknown(f"{wanted} RDMA devices expected, sysfs could not be read: {devices}", subject="expected HCAs")
    if len(devices) >= wanted:
        return ok(f"{len(devices)} RDMA devices, {wanted} expected", subject="expected HCAs", found=len(devices))
    if isinstance(pci, Pci) and len(pci.rdma or ()) >= wanted:
        return fail(
            f"PCI shows {len(pci.rdma or ())} RDMA controllers, sysfs {len(devices)} RDMA devices, {wanted} expected",
            subject="expected HCAs",
            expected=str(wanted),
            fix=Fix("load the HCA's RDMA driver", ("lsmod | grep -e mlx5_ib -e efa", "rdma link")),
            found=len(devices),
        )
    return _short(f"{len(devices)} RDMA devices, {wanted} expected", "expected HCAs", wanted, len(devices))


def _short(message: str, subject: str, wanted: int, found: int) -> Finding:
    return fail(
        message,
        subject=subject,
        severity=Severity.CRITICAL,
        expected=str(wanted),
        fix=Fix("find the missing ones: reseat, firmware, dmesg", ("lspci -nn | grep -i -e nvidia -e mellanox", "dmesg")),
        found=found,
    )
