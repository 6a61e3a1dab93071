"""allreduce.bandwidth: against the limit of the path, and the site's floor."""

from dataclasses import replace

import pytest

from netdoctor.allreduce.limits import Limit, path_limit
from netdoctor.checks.allreduce_bandwidth import allreduce_bandwidth
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.job import Expected
from netdoctor.facts.pci import Pci
from netdoctor.facts.runs import AllReduce, Baseline, Control, Path, PathRun, Run
from netdoctor.model import Severity, Status, Unavailable
from netdoctor.nccl.log.facts import Via
from tests.support.facts import (
    NO_GPU,
    baseline,
    expected,
    gloo_run,
    gpu,
    gpu_device,
    gpus,
    hca_run,
    judge,
    log,
    machine,
    only,
    path_run,
    pci,
    rdma,
    run,
)

P2P = log(vias=(Via(0, 1, "", "P2P", "CUMEM"),))
SHM = log(vias=(Via(0, 1, "", "SHM", "direct"),))
SIZE = 1 << 28
A100 = {"nvlinks": (True,) * 12, "capability": (8, 0), "name": "NVIDIA A100-SXM4-80GB"}


def nvlink(rate: float, **changes: object) -> Run:
    return run(**{"busbw": {SIZE: rate}, "log": P2P, **changes})


@pytest.mark.parametrize(
    ("given", "floor", "status", "severity"),
    [
        (nvlink(360.0), {}, Status.PASS, None),
        (nvlink(475.0), {}, Status.PASS, None),
        (nvlink(230.0), {}, Status.PASS, None),
        (nvlink(220.0), {}, Status.FAIL, Severity.CRITICAL),
        (nvlink(360.0), {SIZE: 400.0}, Status.FAIL, Severity.CRITICAL),
        (nvlink(360.0), {SIZE: 350.0}, Status.PASS, None),
        (nvlink(350.0), {SIZE: 350.0}, Status.PASS, None),  # the floor is "at least"
        (nvlink(1.0, busbw={32 << 20: 1.0}), {}, Status.FAIL, Severity.CRITICAL),  # from 32 MiB on the path decides
        (nvlink(1.0, busbw={31 << 20: 1.0}), {}, Status.UNKNOWN, None),
        (nvlink(360.0), {SIZE * 2: 400.0}, Status.PASS, None),  # no such size ran
        (nvlink(20.0, log=SHM), {}, Status.FAIL, Severity.CRITICAL),
        (nvlink(20.0, log=SHM), {4096: 10.0}, Status.FAIL, Severity.CRITICAL),
        (nvlink(360.0, log=log()), {}, Status.UNKNOWN, None),
        (nvlink(1.0, busbw={1 << 20: 1.0}), {}, Status.UNKNOWN, None),  # latency decides there
        (nvlink(1.0, busbw={}), {}, Status.UNKNOWN, None),
        (nvlink(360.0, state="hung"), {}, Status.UNKNOWN, None),
        (nvlink(360.0, experiment=AllReduce("nccl", 2, "cuda", gpus=(0, 0))), {}, Status.SKIP, None),
    ],
)
def test_rates(given: Run, floor: dict[int, float], status: Status, severity: Severity | None) -> None:
    given = replace(given, experiment=replace(given.experiment, sizes=(4096, SIZE)))
    facts = {Baseline: baseline(given), Expected: expected(busbw_floor=floor)}
    found = only(judge(allreduce_bandwidth, machine() | facts))
    assert (found.status, found.severity) == (status, severity)


@pytest.mark.parametrize(
    ("share", "status", "noted"),
    [(0.59, Status.FAIL, False), (0.60, Status.PASS, True), (0.79, Status.PASS, True), (0.80, Status.PASS, False)],
)
def test_a_rate_worth_a_look_is_a_note(share: float, status: Status, noted: bool) -> None:
    limit = path_limit(nvlink(1.0), gpus(), pci(), rdma())
    assert isinstance(limit, Limit)
    found = only(judge(allreduce_bandwidth, machine() | {Baseline: baseline(nvlink(share * limit.rate))}))
    assert found.status is status
    assert bool(found.notes) is noted


