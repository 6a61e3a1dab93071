"""DCGM's own health watches, where it is installed, have found nothing that ends jobs.

DCGM is asked and not rebuilt: its daemon watches since it began, netdoctor looks once.  Its failures fail, but for those of
NVLinks: it calls links down that no bridge joins, and gpu.fabric and hardware.gpus hold them against the model.  What it warns
of is unknown: it warns of a single replay, which a job does not feel.
"""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import (
    Dcgm,
    DcgmHealth,
    Finding,
    Fix,
    Gpus,
    Incident,
    Pci,
    Unavailable,
    Vantage,
    check,
    cost,
    expectation,
    fail,
    missing,
    ok,
    skip,
    unknown,
)

ERROR, BUS = "gpu_error", "link_degraded"
# dcgmi/Health.cpp, HelperSystemToString
CAUSES = {
    "PCIe system": BUS,
    "ConnectX system": BUS,
    "NVLINK system": BUS,
    "Memory system": "gpu_memory",
    "Thermal system": "gpu_slow",
    "Power system": "gpu_slow",
}
LINKS = "NVLINK system"
HOW = "dcgmi health -c; journalctl -u nvidia-dcgm"
MEND = Fix("do what DCGM says of it; drain the node where it comes again", ("dcgmi health -c", "dcgmi diag -r 2"))


@check(id="gpu.dcgm", title="DCGM's health watches have found nothing", cause=ERROR)
def gpu_dcgm(dcgm: Dcgm, pci: Pci, gpus: Gpus, vantage: Vantage) -> Iterator[Finding]:
    if (nothing := expectation.without_gpus(pci, gpus)) is not None:
        yield nothing
        return
    if dcgm.installed is False:
        yield skip("DCGM is not installed here: no dcgmi")
        return
    if (lost := missing(dcgm.installed, dcgm.watching)) is not None:
        yield unknown(f"DCGM could not be asked: {lost}", how="systemctl status nvidia-dcgm; dcgmi health -c")
        return
    if not dcgm.watching:
        yield skip("DCGM's daemon answers, and its group of all GPUs is not watched: dcgmi health -s a lets it")
        return
    if isinstance(dcgm.incidents, Unavailable):
        yield unknown(f"what DCGM found could not be read: {dcgm.incidents}", how=HOW)
        return
    for entity in dict.fromkeys(one.entity for one in dcgm.incidents):
        yield from _of_one(entity, [one for one in dcgm.incidents if one.entity == entity], gpus, vantage)
    if not dcgm.incidents:
        yield ok("DCGM's health watches have found nothing")


def _of_one(entity: str, found: list[Incident], gpus: Gpus, vantage: Vantage) -> Iterator[Finding]:
    """One of each cause.  DCGM's numbers are not the job's: of a share of the GPUs it may be another job's."""
    subject, share = f"DCGM: {entity}", len(gpus.visible or ()) < len(gpus.all or ()) and vantage.job_environment
    bad = [one for one in found if one.health is DcgmHealth.FAILURE and one.system != LINKS and not share]
    for cause in dict.fromkeys(CAUSES.get(one.system, ERROR) for one in bad):
        some = [one for one in bad if CAUSES.get(one.system, ERROR) == cause]
        yield fail(
            f"DCGM calls {entity} failed: {'; '.join(_words(one) for one in some)}",
            subject=subject,
            cause=cause,
            loss=cost.SOMETIMES,
            fix=Fix(f"{expectation.place(vantage)}{MEND.summary}", MEND.commands),
        )
    if not bad:
        words = "; ".join(f"{one.health} of its {_words(one)}" for one in found)
        which = ", which may be another job's" if share else ""
        yield unknown(f"DCGM says of {entity}{which}: {words}", subject=subject, how=HOW)


def _words(one: Incident) -> str:
    return f"{one.system} ({one.text})" if one.text else one.system
