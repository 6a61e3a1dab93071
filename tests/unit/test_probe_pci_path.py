"""What is read of configuration space, of IOMMU groups and of a hypervisor: as the kernel gives it to root and to others."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import pytest

from netdoctor.facts import pci, pci_path
from netdoctor.facts.pci_path import Config, Group
from netdoctor.host.base import Answer, RecordingHost, ReplayHost
from netdoctor.host.helpers import pci_config
from netdoctor.host.live import LiveHost
from netdoctor.model import Kind, Unavailable
from tests.support import facts as f
from tests.support.machines.sysfs import BARE_METAL, config, dgx_h100

ADMIN = f.vantage(capabilities=frozenset({"CAP_SYS_ADMIN"}))
SWITCH = {"control": 0x2936, "acs": [0x5F, 0x1D], "ats": None}


@pytest.fixture
def dgx(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    dgx_h100(tmp_path / "sys", acs={"0000:17:00.0": 0x1D}, extra=())
    monkeypatch.setattr(pci_config, "DEVICES", f"{tmp_path}/sys/bus/pci/devices")
    return tmp_path


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The same machine, for tests that change answers and no file."""
    there = tmp_path_factory.mktemp("dgx")
    dgx_h100(there / "sys", acs={"0000:17:00.0": 0x1D}, extra=())
    return there


@pytest.mark.slow
def test_what_root_reads(dgx: pathlib.Path) -> None:
    got: Any = pci_config.answer({})
    assert got["0000:17:00.0"] == SWITCH
    assert got["0000:17:01.0"] == {**SWITCH, "acs": [0x5F, 0]}
    assert got["0000:15:01.0"] == SWITCH, "the CPU's port, as the kernel sets it"
    assert got["0000:18:00.0"] == {**SWITCH, "acs": None}, "an HCA"
    assert "0000:1b:00.0" not in got, "a GPU's own says nothing of the way"
    assert len(got) == 8 * 5


@pytest.mark.slow
def test_what_others_read(dgx: pathlib.Path) -> None:
    for path in (dgx / "sys").rglob("config"):
        path.write_bytes(path.read_bytes()[:64])
    got: Any = pci_config.answer({})
    assert {one["unavailable"] for one in got.values()} == {"denied"}


def capability(*parts: tuple[int, int, int]) -> bytes:
    data = bytearray(config(0x1000, 0xC030, 0x060400, 0))
    for at, size, value in parts:
        data[at : at + size] = value.to_bytes(size, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (capability(), {**SWITCH, "acs": [0x5F, 0]}),
        (capability((0, 4, 0xFFFFFFFF)), "failed"),
        (capability((6, 2, 0)), {"control": None, "acs": None, "ats": None}),  # no capabilities: no PCI Express
        (capability((0x40, 2, 0x4005)), "failed"),  # leads to itself: what comes behind was not seen
        (capability((0, 4, 0)), "failed"),  # no function has this number
        (capability((0x100, 4, 0)), {**SWITCH, "acs": None}),
        (capability((0x100, 4, 0x1400_000F), (0x106, 2, 0x8000)), {**SWITCH, "acs": None, "ats": 0x8000}),
        (capability((0x100, 4, 0x1400_000F), (0x140, 4, 0x1000D), (0x146, 2, 4)), {**SWITCH, "acs": [0, 4], "ats": 0}),
        (capability((0x100, 4, 0x1000_0001)), "failed"),  # leads to itself
        (capability((0x100, 4, 0x1400_000F), (0x140, 4, 0xFFFFFFFF)), "failed"),  # it fell off the bus meanwhile
        (capability((0x100, 4, 0x1400_000F), (0x140, 4, 0)), {**SWITCH, "acs": None, "ats": 0}),
        (capability()[:256], "unsupported"),
    ],
)
def test_configuration_space(data: bytes, expected: Any) -> None:
    def word(content: bytes, at: int, size: int) -> int:
        return int.from_bytes(content[at : at + size], "little")

    got: Any = pci_config.told(partial(word, data), len(data))
    assert got.get("unavailable", got) == expected


def probed(dgx: pathlib.Path, vantage: Any = ADMIN, **answers: Answer) -> pci_path.PciPath:
    there, seen = recorded(dgx)
    return pci_path.probe(ReplayHost({**seen, **answers}), there, vantage)


@cache
def recorded(dgx: pathlib.Path) -> tuple[pci.Pci, Mapping[str, Answer]]:
    live = RecordingHost(LiveHost(str(dgx)))
    there = pci.probe(live)
    assert isinstance(there, pci.Pci)
    pci_path.probe(live, there, f.vantage())
    return there, live.answers


@pytest.mark.slow
def test_the_fact(dgx: pathlib.Path) -> None:
    group = dgx / "sys/kernel/iommu_groups/12"
    group.mkdir(parents=True)
    (group / "type").write_text("identity\n")
    (dgx / "sys/bus/pci/devices/0000:18:00.0/iommu_group").symlink_to(group)
    fact = probed(dgx, **{"ask:pci_config": pci_config.answer({})})  # type: ignore[dict-item]
    assert fact.at("0000:17:00.0") == Config(0x1D, 512, True, False)
    assert fact.groups["0000:18:00.0"] == Group("12", "identity")
    assert fact.groups["0000:1b:00.0"] is None
    assert fact.guest is False
    assert pci_path.apart(f.gpu_device(0), f.hca_device(0)) == ("0000:17:01.0", "0000:17:00.0")
    assert pci_path.apart(f.gpu_device(0), f.hca_device(1)) is None


@pytest.mark.parametrize(
    ("vantage", "kind"),
    [
        (f.vantage(), Kind.DENIED),
        (f.vantage(capabilities=frozenset({"CAP_SYS_ADMIN"}), root_is_root=False), Kind.DENIED),  # a user namespace
        (f.vantage(capabilities=Unavailable("timed out")), Kind.TIMED_OUT),
        (ADMIN, Kind.NOT_RECORDED),
    ],
)
def test_who_may_not_ask(untouched: pathlib.Path, vantage: Any, kind: Kind) -> None:
    found = probed(untouched, vantage).config
    assert isinstance(found, Unavailable)
    assert found.kind is kind


@pytest.mark.parametrize(
    "told",
    [{}, None, 7, {**SWITCH, "acs": [1]}, {**SWITCH, "acs": [1, "x"]}, {**SWITCH, "ats": -1}, {"control": 1, "ats": None}],
)
def test_rubbish_is_no_answer(untouched: pathlib.Path, told: Any) -> None:
    found = probed(untouched, **{"ask:pci_config": {"0000:17:00.0": told}}).at("0000:17:00.0")
    assert isinstance(found, Unavailable)
    assert found.kind in (Kind.MALFORMED, Kind.NOT_READ)


@pytest.mark.parametrize(
    ("text", "guest"),
    [
        (BARE_METAL, False),
        (f"{BARE_METAL},009F,00A0", True),
        ("cpu:type:aarch64:feature:,0000,0001", Unavailable(Kind.UNSUPPORTED, "")),
        ("cpu:type:x86,ven0000fam0006mod008F:feature:", Unavailable(Kind.UNSUPPORTED, "")),
    ],
)
def test_a_guest_by_its_processor(untouched: pathlib.Path, text: str, guest: bool | Unavailable) -> None:
    found = probed(untouched, **{"file:/sys/devices/system/cpu/modalias": f"{text}\n"}).guest
    assert getattr(found, "kind", found) == getattr(guest, "kind", guest)
