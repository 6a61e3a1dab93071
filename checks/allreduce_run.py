"""A short all-reduce through the library that the job will use: it finishes, its data is right, and no rank is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from netdoctor.api import (
    OBSTACLES,
    SOCKET,
    WITH_RUN,
    Accelerator,
    Baseline,
    Caller,
    CommonRun,
    Expected,
    Finding,
    GpuHealth,
    Gpus,
    Intent,
    Kernel,
    Kind,
    Obstacle,
    PathRun,
    Pci,
    Run,
    Scarce,
    State,
    Status,
    Unavailable,
    Vantage,
    Way,
    accelerator,
    at_a_limit,
    between_nodes,
    cause_of,
    check,
    fail,
    hcas,
    layers,
    missing,
    ok,
    out_of_memory,
    size_text,
    skip,
    transport,
    unknown,
)

AGAIN = "netdoctor preflight"
IB = "rdma.dev_infiniband tells what NCCL cannot open or use"
# What a log says of a limit; and the words of the others, who cannot reach a rank that ended of it.
_SAID_OF_LIMITS = (None, "bootstrap_ports", "firewall_connect")
START = "start netdoctor allreduce on the missing node as well; --wait gives it more time"
_WHERE = {Kind.MISSING_NODE: START, **dict.fromkeys((Kind.THIS_NODE, Kind.OTHER_NODES), "see allreduce.nodes")}


@check(id="allreduce.run", title="A short all-reduce finishes with right data, and no rank is missing", cause="hang")
def allreduce_run(
    baseline: Baseline,
    paths: PathRun,
    pci: Pci,
    gpus: Gpus,
    state: GpuHealth,
    expected: Expected,
    job: Intent,
    kernel: Kernel,
    vantage: Vantage,
) -> Iterator[Finding]:
    run, wanted, there = baseline.run, expected.transport, accelerator(pci, gpus)
    if isinstance(wanted, Unavailable):
        yield unknown(f"whether a transport is expected could not be read: {wanted}", subject="transport")
    elif wanted is not None:
        yield replace(_transport(wanted, run, paths, there, expected), subject="transport")
    judge = partial(
        _judge,
        sockets=transport.network_family(wanted or "") == SOCKET,
        files=kernel.limit("nofile") if vantage.job_user else None,
        ask=layers.given_none(gpus, vantage) or ASK,
        exclusive={seen.ordinal for seen, gpu in gpus.of_the_job or () if gpu is not None and state.exclusive(gpu.uuid)},
    )
    if isinstance(run, Unavailable):  # the nodes themselves tell whose fault it is
        text = run.detail if run.kind in _WHERE else run
        how = _WHERE.get(run.kind, WITH_RUN)
        yield unknown(f"no all-reduce was run: {text}", how=how)
    else:
        # Of nodes together it is asked how they reach each other, with as many ranks as one likes (--ranks-per-node).
        lacks = "" if isinstance(run, CommonRun) else layers.lacks(run, gpus, job)
        yield unknown(f"the all-reduce finished, {lacks}", how=AGAIN) if lacks else judge(run, there)
    if isinstance(paths.runs, Unavailable):
        if run and not ((there and there.none) or hcas.nothing_for_nccl(pci, gpus)):
            yield between_nodes(unknown(f"the inter-node path was not tried: {paths.runs}", subject="inter-node"), job)
        return
    for one in paths.runs:
        yield between_nodes(replace(judge(one, None), subject=str(one.experiment.path)), job)


def _transport(
    wanted: str, run: Run | Unavailable, paths: PathRun, there: Accelerator | Unavailable, expected: Expected
) -> Finding:
    """What NCCL's logs say carries the data between nodes, against what the site says that it should."""
    if there and there.none:
        text = f"{wanted} expected, but there is no accelerator and NCCL does not run"
        if expected.gpus == 0 or transport.network_family(wanted) == SOCKET:
            return skip(text)
        return fail(text, cause="inventory", expected=wanted, how="see hardware.accelerator")
    runs = {str(one.experiment.path): one for one in (*((run,) if run else ()), *(paths.runs or ()))}
    shown = {way: network for way, one in runs.items() if (network := transport.shown_network(one))}
    other = {way: network for way, network in shown.items() if network != transport.network_family(wanted)}
    if other:
        way, network = min(other.items(), key=lambda one: one[1] != SOCKET)
        fallback = network == SOCKET
        return fail(
            f"NCCL's log of the all-reduce ({way}) says network {network}, {wanted} expected",
            cause="transport_fallback_tcp" if fallback else "env_misuse",
            expected=wanted,
            how=IB if fallback else "NCCL_NET, and the network plugins",
            transports=shown,
        )
    lost = missing(run, paths.runs)
    silent = next((way for way in runs if way not in shown), None)
    if not shown or lost is not None or silent is not None:
        why = str(lost) if lost is not None else f"no log of {silent} names the network" if silent else "there is none"
        return unknown(f"{wanted} expected, and no all-reduce shows what carries the data: {why}", how=AGAIN)
    network = transport.network_family(wanted)
    return ok(f"NCCL's log of the all-reduce says network {network}, as expected", transports=shown)


