"""The GPUs have no errors of memory, firmware or bus, and nothing lowers their clocks.

NVML tells ECC errors, remapped rows, retired pages, what lowers the clocks, and whether the driver wants a reset; the
kernel's log has its errors (Xid, SXid) since boot, by NVIDIA's catalogue.  Power limit, ECC, modes and BAR1 are those of the
node's other GPUs of that model, and so are the clocks while the all-reduce runs; boards without a screen map all their memory
by BAR1.  A power limit below the board's own default is named where the site does not say what it wants
(expected.gpu_power_limit_w, which hardware.site judges), and so are clocks far below the board's own that no reason of NVML's
explains (expected.gpu_clock_mhz).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from netdoctor.api import (
    HW_SLOWDOWN,
    HW_THERMAL,
    LOOK_AT_LOG,
    POWER_BRAKE,
    SW_THERMAL,
    WHOLE_LOG,
    WITH_RUN,
    Baseline,
    Environ,
    Expected,
    Finding,
    Fix,
    GpuHealth,
    GpuLoad,
    Gpus,
    GpuState,
    KernelLog,
    Kind,
    Loss,
    Pci,
    Status,
    Unavailable,
    Vantage,
    check,
    cost,
    expectation,
    fail,
    layers,
    missing,
    ok,
    open_errors,
    record,
    skip,
    unknown,
)

SUBJECT, LOG, LOAD, POWER, LOCK = "GPUs", "kernel log", "GPUs under load", "power limit", "clock lock"
MOST_PAGES = 60  # retired pages: NVIDIA replaces the board (Dynamic Page Retirement, RMA Policy)
LEAST_BAR1 = 64 << 20  # bytes that are free: 16 channels of NCCL's buffers of 4 MiB (NCCL_BUFFSIZE)
# nvml.h, nvmlClocksEventReasonHwSlowdown: "reducing the core clocks by a factor of 2 or more"
HALVED = Loss(0.5, "a hardware slowdown halves the clocks at least (nvml.h)", True)
# A PCIe link may have an error in 1e12 bits (PCI Express Base Specification), half a replay a second of x16 at 32 GT/s.
REPLAYS = 10  # a second
LOWERED = {
    HW_THERMAL: ("heat (hardware)", HALVED),
    POWER_BRAKE: ("the power supply's brake", HALVED),
    HW_SLOWDOWN: ("a hardware slowdown", HALVED),
    SW_THERMAL: ("heat (driver)", cost.MIGHT),
}
# nvmlDeviceGpuRecoveryAction_t (NVIDIA GPU Memory Error Management, Error Recovery and Response Flags)
RECOVERY = {
    1: ("it waits for a reset", cost.STOPS),
    2: ("it waits for a reboot of the node", cost.STOPS),
    3: ("it waits until its peers are drained", cost.STOPS),
    4: ("it is to be drained and reset; until then it has less to give", cost.MIGHT),
    5: ("it waits for its IMEX domain to recover", cost.STOPS),
    6: ("it waits for a reset of its PCIe bus", cost.STOPS),
    7: ("it waits for a reboot of the system", cost.STOPS),
}
UNKNOWN = ("the driver wants it recovered", cost.STOPS)
REPLACED, PROHIBITED = ": to be replaced", "its compute mode prohibits CUDA"
# nvmlDeviceGetEccMode, nvmlDeviceGetMigMode: what was set is there after the next reset, whoever makes that.
ECC_WAITS, MIG_WAITS = "another ECC mode than it has waits for a reset", "another MIG mode than it has waits for a reset"
MEMORY, ERROR, SLOW, BUS = "gpu_memory", "gpu_error", "gpu_slow", "link_degraded"


@record
class Rule:
    """A field of `GpuState`, and when it is wrong."""

    looks_at: str  # "": a pass makes no claim of it
    field: str
    wrong: Callable[[Any], object]
    words: str
    cause: str
    loss: Loss


RULES = (
    Rule(
        "ECC",
        "uncorrected",
        lambda by: any(by.values()),
        "uncorrectable errors since the driver was loaded",
        MEMORY,
        cost.STOPS,
    ),
    Rule("memory repairs", "remapped", lambda rows: rows[3], f"a row could not be remapped{REPLACED}", MEMORY, cost.STOPS),
    Rule("memory repairs", "remapped", lambda rows: rows[2], "a row waits for a reset to be remapped", MEMORY, cost.MIGHT),
    Rule("memory repairs", "retired", lambda n: n >= MOST_PAGES, f"so many retired pages{REPLACED}", MEMORY, cost.SOMETIMES),
    Rule("memory repairs", "retired_pending", bool, "a page waits for a reset to be retired", MEMORY, cost.MIGHT),
    Rule("ECC", "sram_threshold", bool, f"too many errors of its SRAM{REPLACED}", MEMORY, cost.SOMETIMES),
    Rule("InfoROM", "inforom", lambda holds: not holds, "its InfoROM is corrupted", ERROR, cost.MIGHT),
    Rule("compute mode", "compute_mode", lambda mode: mode == 2, PROHIBITED, ERROR, cost.STOPS),
    Rule("", "ecc_waits", bool, ECC_WAITS, ERROR, cost.NOTHING),
    Rule("", "mig_waits", bool, MIG_WAITS, ERROR, cost.MIGHT),
    Rule("temperature", "hot", bool, "as hot as makes the hardware lower its clocks", SLOW, HALVED),
    Rule(
        "BAR1",
        "bar1",
        lambda b: b[0] and 0 <= b[0] - b[1] < LEAST_BAR1,
        "its BAR1 is full: RDMA cannot map more",
        ERROR,
        cost.SOMETIMES,
    ),
)
_REBOOT = ("drain the node and reboot it: a reset of the GPU is not enough", "nvidia-smi -q")
_PEERS = "end all programs that reach it from other GPUs, then ask again: it says then whether it wants a reset or a reboot"
# nvml.h, nvmlDeviceGpuRecoveryAction_t: what is next after DRAIN_P2P (3) it says when no peer talks to it any more.
ASKED = {2: _REBOOT, 3: (_PEERS, "nvidia-smi -q | grep -i 'recovery action'"), 7: _REBOOT}
MENDS = {
    MEMORY: ("drain the node and reset the GPU; replace one that shows it again", "nvidia-smi -q -d ECC,ROW_REMAPPER -i {}"),
    ERROR: ("drain the node and reset the GPU; ask the vendor where it comes again", "dmesg | grep -i -e xid -e {}"),
    SLOW: ("see to cooling, power supplies and limits", "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {}"),
    BUS: ("reseat the card or its riser, and look for errors of the link", "lspci -vv -s {} | grep -e LnkSta -e DevSta"),
}
# Some need another than their cause: what is to be replaced no reset mends (NVIDIA GPU Memory Error Management, RMA Policy).
REPLACE = ("drain the node and have the GPU replaced: a reset does not mend this", "nvidia-smi -q -d ECC,ROW_REMAPPER -i {}")
OWN_MENDS = {
    **dict.fromkeys((rule.words for rule in RULES if rule.words.endswith(REPLACED)), REPLACE),
    ECC_WAITS: ("reset it while it is idle, or take the ECC mode back that waits", "nvidia-smi -q -d ECC -i {}"),
    MIG_WAITS: ("reset it while it is idle, or take the MIG mode back that waits", "nvidia-smi -q -i {} | grep -A2 MIG"),
    PROHIBITED: ("let programs compute on it", "nvidia-smi -i {} -c DEFAULT"),
}
Wrong = tuple[str, str, Loss]  # cause, words, what it takes


@check(id="gpu.health", title="The GPUs have no errors, and nothing lowers their clocks", cause=ERROR)
def gpu_health(
    pci: Pci,
    gpus: Gpus,
    state: GpuHealth,
    load: GpuLoad,
    baseline: Baseline,
    log: KernelLog,
    environ: Environ,
    vantage: Vantage,
    expected: Expected,
) -> Iterator[Finding]:
    if (nothing := expectation.without_gpus(pci, gpus)) is not None:
        yield nothing
        return
    if isinstance(state.gpus, Unavailable):
        yield unknown(f"the state of the GPUs could not be read: {state.gpus}", subject=SUBJECT)
        if not isinstance(log.events, Unavailable):
            yield from _reported(log, (), (), pci, vantage)  # which may tell why
        return
    own = _own(state.gpus, gpus, environ, vantage)
    if not own:
        yield unknown("NVML shows no GPU that could be asked", subject=SUBJECT, how="nvidia-smi -q")
        return
    place = expectation.place(vantage)
    yield from _now(own, place)
    alike = list[Finding]()
    if (like := expectation.health(own)).expectations or len(own) > 1:
        what = "like GPUs" if len(own) > 1 else "GPU itself"
        alike += expectation.findings(like, expectation.About(what, len(own), True, place))
    yield from alike
    if not expected.gpu_power_limit_w:
        named = {one.subject for one in alike if one.status is Status.FAIL and one.cause == SLOW}
        yield from _capped([gpu for gpu in own if gpu.place not in named], len(own))
    yield from _under_load(own, load, baseline.gpus_here, expected, place)
    yield from _reported(log, own, state.gpus, pci, vantage, open_errors.links_up(pci, gpus, own))


def _own(every: tuple[GpuState, ...], gpus: Gpus, environ: Environ, vantage: Vantage) -> tuple[GpuState, ...]:
    """Those of other jobs do not count: what this process may not open, and what a mask of the whole job leaves out while
    somebody else computes on it.  The mask of a rank is its own, and the job's other ranks have the others."""
    opened = tuple(gpu for gpu in every if getattr(gpu.uuid, "kind", None) is not Kind.DENIED)
    launcher = environ.launcher
    if not vantage.job_environment or isinstance(launcher, Unavailable) or launcher.local_rank is not None:
        return opened
    seen = {gpu.uuid for _, gpu in gpus.of_the_job or () if gpu is not None}
    others = {gpu.uuid for gpu in gpus.all or () if gpu.processes and gpu.uuid not in seen} if seen else set()
    return tuple(gpu for gpu in opened if gpu.uuid not in others)


