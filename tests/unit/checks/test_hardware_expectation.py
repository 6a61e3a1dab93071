"""hardware.gpus, hardware.rails and hardware.links: pass, fail, skip and unknown each for a true reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from netdoctor.checks import hardware_gpus, hardware_links, hardware_rails, hardware_site
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.job import Expected
from netdoctor.facts.pci import Pci, PciLink
from netdoctor.facts.platform import Platform
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Kind, Severity, Status, Unavailable
from tests.lab import fixtures
from tests.support import facts as f
from tests.support.machines import composed

LOST = Unavailable("denied")
NOBODY = Platform("", "", "")
Changes = dict[type, object]
PASS, FAIL, SKIP, UNKNOWN = Status.PASS, Status.FAIL, Status.SKIP, Status.UNKNOWN
GPUS, RAILS, LINKS, SITE = hardware_gpus.gpus, hardware_rails.rails, hardware_links.links, hardware_site.site
NO_GPU: Changes = {Pci: f.pci(devices=()), Gpus: f.gpus(0)}


def slower(n: int) -> Rdma:
    devices = list(f.rdma().devices or ())
    ports = devices[n].ports
    assert not isinstance(ports, Unavailable)
    devices[n] = replace(devices[n], ports=(replace(ports[0], rate_gbps=200.0),))
    return f.rdma(devices=tuple(devices))


def linked(**changes: object) -> Pci:
    port = f.gpu_device(0, address="0000:1a:01.0", vendor=0x8086, klass=0x060400, path=())
    gpu = f.gpu_device(0, path=("0000:1a:01.0",), **changes)
    return f.pci(devices=(gpu, port))


ROWS: dict[str, tuple[Callable[..., Iterable[Finding]], Changes, Status, str]] = {
    "a DGX": (GPUS, {}, PASS, "GPUs"),
    "seven GPUs of a DGX": (GPUS, {Pci: f.pci(7), Gpus: f.gpus(7)}, FAIL, "node"),
    "seven GPUs of something": (GPUS, {Pci: f.pci(7), Gpus: f.gpus(7), Platform: NOBODY}, PASS, "GPUs"),
    "a container with four of eight": (GPUS, {Gpus: f.gpus(4)}, PASS, "GPUs"),
    "PCI that shows half of NVML's": (GPUS, {Pci: f.pci(4), Platform: NOBODY}, UNKNOWN, "GPUs"),
    "one GPU alone": (GPUS, {Pci: f.pci(1), Gpus: f.gpus(1), Platform: NOBODY}, SKIP, "GPUs"),
    "no GPU": (GPUS, NO_GPU, SKIP, "node"),
    "the firmware could not be read": (GPUS, {Platform: Platform(LOST, LOST, LOST)}, UNKNOWN, "GPUs"),
    "NVML lost": (GPUS, {Gpus: f.gpus(all=LOST)}, UNKNOWN, "GPUs"),
    "a GPU in MIG": (
        GPUS,
        {Gpus: f.gpus(all=tuple(f.gpu(n, mig=n == 3, nvlinks=(n != 3,) * 18) for n in range(8)))},
        PASS,
        "GPUs",
    ),
    "an NVLink down": (
        GPUS,
        {Gpus: f.gpus(all=tuple(f.gpu(n, nvlinks=(n != 3,) * 18) for n in range(8)))},
        FAIL,
        f"GPU {f.bdf(0x61)}",
    ),
    "rails alike": (RAILS, {}, PASS, "rails"),
    "a slow rail": (RAILS, {Rdma: slower(2)}, FAIL, "mlx5_2"),
    "a slow rail of a job of one node": (RAILS, {Rdma: slower(2), Intent: f.job(nodes=1)}, SKIP, "rails"),
    "the job could not be read": (RAILS, {Rdma: slower(2), Intent: LOST}, UNKNOWN, "rails"),
    "the job's variables could not be read": (RAILS, {Environ: LOST}, UNKNOWN, "rails"),
    "ports that could not be read": (RAILS, {Rdma: f.rdma(devices=LOST)}, UNKNOWN, "rails"),
    "seven rails of a DGX": (RAILS, {Pci: f.pci(8, 7), Rdma: f.rdma(7)}, FAIL, f"GPU {f.bdf(0xDF)}"),
    "no RDMA device": (RAILS, {Rdma: f.rdma(0)}, SKIP, "rails"),
    "no GPU for a rail": (RAILS, NO_GPU, SKIP, "node"),
    "as many GPUs as the site expects": (SITE, {Expected: f.expected(gpus=8)}, PASS, "parts"),
    "fewer GPUs than the site expects": (SITE, {Expected: f.expected(gpus=16)}, FAIL, "GPUs"),
    "no GPU, and the site expects some": (SITE, {**NO_GPU, Expected: f.expected(gpus=8)}, FAIL, "GPUs"),
    "fewer on PCI, NVML lost": (SITE, {Pci: f.pci(7), Gpus: f.gpus(all=LOST), Expected: f.expected(gpus=8)}, FAIL, "GPUs"),
    "as many on PCI, NVML lost": (SITE, {Gpus: f.gpus(all=LOST), Expected: f.expected(gpus=8)}, UNKNOWN, "parts"),
    "four of eight, the node's": (SITE, {Gpus: f.gpus(4), Expected: f.expected(gpus=8)}, FAIL, "GPUs"),
    "four of eight, a pod's": (SITE, {Gpus: f.gpus(4), Vantage: f.pod(), Expected: f.expected(gpus=8)}, UNKNOWN, "parts"),
    "what the site expects, lost": (SITE, {Expected: f.expected(gpus=LOST)}, UNKNOWN, "node"),
    "a rate that the site expects": (
        RAILS,
        {
            Rdma: f.rdma(devices=tuple((slower(n).devices or ())[n] for n in range(8))),
            Expected: f.expected(hca_rate_gbps=200.0),
        },
        PASS,
        "rails",
    ),
    "a link as it should be": (LINKS, {Pci: linked(), Gpus: f.gpus(1), Rdma: f.rdma(0)}, PASS, "PCIe links"),
    "a narrow link": (
        LINKS,
        {Pci: linked(link=PciLink(32.0, 4, 32.0, 16)), Gpus: f.gpus(1), Rdma: f.rdma(0)},
        FAIL,
        f"GPU {f.bdf(0x1B)}",
    ),
    "a link that was not read": (LINKS, {Pci: linked(link=LOST), Gpus: f.gpus(1), Rdma: f.rdma(0)}, UNKNOWN, "PCIe links"),
    "a link of a virtual machine": (
        LINKS,
        {Pci: linked(link=Unavailable(Kind.UNSUPPORTED)), Gpus: f.gpus(1), Rdma: f.rdma(0)},
        SKIP,
        "PCIe links",
    ),
    "PCI lost": (LINKS, {Pci: Unavailable("denied"), Gpus: f.gpus()}, UNKNOWN, "PCIe links"),
}


@pytest.mark.parametrize(("check", "changes", "status", "subject"), ROWS.values(), ids=ROWS)
def test_rows(check: Callable[..., Iterable[Finding]], changes: Changes, status: Status, subject: str) -> None:
    found = f.judge(check, f.machine(changes))
    assert subject in [one.subject for one in found if one.status is status]
    assert not [one for one in found if one.status is FAIL and status is not FAIL]


@pytest.mark.parametrize(
    ("stated", "told"), [(None, FAIL), (LOST, FAIL), (10, FAIL), (8, FAIL), (7, UNKNOWN), (6, None), (0, None)]
)
def test_the_sites_number_of_devices_and_the_platforms(stated: int | None | Unavailable, told: Status | None) -> None:
    """The site counts storage's devices, too: its number as such says nothing of the rails."""
    changes = {Pci: f.pci(8, 6), Rdma: f.rdma(6), Expected: f.expected(hcas=stated)}
    found = [one.status for one in f.judge(RAILS, f.machine(changes)) if "RDMA devices for the job 6" in one.message]
    assert found == ([told] if told else [])