COMMON = AllReduce("nccl", 16, "cuda", sizes=(SIZE,), path=Path.parse("between nodes"))
TWO = AllReduce("nccl", 2, "cuda", sizes=(SIZE,), gpus=(0, 1))


@pytest.mark.parametrize(
    ("given", "seen", "status"),
    [
        (nvlink(290.0, experiment=TWO), gpus(), Status.PASS),  # near the limit of two, with a note
        (nvlink(20.0, experiment=TWO), gpus(), Status.FAIL),  # of that limit
        (nvlink(290.0, experiment=TWO, log=None), gpus(), Status.UNKNOWN),
        (nvlink(290.0, experiment=TWO, log=None), gpus(2), Status.UNKNOWN),  # a share of eight on PCI
        (nvlink(190.0, experiment=COMMON, log=None), gpus(), Status.UNKNOWN),
        (nvlink(390.0, experiment=COMMON, log=None), gpus(), Status.PASS),
        (nvlink(290.0, log=None, experiment=replace(TWO, ranks=8, gpus=tuple(range(8)))), gpus(), Status.FAIL),
    ],
)
def test_the_floor_of_a_node_is_that_of_all_its_gpus(given: Run, seen: Gpus, status: Status) -> None:
    facts = {Baseline: baseline(given), Expected: expected(busbw_floor={SIZE: 324.0}), Gpus: seen}
    assert only(judge(allreduce_bandwidth, machine() | facts)).status is status


def test_gloo_beside_gpus_is_held_against_no_floor() -> None:
    for rate in (0.5, 9.0):
        given = baseline(gloo_run(busbw={1 << 26: rate}), nccl_ran=False)
        facts = {Baseline: given, Expected: expected(busbw_floor={1 << 20: 1.0})}
        assert judge(allreduce_bandwidth, machine() | facts)[0].status is Status.UNKNOWN


def test_without_an_accelerator_only_a_floor_counts() -> None:
    cpu = machine() | NO_GPU | {Baseline: baseline(gloo_run(), nccl_ran=False)}
    assert only(judge(allreduce_bandwidth, cpu)).status is Status.SKIP
    for facts in ({Pci: Unavailable("denied")}, {Expected: Unavailable("malformed")}, {Pci: pci(), Gpus: gpus()}):
        assert only(judge(allreduce_bandwidth, cpu | facts)).status is Status.UNKNOWN
    assert only(judge(allreduce_bandwidth, cpu | {Expected: expected(busbw_floor={1 << 20: 1.0})})).status is Status.PASS
    assert only(judge(allreduce_bandwidth, cpu | {Expected: expected(busbw_floor={1 << 20: 9.0})})).status is Status.FAIL


@pytest.mark.parametrize(("reason", "words"), [("GPU 3 is in use", "GPU 3 is in use"), ("", "hung")])
def test_why_there_is_no_rate_is_said(reason: str, words: str) -> None:
    found = only(judge(allreduce_bandwidth, machine() | {Baseline: baseline(nvlink(1.0, state="hung", reason=reason))}))
    assert found.status is Status.UNKNOWN and found.message.endswith(f"did not finish: {words}")


def test_no_run_is_unknown() -> None:
    assert only(judge(allreduce_bandwidth, machine() | {Baseline: Unavailable("refused")})).status is Status.UNKNOWN


@pytest.mark.parametrize(("rate", "status"), [(20.0, Status.PASS), (5.0, Status.UNKNOWN)])
def test_a_port_in_loopback_never_fails(rate: float, status: Status) -> None:
    given = hca_run(busbw={1 << 26: rate})
    found = judge(allreduce_bandwidth, machine() | {PathRun: path_run(given)})
    assert (found[1].subject, found[1].status) == ("inter-node mlx5_0:1", status)


