"""What a variable takes from the devices that this node has: rules that need more of them than their names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from netdoctor.causes.cost import SOMETIMES, less
from netdoctor.facts.environ import Setting
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma, RdmaDevice
from netdoctor.model import Finding, Status, Unavailable, missing
from netdoctor.nccl.gpudirect import within
from netdoctor.nccl.hcas import Candidates, active_ports, no_accelerator, places, rate, selected
from netdoctor.nccl.selector import Selector, parse_hcas
from netdoctor.variables.judge import written_wrong


def left_out(setting: Setting, rdma: Rdma) -> Finding | None:
    """Devices that an exclusion leaves out by a prefix alone, like some that it keeps: an entry that is a device was not meant
    as one.  Source: src/misc/utils.cc, matchIfList."""
    devices, choice = rdma.devices or (), parse_hcas(setting.value)
    if choice is None or not choice.exclude or choice.exact or not devices:
        return None
    kept = selected(devices, choice)
    alike = {_kind(device) for device in kept} - {None}
    extra = [device for device in devices if _by_prefix_alone(device, devices, choice) and _kind(device) in alike]
    if not extra:
        return None
    names = ", ".join(device.name for device in extra)
    message = f"{setting.name}={setting.value}: names are prefixes: it also leaves out {names}, like those that are kept"
    expected = f"^={setting.value[1:]}"
    found = written_wrong(setting.name, setting, "prefix", message, f"set it as expected: {expected}", expected)
    of_a_kind = {_kind(device) for device in extra}
    left = sum(_kind(device) in of_a_kind for device in kept)
    return replace(found, loss=less(left, left + len(extra), "RDMA devices of their kind are left"))


def beside_the_gpus(setting: Setting, rdma: Rdma, gpus: Gpus, pci: Pci) -> Finding | None:
    """Devices below a switch with a GPU of the job, none of which the list takes, and that are as fast as what it takes.

    NCCL then leads that GPU to another's (src/graph/topo.cc, ncclTopoGetLocal).  Whether they are the job's network or one for
    storage nobody tells, so this is never a fail.
    """
    devices, choice = rdma.devices or (), parse_hcas(setting.value)
    if choice is None:
        return None
    kept = [device for device in selected(devices, choice) if active_ports(device)]
    left = [device for device in devices if active_ports(device) and device not in kept]
    mine = places(gpus, pci)
    if not kept or not left or mine == ():
        return None
    if isinstance(mine, Unavailable) or isinstance(pci.devices, Unavailable):
        why = f"it leaves out {left[0].name}, and whether that is beside a GPU could not be read: {missing(pci.devices, mine)}"
        return Finding(Status.UNKNOWN, f"{setting.name}={setting.value}: {why}", setting.name, cause="env_misuse")
    among = Candidates(devices, pci)
    near = {gpu.label: among.nearest(gpu) for gpu in mine}
    own = {label: found for label, (kind, found) in near.items() if kind and within(kind, "PXB")}
    lost = {label: found for label, found in own.items() if not any(one in kept for one in found)}
    fastest = max(map(rate, kept))
    passed_over = [one for one in left if rate(one) >= fastest and any(one in found for found in lost.values())]
    if not passed_over or not fastest:
        return None
    now, more = sum(map(rate, kept)), sum(map(rate, passed_over))
    names = ", ".join(one.name for one in passed_over)
    message = (
        f"{setting.name}={setting.value}: it takes none of {names}, beside {', '.join(lost)}: their data goes by other devices"
    )
    return Finding(
        Status.UNKNOWN,
        f"{message}; a fault if they are of the job's network",
        setting.name,
        cause="env_misuse",
        evidence={"rule": "beside-gpus", "source": str(setting.source)},
        how=f"{less(now, now + more, 'Gb/s are left').formula}: ibstat, and which of them the other nodes reach",
    )


def _kind(device: RdmaDevice) -> tuple[object, float] | None:
    """Link layer and rate; None of a device that carries nothing."""
    ports = active_ports(device)
    return (ports[0].link_layer, rate(device)) if ports else None


def _by_prefix_alone(device: RdmaDevice, devices: tuple[RdmaDevice, ...], choice: Selector) -> bool:
    """Left out by the name of another device, and by nothing else."""
    there = {one.name for one in devices}
    by = {want for want, _ in choice.names if device.name.startswith(want)}
    return bool(by) and by <= there - {device.name} and not selected([device], choice)


def forced_ll128(setting: Setting, gpus: Gpus, pci: Pci) -> Finding | None:
    """LL128 between GPUs for which NCCL does not take it by itself: src/graph/tuning.cc, where the intra-node path is longer
    than PATH_NVB ("Other cases are not tested and may cause silent data corruption").

    A list enables all that it names, ``^`` all that it does not: with both 2.21.5 and 2.29.7 gave LL128 a bandwidth on L40S.
    """
    if not any(_enabled(setting.value)) or no_accelerator(pci, gpus):
        return None
    pairs = gpus.of_the_job
    mine = [gpu for _, gpu in pairs or () if gpu is not None]
    if (lost := missing(pairs, gpus.all, *(x for gpu in mine for x in (gpu.nvlinks, gpu.mig)))) is not None:
        text = f"{setting.name}={setting.value} forces LL128, and whether NVLink joins the GPUs could not be read: {lost}"
        return Finding(Status.UNKNOWN, text, setting.name, cause="env_misuse")
    if len(mine) < 2 or not any(gpu.mig is False and not any(gpu.nvlinks or ()) for gpu in mine):
        return None
    message = f"{setting.name}={setting.value} forces LL128 between GPUs without NVLink, where NCCL itself leaves it out"
    found = written_wrong(setting.name, setting, "forced-ll128", message, "leave NCCL_PROTO unset; ^LL128 keeps LL128 away")
    why = "it needs stores of 128 bytes that arrive as one, which PCIe does not promise: data may be wrong without a word"
    return replace(found, loss=SOMETIMES, why=why)


def _enabled(value: str) -> Iterator[bool]:
    """Whether each section of NCCL_PROTO (by function since 2.24) enables LL128."""
    for section in value.split(";"):
        words = section.rpartition(":")[2]
        named = "ll128" in words.removeprefix("^").lower().split(",")
        yield bool(words) and named != words.startswith("^")
