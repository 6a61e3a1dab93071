"""DCGM's own health watches, where it is installed, have found nothing that ends jobs.

Its diagnostic runs only where it is asked for (dcgm_diag), and never where a GPU of the node is in use or may be another's.
DCGM is asked and not rebuilt: its daemon watches since it began, netdoctor looks once.  Its failures fail, but for those of
NVLinks: it calls links down that no bridge joins, and gpu.fabric and hardware.gpus hold them against the model.  What it warns
of is unknown: it warns of a single replay, which a job does not feel.
"""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import (
    Dcgm,
    DcgmHealth,
    Diagnosed,
    Finding,
    Fix,
    Gpus,
    Incident,
    Kind,
    Outcome,
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
LINKS, DIAG = "NVLINK system", "DCGM's diagnostic"
HOW = "dcgmi health -c; journalctl -u nvidia-dcgm"
MEND = Fix("do what DCGM says of it; drain the node where it comes again", ("dcgmi health -c", "dcgmi diag -r 2"))


@check(id="gpu.dcgm", title="DCGM's health watches have found nothing", cause=ERROR)
def gpu_dcgm(dcgm: Dcgm, pci: Pci, gpus: Gpus, vantage: Vantage) -> Iterator[Finding]:
    if (nothing := expectation.without_gpus(pci, gpus)) is not None:
        yield nothing
        return
    if dcgm.diagnosed is not None and not isinstance(dcgm.installed, Unavailable):
        yield from _diagnosed(dcgm.diagnosed, vantage)
    if dcgm.installed is False:
        yield skip("DCGM is not installed here: no dcgmi")
        return
    if dcgm.meant is False and not isinstance(gpus.all, Unavailable):
        yield skip("DCGM is installed, and its daemon neither runs nor is to be started here (systemd): NVML was asked")
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


def _diagnosed(found: Diagnosed | Unavailable, vantage: Vantage) -> Iterator[Finding]:
    """What was asked for.  The GPUs are all of the node, and idle: else it did not run."""
    if isinstance(found, Unavailable):
        yield unknown(f"whether DCGM's diagnostic was asked for could not be read: {found}", subject=DIAG)
        return
    name = f"dcgmi diag -r {found.level}"
    if isinstance(found.results, Unavailable):
        why = "did not run" if found.results.kind is Kind.REFUSED else "gave no result"
        yield unknown(f"{name} {why}: {found.results.detail or found.results}", subject=DIAG, how=name)
        return
    bad = [one for one in found.results if one.outcome is Outcome.FAIL]
    odd = [one for one in found.results if one.outcome is Outcome.WARN]
    for entity in dict.fromkeys(one.entity for one in bad):
        said = "; ".join(f"{one.test}{f' ({one.text})' if one.text else ''}" for one in bad if one.entity == entity)
        mend = Fix(f"{expectation.place(vantage)}{MEND.summary}", (name,))
        text = f"{name} fails {entity or 'the node'}: {said}"
        yield fail(text, subject=f"{DIAG}: {entity or 'node'}", loss=cost.SOMETIMES, fix=mend)
    if odd:
        said = "; ".join(f"{one.test} of {one.entity or 'the node'}{f' ({one.text})' if one.text else ''}" for one in odd)
        yield unknown(f"{name} warns: {said}", subject=DIAG, how=name)
    elif not bad:
        skipped = dict.fromkeys(one.test for one in found.results if one.outcome is Outcome.SKIP)
        passed = len({one.test for one in found.results if one.outcome is Outcome.PASS})
        if not passed:
            yield unknown(f"{name} skipped every test", subject=DIAG, how=name)
        else:
            notes = (f"skipped: {', '.join(skipped)}",) if skipped else ()
            yield ok(f"{name}: {passed} tests passed", subject=DIAG, notes=notes)


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
