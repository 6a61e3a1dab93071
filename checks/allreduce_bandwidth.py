"""Bus bandwidth at the largest size against what the path can carry, and against the site's own floor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from netdoctor.api import (
    WITH_RUN,
    Accelerator,
    Baseline,
    Expected,
    Finding,
    Gpus,
    Intent,
    Kind,
    PathLimit,
    PathRun,
    Pci,
    Quantity,
    Rdma,
    Run,
    Status,
    Unavailable,
    Way,
    accelerator,
    between_nodes,
    check,
    cost,
    fail,
    gloo_rate,
    hcas,
    ok,
    path_limit,
    record,
    skip,
    unknown,
)

# Share of the limit below which something is wrong.  Published runs of nccl-tests reach NCCL's own NVLink model or pass it
# (8 H200: 475 GB/s with NVLS against 371, https://github.com/NVIDIA/nccl-tests/issues/272; 8 A800: 160 against 160).
LOW = 0.60
LOOK = 0.80
# Below that size latency decides, not the path.
ENOUGH = 32 << 20


@check(id="allreduce.bandwidth", title="The all-reduce reaches what its path can carry", cause="low_bandwidth")
def allreduce_bandwidth(
    baseline: Baseline, paths: PathRun, gpus: Gpus, pci: Pci, rdma: Rdma, expected: Expected, intent: Intent
) -> Iterator[Finding]:
    there, nothing = accelerator(pci, gpus), hcas.nothing_for_nccl(pci, gpus)
    if isinstance(baseline.run, Unavailable):
        yield unknown(f"no all-reduce was run: {baseline.run}", how=WITH_RUN)
    else:
        slow = gloo_rate.judge(baseline.run, baseline.control, ENOUGH)
        limit, floor = path_limit(baseline.run, gpus, pci, rdma), _floor(baseline.run, expected, gpus, pci)
        yield slow or _baseline(baseline.run, limit, there, nothing, floor)
    if not isinstance(paths.runs, Unavailable):
        for run in paths.runs:
            yield between_nodes(
                _loopback(_judge(run, str(run.experiment.path), path_limit(run, gpus, pci, rdma), None)), intent
            )
    elif baseline.run and not ((there and there.none) or nothing):
        yield between_nodes(unknown(f"the inter-node path was not tried: {paths.runs}", subject="inter-node"), intent)


def _loopback(finding: Finding) -> Finding:
    """A port that sends to itself may be slow by design (eSwitch, PCIe shared by both ranks): no fail without two nodes."""
    if finding.status is not Status.FAIL:
        return finding
    text = "in loopback the port stays far below its rate; only two nodes can tell whether it does so between nodes"
    return unknown(text, subject=finding.subject, how="netdoctor allreduce over two nodes", measured=finding.measured)


def _baseline(
    run: Run,
    limit: PathLimit | Unavailable,
    there: Accelerator | Unavailable,
    nothing: str,
    floor: Floor | None | Unavailable,
) -> Finding:
    if run.experiment.backend == "nccl":
        return _judge(run, "node", limit, floor)
    if floor and ((there and there.none) or nothing):  # else it is that of NCCL, which did not run
        return _judge(run, "node", Unavailable(Kind.UNSUPPORTED, "Gloo"), floor)
    if isinstance(floor, Unavailable):
        return unknown(f"whether a floor is configured could not be read: {floor}")
    if there and there.none:
        return skip("no accelerator (PCI was read and shows none), and no floor is configured for the CPU")
    if nothing:
        return skip(nothing)
    what = (there.nvidia or there.others) if there else there
    return unknown(f"NCCL did not run, so its bandwidth is not known ({what})", how="see torch.backend and allreduce.run")


def _other(run: Run, gpus: Gpus, pci: Pci) -> str:
    """Why this is no run like that of a floor, which `netdoctor expect` takes of all GPUs of one node: fewer GPUs have fewer
    links between them, other nodes are reached by other ways.  "": it may be one."""
    one, pairs = run.experiment, gpus.of_the_job
    if one.backend != "nccl":
        return ""
    if one.path.way is Way.BETWEEN_NODES:
        return "this run is between nodes"
    mine = [gpu for seen, gpu in pairs or () if seen.ordinal in one.gpus and gpu is not None]
    models = {gpu.name for gpu in mine}
    there = sum(gpu.name in models for gpu in gpus.all or ())
    known = {device.device for gpu in mine if isinstance(gpu.pci, str) and (device := pci.at(gpu.pci))}
    there = max(there, sum(d.device in known and d.physical_function is None for d in pci.gpus or ()))
    ran = len(set(one.gpus))
    return f"this run is of {ran} of the node's {there} GPUs" if mine and ran < there else ""


@record
class Floor:
    """What the site says that the all-reduce must reach."""

    rate: Quantity
    other: str  # why the run may not be of what the site means; "": it is


def _floor(run: Run, expected: Expected, gpus: Gpus, pci: Pci) -> Floor | None | Unavailable:
    """The configured floor for the largest size that ran: that of the largest configured size that is not above it."""
    if isinstance(expected.busbw_floor, Unavailable):
        return expected.busbw_floor
    fitting = [size for size in expected.busbw_floor if size <= max(run.experiment.sizes)]
    return Floor(Quantity(expected.busbw_floor[max(fitting)], "GB/s"), _other(run, gpus, pci)) if fitting else None


def _judge(run: Run, subject: str, limit: PathLimit | Unavailable, floor: Floor | None | Unavailable) -> Finding:
    if not run.finished or not run.busbw:
        return unknown(f"the all-reduce did not finish: {run.reason or run.state}", subject=subject, how="see allreduce.run")
    size = max(run.busbw)
    rate = run.busbw[size]
    measured = {"busbw": Quantity(rate, "GB/s"), "bytes": size}
    below = f"bus bandwidth is below the site's floor of {floor.rate}, and {floor.other}" if floor and floor.other else ""
    if floor and rate >= floor.rate.value:
        below = ""
    elif floor and not floor.other:
        return fail(
            "bus bandwidth is below the site's floor",
            subject=subject,
            loss=replace(cost.STOPS, share=max(cost.MUCH, 1 - rate / floor.rate.value), measured=True),  # the site's own line
            expected=f"at least {floor.rate}",
            measured=measured,
            how="compare with nodes of the same kind: netdoctor fleet report",
        )
    if limit and size >= ENOUGH:
        measured["limit"] = Quantity(limit.rate, "GB/s")
        if rate < LOW * limit.rate:
            return fail(
                "bus bandwidth is far below what the path can carry",
                subject=subject,
                loss=replace(cost.less(rate, limit.rate, "GB/s"), measured=True),
                expected=f"at least {LOW:.0%} of {limit.rate:.0f} GB/s ({limit.why})",
                measured=measured,
                how="the transports in the run's log; link speed and width; nvidia-smi nvlink -s; netdoctor fleet report",
            )
        if isinstance(floor, Unavailable):
            text = f"near the limit of the path ({limit.why}); whether a floor is configured could not be read: {floor}"
            return unknown(text, subject=subject, measured=measured)
        notes = (f"below {LOOK:.0%} of the limit: worth a look",) if rate < LOOK * limit.rate else ()
        notes = (*notes, below) if below else notes
        return ok(f"bus bandwidth is near the limit of the path ({limit.why})", subject=subject, measured=measured, notes=notes)
    if floor and not below:
        return ok(f"bus bandwidth is above the site's floor of {floor.rate}", subject=subject, measured=measured)
    if below:
        return unknown(below, subject=subject, how="run it on all GPUs of one node", measured=measured)
    if isinstance(limit, Unavailable) and limit.kind is Kind.UNSUPPORTED and not isinstance(floor, Unavailable):
        text = f"no rule says what this path carries: {limit.detail}; expected.busbw_floor would"
        return replace(skip(text, subject=subject), measured=measured)
    why = f"{size} bytes are too few to fill the path" if limit else limit
    return unknown(
        f"no limit to judge by: {why}",
        subject=subject,
        how="configure expected.busbw_floor, from a node that is known to be good",
        measured=measured,
    )
