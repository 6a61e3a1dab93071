"""Other names of devices: asked for a message alone, and nothing depends on the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.facts import device_names, gpu_users
from netdoctor.facts.device_names import DeviceNames
from netdoctor.facts.gpu_users import GpuUsers
from netdoctor.facts.rdma import Rdma
from netdoctor.host.base import RecordingHost, ReplayHost, question
from netdoctor.model import Kind, Unavailable
from tests.support import facts as f

UDEV = {
    "net": {
        "eth0": {"ID_NET_NAME_PATH": "enp1s0f0", "ID_NET_NAME_SLOT": "ens3"},
        "eno1": {"ID_NET_NAME_ONBOARD": "eno1", "ID_NET_NAME_PATH": "enp65s0"},
    },
    "pci": {"0000:18:00.0": {"ID_MODEL_FROM_DATABASE": "MT2910 Family [ConnectX-7]"}},
}


def look(answer: Any = UDEV, links: tuple[str, ...] = ("lo", "eth0"), **changes: Any) -> tuple[DeviceNames, set[str]]:
    """The fact, and what was asked for it."""
    host = RecordingHost(ReplayHost({"ask:udev": answer}))
    net = replace(f.net(), links=tuple(f.netlink_link(name, n) for n, name in enumerate(links, 1)))
    have = {"environ": f.environ({}), "net": net, "rdma": f.rdma(2), "pci": f.pci(8, 2), **changes}
    return device_names.probe(host, have["environ"], have["net"], have["rdma"], have["pci"]), set(host.answers)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"NCCL_SOCKET_IFNAME": "eth"},
        {"NCCL_SOCKET_IFNAME": "^docker0,virbr0"},
        {"NCCL_SOCKET_IFNAME": "ens3,eth0"},
        {"NCCL_IB_HCA": "=mlx5_0:1"},
        {"NCCL_IB_HCA": "rocep24s0"},
    ],
    ids=str,
)
def test_udev_is_not_asked_where_no_message_needs_it(variables: dict[str, str]) -> None:
    assert look(environ=f.environ(variables))[1] == set()


@pytest.mark.parametrize(
    ("value", "links", "interface", "hint"),
    [
        ("ens3", ("lo", "eth0"), "eth0", "udev's name ens3 is eth0 here"),
        ("=enp1s0f0", ("lo", "eth0"), "eth0", "udev's name enp1s0f0 is eth0 here"),
        ("eth0", ("lo", "eno1"), None, "udev has renamed the interfaces here: eno1"),
        ("ib0", ("lo", "eno1"), None, ""),
    ],
)
def test_an_interface_by_another_name(value: str, links: tuple[str, ...], interface: str | None, hint: str) -> None:
    udev = UDEV | {"net": {name: one for name, one in UDEV["net"].items() if name in links}}
    found, _ = look(udev, links, environ=f.environ({"NCCL_SOCKET_IFNAME": value}))
    assert (found.interface, found.interface_hint) == (interface, hint)


@pytest.mark.parametrize(
    ("value", "names", "hint"),
    [
        ("rocep24s0f0", ("mlx5_0", "mlx5_1"), "rocep24s0f0 is mlx5_0 here (0000:18:00.0)"),
        ("ibP1p24s0", ("mlx5_0", "mlx5_1"), ""),
        ("mlx5_0", ("rocep24s0", "rocep64s0"), "udev has renamed the RDMA devices here: rocep24s0, rocep64s0"),
        ("mlx4", ("mlx5_0", "mlx5_1"), ""),
    ],
)
def test_an_hca_by_another_name(value: str, names: tuple[str, ...], hint: str) -> None:
    devices = tuple(replace(one, name=name) for one, name in zip(f.rdma(2).devices, names, strict=True))
    found, _ = look(environ=f.environ({"NCCL_IB_HCA": value}), rdma=f.rdma(devices=devices))
    assert found.hca_hint == hint


def test_models_of_hcas_without_a_device() -> None:
    found, asked = look(rdma=f.rdma(0))
    assert found.at("0000:18:00.0") == "0000:18:00.0 MT2910 Family [ConnectX-7]" and asked == {"ask:udev"}
    assert found.at("0000:40:00.0") == "0000:40:00.0"
    assert look(rdma=Rdma.unread(Unavailable(Kind.DENIED)))[1] == set()


@pytest.mark.parametrize(
    "answer",
    [Unavailable(Kind.FAILED, "no pyudev"), [], {}, {"net": []}, {"net": {"eth0": 1}}, {"net": {"eth0": {"ID_NET_NAME": 7}}}],
    ids=str,
)
def test_rubbish_and_silence_say_nothing(answer: Any) -> None:
    assert look(answer, environ=f.environ({"NCCL_SOCKET_IFNAME": "ens3"}))[0] == DeviceNames()


def test_what_udev_says_is_made_harmless() -> None:
    udev = {"net": {}, "pci": {"0000:18:00.0": {"ID_MODEL_FROM_DATABASE": "Connect\x1b[31mX\n7"}}}
    assert look(udev, rdma=f.rdma(0))[0].at("0000:18:00.0") == "0000:18:00.0 ConnectX 7"


# Who holds a GPU

ASKED = question("psutil", pids="4711,4712")
TOLD = {"processes": {"4711": {"name": "python", "user": "alice"}, "4712": {"name": "vllm", "user": "bob"}}}
INSIDE = {"pid": "4026532000"}
INITIAL = {"pid": "4026531836"}


def users(answer: Any, spaces: dict[str, str] | None = None, pids: Any = (4711, 4712)) -> tuple[GpuUsers, set[str], str]:
    host = RecordingHost(ReplayHost({ASKED: answer}))
    count = pids if isinstance(pids, Unavailable) else len(pids)
    one = f.gpu(0, processes=count, pids=pids)
    where = replace(f.vantage(), namespaces=INITIAL if spaces is None else spaces)
    found = gpu_users.probe(host, f.gpus(1, all=(one,)), where)
    found = GpuUsers.unread(found) if isinstance(found, Unavailable) else found
    return found, set(host.answers), found.of(one)


@pytest.mark.parametrize(
    ("answer", "spaces", "text"),
    [
        (TOLD, INITIAL, "python (pid 4711, alice), vllm (pid 4712, bob)"),
        (TOLD, INSIDE, "2 processes"),  # here 4711 may be somebody else
        (TOLD, {}, "2 processes"),
        (Unavailable(Kind.FAILED, "no psutil"), INITIAL, "2 processes"),
        ({"processes": {"4711": {"unavailable": "denied", "detail": ""}}}, INITIAL, "which this user may not see"),
        ({"processes": {"4711": {"unavailable": "absent", "detail": ""}}}, INITIAL, "pid 4711, pid 4712"),
        ({"processes": {"4711": {"name": "a\x1b[2Jb", "user": {"unavailable": "denied"}}}}, INITIAL, "ab (pid 4711)"),
        ({"processes": 7}, INITIAL, "pid 4711, pid 4712"),
    ],
)
def test_who_is_on_a_gpu(answer: Any, spaces: dict[str, str], text: str) -> None:
    assert text in users(answer, spaces)[2]


def test_nobody_is_asked_for_a_free_gpu() -> None:
    assert users(TOLD, pids=())[1] == set() and users(TOLD, pids=Unavailable(Kind.UNSUPPORTED))[1] == set()


def test_many_are_counted() -> None:
    every = GpuUsers({n: f"python (pid {n}, alice)" for n in range(1, 9)})
    text = every.of(f.gpu(0, processes=8, pids=tuple(range(1, 9))))
    assert text.endswith("python (pid 3, alice) and 5 more")
