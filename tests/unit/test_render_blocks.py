"""Findings that have one answer are one block, and nothing that one of them says is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from netdoctor.facts.runs import WITH_RUN
from netdoctor.facts.vantage import FROM_JOB
from netdoctor.model import Finding, Fix, Severity, Status
from netdoctor.report.html import render as page
from netdoctor.report.text import render
from tests.support.facts.reports import check, report


def _fail(number: int, **more: Any) -> Finding:
    subject = f"mlx5_{number}"
    return Finding(
        Status.FAIL, f"{subject} cannot be opened", subject, Severity.CRITICAL, fix=Fix("mode 0666", ("chmod",)), **more
    )


def test_faults_of_one_mend_are_one_block_with_what_each_says() -> None:
    one, two = _fail(0, why="its owner"), _fail(1, why="its mode")
    other = Finding(Status.FAIL, "limit 64", severity=Severity.CRITICAL, fix=one.fix, cause="memlock")
    apart = replace(one, severity=Severity.WARNING)
    for checks, head in (
        ([check("a.b", one, two)], "a.b  [critical] mlx5_0, mlx5_1 (2 of 2): 2 faults have one mend"),
        ([check("a.b", one), check("c.d", other)], "[critical] 2 checks have one mend: a.b, c.d"),
    ):
        text = render(report(*checks))
        assert [line for line in text.splitlines() if line.startswith("FAIL")] == [f"FAIL     {head}"]
        for said in ("mlx5_0 cannot be opened\n", "its owner", "limit 64" if "c.d" in head else "its mode"):
            assert said in text
        assert text.count("chmod") == 2 and "could not tell" not in text
        shown = page(report(*checks))
        assert "its owner" in shown and ("limit 64" if "c.d" in head else "its mode") in shown
    assert sum(line.startswith("FAIL") for line in render(report(check("a.b", apart), check("c.d", two))).splitlines()) == 2


def test_faults_of_other_kinds_are_not_called_alike() -> None:
    """A kernel that calls itself tainted and a NIC's firmware: one reboot mends both."""
    mend, bad = Fix("reboot the node"), Severity.CRITICAL
    words = {"kernel": "it calls itself tainted", "PCI 0000:3b:00.0": "the firmware of PCI 0000:3b:00.0 failed"}
    said = render(report(check("node.system", *(Finding(Status.FAIL, text, on, bad, fix=mend) for on, text in words.items()))))
    assert "firmware of PCI 0000:3b:00.0 failed" in said and "tainted" in said and "alike" not in said
    links = (Finding(Status.FAIL, f"link {n} of GPU {n} is down", f"GPU {n}", bad, fix=mend) for n in range(4))
    assert "and 3 alike" in render(report(check("gpu.fabric", *links)))


def test_who_saw_something_is_not_among_those_who_saw_nothing() -> None:
    nobody = [check(name, Finding(Status.UNKNOWN, "x was not seen", how=WITH_RUN)) for name in ("gpu.health", "net.errors")]
    refused = Finding(Status.UNKNOWN, "a child was refused: No space left", how=WITH_RUN, evidence={"free": 0})
    text = render(report(*nobody, check("nccl.shared_memory", refused)))
    assert "a child was refused: No space left" in text and "2 checks need an all-reduce" in text


def test_one_reason_and_one_way_out_are_one_block() -> None:
    """Some share a reason, one of these has the way out, and others share that: a pod that was given no GPU."""
    lost, way = "could not be read: NVML: not found", "resources: {limits: {nvidia.com/gpu: N}}"
    some = [
        check("gpu.fabric", Finding(Status.UNKNOWN, f"the fabric {lost}")),
        check("gpu.mapping", Finding(Status.UNKNOWN, f"the mapping {lost}", how=way)),
        check("torch.backend", Finding(Status.UNKNOWN, "no driver library shows any GPU", how=way)),
        check("allreduce.run", Finding(Status.UNKNOWN, "NCCL did not run", how=way, measured={"seconds": 6.5})),
    ]
    lines = render(report(*some)).splitlines()
    (head,) = (line for line in lines if line.startswith("UNKNOWN"))
    assert head.startswith("UNKNOWN  4 checks could not tell: ") and f"         find out  {way}" in lines
    assert "         gpu.fabric, gpu.mapping: NVML: not found" in lines and lines.count(f"first: {way}") == 1
    other = replace(some[1].findings[0], how="nvidia-smi -L")
    assert sum(x.startswith("UNKNOWN") for x in render(report(*some, check("gpu.other", other))).splitlines()) == 2