def _judge(
    run: Run,
    there: Accelerator | Unavailable | None,
    *,
    sockets: bool,
    ask: str,
    files: int | Unavailable | None = None,
    exclusive: Collection[int] = (),
) -> Finding:
    """`ask` is what to do where torch leaves GPUs alone.
    `files` is the job's own limit of open files; None: what limits are seen here are not the job's.  On GPUs that are
    `exclusive` one process alone may compute."""
    measured: dict[str, object] = {"seconds": round(run.seconds, 3), **({"reason": run.reason} if run.reason else {})}
    if run.abandoned:
        measured["left_behind"] = run.abandoned
    if run.state == State.FINISHED:
        found = _finished(run, there, sockets, measured, ask)
    elif run.state == State.FAILED and _one_alone(run, exclusive):
        text = "two ranks on one GPU did not run: its compute mode lets one process alone compute, but by MPS"
        found = unknown(text, how="two GPUs or two nodes; nvidia-smi -c DEFAULT for a while", measured=measured)
    elif run.state in (State.FAILED, State.HUNG):
        found = _broken(run, {**measured, "errors": {r.rank: r.error for r in run.ranks if r.error}}, files)
    else:
        what = "did not start" if run.state == State.NOT_STARTED else "was not done in time"
        how = OBSTACLES[run.obstacle] if run.obstacle else AGAIN
        say = partial(fail, cause="fabric_manager") if run.obstacle is Obstacle.NOT_READY else unknown
        measured.pop("reason", None)  # the message has it
        measured = {} if run.state == State.NOT_STARTED and not run.abandoned else measured
        found = say(f"the all-reduce {what}: {run.reason}", how=how, measured=measured)
    if isinstance(run, CommonRun) and not run.proven and found.status is Status.FAIL:
        text = f"{found.message}: so nodes told that did not prove to be of this run"
        found = unknown(text, how="see allreduce.nodes", measured=found.measured)
    return replace(found, notes=(*found.notes, *run.remarks))


def _one_alone(run: Run, exclusive: Collection[int]) -> bool:
    """Whether the run needs two processes on a GPU that takes one (nvmlComputeMode_t)."""
    shared = {ordinal for ordinal in run.experiment.gpus if run.experiment.gpus.count(ordinal) > 1}
    return not shared.isdisjoint(exclusive)


