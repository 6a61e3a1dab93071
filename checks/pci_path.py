"""PCIe switches pass on what GPUs and HCAs below them send each other, and do not turn it back to the CPU (ACS redirection).

Data that is turned back crosses the switch's own link twice, up and down.  What root alone reads of the switches is not needed
where an all-reduce moved more than that link could have carried twice.  At the CPU's own ports all data comes by anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from netdoctor.api import (
    Baseline,
    DirectPaths,
    Environ,
    Finding,
    Fix,
    GpuHealth,
    Gpus,
    Intent,
    Kernel,
    Libraries,
    Loss,
    Pair,
    PathRun,
    Pci,
    PciPath,
    Rdma,
    Unavailable,
    between_nodes,
    check,
    cost,
    direct_paths,
    expectation,
    fail,
    hcas,
    missing,
    ok,
    skip,
    transport,
    unknown,
)

ROOT = "as root: netdoctor preflight --only pci.path, or lspci -vvv | grep -e ^[0-9a-f] -e ACSCtl"
TRY = "netdoctor allreduce over two nodes shows what it takes"
WORDS = {"max_read": "bytes of a read request at most:", "relaxed": "relaxed ordering:"}
EMULATED = frozenset({0x1B36, 0x15AD, 0x1414, 0x1D0F})  # bridges that QEMU, VMware, Hyper-V and Nitro make up
GUEST = "a virtual machine: its switches are its hypervisor's, and redirection (ACS) keeps its devices apart from others'"
NO_SWITCH = "no GPU sends anything to an HCA or GPU below the same PCIe switch: at the CPU's ports ACS turns nothing back"


@check(id="pci.path", title="PCIe switches pass on what GPUs and HCAs below them send each other", cause="acs_iommu")
def pci_path(
    pci: Pci,
    way: PciPath,
    gpus: Gpus,
    state: GpuHealth,
    rdma: Rdma,
    environ: Environ,
    kernel: Kernel,
    libraries: Libraries,
    baseline: Baseline,
    runs: PathRun,
    job: Intent,
) -> Iterator[Finding]:
    if (nothing := expectation.without_gpus(pci, gpus)) is not None:
        yield nothing
        return
    places = hcas.places(gpus, pci)
    if (lost := missing(pci.devices, places, gpus.visible)) is not None or not pci.devices or isinstance(places, Unavailable):
        why = "PCI shows no device" if lost is None else lost
        yield unknown(f"the job's GPUs and their places on PCI could not be read: {why}")
        return
    if way.guest is True or any(one.vendor in EMULATED and one.klass >> 8 == 0x0604 for one in pci.devices):
        yield skip(GUEST)
        return
    paths = DirectPaths(pci, way, gpus, state, rdma, environ, kernel, libraries, baseline, runs)
    to_hcas = [] if transport.idle_hcas(job, environ, libraries) else list(direct_paths.to_hcas(places, paths))
    to_gpus = list(direct_paths.to_gpus(places, paths))
    for found in _judged(to_hcas, paths, "HCA"):
        yield between_nodes(found, job)
    yield from _judged(to_gpus, paths, "GPU")
    if not to_hcas and not to_gpus:
        yield skip(NO_SWITCH)


def _judged(every: list[Pair | Unavailable], paths: DirectPaths, kind: str) -> Iterator[Finding]:
    pairs = [one for one in every if isinstance(one, Pair)]
    back = [pair for pair in pairs if paths.turned_back(pair) and not paths.direct(pair)]
    yield from (_redirected(pair, back, paths) for pair in back)
    rest = [pair for pair in pairs if pair not in back]
    unread = [one for one in rest if not paths.direct(one) and (paths.lost(one) is not None or paths.way.guest is not False)]
    subject = f"GPUs and {kind}s"
    if (untold := next((one for one in every if isinstance(one, Unavailable)), None)) is not None:
        yield unknown(
            f"which GPUs and {kind}s share a PCIe switch could not be told: {untold}", subject=subject, how="lspci -tv"
        )
    elif unread:
        lost = next((found for one in unread if (found := paths.lost(one)) is not None), None)
        why = f"whether this is a virtual machine: {paths.way.guest}" if lost is None else lost
        text = f"whether switches turn data back (ACS) could not be read: {why}"
        if split := [pair.name for pair in unread if paths.split(pair)]:
            text += f"; they did when the kernel started, which keeps {', '.join(split)} in IOMMU groups of their own"
        yield unknown(text, subject=subject, how=ROOT, iommu=str(paths.way.iommu))
    elif rest:
        text = f"PCIe switches pass on what {len(rest)} pairs of GPUs and {kind}s send each other"
        yield ok(text, subject=subject, notes=tuple(_notes(rest, paths)), iommu=str(paths.way.iommu))


def _redirected(pair: Pair, back: list[Pair], paths: DirectPaths) -> Finding:
    """What a switch turns back, by what its link to the CPU can carry of that."""
    bridges, most, way = paths.turned_back(pair), paths.link(pair), paths.way
    names = ", ".join(f"{address} ({word})" for address, word in bridges.items())
    text = f"{names} turn{'' if len(bridges) > 1 else 's'} back to the CPU what goes between them"
    said: dict[str, Any] = {"bridges": bridges, "iommu": str(way.iommu)}
    if isinstance(way.guest, Unavailable):
        text = f"{text}, as it must in a virtual machine, and whether this is one could not be read: {way.guest}"
        return unknown(text, subject=pair.name, how="systemd-detect-virt", **said)
    end = way.at(pair.other.address)
    if all(found.lets_translated_pass for b in bridges if (found := way.at(b))) and (not end or end.ats):
        text = f"{text}, but for what the IOMMU has translated before (ATS), and whether the HCA asks for that is not known"
        return unknown(text, subject=pair.name, how=TRY, **said)
    loss: Loss = cost.MIGHT
    loads = sum({one.other.address: paths.load(one) for one in back if one.switch == pair.switch}.values())
    if pair.rate is None:
        loss = Loss(0.5, "each way the switch's link to the CPU carries what they send and what they receive", bound=True)
    elif most and most < loads:
        loss = cost.less(round(most, 1), loads, "GB/s of what the HCAs send and receive, by the switch's link to the CPU")
    return fail(
        text,
        subject=pair.name,
        loss=loss,
        expected="ReqRedir- CmpltRedir- EgressCtrl- on each port of the switch between them",
        fix=Fix(
            "turn redirection off on the ports between them, where no virtual machine is given one of their devices",
            tuple(f"setpci -s {address} ECAP_ACS+0x6.w=0000" for address in bridges),
            (f"pci=disable_acs_redir={';'.join(bridges)}   # kernel command line", "or ACS off in the firmware's settings"),
        ),
        **said,
    )


def _notes(pairs: list[Pair], paths: DirectPaths) -> Iterator[str]:
    """What is turned back and costs nothing, and what HCAs of one model do not have in common."""
    for pair in pairs:
        if back := paths.turned_back(pair):
            yield f"{pair.name}: {', '.join(back)} may turn data back, and a run shows that it costs nothing"
    seen = {p.other.address: (p.other, at) for p in pairs if p.rate is not None and (at := paths.way.at(p.other.address))}
    for name, words in WORDS.items():
        for like in sorted({(one.vendor, one.device) for one, _ in seen.values()}):
            values = {a: getattr(at, name) for a, (one, at) in seen.items() if (one.vendor, one.device) == like}
            usual, count = Counter(values.values()).most_common(1)[0]
            odd = {a: value for a, value in values.items() if value != usual and 2 * count > len(values)}
            yield from (f"{address}: {words} {value}, of its like {usual}" for address, value in odd.items())