def _now(own: tuple[GpuState, ...], place: str) -> Iterator[Finding]:
    """What NVML tells now.  What a model or a driver does not tell is named, and no claim is made of it."""
    found = [_rebooted(gpu.recovery, one, place) for gpu in own for one in _fails(gpu.place, _told(gpu), place)]
    yield from found
    fields = {rule.field: rule.looks_at for rule in RULES if rule.looks_at} | {"recovery": "recovery", "reasons": "clocks"}
    values = [getattr(gpu, field) for gpu in own for field in fields]
    lost = next((value for value in values if isinstance(value, Unavailable) and value.kind is not Kind.UNSUPPORTED), None)
    labels = dict.fromkeys(fields.values())
    told = [name for name in labels if all(_tells(gpu, [f for f in fields if fields[f] == name]) for gpu in own)]
    silent = [name for name in labels if name not in told]
    if lost is not None:
        yield unknown(f"the state of a GPU could not be read: {lost}", subject=SUBJECT, how="nvidia-smi -q")
    elif not found and not told:
        yield skip("NVML tells nothing of the state of GPUs of this model", subject=SUBJECT)
    elif not found:
        notes = [*([f"NVML does not tell here: {', '.join(silent)}"] if silent else []), *_before(own)]
        yield ok(f"{len(own)} GPU{'s' * (len(own) > 1)} by NVML: {', '.join(told)}", subject=SUBJECT, notes=notes)


