"""Mends are said for the place one looks from, and what makes them last is there."""

import re
import shlex
from collections import defaultdict
from pathlib import Path

import pytest

from netdoctor.causes import CAUSES
from netdoctor.facts.vantage import Vantage
from netdoctor.fixes import (
    CONTAINER_FLAGS,
    RUNTIMES,
    SYSCTL_FILE,
    fix_container,
    fix_environment,
    fix_module,
    fix_sysctl,
    mends,
)
from netdoctor.model import Fix
from netdoctor.plugins import load
from tests.support.sources import ROOT


def at(runtime: str | None) -> Vantage:
    kind = "container" if runtime else "host"
    return Vantage(kind, runtime, 0, "root", True, frozenset(), {}, "/", job_user=True, job_network=True, job_environment=True)


RANGE = "net.ipv4.ip_local_port_range"


@pytest.mark.parametrize("other", ["10-network.conf", "90-site.conf", "99-site.conf", "99-sysctl.conf"])
def test_what_makes_a_sysctl_last_wins(other: str) -> None:
    assert Path(SYSCTL_FILE).name > other


@pytest.mark.parametrize(
    ("runtime", "name", "commands", "persistent"),
    [
        (None, RANGE, (f"sysctl -w {RANGE}='1 2'",), (f"echo '{RANGE} = 1 2' >> /etc/sysctl.d/99-zz-netdoctor.conf",)),
        ("docker", RANGE, (f"docker run --sysctl {RANGE}='1 2' …",), ()),
        ("podman", RANGE, (f"podman run --sysctl {RANGE}='1 2' …",), ()),
        ("lxc", RANGE, (f"docker run --sysctl {RANGE}='1 2' …", f"podman run --sysctl {RANGE}='1 2' …"), ()),
        # a pod may set it without anybody's leave; it may not set this one before 1.32
        ("kubernetes", RANGE, (), (f'securityContext: {{sysctls: [{{name: {RANGE}, value: "1 2"}}]}}   # of the pod',)),
        (
            "kubernetes",
            "net.core.somaxconn",
            (),
            (
                'securityContext: {sysctls: [{name: net.core.somaxconn, value: "1 2"}]}   # of the pod',
                "kubelet --allowed-unsafe-sysctls=net.core.somaxconn   # needed: not in the safe set",
            ),
        ),
    ],
)
def test_a_sysctl_where_the_job_will_see_it(
    runtime: str | None, name: str, commands: tuple[str, ...], persistent: tuple[str, ...]
) -> None:
    fix = fix_sysctl(at(runtime), name, "1 2")
    assert (fix.commands, fix.persistent) == (commands, persistent)


@pytest.mark.parametrize(
    ("runtime", "name"),
    [
        ("enroot", RANGE),
        ("apptainer", RANGE),
        ("docker", "net.core.rmem_max"),
        ("kubernetes", "net.ipv4.tcp_mem"),
        ("podman", "vm.x"),
    ],
)
def test_what_a_container_shares_with_its_host_is_set_there(runtime: str, name: str) -> None:
    fix = fix_sysctl(at(runtime), name, "7")
    assert fix.summary.endswith("on the node")
    assert fix.commands == (f"sysctl -w {name}=7",)


RESERVED = "net.ipv4.ip_local_reserved_ports"
TWO = f'{{name: {RESERVED}, value: "1,3-4"}}, {{name: {RANGE}, value: "1 2"}}'


@pytest.mark.parametrize(
    ("runtime", "commands", "persistent"),
    [
        (
            None,
            (f"sysctl -w {RESERVED}=1,3-4", f"sysctl -w {RANGE}='1 2'"),
            (f"echo '{RESERVED} = 1,3-4' >> {SYSCTL_FILE}", f"echo '{RANGE} = 1 2' >> {SYSCTL_FILE}"),
        ),
        ("docker", (f"docker run --sysctl {RESERVED}=1,3-4 --sysctl {RANGE}='1 2' …",), ()),
        # podman takes the flag's value apart at commas, as CSV
        ("podman", (f"podman run --sysctl '\"{RESERVED}=1,3-4\"' --sysctl {RANGE}='1 2' …",), ()),
        (
            "kubernetes",
            (),
            (
                f"securityContext: {{sysctls: [{TWO}]}}   # of the pod",
                f"kubelet --allowed-unsafe-sysctls={RESERVED}   # needed before Kubernetes 1.27: not in the safe set",
            ),
        ),
    ],
)
def test_sysctls_that_belong_together_are_one_mend_in_order(
    runtime: str | None, commands: tuple[str, ...], persistent: tuple[str, ...]
) -> None:
    fix = fix_sysctl(at(runtime), RESERVED, "1,3-4", (RANGE, "1 2"))
    assert (fix.commands, fix.persistent) == (commands, persistent)
    assert f"set {RESERVED} to 1,3-4 and {RANGE} to 1 2" in fix.summary


def test_two_sysctls_do_not_overwrite_each_other() -> None:
    assert all(" >> " in line for name in ("a.b", "c.d") for line in fix_sysctl(at(None), name, "1").persistent)


def test_values_are_quoted_for_the_shell() -> None:
    (command,) = fix_sysctl(at(None), "net.ipv4.x", "1; rm -rf /").commands
    assert shlex.split(command) == ["sysctl", "-w", "net.ipv4.x=1; rm -rf /"]
    (command,) = fix_environment(at(None), "NCCL_SOCKET_IFNAME==$(id)").commands
    assert shlex.split(command) == ["export", "NCCL_SOCKET_IFNAME==$(id)"]