def _finished(
    run: Run, there: Accelerator | Unavailable | None, sockets: bool, measured: dict[str, object], ask: str
) -> Finding:
    wrong = {r.rank: r.wrong for r in run.ranks if r.wrong}
    if run.verified is False or wrong:
        return fail(
            f"the sums are wrong on rank{'s' if len(wrong) > 1 else ''} {_list(wrong)}",
            cause="wrong_data",
            expected="exact sums: the values are integers that float32 adds without rounding",
            measured={**measured, "wrong_elements": wrong},
            how="run it again on this node alone; check ECC errors, PCIe errors (dmesg) and NCCL_* settings",
        )
    if run.verified is None:
        return unknown("the all-reduce finished, but its data was not compared")
    one, log = run.experiment, transport.log_of(run)
    if one.ranks == 1:
        how = "netdoctor allreduce on several nodes, or --ranks-per-node 2"
        return unknown("one rank sends to nobody: nothing is proven", how=how, measured=measured)
    if not sockets and one.path.pinned and log is not None and log.net == SOCKET:
        return fail(
            f"NCCL took plain sockets instead of {one.path.pinned}",
            cause="transport_fallback_tcp",
            expected=f"NET/IB on {one.path.pinned}",
            measured=measured,
            how=IB,
        )
    if not sockets and one.path.pinned and one.backend == "nccl" and transport.shown_network(run) is None:
        text = f"the all-reduce finished, and no log of it shows whether it went by {one.path.pinned}"
        return unknown(text, how=AGAIN, measured=measured)
    sums = f"{size_text(min(one.sizes))} to {size_text(max(one.sizes))}, every sum exact"
    between = one.path.way == Way.BETWEEN_NODES
    notes = (run.reason,) if run.reason else ()
    if one.backend == "nccl":
        here = "on one GPU, as if on two hosts" if len(set(one.gpus)) == 1 else f"on {len(set(one.gpus))} GPUs"
        alone = " without torch" if run.via is Caller.NCCL else ""
        text = f"NCCL {run.nccl_version}{alone}, {one.ranks} ranks {'between nodes' if between else here}: {sums}"
        said: dict[str, Any] = {"libraries": list(run.mapped)} if run.via is Caller.NCCL else {}
        return ok(text, measured=measured, notes=notes, backend="nccl", ranks=one.ranks, **said)
    count, place = "two" if one.ranks == 2 else str(one.ranks), f"the CPU, {one.path}" if between else "the CPU"
    text = f"{count} Gloo ranks on {place}: {sums}; NCCL did not run"
    if there and there.none:
        return ok(f"{text}: there is no accelerator", measured=measured, notes=notes, backend="gloo")
    if there:
        what = there.nvidia or there.others
        why = "the job's torch does not use it" if there.nvidia else "netdoctor does not judge it"
        how = ask if there.nvidia else "the vendor's own test: all_reduce_perf of rccl-tests for AMD"
        return unknown(f"{text}: {what} here, but {why}", how=how, measured=measured)
    return unknown(f"{text}: whether there is an accelerator could not be read ({there})", measured=measured)


def _broken(run: Run, measured: dict[str, object], files: int | Unavailable | None) -> Finding:
    named = f"rank{'s' if len(run.blamed) > 1 else ''} {_list(run.blamed)}"
    said: dict[str, Any] = {"measured": measured, "ranks": list(run.blamed)}
    phase = next((r.phase for r in run.ranks if r.rank in run.blamed), "")
    if isinstance(run, CommonRun) and run.told:
        return fail(f"the all-reduce did not finish: {run.told}", cause=run.told_cause, how="see allreduce.nodes", **said)
    cause, short, hung = cause_of(run), at_a_limit(run), run.state == State.HUNG
    if short is Scarce.DESCRIPTORS and files is not None:  # every connection is one: the job's ranks have more of them
        who = named if run.blamed else "a rank"
        text = f"{who} came to the job's limit of open files" + (f", {files}" if isinstance(files, int) else "")
        return fail(text, cause="process_limits", how="ulimit -n; LimitNOFILE= of the unit that starts the job", **said)
    if hung and len(set(run.experiment.gpus)) < len(run.experiment.gpus):
        # Both kernels must be on the GPU at once; time slices may keep them apart.
        text = "two ranks on one GPU did not finish: they may wait for each other's time slice"
        return unknown(text, how="two GPUs or two nodes", measured=measured)
    if out_of_memory(run) and not hung:
        text = "the all-reduce did not run: a GPU had no free memory for the buffers"
        return unknown(text, how="nvidia-smi: who uses it", measured=measured)
    if short and cause in _SAID_OF_LIMITS and (short is Scarce.DESCRIPTORS or not hung):
        text = f"{named if run.blamed else 'a rank'} had too little memory, or too few descriptors or processes"
        return unknown(f"the all-reduce did not run: {text}", how=OBSTACLES[Obstacle.MEMORY], measured=measured)
    if hung:
        text = f"{named} never arrived" if run.blamed else "all ranks are in it, and none comes out"
        how = "py-spy dump --pid of the rank; NCCL_DEBUG=INFO; dmesg for Xid and PCIe errors"
        return fail(f"the all-reduce hangs: {text}", cause=cause or "hang", how=how, phase=phase, **said)
    text = f"{named} failed in phase {phase}; the others are its victims"
    how = "the rank's own error, and its NCCL log"
    return fail(text, cause=cause or "rank_died", how=how, phase=phase, **said)


ASK = "python -c 'import torch; print(torch.version.cuda, torch.cuda.is_available())' with the job's Python; see torch.backend"


def _list(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
