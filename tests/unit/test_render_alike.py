"""Devices that have the same fault are one block: their names together, and one mend that goes over all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.causes.limits import Written
from netdoctor.model import Finding, Fix, Severity, Status
from netdoctor.report import alike, blocks, fold
from netdoctor.report.html import render as page
from netdoctor.report.text import render
from tests.support.facts.reports import check, report

BAD = Severity.CRITICAL


def links(subject: str, *commands: str, said: str = "NVLinks up 14", **more: Any) -> Finding:
    return Finding(Status.FAIL, f"{subject}: {said}", subject, BAD, fix=Fix("look for errors", commands), **more)


def of_gpus(*addresses: str) -> list[Finding]:
    return [links(f"GPU {one}", f"nvidia-smi nvlink -s -i {one}   # the links", "dmesg | grep -i xid") for one in addresses]


def test_one_mend_goes_over_all_devices() -> None:
    one = report(check("hardware.gpus", *of_gpus("0000:43:00.0", "0000:1b:00.0")))
    text = render(one)
    assert "[critical] GPUs 0000:1b:00.0, 0000:43:00.0 (2 of 2): NVLinks up 14\n" in text
    loop = "for x in 0000:1b:00.0 0000:43:00.0; do nvidia-smi nvlink -s -i $x; done   # the links"
    assert text.count(loop) == 2 and f"first: look for errors: {loop}\n" in text  # as the first step, and as the mend
    assert text.count("dmesg | grep -i xid") == 1 and text.count("FAIL") == 1
    assert page(one).count("do nvidia-smi nvlink -s -i $x; done") == 2
    step = fold.first_step(one)
    assert step is not None and step.of in one.checks[0].findings


def test_a_lone_device_keeps_its_own_mend() -> None:
    (block,) = blocks.wrong([check("hardware.gpus", *of_gpus("0000:1b:00.0"))])
    assert block.fix == block.first.fix and block.text == "GPU 0000:1b:00.0: NVLinks up 14"


@pytest.mark.parametrize(
    ("commands", "merged"),
    [
        (("ibstat mlx5_3", "ibstat mlx5_10"), "for x in mlx5_3 mlx5_10; do ibstat $x; done"),
        (("dmesg | grep -e mlx5_3", "dmesg | grep -e mlx5_10"), "dmesg | grep -e mlx5_3 -e mlx5_10"),
        (("cat /sys/class/infiniband/mlx5_3/fw_ver", "cat /sys/class/infiniband/mlx5_10/fw_ver"), "infiniband/$x/fw_ver; done"),
        (("export NCCL_IB_HCA=mlx5_3", "export NCCL_IB_HCA=mlx5_10"), ""),  # a variable has one value
        (("sh -c 'ibstat mlx5_3'", "sh -c 'ibstat mlx5_10'"), ""),  # a shell expands nothing there
        (("ibstat mlx5_31", "ibstat mlx5_31"), "ibstat mlx5_31"),  # another's name, which begins with it
        (("ibstat mlx5_3 # it", "ibstat mlx5_10 # it"), "for x in mlx5_3 mlx5_10; do ibstat $x; done # it"),
        (("x 'a # b' mlx5_3", "x 'a # b' mlx5_10"), "for x in mlx5_3 mlx5_10; do x 'a # b' $x; done"),
        ((Written("devices: mlx5_3"), Written("devices: mlx5_10")), ""),
        (("ibstat mlx5_3", "ibstat mlx5_9"), ""),  # of somebody else
    ],
)
def test_what_a_shell_can_do_for_each(commands: tuple[str, str], merged: str) -> None:
    found = [links(name, command) for name, command in zip(("mlx5_3", "mlx5_10"), commands, strict=True)]
    some = blocks.wrong([check("rdma.x", *found)])
    assert len(some) == (1 if merged else 2)
    assert some[0].fix is not None and some[0].fix.commands[0].endswith(merged or commands[0])


def test_words_are_no_command_of_a_loop() -> None:
    """What lasts is often a line of a file, of a spec, or a sentence."""

    def lasting(one: str, line: str) -> Finding:
        return replace(links(one), fix=Fix("see", (f"ip link show {one}",), (line.format(one),)))

    for line, loops in (("MTUBytes=9000 for {} in systemd.network", False), ("echo {} >> /etc/x", True)):
        some = blocks.wrong([check("net.x", *(lasting(one, line) for one in ("eth0", "eth1")))])
        assert len(some) == (1 if loops else 2) and some[0].fix is not None
        assert some[0].fix.persistent[0].startswith("for x in") is loops


def test_pairs_are_named_beside_the_first() -> None:
    found = [links(f"GPU{n}–mlx5_{n}", f"bind GPU{n} mlx5_{n}") for n in (0, 1)]
    (block,) = blocks.wrong([check("rdma.x", *found)])
    assert block.fix is not None and block.fix.commands == ("bind GPU0 mlx5_0   # likewise: GPU1 and mlx5_1",)


def test_two_faults_of_each_device_are_two_lines() -> None:
    subjects = [f"GPU 0000:{bus}:00.0 under load" for bus in ("1b", "43")]
    found = [links(one, said=said, expected=said) for said in ("the power supply's brake", "990 MHz") for one in subjects]
    text = render(report(check("gpu.health", *found)))
    both = "GPUs 0000:1b:00.0, 0000:43:00.0 under load"
    assert (
        f"{both} (4 of 4): 2 faults have one mend\n         {both}: the power supply's brake\n         {both}: 990 MHz\n"
        in text
    )
    assert text.index("expected") < text.index("mend      look")


def test_others_that_fail_too_are_called_so() -> None:
    other = Finding(Status.FAIL, "hot", "GPU 2", BAD, fix=Fix("cool it"))
    fine = Finding(Status.PASS, "fine", "GPU 3")
    text = render(report(check("gpu.health", *of_gpus("0000:1b:00.0"), other, fine)))
    assert "GPU 0000:1b:00.0 (1 of 3; 1 more fail, 1 pass): NVLinks up 14" in text


@pytest.mark.parametrize(
    ("subjects", "said"),
    [
        (["mlx5_10", "mlx5_3"], "mlx5_3, mlx5_10"),
        (["NVSwitch 0000:05:00.0", "NVSwitch 0000:06:00.0"], "NVSwitches 0000:05:00.0, 0000:06:00.0"),
        (["GPU 0000:1b:00.0", "GPU 0000:1b:00.0 under load"], "GPU 0000:1b:00.0"),
        (["kernel", "GPU 0000:1b:00.0", "tasks"], "kernel, tasks, GPU 0000:1b:00.0"),
    ],
)
def test_names_of_one_kind_stand_together(subjects: list[str], said: str) -> None:
    assert alike.who(subjects) == said


def test_a_subject_is_said_once_in_the_long_report() -> None:
    found = (*of_gpus("0000:1b:00.0"), links("GPU 0000:43:00.0", said="12 links"))
    for some in (found, found[:1]):
        text = render(report(check("hardware.gpus", *some)), verbose=True)
        assert "GPU 0000:1b:00.0: NVLinks up 14" in text and "GPU 0000:1b:00.0: GPU" not in text


def test_what_was_not_found_is_no_evidence() -> None:
    one = Finding(Status.FAIL, "it hangs", severity=BAD, evidence={"phase": "", "ranks": [], "seconds": 0, "file": "a"})
    assert "evidence  seconds: 0; file: a\n" in render(report(check("allreduce.run", one)))