def _before(own: tuple[GpuState, ...]) -> Iterator[str]:
    """Where the boards had uncorrectable errors in their lives: what was hit is remapped or retired by now."""
    ever = {gpu.place: [name for name, n in (gpu.uncorrected_ever or {}).items() if n] for gpu in own}
    if had := [f"{place} ({', '.join(where)})" for place, where in ever.items() if where]:
        yield f"uncorrectable errors before the driver was loaded: {'; '.join(had)}"


def _tells(gpu: GpuState, fields: Iterable[str]) -> bool:
    return any(not isinstance(getattr(gpu, field), Unavailable) for field in fields)


def _told(gpu: GpuState) -> Iterator[Wrong]:
    for rule in RULES:
        value = getattr(gpu, rule.field)
        if not isinstance(value, Unavailable) and rule.wrong(value):
            yield rule.cause, rule.words, rule.loss
    if isinstance(gpu.recovery, int) and gpu.recovery:
        words, loss = RECOVERY.get(gpu.recovery, UNKNOWN)
        yield ERROR, words, loss
    yield from _lowered([bit for bit in LOWERED if isinstance(gpu.reasons, int) and gpu.reasons & bit])


def _lowered(bits: list[int]) -> Iterator[Wrong]:
    for bit in bits:
        if bit != HW_SLOWDOWN or bits == [HW_SLOWDOWN]:  # which is there beside each of the others
            words, loss = LOWERED[bit]
            yield SLOW, f"the clocks are lowered by {words}", loss