@pytest.mark.parametrize(
    ("given", "devices", "limit"),
    [
        (nvlink(1.0), gpus(), 370.8),
        (nvlink(1.0), gpus(all=tuple(gpu(i, **A100) for i in range(8))), 240.0),
        (nvlink(1.0), gpus(all=tuple(gpu(i, name="NVIDIA H100 NVL") for i in range(8))), None),
        (nvlink(1.0), gpus(all=tuple(gpu(i, capability=(12, 0)) for i in range(8))), None),
        (nvlink(1.0), gpus(all=tuple(gpu(i, nvlinks=Unavailable("unsupported")) for i in range(8))), None),
        (nvlink(1.0), gpus(all=tuple(gpu(i, nvlinks=(True,) * (18 if i != 3 else 16)) for i in range(8))), 370.8),
        (nvlink(1.0), gpus(all=tuple(gpu(i, nvlinks=()) for i in range(8))), None),  # PCIe across roots
        (nvlink(1.0), gpus(7), None),
        (hca_run(), gpus(), 25.0),
        (hca_run(hca="mlx5_9:1"), gpus(), None),
    ],
)
def test_limits(given: Run, devices: Gpus, limit: float | None) -> None:
    found = path_limit(given, devices, pci(), rdma())
    assert (round(found.rate, 1) if isinstance(found, Limit) else None) == limit


def test_gpus_below_one_root_have_the_limit_of_their_links() -> None:
    same = {"path": gpu_device(0).path, "root": gpu_device(0).root}
    port = gpu_device(0, address=gpu_device(0).path[-1], klass=0x060400, path=())
    two = pci(0, 0, devices=(gpu_device(0), gpu_device(1, **same), port))
    given = nvlink(1.0, experiment=AllReduce("nccl", 2, "cuda", gpus=(0, 1)))
    without = gpus(2, all=tuple(gpu(i, nvlinks=()) for i in range(2)))
    found = path_limit(given, without, two, rdma())
    assert isinstance(found, Limit)
    assert found.rate == 48.0


def test_a_path_that_was_not_tried_is_said() -> None:
    found = judge(allreduce_bandwidth, machine() | {PathRun: Unavailable("no budget")})
    assert [(x.subject, x.status) for x in found][1:] == [("inter-node", Status.UNKNOWN)]
    cpu = {**NO_GPU, Baseline: baseline(gloo_run(), nccl_ran=False), PathRun: Unavailable("unsupported")}
    assert [(x.subject, x.status) for x in judge(allreduce_bandwidth, machine() | cpu)] == [("node", Status.SKIP)]


def test_a_floor_that_was_not_read_may_be_any() -> None:
    found = judge(allreduce_bandwidth, machine() | {Baseline: baseline(nvlink(360.0)), Expected: Unavailable("denied")})
    assert found[0].status is Status.UNKNOWN and "floor" in found[0].message


CARRIES = Control(400, 0, 5e-5, 32768, (1.1e9, 0.9e9, 1.0e9), (1.2e9, 1.0e9, 1.1e9), 1.1e9, others=0.1)
NARROW = replace(CARRIES, plain=(2e7, 3e7, 2e7))


@pytest.mark.parametrize(
    ("rate", "control", "status", "cause"),
    [
        (0.3, CARRIES, Status.SKIP, None),
        (0.13, CARRIES, Status.SKIP, None),
        (0.12, CARRIES, Status.FAIL, "low_bandwidth"),
        (0.12, replace(CARRIES, others=0.2), Status.UNKNOWN, None),  # the CPUs were busy with others
        (0.12, replace(CARRIES, others=None), Status.UNKNOWN, None),
        (0.3, replace(CARRIES, others=1.0), Status.SKIP, None),
        (0.008, NARROW, Status.FAIL, "tcp_tuning"),
        (0.008, replace(NARROW, others=1.0), Status.FAIL, "tcp_tuning"),  # which the socket beside it shows by itself
        (0.3, NARROW, Status.SKIP, None),  # what the run does not show is net.tcp_buffers' to say
        (0.008, None, Status.SKIP, None),
        (0.008, Control(), Status.SKIP, None),
    ],
)
def test_gloo_is_held_against_a_socket_of_the_same_host(
    rate: float, control: Control | None, status: Status, cause: str | None
) -> None:
    ran = replace(baseline(gloo_run(busbw={1 << 26: rate}), nccl_ran=False), control=control)
    found = only(judge(allreduce_bandwidth, machine() | NO_GPU | {Baseline: ran}))
    assert (found.status, found.cause) == (status, cause)
    assert found.severity is (Severity.CRITICAL if status is Status.FAIL else None)
