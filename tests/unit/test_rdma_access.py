"""Whether an RDMA device can be used from here: one step after the other, and what could not be read is no yes."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.facts.net import Net
from netdoctor.facts.rdma import Provider, Rdma, RdmaDevice
from netdoctor.fixes import fix_rdma_device
from netdoctor.model import Unavailable
from netdoctor.nccl.rdma_access import usable
from tests.support import facts as f

LOST, GONE = Unavailable("denied"), Unavailable("absent")
FINE = "opens, has a context and an ACTIVE port"
NODE = "/dev/infiniband/uverbs0"


def verbs(**changes: Any) -> RdmaDevice:
    return f.hca(0, uverbs=f.uverbs(0, **changes))


def ports(*some: Any) -> RdmaDevice:
    return f.hca(0, ports=some)


@pytest.mark.parametrize(
    ("device", "step", "text"),
    [
        (f.hca(0), "usable", FINE),
        # the device node
        (f.hca(0, uverbs=GONE), "no-uverbs", "the kernel has no uverbs device for it (module ib_uverbs)"),
        (f.hca(0, uverbs=LOST), "unread", "its uverbs device: denied"),
        (verbs(node_numbers=GONE), "not-mapped", f"{NODE} is not there (ENOENT)"),
        (verbs(node_numbers=LOST), "unread", f"numbers of {NODE}: denied"),
        (verbs(numbers=LOST), "unread", "numbers in sysfs: denied"),
        (verbs(node_numbers=(231, 7)), "stale", f"{NODE} is device 231:7, sysfs says 231:192: a stale node"),
        (verbs(open_errno=LOST), "unread", f"open {NODE}: denied"),
        (verbs(open_errno="ENOENT"), "not-mapped", f"{NODE} does not open: ENOENT: it is not mapped here"),
        (
            verbs(open_errno="EPERM"),
            "EPERM",
            f"{NODE} does not open: EPERM: a device rule of the cgroup (or seccomp) refuses it",
        ),
        (verbs(open_errno="ENXIO"), "ENXIO", f"{NODE} does not open: ENXIO: no driver stands behind the node"),
        (verbs(open_errno="EIO"), "open", f"{NODE} does not open: EIO"),
        # the library and its provider
        (f.hca(0, provider=LOST), "unread", "libibverbs: denied"),
        (f.hca(0, provider=Provider(False, "ENODEV", GONE)), "context", "libibverbs gets no context (ENODEV)"),
        (f.hca(0, provider=Provider(False, "", GONE)), "context", "libibverbs gets no context (no reason given)"),
        # the ports
        (f.hca(0, ports=LOST), "unread", "its ports: denied"),
        (ports(f.port(state=LOST)), "unread", "state of port 1: denied"),
        (ports(f.port(link_layer=LOST)), "unread", "link layer of port 1: denied"),
        (ports(f.port(state="DOWN", physical="Disabled")), "port", "no ACTIVE port: port 1 DOWN, Disabled"),
        (ports(f.port(state="INIT")), "port", "no ACTIVE port: port 1 INIT, LinkUp (no subnet manager has set it up)"),
        (ports(f.port(state="ARMED")), "port", "no ACTIVE port: port 1 ARMED, LinkUp (no subnet manager has set it up)"),
        (ports(), "port", "no ACTIVE port: it has no port"),
        (ports(f.port(state="DOWN"), f.port(2)), "usable", FINE),
        (ports(f.port(link_layer="Unspecified")), "port", "no ACTIVE port: port 1 ACTIVE, LinkUp"),
        (f.hca(0, driver="efa", ports=(f.port(link_layer="Unspecified"),)), "usable", FINE),
        (f.hca(0, driver="efa", ports=(f.port(state="DOWN"),)), "port", "no ACTIVE port: port 1 DOWN, LinkUp"),
        # what fails for certain goes before what could not be read
        (f.hca(0, uverbs=LOST, ports=(f.port(state="DOWN"),)), "port", "no ACTIVE port: port 1 DOWN, LinkUp"),
    ],
)
def test_each_step(device: RdmaDevice, step: str, text: str) -> None:
    found = usable(device, f.rdma(), f.net())
    assert (found.step, found.text) == (step, text)
    assert found.yes is {"usable": True, "unread": None}.get(step, False)


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        (LOST, "mode, group, a nodev mount or a security module"),
        ((0o600, 0, 0), "mode 0600, owner 0, group 0 do not let this user in"),
        ((0o664, 0, 44), "mode 0664, owner 0, group 44 do not let this user in"),  # others read, and it is opened to write
        ((0o662, 0, 44), "mode 0662, owner 0, group 44 do not let this user in"),
        ((0o666, 0, 0), "mode 0666 allows everybody, so a nodev mount or a security module (AppArmor, SELinux) refuses it"),
        ((0o667, 0, 0), "mode 0667 allows everybody, so a nodev mount or a security module (AppArmor, SELinux) refuses it"),
    ],
)
def test_who_refuses_the_node(owner: Any, text: str) -> None:
    found = usable(verbs(open_errno="EACCES", owner=owner), f.rdma(), f.net())
    step = "module" if "security module (" in text else "EACCES"
    assert (found.yes, found.step, found.text) == (False, step, f"{NODE} does not open: EACCES: {text}")
    fix = fix_rdma_device(f.vantage(), found.step, f.hca(0))
    assert ("0666" in fix.summary) is (step == "EACCES")  # never what is so already


@pytest.mark.parametrize(
    ("rdma", "provider", "step", "text"),
    [
        (f.rdma(libibverbs=GONE), GONE, "no-library", "libibverbs.so.1 is not installed here"),
        (f.rdma(libibverbs=LOST), LOST, "unread", "libibverbs: denied"),
        (f.rdma(verbs_devices=()), GONE, "no-provider", "libibverbs does not list it: no provider library for mlx5_core"),
        # a list that was not read, or an answer about this device that was lost, shows no missing provider
        (f.rdma(verbs_devices=LOST), GONE, "unread", "libibverbs: absent"),
        (f.rdma(verbs_devices=()), Unavailable("timed out"), "unread", "libibverbs: timed out"),
        (f.rdma(), GONE, "unread", "libibverbs: absent"),
    ],
)
def test_the_library(rdma: Rdma, provider: Unavailable, step: str, text: str) -> None:
    found = usable(f.hca(0, provider=provider), rdma, f.net())
    assert (found.step, found.text) == (step, text)
    nameless = usable(f.hca(0, provider=provider, driver=LOST), rdma, f.net())
    assert nameless.text == text.replace("mlx5_core", "its driver")


ELSEWHERE = Unavailable("failed", "EINVAL")


@pytest.mark.parametrize(
    ("some", "net", "step", "text"),
    [
        ((f.roce_port("eth0"),), f.net(), "usable", ""),
        ((f.roce_port("eth9"),), f.net(), "gid", "eth9"),
        ((f.roce_port(ELSEWHERE),), f.net(), "gid", "no GID names an interface that is visible here"),
        ((f.roce_port("eth9"), f.roce_port("eth0", number=2)), f.net(), "usable", ""),
        ((f.roce_port("eth9"), f.port(2)), f.net(), "usable", ""),  # a port of InfiniBand needs no interface
        ((f.roce_port("eth9", state="DOWN"), f.roce_port("eth0", number=2)), f.net(), "usable", ""),
        ((f.roce_port("eth0"),), Net.unread(LOST), "unread", "interfaces of this network namespace: denied"),
        ((f.roce_port("eth0", gids=LOST),), f.net(), "unread", "GIDs of port 1: denied"),
        ((f.roce_port("eth0", gids=LOST), f.roce_port("eth0", number=2)), f.net(), "usable", ""),
        ((f.roce_port("eth9", gids=(f.gid(0, netdev="eth9"), f.gid(3, netdev=LOST))),), f.net(), "unread", "of GID 3: denied"),
        ((f.roce_port("eth9", gids=(f.gid(3, netdev=LOST), f.gid(4, netdev="eth0"))),), f.net(), "usable", ""),
    ],
)
def test_the_interface_of_a_gid(some: tuple[Any, ...], net: Net | Unavailable, step: str, text: str) -> None:
    found = usable(ports(*some), f.rdma(), net)
    assert found.step == step and text in found.text, found
