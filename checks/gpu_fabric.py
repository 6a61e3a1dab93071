"""NVLinks and NVSwitches carry what the GPUs send each other: the fabric is up and healthy, and peers may access each other.

NVML tells each GPU's place in its NVLink fabric and what ails it (state, status, health mask), and whether the GPUs of each
pair may access each other; errors of NVLinks are those that rose while the all-reduce ran.  How many NVLinks are up is
hardware.gpus' to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from netdoctor.api import (
    FROM_JOB,
    WITH_RUN,
    Baseline,
    Environ,
    Fabric,
    Finding,
    Fix,
    GpuHealth,
    GpuLoad,
    Gpus,
    GpuState,
    GpuUsers,
    Intent,
    Kind,
    Loss,
    Pci,
    Unavailable,
    Vantage,
    between_nodes,
    check,
    cost,
    count,
    expectation,
    fail,
    layers,
    missing,
    ok,
    skip,
    transport,
    unknown,
    without_p2p,
)

FABRIC, PEERS, LINKS, NVLS, DRIVER = "fabric", "peer access", "NVLinks under load", "NVLS", "driver"
IMEX, DOMAIN = "IMEX", "IMEX domain"
MANAGER, LINK = "fabric_manager", "link_degraded"
STATES = {1: "has not begun to register", 2: "is still registering"}  # nvmlGpuFabricState_t; 0: in no fabric, 3: completed
# NVML_GPU_FABRIC_HEALTH_MASK_*: shift, width, values that are wrong, what they mean, cause, what it takes.
HEALTH: tuple[tuple[int, int, frozenset[int], str, str, Loss], ...] = (
    (0, 3, frozenset({1}), "its NVLinks carry less than they could", LINK, cost.MIGHT),
    (2, 3, frozenset({1}), "its routes are being recovered", LINK, cost.SOMETIMES),
    (4, 3, frozenset({1}), "its routes are broken", LINK, cost.STOPS),
    (6, 3, frozenset({1}), "it recovers from accesses that timed out", LINK, cost.SOMETIMES),
    (8, 15, frozenset(range(2, 16)), "the fabric is configured in another way than it is wired", MANAGER, cost.STOPS),
    (12, 3, frozenset({2}), "no partition of the fabric is assigned to it", MANAGER, cost.STOPS),
    (14, 3, frozenset({2}), "its fabric manager is not connected", MANAGER, cost.MIGHT),
)
# Sent again or trained anew, a second, on one link.  DCGM warns of one (dcgmHealthCheck, NVLink); ten leave room for chance.
ERRORS = 10
# DcgmImexDaemonStatus (DCGM, dcgmlib/src/DcgmImexManager.cpp): it runs, and serves nobody yet.
BEGUN = frozenset(
    {"INITIALIZING", "STARTING_AUTH_SERVER", "WAITING_FOR_PEERS", "WAITING_FOR_RECOVERY", "INIT_GPU", "SHUTTING_DOWN"}
)
P2P = {1: "the chipset", 2: "the GPU", 3: "the I/O hub", 4: "a registry key of the driver", 5: "something", 6: "an unknown"}
SWITCHES = "journalctl -u nvidia-fabricmanager; nvidia-smi -q | grep -A4 Fabric"
HOPPER = (9, 0)  # the first whose NVSwitches reduce (NCCL src/transport/nvls.cc)
START = Fix(
    "start the Fabric Manager of the driver's version",
    ("systemctl restart nvidia-fabricmanager", "nvidia-smi -q | grep -A4 Fabric"),
)


@check(id="gpu.fabric", title="The NVLink fabric is up, and GPUs may access each other", cause=MANAGER)
def gpu_fabric(
    pci: Pci,
    gpus: Gpus,
    state: GpuHealth,
    fabric: Fabric,
    load: GpuLoad,
    baseline: Baseline,
    job: Intent,
    environ: Environ,
    vantage: Vantage,
    users: GpuUsers,
) -> Iterator[Finding]:
    if (nothing := expectation.without_gpus(pci, gpus)) is not None:
        yield nothing
        return
    if isinstance(fabric.not_ready, Unavailable):
        how = layers.given_none(gpus, vantage)
        unread = unknown(f"whether the driver is ready could not be read: {fabric.not_ready}", subject=DRIVER, how=how)
        yield _queued(fabric.not_ready, users) or unread
    elif fabric.not_ready:
        yield _not_ready(pci, state, fabric.closed)
    if isinstance(state.gpus, Unavailable):
        yield unknown(f"the fabric of the GPUs could not be read: {state.gpus}", subject=FABRIC)
        return
    own = tuple(gpu for gpu in state.gpus if not (isinstance(gpu.uuid, Unavailable) and gpu.uuid.kind is Kind.DENIED))
    yield from _registered(own, vantage)
    yield from _peers(own, state, gpus, pci)
    yield from _rising(own, load, gpus, vantage)
    if (found := _imex(own, fabric, environ, vantage)) is not None:
        yield between_nodes(found, job)
    if (found := _imex_domain(own, fabric, vantage)) is not None:
        yield between_nodes(found, job)
    if (found := _nvls(pci, gpus, baseline)) is not None:
        yield found


def _not_ready(pci: Pci, state: GpuHealth, closed: bool | None) -> Finding:
    switched = bool(pci.nvswitches) or any(
        not isinstance(gpu.fabric, Unavailable) and gpu.fabric.state for gpu in state.gpus or ()
    )
    if closed:
        return fail(
            "cuInit says that the system is not ready (802): the GPUs compute in secret (confidential computing), and nobody "
            "has set them ready since they were attested",
            subject=DRIVER,
            loss=cost.STOPS,
            fix=Fix("attest the GPUs, then set them ready", ("nvidia-smi conf-compute -grs", "nvidia-smi conf-compute -srs 1")),
        )
    mend = Fix(
        "set the GPUs ready, where they are in confidential mode; else start the Fabric Manager",
        ("nvidia-smi conf-compute -srs 1",),
    )
    return fail(
        "cuInit says that the system is not ready (802): the driver waits for the fabric of its GPUs",
        subject=DRIVER,
        loss=cost.STOPS,
        fix=START if switched or closed is False else mend,
    )


def _queued(why: Unavailable, users: GpuUsers) -> Finding | None:
    """One control daemon has one user's server at a time, and queues the clients of all others until that server has ended
    (NVIDIA Multi-Process Service, Performance: Multi-User)."""
    server = next((users.processes[pid] for pid in sorted(users.of_others) if users.processes), None)
    if why.kind is not Kind.TIMED_OUT or server is None:
        return None
    return fail(
        f"cuInit does not return, and {server} has the GPUs: MPS lets clients of one user in at a time",
        subject=DRIVER,
        cause="device_mapping",
        loss=cost.STOPS,
        why="the control daemon queues this user's programs until that server ends, often that of a job that ended long ago",
        fix=Fix(
            "let whoever runs the daemon end that server, once nobody uses it",
            ("echo get_server_list | nvidia-cuda-mps-control", "echo quit | nvidia-cuda-mps-control   # as its user"),
            ("CUDA_MPS_PIPE_DIRECTORY of its own for each job",),
        ),
    )


def _registered(own: tuple[GpuState, ...], vantage: Vantage) -> Iterator[Finding]:
    """Each GPU in its fabric, and nothing that ails it there; all of a node in one."""
    place, found = expectation.place(vantage), list[Finding]()
    for gpu in own:
        told = gpu.fabric
        if isinstance(told, Unavailable) or told.state == 0:
            continue
        wrong = [(words, cause, loss) for at, width, bad, words, cause, loss in HEALTH if told.health >> at & width in bad]
        if told.state in STATES:
            wrong = [(STATES[told.state], MANAGER, cost.STOPS)]
        elif told.status:
            wrong.append(("its registration failed", MANAGER, cost.STOPS))
        for cause in dict.fromkeys(one[1] for one in wrong):
            some = [one for one in wrong if one[1] == cause]
            found.append(
                fail(
                    f"{gpu.place}: {'; '.join(words for words, _, _ in some)}",
                    subject=gpu.place,
                    cause=cause,
                    loss=max((loss for _, _, loss in some), key=lambda loss: (loss.severity.rank, loss.share or 0)),
                    fix=Fix(f"{place}{START.summary}", START.commands),
                )
            )
    yield from found
    lost = next((g.fabric for g in own if isinstance(g.fabric, Unavailable) and g.fabric.kind is not Kind.UNSUPPORTED), None)
    inside = [gpu for gpu in own if not isinstance(gpu.fabric, Unavailable) and gpu.fabric.state]
    if lost is not None:
        yield unknown(f"the fabric of a GPU could not be read: {lost}", subject=FABRIC, how="nvidia-smi -q")
    elif odd := _left_out(own, inside):
        yield unknown(
            f"{odd.place} is in no NVLink fabric, and others of its model here are", subject=FABRIC, how="nvidia-smi -q"
        )
    elif len(inside) > 1:
        about = expectation.About(FABRIC, len(inside), None, place)
        alike = list(expectation.findings(expectation.fabric(tuple(inside)), about))
        yield from (one for one in alike if one.subject != FABRIC)
        if not found and all(one.subject == FABRIC for one in alike):
            yield ok(f"{count(len(inside), 'GPU')} in one NVLink fabric, and nothing ails them there", subject=FABRIC)
    elif inside and not found:
        yield ok("the GPU is in its NVLink fabric, and nothing ails it there", subject=FABRIC)
    elif not found and own:
        yield skip("no GPU is in an NVLink fabric: NVML was asked", subject=FABRIC)


def _left_out(own: tuple[GpuState, ...], inside: list[GpuState]) -> GpuState | None:
    """One of which NVML says that it is in none, beside its like."""
    models = {gpu.name for gpu in inside if isinstance(gpu.name, str)}
    return next(
        (gpu for gpu in own if gpu.name in models and not isinstance(gpu.fabric, Unavailable) and not gpu.fabric.state), None
    )


def _peers(own: tuple[GpuState, ...], state: GpuHealth, gpus: Gpus, pci: Pci) -> Iterator[Finding]:
    """Two GPUs with NVLinks that are up may read and write each other, or NCCL ends (src/graph/paths.cc, ncclTopoCheckP2p); of
    others the chipset decides, and NCCL goes around it."""
    if len(own) < 2:
        return
    linked = {gpu.index for gpu in gpus.all or () if gpu.mig is False and gpu.nvlinks}
    if (
        lost := missing(state.pairs, pci.nvswitches, gpus.all, *(x for gpu in gpus.all or () for x in (gpu.nvlinks, gpu.mig)))
    ) is not None:
        yield unknown(
            f"which GPUs may access each other could not be read: {lost}", subject=PEERS, how="nvidia-smi topo -p2p r"
        )
        return
    known = {gpu.index: gpu.pci for gpu in gpus.all or ()}
    fabric = any(not isinstance(gpu.fabric, Unavailable) and gpu.fabric.state for gpu in own)
    switched = len(linked) == len(own) and (bool(pci.nvswitches) or fabric)
    pairs = [pair for pair in state.pairs or () if {pair.one, pair.other} <= linked]
    apart = [pair for pair in pairs if pair.read or pair.write]
    refused = [pair for pair in apart if switched or pair.nvlink == 0]
    unread = missing(*(x for pair in pairs for x in (pair.read, pair.write)), *(pair.nvlink for pair in apart))
    if len({(pair.one, pair.other) for pair in pairs}) < math.comb(len(linked), 2):
        unread = missing(unread, Unavailable(Kind.NOT_READ, "NVML did not tell it of each pair"))
    if refused:
        first = refused[0]
        by = P2P.get(first.read or first.write or 0, "an unknown")
        more = f", and of {len(refused) - 1} more pairs" if len(refused) > 1 else ""
        yield fail(
            f"GPU {known.get(first.one)} may not access GPU {known.get(first.other)}{more}: {by} does not allow it",
            subject=PEERS,
            cause="p2p_disabled",
            loss=without_p2p(gpus, pci),
            fix=Fix(
                "see what keeps the two apart",
                ("nvidia-smi topo -p2p r", "modprobe -c | grep -i nvreg", "dmesg | grep -i nvrm"),
            ),
        )
    elif unread is not None:
        yield unknown(f"which GPUs may access each other could not be read: {unread}", subject=PEERS)
    elif len(apart) < len(pairs):
        yield ok(f"GPUs with NVLinks may access each other: {count(len(pairs) - len(apart), 'pair')}", subject=PEERS)
    else:
        yield skip("no two GPUs with NVLinks: what PCIe allows NCCL finds out itself", subject=PEERS)


def _rising(own: tuple[GpuState, ...], load: GpuLoad, gpus: Gpus, vantage: Vantage) -> Iterator[Finding]:
    if (lost := missing(gpus.all, *(gpu.nvlinks for gpu in gpus.all or ()))) is not None:
        yield unknown(f"which NVLinks there are could not be read: {lost}", subject=LINKS)
        return
    if not any(gpu.nvlinks for gpu in gpus.all or ()):
        return
    if isinstance(load.gpus, Unavailable) or isinstance(load.seconds, Unavailable):
        yield unknown(f"errors of NVLinks under load were not seen: {load.why_not}", subject=LINKS, how=WITH_RUN)
        return
    most, found = ERRORS * max(1.0, load.seconds), list[Finding]()
    links = {gpu.uuid: len(gpu.nvlinks or ()) for gpu in gpus.all or ()}
    for gpu in own:
        one = load.gpus.get(str(gpu.uuid))
        counts = one.nvlink if one else Unavailable(Kind.NOT_READ, f"{gpu.place} was not seen")
        lost = missing(lost, counts, *(counts or ()))
        if len(counts or ()) < links.get(gpu.uuid, 0):
            lost = missing(lost, Unavailable(Kind.NOT_READ, f"NVML did not show each link of {gpu.place}"))
        bad = [n for n, count in enumerate(counts or ()) if isinstance(count, int) and count > most]
        if bad:
            found.append(
                fail(
                    f"{gpu.place}: NVLinks {', '.join(map(str, bad))} sent again or trained anew, again and again",
                    subject=f"{gpu.place} under load",
                    cause=LINK,
                    loss=cost.MIGHT,
                    fix=Fix(
                        f"{expectation.place(vantage)}reset the GPUs; where it comes again, the board or its cables",
                        (f"nvidia-smi nvlink -e -i {gpu.place.split(' ')[1]}", "dcgmi nvlink -e -g 0"),
                    ),
                )
            )
    yield from found
    if lost is not None:
        yield unknown(f"errors of an NVLink under load could not be read: {lost}", subject=LINKS)
    elif not found:
        yield ok("no NVLink had many errors while the all-reduce ran", subject=LINKS)


def _imex(own: tuple[GpuState, ...], fabric: Fabric, environ: Environ, vantage: Vantage) -> Finding | None:
    """A fabric beyond the node (NVL72) is used by way of an IMEX channel, in the job's own /dev (NCCL src/mnnvl.cc)."""
    beyond = [
        g for g in own if not isinstance(g.fabric, Unavailable) and g.fabric.state == 3 and set(g.fabric.cluster) != {"0"}
    ]
    if not beyond:
        return None
    if not vantage.job_user:
        return unknown(f"whether the job has an IMEX channel is not seen: {vantage.elsewhere}", subject=IMEX, how=FROM_JOB)
    if isinstance(fabric.channels, Unavailable):
        return unknown(f"IMEX channels could not be read: {fabric.channels}", subject=IMEX)
    if fabric.channels:
        return ok("an IMEX channel opens: NVLink reaches the other nodes of its clique", subject=IMEX)
    # src/mnnvl.cc asks for a fabric handle where NCCL_MNNVL_ENABLE is not 0 and cuMem is on; without one it stops.
    for name in ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE"):
        value = environ.get(name)
        if isinstance(value, Unavailable):
            return unknown(
                f"no IMEX channel opens here, and whether NCCL asks for one could not be read: {value}", subject=IMEX
            )
        if value and vantage.job_environment and value.strip() == "0":  # a word is the default since 2.32
            return skip(f"no IMEX channel opens here, and {name}={value} lets NCCL ask for none", subject=IMEX)
    inside = "give the container an IMEX channel (ComputeDomain of the DRA driver, --device)"
    return fail(
        "the GPUs are in an NVLink fabric with other nodes, and no IMEX channel opens here",
        subject=IMEX,
        cause="imex",
        loss=cost.STOPS,
        fix=Fix(
            inside if vantage.in_container else "create an IMEX channel, and let the job's user open it",
            ("ls -l /dev/nvidia-caps-imex-channels", "nvidia-imex-ctl -N"),
            ("options nvidia NVreg_CreateImexChannel0=1   # in /etc/modprobe.d",),
        ),
    )