def test_a_fail_names_its_source_its_cost_and_its_mend() -> None:
    (one,) = [x for x in f.judge(RAILS, f.machine({Rdma: slower(2)})) if x.status is FAIL]
    assert one.expected is not None and "7 others of its kind" in one.expected and "DGX H100" in one.expected
    assert one.evidence["sources"] == ["siblings", "platform"]
    assert one.loss is not None and one.loss.share == 0.5 and one.cause == "link_degraded" and one.fix is not None


@pytest.mark.parametrize(("nodes", "severity"), [(2, Severity.CRITICAL), (None, Severity.WARNING)])
def test_a_dead_rail_costs_what_the_job_needs(nodes: int | None, severity: Severity) -> None:

    job = f.job(nodes=2) if nodes else Intent()
    (one,) = [x for x in f.judge(RAILS, f.machine({Rdma: slower(2), Intent: job})) if x.status is FAIL]
    assert one.loss is not None and one.loss.severity is severity


def test_a_mend_of_hardware_is_made_on_the_node() -> None:
    (one,) = [x for x in f.judge(RAILS, f.machine({Rdma: slower(2), type(f.pod()): f.pod()})) if x.status is FAIL]
    assert one.fix is not None and one.fix.summary.startswith("on the node: ")


@pytest.mark.parametrize(("nodes", "severity"), [(1, Severity.INFO), (2, Severity.CRITICAL)])
def test_the_link_of_an_hca_costs_a_job_of_one_node_nothing(nodes: int, severity: Severity) -> None:

    port = f.gpu_device(0, address="0000:18:01.0", vendor=0x8086, klass=0x060400, path=())
    hca = f.hca_device(0, link=PciLink(32.0, 4, 32.0, 16), path=("0000:18:01.0",))
    pci = f.pci(devices=(*(d for d in f.pci().devices or () if d.address != hca.address), port, hca))
    (one,) = [x for x in f.judge(LINKS, f.machine({Pci: pci, Intent: f.job(nodes=nodes)})) if x.status is FAIL]
    assert one.subject == "mlx5_0" and one.loss is not None and one.loss.severity is severity