def test_a_module_is_loaded_now_and_at_boot() -> None:
    assert fix_module("nvidia-peermem") == Fix(
        "load the kernel module nvidia-peermem on the node",
        ("modprobe nvidia-peermem",),
        ("echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf",),
    )


@pytest.mark.parametrize(
    ("runtime", "unset", "lasting"),
    [
        (None, False, "in the job script, or /etc/nccl.conf for every job of the node"),
        (None, True, "take NCCL_X out of the job script, of what it sources and of /etc/nccl.conf"),
        ("docker", False, "docker run -e NCCL_X==y …"),
        ("kubernetes", False, 'env: [{name: NCCL_X, value: "=y"}]   # of the container in the pod spec'),
        ("kubernetes", True, "take NCCL_X out of env: of the container in the pod spec"),
    ],
)
def test_a_variable_where_the_job_gets_it(runtime: str | None, unset: bool, lasting: str) -> None:
    fix = fix_environment(at(runtime), "NCCL_X" if unset else "NCCL_X==y", unset=unset)
    assert fix.persistent == (lasting,)
    assert fix.commands == (("unset NCCL_X",) if unset else ("export NCCL_X==y",))


def test_only_ncclvariables_go_into_nccl_conf() -> None:
    assert "nccl.conf" not in fix_environment(at(None), "GLOO_SOCKET_IFNAME=ib0").persistent[0]


@pytest.mark.parametrize("need", CONTAINER_FLAGS)
@pytest.mark.parametrize("runtime", [*RUNTIMES, "lxc", "unknown container"])
def test_a_container_need_has_a_mend_everywhere(need: str, runtime: str | None) -> None:
    fix = fix_container(at(runtime), need)
    assert fix.summary
    assert fix.commands or fix.persistent
    if runtime in CONTAINER_FLAGS[need]:
        assert (*fix.commands, *fix.persistent) == (CONTAINER_FLAGS[need][runtime or ""],)
    for command in fix.commands:
        assert re.match(r"[a-z][a-z0-9-]* [^=]", command), "what a unit's file or a pod's spec has is no command"


def test_devices_memlock_and_shm_know_every_runtime() -> None:
    for need in ("devices", "memlock", "shm"):
        assert set(CONTAINER_FLAGS[need]) == {r for r in RUNTIMES if r}


def test_mends_name_every_place_once() -> None:
    places = [place for where, _ in mends("bootstrap_ports") for place in where]
    assert sorted(places) == sorted(["host", *(r for r in RUNTIMES if r)])
    assert ("enroot", "apptainer") in [where for where, _ in mends("bootstrap_ports")]


@pytest.mark.parametrize("cause", CAUSES)
def test_mends_are_whole(cause: str) -> None:
    for where, fix in mends(cause):
        assert where
        assert fix.summary
        assert fix.commands or fix.persistent


def test_causes_have_references_and_costs() -> None:
    for name, row in CAUSES.items():
        assert row.name == name
        assert row.title and row.costs
        assert row.references or name in {"other", "drift", "missing_node"}  # nothing to read about those
        assert not row.title.endswith(".")


def test_causes_name_checks_that_there_are() -> None:
    ids = {spec.id for spec in load(dropin_dir="/nonexistent", search=[]).specs}
    assert {name for row in CAUSES.values() for name in row.look} <= ids


@pytest.mark.parametrize("name", ["NCCL_X;reboot", "NCCL_$(reboot)", "NCCL_X y"])
@pytest.mark.parametrize("runtime", [None, "docker", "podman"])
def test_a_variable_with_a_name_that_a_shell_would_run(name: str, runtime: str | None) -> None:
    for fix in (fix_environment(at(runtime), name, unset=True), fix_environment(at(runtime), f"{name}=1")):
        assert all(f"'{name}'" in line for line in (*fix.commands, *(fix.persistent if runtime else ())))


def test_lspci_gets_an_address_and_ibstat_no_interface_alone() -> None:
    """`lspci -s mlx5_5` is "Invalid bus number": of an RDMA device sysfs has the address."""
    text = (Path(__file__).parents[2] / "fixtures/faults/golden.json").read_text(encoding="utf-8")
    places = set(re.findall(r"lspci -vv -s (\S+)", text))
    assert places and all(re.match(r"[0-9a-f]{4,}:|\$\(basename", place) for place in places)
    assert not re.search(r'ibstat e[nt]\w+"', text) and "ibstat eno1 || ethtool eno1" in text


def test_no_mend_overwrites_what_another_has_written() -> None:
    """Whoever follows two mends has both: a file that is written anew belongs to one line alone."""
    texts = [
        path.read_text().replace("{SYSCTL_FILE}", SYSCTL_FILE)
        for folder in ("netdoctor", "checks")
        for path in (ROOT / folder).rglob("*.py")
    ]
    anew, added = defaultdict[str, set[str]](set), set[str]()
    for line, sign, file in (found for text in texts for found in re.findall(r"echo ([^>]*?) (>>?) (/[^\s\"']+)", text)):
        (added.add(file) if sign == ">>" else anew[file].add(line))
    assert len(anew) > 5 and added
    assert {file: lines for file, lines in anew.items() if len(lines) > 1 or file in added} == {}


def test_smpquery_is_told_whom_to_ask() -> None:
    """Without a destination it prints its usage (`argc < 2` of smpquery.c), and LID 0 is none (IB_LID_VALID of mad.h): a port
    asks itself by the direct route 0."""
    text = (ROOT / "fixtures/faults/golden.json").read_text(encoding="utf-8")
    asked = re.findall(r'"smpquery ([^"]*)', text)
    assert len(asked) > 2 and all(re.match(r"-C \S+ -D \w+ 0\b", one) for one in asked), asked
