"""Bus bandwidth at the largest size against what the path can carry, and against the site's own floor."""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import (
    Accelerator,
    Baseline,
    Expected,
    Finding,
    Gpus,
    Kind,
    PathLimit,
    PathRun,
    Pci,
    Quantity,
    Rdma,
    Run,
    Severity,
    Status,
    Unavailable,
    accelerator,
    check,
    fail,
    ok,
    path_limit,
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
    baseline: Baseline | Unavailable,
    paths: PathRun | Unavailable,
    gpus: Gpus | Unavailable,
    pci: Pci | Unavailable,
    rdma: Rdma | Unavailable,
    expected: Expected | Unavailable,
) -> Iterator[Finding]:
    if isinstance(baseline, Unavailable) or isinstance(baseline.run, Unavailable):
        yield unknown(f"no all-reduce was run: {baseline}", how="netdoctor preflight")
    else:
        yield _baseline(baseline.run, gpus, pci, rdma, expected)
    runs = paths if isinstance(paths, Unavailable) else paths.runs
    if isinstance(runs, Unavailable):
        there = accelerator(pci, gpus)
        if not isinstance(baseline, Unavailable) and not (isinstance(there, Accelerator) and there.none):
            yield unknown(f"the inter-node path was not tried: {runs}", subject="inter-node")
        return
    for run in runs:
        yield _loopback(_judge(run, str(run.experiment.path), path_limit(run, gpus, pci, rdma), None))


def _loopback(finding: Finding) -> Finding:
    """A port that sends to itself may be slow by design (eSwitch, PCIe shared by both ranks): no fail without two nodes."""
    if finding.status is not Status.FAIL:
        return finding
    text = "in loopback the port stays far below its rate; only two nodes can tell whether it does so between nodes"
    return unknown(text, subject=finding.subject, how="netdoctor allreduce over two nodes", measured=finding.measured)


def _baseline(
    run: Run, gpus: Gpus | Unavailable, pci: Pci | Unavailable, rdma: Rdma | Unavailable, expected: Expected | Unavailable
) -> Finding:
    floor = _floor(run, expected)
    if run.experiment.backend == "nccl" or isinstance(floor, Quantity):
        limit = path_limit(run, gpus, pci, rdma) if run.experiment.backend == "nccl" else Unavailable(Kind.UNSUPPORTED, "Gloo")
        return _judge(run, "node", limit, floor)
    there = accelerator(pci, gpus)
    if isinstance(expected, Unavailable):
        return unknown(f"whether a floor is configured could not be read: {expected}")
    if isinstance(there, Accelerator) and there.none:
        return skip("no accelerator (PCI was read and shows none), and no floor is configured for the CPU")
    what = there if isinstance(there, Unavailable) else there.nvidia or ", ".join(there.foreign)
    return unknown(f"NCCL did not run, so its bandwidth is not known ({what})", how="see torch.backend and allreduce.run")


def _floor(run: Run, expected: Expected | Unavailable) -> Quantity | None | Unavailable:
    """The configured floor for the largest size that ran: that of the largest configured size that is not above it."""
    floors = expected if isinstance(expected, Unavailable) else expected.busbw_floor
    if isinstance(floors, Unavailable):
        return floors
    fitting = [size for size in floors if size <= max(run.experiment.sizes)]
    return Quantity(floors[max(fitting)], "GB/s") if fitting else None


def _judge(run: Run, subject: str, limit: PathLimit | Unavailable, floor: Quantity | None | Unavailable) -> Finding:
    if not run.finished or not run.busbw:
        return unknown(f"the all-reduce did not finish: {run.reason or run.state}", subject=subject, how="see allreduce.run")
    size = max(run.busbw)
    rate = run.busbw[size]
    measured = {"busbw": Quantity(rate, "GB/s"), "bytes": size}
    if isinstance(floor, Quantity) and rate < floor.value:
        return fail(
            "bus bandwidth is below the site's floor",
            subject=subject,
            severity=Severity.CRITICAL,
            expected=f"at least {floor}",
            measured=measured,
            how="compare with nodes of the same kind: netdoctor fleet report",
        )
    if isinstance(limit, PathLimit) and size >= ENOUGH:
        measured["limit"] = Quantity(limit.rate, "GB/s")
        if rate < LOW * limit.rate:
            return fail(
                "bus bandwidth is far below what the path can carry",
                subject=subject,
                expected=f"at least {LOW:.0%} of {limit.rate:.0f} GB/s ({limit.why})",
                measured=measured,
                how="the transports in the run's log; link speed and width; nvidia-smi nvlink -s; netdoctor fleet report",
            )
        if isinstance(floor, Unavailable):
            text = f"near the limit of the path ({limit.why}); whether a floor is configured could not be read: {floor}"
            return unknown(text, subject=subject, measured=measured)
        notes = (f"below {LOOK:.0%} of the limit: worth a look",) if rate < LOOK * limit.rate else ()
        return ok(f"bus bandwidth is near the limit of the path ({limit.why})", subject=subject, measured=measured, notes=notes)
    if isinstance(floor, Quantity):
        return ok(f"bus bandwidth is above the site's floor of {floor}", subject=subject, measured=measured)
    why = str(limit) if isinstance(limit, Unavailable) else f"{size} bytes are too few to fill the path"
    return unknown(
        f"no limit to judge by: {why}",
        subject=subject,
        how="configure expected.busbw_floor, from a node that is known to be good",
        measured=measured,
    )
