"""gpu.fabric: what NVML says of the access of GPUs to each other, of their fabric, and of NVLinks under load."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from netdoctor.checks.gpu_fabric import gpu_fabric
from netdoctor.facts.fabric import NO_CLUSTER, Fabric, ImexDomain
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.gpu_health import FabricInfo, GpuHealth, GpuState, Pair
from netdoctor.facts.gpu_load import GpuLoad, Load
from netdoctor.facts.intent import Intent
from netdoctor.facts.pci import Pci
from netdoctor.facts.runs import Baseline
from netdoctor.model import Finding, Status, Unavailable
from tests.support import facts as f

LOST, NONE = Unavailable("timed out", "5 s"), Unavailable("unsupported", "NVML: Not Supported")
MESH: dict[str, Any] = {"name": "NVIDIA A100-SXM4-80GB", "capability": (8, 0), "nvlinks": (True,) * 12}
BRIDGED: dict[str, Any] = {"name": "NVIDIA H100 NVL"}
BARE: dict[str, Any] = {"name": "NVIDIA A100-PCIE-40GB", "capability": (8, 0), "nvlinks": (False,) * 12}


def fabric_info(state: int) -> FabricInfo:
    return FabricInfo(state, 0, 0, NO_CLUSTER, 0)


def state(index: int, told: FabricInfo | Unavailable = NONE, **changes: Any) -> GpuState:
    gpu = f.gpu(index)
    fields: dict[str, Any] = {**dict.fromkeys(GpuState.__dataclass_fields__, NONE), "pci": gpu.pci, "uuid": gpu.uuid}
    return replace(GpuState(**fields), name=gpu.name, fabric=told, **changes)


def said(
    gpu: dict[str, Any], pairs: tuple[Pair, ...] | None = None, told: object = NONE, load: Any = None, number: int = 4
) -> dict[str, Finding]:
    """By subject.  `told` is the fabric of all, or of each."""
    each = told if isinstance(told, list) else [told] * number
    every = tuple(Pair(a, b, 0, 0, 0) for a, b in combinations(range(number), 2))
    facts = {
        Gpus: f.gpus(number, all=tuple(f.gpu(i, **gpu) for i in range(number))),
        GpuHealth: GpuHealth(tuple(state(i, one) for i, one in enumerate(each)), every if pairs is None else pairs),
        Fabric: Fabric(False, NONE),
        Pci: f.pci(number, 0),
        GpuLoad: load or LOST,
    }
    return {one.subject: one for one in f.judge(gpu_fabric, f.machine(facts))}


def pairs(number: int = 4, **first: Any) -> tuple[Pair, ...]:
    one, *rest = (Pair(a, b, 0, 0, 0) for a, b in combinations(range(number), 2))
    return (replace(one, **first), *rest)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, Status.PASS),
        ({"read": 4, "write": 4}, Status.FAIL),
        ({"write": 4}, Status.FAIL),  # NCCL asks for both (src/graph/paths.cc)
        ({"read": 4, "nvlink": LOST}, Status.UNKNOWN),
        ({"read": LOST}, Status.UNKNOWN),
        ({"nvlink": LOST}, Status.PASS),  # which decides nothing where they may
        ({"read": 1, "write": 1, "nvlink": 5}, Status.PASS),  # the chipset refuses two that no NVLink joins
    ],
)
def test_access_between_gpus_of_a_mesh(change: dict[str, Any], status: Status) -> None:
    assert said(MESH, pairs(**change))["peer access"].status is status


@pytest.mark.parametrize(
    ("told", "status"), [(fabric_info(0), Status.PASS), (NONE, Status.PASS), (fabric_info(3), Status.FAIL)]
)
def test_bridged_pairs_are_no_fabric(told: object, status: Status) -> None:
    """A driver says of them "in no fabric", or that it does not support the question."""
    joined = {(0, 1), (2, 3)}
    some = tuple(replace(one, **({} if (one.one, one.other) in joined else refused)) for one in pairs())
    assert said(BRIDGED, some, told)["peer access"].status is status


refused = {"read": 1, "write": 1, "nvlink": 5}


@pytest.mark.parametrize(
    ("some", "status"),
    [((Pair(0, 1, 1, 1, 5),), Status.SKIP), ((Pair(0, 1, 0, 0, 5),), Status.PASS), ((), Status.UNKNOWN)],
)
def test_links_that_are_down_give_no_access(some: tuple[Pair, ...], status: Status) -> None:
    assert said(BARE, some, number=2)["peer access"].status is status


def test_a_pair_that_nvml_left_out_is_unknown() -> None:
    assert said(MESH, pairs()[:-1])["peer access"].status is Status.UNKNOWN


def test_one_gpu_in_no_fabric_beside_its_like() -> None:
    told = [fabric_info(3)] * 4
    assert said(MESH, told=told)["fabric"].status is Status.PASS
    assert said(MESH, told=[*told[:3], fabric_info(0)])["fabric"].status is Status.UNKNOWN
    assert said(MESH, told=fabric_info(0))["fabric"].status is Status.SKIP


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    ("counts", "status"),
    [((0,) * 12, Status.PASS), (LOST, Status.UNKNOWN), ((0,) * 11 + (LOST,), Status.UNKNOWN), ((), Status.UNKNOWN)],
)
def test_links_whose_errors_were_not_seen(place: int, counts: Any, status: Status) -> None:
    loads = {str(f.gpu(i).uuid): Load(9, 1900, {}, 0, counts if i == place else (0,) * 12) for i in range(4)}
    assert said(MESH, load=GpuLoad(8.0, loads))["NVLinks under load"].status is status


RACK = FabricInfo(3, 0, 1, "6d" * 16, 0)
TWO = ("10.0.0.2", "10.0.0.3")


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (ImexDomain("READY", TWO), Status.PASS),
        (ImexDomain("READY", TWO, TWO), Status.FAIL),
        (ImexDomain("READY", TWO, TWO[:1]), Status.UNKNOWN),  # which may be down for repair
        (ImexDomain("READY", ()), Status.UNKNOWN),
        (ImexDomain("READY", LOST), Status.UNKNOWN),
        (ImexDomain("WAITING_FOR_PEERS", ()), Status.FAIL),
        (ImexDomain("WAITING_FOR_RECOVERY", ()), Status.FAIL),
        (ImexDomain("UNAVAILABLE", ()), Status.UNKNOWN),  # a ComputeDomain has daemons of its own
        (ImexDomain("NOT_CONFIGURED", ()), Status.UNKNOWN),
        (ImexDomain("SOMETHING_NEW", ()), Status.UNKNOWN),
        (LOST, Status.UNKNOWN),
        (Unavailable("absent", "no nvidia-imex-ctl"), None),
        (Unavailable("unsupported", "no GPU is in a fabric beyond this node"), None),
    ],
)
def test_the_imex_domain(told: Any, status: Status | None) -> None:
    facts = {
        Gpus: f.gpus(2),
        GpuHealth: GpuHealth(tuple(state(i, RACK) for i in range(2)), ()),
        Fabric: Fabric(False, ("channel0",), told),
        Intent: f.intent(nodes=2, others=True),
        Pci: f.pci(2, 0),
    }
    found = {one.subject: one for one in f.judge(gpu_fabric, f.machine(facts))}
    assert (found["IMEX domain"].status if "IMEX domain" in found else None) is status


@pytest.mark.parametrize(
    ("multicast", "words"), [(True, "can reduce"), (False, "do not reduce"), (NONE, "is not known: timed out")]
)
def test_nvls_without_a_run_is_what_libcuda_says(multicast: Any, words: str) -> None:
    facts = {
        Gpus: f.gpus(2, visible=tuple(f.visible(i, multicast=multicast) for i in range(2))),
        Pci: f.pci(2, 0, nvswitches=("0000:07:00.0",)),
        GpuHealth: GpuHealth(tuple(state(i) for i in range(2)), ()),
        Baseline: LOST,
    }
    found = {one.subject: one for one in f.judge(gpu_fabric, f.machine(facts))}
    assert found["NVLS"].status is Status.UNKNOWN
    assert words in found["NVLS"].message


@pytest.mark.parametrize(
    ("closed", "words", "mend"),
    [
        (True, "compute in secret (confidential computing)", "nvidia-smi conf-compute -srs 1"),
        (False, "waits for the fabric", "nvidia-fabricmanager"),
        (None, "waits for the fabric", "nvidia-smi conf-compute -srs 1"),  # it may be either
    ],
)
def test_what_the_driver_waits_for(closed: bool | None, words: str, mend: str) -> None:
    told = Fabric(True, Unavailable("unsupported"), closed=closed)
    facts = f.machine({Fabric: told, Pci: f.pci(nvswitches=()), GpuHealth: GpuHealth((), ())})
    (one,) = (one for one in f.judge(gpu_fabric, facts) if one.subject == "driver")
    assert one.status is Status.FAIL and words in one.message and one.fix and mend in str(one.fix.commands)