def _imex_domain(own: tuple[GpuState, ...], fabric: Fabric, vantage: Vantage) -> Finding | None:
    """The IMEX daemon of this node, where nvidia-imex-ctl is there, and its connections to the other nodes of its domain.

    What nvidia-imex-ctl calls the domain is no evidence: it says DEGRADED of healthy ones (NVIDIA/ai-cloud-validation,
    imex_departure_test.py).  A daemon that does not run may be meant so: a ComputeDomain's runs in a pod (NVIDIA/DCGM#308).
    """
    told = fabric.imex
    if isinstance(told, Unavailable):
        if not own or told.kind in (Kind.ABSENT, Kind.UNSUPPORTED):
            return None
        return unknown(f"the IMEX domain could not be read: {told}", subject=DOMAIN, how="nvidia-imex-ctl -N -j")
    logs = ("nvidia-imex-ctl -N", "journalctl -u nvidia-imex", "cat /etc/nvidia-imex/nodes_config.cfg")
    place = expectation.place(vantage)
    if told.daemon in BEGUN:
        text = f"the IMEX daemon of this node is not ready ({told.daemon}): memory of other nodes cannot be reached over NVLink"
        mend = Fix(f"{place}see which node of its domain it waits for, and start IMEX there", logs)
        return fail(text, subject=DOMAIN, cause="imex", loss=cost.STOPS, fix=mend)
    if not told.ready:
        text = (
            f"the IMEX daemon of this node does not serve ({told.daemon}): a fault, unless one of a ComputeDomain's pods does"
        )
        return unknown(text, subject=DOMAIN, how="systemctl status nvidia-imex; kubectl get computedomains -A")
    if isinstance(told.peers, Unavailable):
        return unknown(f"the IMEX domain could not be read: {told.peers}", subject=DOMAIN, how="nvidia-imex-ctl -N -j")
    if told.lost and len(told.lost) == len(told.peers):
        text = f"the IMEX daemon of this node is connected to none of the {count(len(told.peers), 'other node')} of its domain"
        mend = Fix(
            f"{place}see whether the nodes of its list are up and reach each other (TCP 50000), with one list on all", logs
        )
        return fail(text, subject=DOMAIN, cause="imex", loss=cost.STOPS, fix=mend)
    if told.lost:
        text = f"IMEX is not connected to {', '.join(told.lost[:3])}{' and others' if told.lost[3:] else ''}"
        return unknown(f"{text}: a fault if the job has ranks there", subject=DOMAIN, how="nvidia-imex-ctl -N")
    if not told.peers:
        return unknown("the IMEX domain has no node but this one", subject=DOMAIN, how="cat /etc/nvidia-imex/nodes_config.cfg")
    return ok(f"IMEX is connected to all nodes of its domain: {count(len(told.peers), 'other node')}", subject=DOMAIN)