def _capped(own: Iterable[GpuState], number: int) -> Iterator[Finding]:
    """Below what the board boots with, which the others of the node do not show where all are: the site's choice, or what
    somebody forgot.  A cap costs the computation first, and the clocks that it lowers NVML calls no slowdown (nvml.h,
    nvmlClocksEventReasonSwPowerCap)."""
    below, lost = dict[tuple[int, int], int](), None
    for gpu in own:
        limit, default = gpu.power_limit, gpu.power_default
        if isinstance(limit, int) and isinstance(default, int):
            if limit < default:
                below[limit, default] = below.get((limit, default), 0) + 1
        elif isinstance(default, Unavailable):
            lost = lost if default.kind in (Kind.UNSUPPORTED, Kind.NOT_READ) else default
        elif isinstance(limit, Unavailable) and limit.kind is not Kind.UNSUPPORTED:
            lost = limit
    if below:
        gpus, whose = ("the GPU's", "the board's") if number == 1 else ("the GPUs'", "the boards'")
        texts = [f"{_of(n, number)}{now / 1000:g} W, {whose} default is {was / 1000:g} W" for (now, was), n in below.items()]
        yield unknown(
            f"{gpus} power is limited: {'; '.join(texts)}: the choice of this site, or a limit that somebody left",
            subject=POWER,
            how="nvidia-smi -q -d POWER; state expected.gpu_power_limit_w in the configuration (netdoctor expect writes it)",
            sources=["device"],
        )
    elif lost is not None:
        yield unknown(f"whether the GPUs' power is limited could not be read: {lost}", subject=POWER)


def _of(some: int, number: int) -> str:
    return f"{some} of {number} at " if number > 1 else ""


def _fails(subject: str, wrong: Iterable[Wrong], place: str) -> Iterator[Finding]:
    """One of each cause, as bad as its worst."""
    every = list(wrong)
    for cause in dict.fromkeys(cause for cause, _, _ in every):
        some = [(words, loss) for name, words, loss in every if name == cause]
        worst = max((loss for _, loss in some), key=lambda loss: (loss.severity.rank, loss.share or 0))
        summary, command = _mend(cause, [words for words, _ in some])
        yield fail(
            f"{subject}: {'; '.join(words for words, _ in some)}",
            subject=subject,
            cause=cause,
            loss=worst,
            fix=Fix(f"{place}{summary}", (command.format(subject.split(" ")[1]),)),
        )


def _mend(cause: str, words: list[str]) -> tuple[str, str]:
    own = [OWN_MENDS[one] for one in words if one in OWN_MENDS]
    return REPLACE if REPLACE in own else own[0] if len(own) == len(words) else MENDS[cause]


def _rebooted(recovery: int | Unavailable, found: Finding, place: str) -> Finding:
    """The mend that the driver itself asks for."""
    if found.cause != ERROR or isinstance(recovery, Unavailable) or recovery not in ASKED:
        return found
    text, command = ASKED[recovery]
    return replace(found, fix=Fix(f"{place}{text}", (command,)))


def _locked(own: tuple[GpuState, ...], load: GpuLoad, wrong: Iterable[str]) -> Iterator[Finding]:
    """Far below what their boards can, with neither heat nor power to explain it: what `nvidia-smi -lgc` and -ac do, on purpose
    or not.  Those of all GPUs differ from none of their like."""
    named = {one.removesuffix(" under load") for one in wrong}
    low, lost = expectation.held_low(tuple(gpu for gpu in own if gpu.place not in named), load)
    if low:
        gpus, boards = ("the GPU's", "its board") if len(own) == 1 else ("the GPUs'", "their boards")
        which = "; ".join(f"{_of(n, len(own))}{now} MHz, {boards} can do {most} MHz" for (now, most), n in low.items())
        why = "NVML names neither heat nor power: the choice of this site, or a lock that somebody left"
        yield unknown(
            f"{gpus} clocks are held low under load: {which}, and {why}",
            subject=LOCK,
            how="nvidia-smi -q -d CLOCK,PERFORMANCE; nvidia-smi -rgc and -rac take locks away; state expected.gpu_clock_mhz in "
            "the configuration where it is meant",
            sources=["device"],
        )
    elif lost is not None:
        yield unknown(f"whether the GPUs' clocks are held low could not be read: {lost}", subject=LOCK)