def test_an_all_reduce_that_did_not_start_says_its_reason_once() -> None:
    why = "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)"
    run = Finding(Status.UNKNOWN, f"the all-reduce did not start: {why}", how="see hardware.accelerator")
    path = Finding(Status.UNKNOWN, f"the inter-node path was not tried: {why}", "inter-node")
    mapping = Finding(Status.UNKNOWN, f"which rank gets which GPU could not be read: {why}", how="nvidia-smi -L")
    text = render(report(check("allreduce.run", run, path), check("gpu.mapping", mapping)))
    assert text.count(why) == 1 and "allreduce.run, gpu.mapping" in text


def test_what_lacks_one_thing_is_one_block() -> None:
    """Root's look at a node: what needs the job's own view is one line, whatever else a check has to say; -v has that."""
    port = Finding(Status.UNKNOWN, "28,232 ports here", "listeners", evidence={"range": "32768 60999"}, how=FROM_JOB)
    script = Finding(Status.UNKNOWN, "the variables are not seen", how=FROM_JOB, notes=("netdoctor env judges a script",))
    reach = Finding(Status.UNKNOWN, "hosts are reached from the job's network", "hosts", how=FROM_JOB)
    mended = replace(reach, fix=Fix("name it", ("export A=b",)))
    seen = (check("net.port_range", port), check("nccl.environment", script), check("net.reach", reach))
    run = Finding(Status.UNKNOWN, "torch was not asked: --no-allreduce", how=WITH_RUN)
    runs = (check("torch.backend", run), check("allreduce.run", replace(run, message="no all-reduce was run: --no-allreduce")))
    one = report(*seen, check("net.name", mended), *runs)
    assert [line for line in render(one).splitlines() if line.startswith("UNKNOWN")] == [
        f"UNKNOWN  3 checks need the job's own view: {FROM_JOB}",
        "UNKNOWN  net.name  hosts are reached from the job's network",  # it has a mend of its own
        f"UNKNOWN  2 checks need an all-reduce (--no-allreduce): {WITH_RUN}",
    ]
    assert "\n         nccl.environment; net: port_range, reach\n" in render(one)
    assert "<p>nccl.environment; net: port_range, reach</p>" in page(one)
    for words in ("32768 60999", "judges a script"):
        assert words not in render(one) and words in render(one, verbose=True)
    alone = render(report(check("net.reach", reach)))
    assert "UNKNOWN  net.reach  hosts are reached" in alone and f"find out  {FROM_JOB}" in alone


def test_what_stands_in_an_all_reduces_way_is_told_once() -> None:
    """Who has no torch must not be sent to another all-reduce."""
    why, way = "no torch in /usr/bin/python3", "give the Python that has the job's torch: --python PATH"
    run = check("allreduce.run", Finding(Status.UNKNOWN, f"the all-reduce did not start: {why}", how=way))
    links = Finding(Status.UNKNOWN, f"whether links have errors was not seen: {why}", "links", how=WITH_RUN)
    lines = render(report(run, check("net.errors", links))).splitlines()
    assert f"UNKNOWN  2 checks could not tell: allreduce.run, net.errors: {why}" in lines
    assert f"         find out  {way}" in lines and WITH_RUN not in str(lines)