@pytest.mark.parametrize(
    ("lost", "status"),
    [
        (Unavailable(Kind.FAILED), UNKNOWN),  # which GPU it is was not told
        (Unavailable(Kind.TIMED_OUT), UNKNOWN),
        (Unavailable(Kind.DENIED), PASS),  # another job's
    ],
)
def test_a_gpu_of_which_nvml_does_not_say_which_it_is(lost: Unavailable, status: Status) -> None:
    nvml = f.gpus(8, all=tuple(f.gpu(n, pci=lost) if n == 3 else f.gpu(n) for n in range(8)))
    assert [one.status for one in f.judge(GPUS, f.machine({Gpus: nvml, Platform: NOBODY}))] == [status]


def test_a_gpu_that_may_be_in_mig_may_rest_its_nvlinks() -> None:
    nvml = f.gpus(8, all=tuple(f.gpu(n, mig=LOST if n == 3 else False, nvlinks=(n != 3,) * 18) for n in range(8)))
    assert [one.status for one in f.judge(GPUS, f.machine({Gpus: nvml}))] == [UNKNOWN]


def test_firmware_that_the_site_expects_and_no_device_has() -> None:
    facts = f.machine({Rdma: f.rdma(0), Expected: f.expected(hca_firmware=("28.39",))})
    assert [one.status for one in f.judge(hardware_site.site, facts)] == [UNKNOWN]


@pytest.mark.parametrize(
    ("attached", "hcas", "told"),
    [(4, None, PASS), (3, None, FAIL), (2, None, UNKNOWN), (2, 2, PASS), (1, None, UNKNOWN)],
)
def test_how_many_efa_a_p4d_has_is_its_owners_choice(attached: int, hcas: int | None, told: Status) -> None:
    gpus = f.gpus(all=tuple(f.gpu(n, name="NVIDIA A100-SXM4-40GB") for n in range(8)))
    p4d = Platform("Amazon EC2", "p4d.24xlarge", "", instance_type="p4d.24xlarge")
    facts = {Gpus: gpus, Platform: p4d, Pci: f.pci(8, attached), Rdma: f.rdma(attached), Expected: f.expected(hcas=hcas)}
    assert told in {one.status for one in f.judge(RAILS, f.machine(facts))}
    assert told is FAIL or FAIL not in {one.status for one in f.judge(RAILS, f.machine(facts))}