def _under_load(own: tuple[GpuState, ...], load: GpuLoad, ran: int, expected: Expected, place: str) -> Iterator[Finding]:
    """Beside the all-reduce: what lowered their clocks, which of them stayed behind its like, what PCIe had to send again."""
    if isinstance(load.gpus, Unavailable) or isinstance(load.seconds, Unavailable):
        yield unknown(f"how the GPUs run under load was not seen: {load.why_not}", subject=LOAD, how=WITH_RUN)
        return
    seen = [(gpu, load.gpus.get(str(gpu.uuid))) for gpu in own]
    found: list[Finding] = []
    for gpu, one in seen:
        wrong = [*_lowered([bit for bit in LOWERED if one and bit in one.lowered_by])]
        if one and isinstance(one.replays, int) and one.replays > REPLAYS * max(1.0, load.seconds):
            wrong.append((BUS, "its PCIe link sent packets again and again", cost.MIGHT))
        found += _fails(f"{gpu.place} under load", wrong, place)
    clocks = expectation.clocks(own, load, expected.gpu_clock_mhz or None)
    mends = {one.subject: one.fix for one in found}  # a clock that stays behind for a reason that NVML names has its mend
    behind = expectation.findings(clocks, expectation.About(LOAD, len(own), True, place))
    found += [replace(one, fix=mends.get(one.subject, one.fix)) for one in behind if one.subject != LOAD]
    yield from found
    held = [] if expected.gpu_clock_mhz else list(_locked(own, load, (one.subject for one in found)))
    yield from held
    counted = [v for _, one in seen if one for v in (one.reasons, one.replays)]
    lost = missing(*(v for _, one in seen if one for v in (one.samples, one.clock)))
    lost = missing(lost, *(v for v in counted if getattr(v, "kind", None) is not Kind.UNSUPPORTED))
    if lost is not None or any(one is None for _, one in seen):
        why = "NVML did not show it" if lost is None else lost
        yield unknown(f"how a GPU runs under load was not seen: {why}", subject=LOAD)
    elif not clocks.expectations and not found and not held:
        yield skip("no two GPUs were busy for so long that their clocks would tell", subject=LOAD)
    elif not found and not held:
        told = sum(value is not None for part in clocks.parts for value in part.has.values())
        which = "the GPUs" if told == len(own) else f"{told} of {len(own)} GPUs"
        text, idle = f"the clocks of {which} while the all-reduce ran are alike", [gpu for gpu in own if gpu.mig is False]
        if (busy := sum(one is not None and bool(one.samples) for _, one in seen)) < min(ran, len(idle)):
            text = f"{text}; it ran on {ran}, and {busy} were ever seen busy"
            yield unknown(text, subject=LOAD, how="nvidia-smi dmon -s puc, beside the job")
        else:
            yield ok(text, subject=LOAD)


def _reported(
    log: KernelLog, own: tuple[GpuState, ...], every: tuple[GpuState, ...], pci: Pci, vantage: Vantage, up: bool = False
) -> Iterator[Finding]:
    """The driver's errors since boot that need somebody, and that it does not call recovered by now (R565, for most).

    Of NVSwitches, and of the GPUs that are seen here; where this is the whole node, of those that are gone as well.  `up`: all
    NVLinks are, so that none of them is down any more.
    """
    if isinstance(log.events, Unavailable):
        yield unknown(f"whether the driver reported errors (Xid) could not be read: {log.events}", subject=LOG, how=LOOK_AT_LOG)
        return
    shown = {gpu.pci: gpu for gpu in own}
    serious = open_errors.still_open(log.events, shown, up)
    others = {gpu.pci for gpu in every} - set(shown)
    away = [e for e in serious if not e.switch and e.place not in shown and e.place not in others]
    lost = missing(vantage.runtime, pci.gpus, *shown)
    fewer = 0 < len(every) < sum(d.physical_function is None for d in pci.gpus or ())  # a share, or some are lost
    given = vantage.runtime is not None or any(getattr(gpu.uuid, "kind", None) is Kind.DENIED for gpu in every)
    given = given or (fewer and layers.may_share(vantage))
    still = [e for e in serious if e.place not in others and not (e in away and (lost is not None or given))]
    for place in dict.fromkeys(event.place for event in still):
        some = [event for event in still if event.place == place]
        name = f"{'NVSwitch' if some[0].switch else 'GPU'} {place} in the kernel log"
        titles = {event.title: RECOVERY.get(event.recovery or 0, UNKNOWN)[0] if event.recovery else "" for event in some}
        loss = cost.SOMETIMES if any(event.meaning.ends_job or event.recovery for event in some) else cost.MIGHT
        wrong = [(ERROR, f"the driver reported {title}{words and f': {words}'}", loss) for title, words in titles.items()]
        for found in _fails(name, wrong, expectation.place(vantage)):
            yield _rebooted(next((event.recovery for event in some if event.recovery), 0), found, expectation.place(vantage))
    if away and lost is not None:
        yield unknown(f"whose GPU it is that the driver reported errors of is not known: {lost}", subject=LOG, how=LOOK_AT_LOG)
    elif pci.by_wsl:
        yield unknown("the driver of these GPUs is that of Windows, and says nothing in this kernel's log", subject=LOG)
    elif log.begun is not True:
        yield unknown("the kernel's log no longer reaches back to the boot", subject=LOG, how=WHOLE_LOG)
    elif not still:
        seen = sorted({event.title for event in log.events if event.place in shown or event.switch})
        notes = (f"since boot: {', '.join(seen)}",) if seen else ()
        yield ok(f"no error (Xid, SXid) since boot that is still open, by {log.source}", subject=LOG, notes=notes)