def test_beside_a_fail_what_could_not_be_told_is_one_block() -> None:
    """A driver that is not ready leaves many checks without an answer: its mend comes first, and each reason is a line."""
    way = "nvidia-smi -L"
    lost = "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)"
    not_ready = [check(f"gpu.c{n}", Finding(Status.UNKNOWN, f"thing {n} could not be read: {lost}", how=way)) for n in range(6)]
    sockets = check("net.sockets", Finding(Status.UNKNOWN, "NET/Socket takes eth0", "eth0", how="run the all-reduce"))
    speed = check("net.speed", Finding(Status.UNKNOWN, "the speed is not known", how="ethtool eth0", measured={"mbps": 0}))
    fabric = check("gpu.fabric", Finding(Status.FAIL, "802", severity=Severity.CRITICAL, fix=Fix("start it", ("systemctl",))))
    lines = render(report(fabric, *not_ready, sockets, speed)).splitlines()
    assert [line for line in lines if line.startswith("UNKNOWN")] == [
        "UNKNOWN  7 checks could not tell either: mend what fails, then look again",
        "UNKNOWN  net.speed   the speed is not known",  # its figure is told of it alone
    ]
    assert f"         {', '.join(f'gpu.c{n}' for n in range(6))}: {lost}" in lines
    assert "         net.sockets: eth0: NET/Socket takes eth0" in lines
    assert f"         find out  {way}" in lines and "                   run the all-reduce" in lines
    assert "<p>net.sockets: eth0: NET/Socket takes eth0</p>" in page(report(fabric, *not_ready, sockets))
    known = report(replace(fabric, findings=(replace(fabric.findings[0], severity=Severity.INFO),)), *not_ready, sockets)
    assert sum(line.startswith("UNKNOWN") for line in render(known).splitlines()) == 2  # nothing that counts fails


def test_a_subject_is_named_once() -> None:
    one = Finding(Status.FAIL, "GPU 1: a row waits", "GPU 1", Severity.CRITICAL)
    told = render(report(check("gpu.health", one, Finding(Status.PASS, "no errors", "GPU 2"))))
    assert "gpu.health  [critical] GPU 1 (1 of 2; 1 pass): a row waits\n" in told
    assert "gpu.health</b>: GPU 1: a row waits" in page(report(check("gpu.health", one)))


def test_one_fault_of_eight_devices_is_one_block() -> None:
    eight = check("rdma.dev_infiniband", *(_fail(n) for n in range(8)), Finding(Status.PASS, "opens", "mlx5_8"))
    lines = render(report(eight)).splitlines()
    assert sum(line.startswith("FAIL") for line in lines) == 1
    assert (
        "mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7 (8 of 9; 1 pass): mlx5_{0..7} cannot be opened"
        in str(lines)
    )
    assert str(lines).count("chmod") == 2  # in the head, and in the block


def test_unknowns_with_one_way_out_are_one_line() -> None:
    how = "netdoctor run -- CMD"
    checks = [check(f"site.c{n}", Finding(Status.UNKNOWN, f"limit {n} is not seen", how=how)) for n in range(8)]
    other = check("site.other", Finding(Status.UNKNOWN, "no answer", how="ethtool eth0"))
    lines = render(report(*checks, other)).splitlines()
    assert [line for line in lines if line.startswith("UNKNOWN")] == [
        "UNKNOWN  8 checks could not tell: " + ", ".join(f"site.c{n}" for n in range(8)),
        "UNKNOWN  site.other  no answer",
    ]
    assert [line.split("find out")[1].strip() for line in lines if "find out" in line] == [how, "ethtool eth0"]


def test_a_few_checks_of_one_answer_keep_their_words() -> None:
    some = [check(f"a.c{n}", Finding(Status.UNKNOWN, f"words {n}", how="nvidia-smi -L")) for n in range(6)]
    few, many = (render(report(*part)).splitlines() for part in (some[:3], some))
    assert [f"         a.c{n}: words {n}" in few for n in range(3)] == [True] * 3
    assert not any("words 1" in line for line in many)
    assert "<p>a.c1: words 1</p>" in page(report(*some[:3]))


def test_a_mend_that_is_no_command_is_the_first_step() -> None:
    """A line of a unit's file has no command that it would make last."""
    mend = Fix("raise it", (), ("LimitNOFILE=65536",))
    text = render(report(check("a.b", Finding(Status.FAIL, "64 files", severity=Severity.CRITICAL, fix=mend))))
    assert "\nfirst: raise it: LimitNOFILE=65536\n" in text and "to last" not in text
    both = replace(mend, commands=("ulimit -n 65536",))
    text = render(report(check("a.b", Finding(Status.FAIL, "64 files", severity=Severity.CRITICAL, fix=both))))
    assert "\nfirst: raise it: ulimit -n 65536\n" in text and "to last   LimitNOFILE=65536\n" in text