@pytest.mark.parametrize(("slow", "told"), [(1, FAIL), (3, FAIL), (4, UNKNOWN), (5, UNKNOWN), (7, PASS), (8, PASS)])
@pytest.mark.parametrize("stated", [None, 200.0])
def test_rails_of_two_rates_are_not_alike(slow: int, told: Status, stated: float | None) -> None:
    devices = tuple((slower(n).devices or ())[n] if n < slow else one for n, one in enumerate(f.rdma().devices or ()))
    facts = f.machine({Rdma: f.rdma(devices=devices), Platform: NOBODY, Expected: f.expected(hca_rate_gbps=stated)})
    wanted = PASS if stated and told is UNKNOWN else told
    assert {one.status for one in f.judge(RAILS, facts)} == {wanted}


def test_a_resting_link_that_no_rank_told_of_is_unknown() -> None:
    """A run alone wakes nothing that anybody saw."""
    machine = composed.Composed("dgx-h100", {"gpus.2.link": {"generation": 2}}).snapshot()
    have = fixtures.facts_of(machine)
    run = have["Baseline"].run
    silent = replace(run, ranks=tuple(replace(rank, link_speed=0.0) for rank in run.ranks))
    have["Baseline"] = replace(have["Baseline"], run=silent)
    (said,) = (one for one in fixtures.findings(have)["hardware.links"] if one.status is not Status.PASS)
    assert (said.status, "no rank told" in said.message) == (Status.UNKNOWN, True)
    others = tuple(replace(rank, gpu="", link_speed=0.0) if rank.rank == 2 else rank for rank in run.ranks)
    have["Baseline"] = replace(have["Baseline"], run=replace(run, ranks=others))
    assert {one.status for one in fixtures.findings(have)["hardware.links"]} == {Status.PASS}, "of a GPU that is not the job's"


@pytest.mark.parametrize("speed", ["32.0 GT/s PCIe", "Unknown"])
def test_a_device_of_which_all_bits_are_ones_has_no_link(speed: str) -> None:
    """It has fallen off the bus: 63 lanes are more than the 16 that are expected, and no answer."""
    machine = composed.Composed("dgx-h100")
    for path in [path for path in machine.files.files if "0000:1b:00.0/" in path]:
        if path.endswith("_link_width"):
            machine.files.write(path, "63\n")
        elif path.endswith("_link_speed"):
            machine.files.write(path, f"{speed}\n")
    (found,) = machine.judged("hardware.links")
    assert found.status is UNKNOWN and "it does not answer" in found.message


@pytest.mark.parametrize(
    ("expected", "said"),
    [({"mtu": {"ib0": 1500}}, "ib0 as expected: MTU"), ({"gpu_model": "NVIDIA H100 80GB HBM3"}, "8 parts as expected: model")],
)
def test_what_holds_is_said_of_those_that_were_stated(expected: dict[str, object], said: str) -> None:
    (one,) = f.judge(SITE, f.machine({Expected: f.expected(**expected)}))
    assert (one.status, one.message) == (PASS, said)


@pytest.mark.parametrize(("short", "said"), [((3,), False), ((2, 3), True), (range(8), True)])
def test_links_that_several_gpus_lost_at_once_lead_to_one_thing(short: Iterable[int], said: bool) -> None:
    """An NVSwitch that is down takes links of all of them."""
    short = set(short)
    nvml = f.gpus(all=tuple(f.gpu(n, nvlinks=(n not in short,) * 4 + (True,) * 14) for n in range(8)))
    found = [one for one in f.judge(GPUS, f.machine({Gpus: nvml})) if one.status is FAIL]
    assert len(found) == len(short)
    for one in found:
        assert ("the NVSwitch or bridge that they share" in (one.why or "")) is said
        assert one.fix is not None and ("NVSwitches" in str(one.fix.commands)) is said