def _nvls(pci: Pci, gpus: Gpus, baseline: Baseline) -> Finding | None:
    """What NCCL's own log says, where all NVSwitches and GPUs that can reduce are there; without a run what libcuda says, whom
    NCCL asks (src/transport/nvls.cc)."""
    able = [gpu.mig is False and (gpu.capability or (0, 0)) >= HOPPER for gpu in gpus.all or ()]
    lost = missing(gpus.all, *(x for gpu in gpus.all or () for x in (gpu.capability, gpu.mig)), pci.nvswitches)
    if lost is None and (not pci.nvswitches or len(able) < 2 or not all(able)):
        return None
    multicast = [one.multicast for one in gpus.visible or ()]
    if lost is None and isinstance(baseline.run, Unavailable) and multicast and missing(*multicast) is None:
        if all(multicast):
            return unknown(
                "libcuda says that NVSwitches can reduce (NVLS), and no all-reduce ran to show it", subject=NVLS, how=WITH_RUN
            )
        text = "libcuda says that the NVSwitches do not reduce for these GPUs (NVLS), though both could: whether that is meant"
        return unknown(f"{text} is not known", subject=NVLS, how=SWITCHES)
    if lost is not None or isinstance(baseline.run, Unavailable):
        return unknown(f"whether NVLS is available is not known: {missing(lost, baseline.run)}", subject=NVLS)
    log = transport.log_of(baseline.nccl_run) if baseline.nccl_run is not None else None
    if log is None or log.nvls is None:
        return None
    if log.nvls:
        return ok("NCCL's log says that NVLS is available", subject=NVLS)
    text = "NCCL's log says that NVLS is not available, though these NVSwitches can reduce: whether that is meant is not known"
    return unknown(text, subject=NVLS, how=SWITCHES)
