"""The Slurm scripts on a real slurmctld with four slurmd, each on a machine of its own."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests.support.clusters import slurm

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = [
    pytest.mark.live,
    pytest.mark.root,
    pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not() or "-"),
]

MORE = """\
Prolog=/etc/slurm/netdoctor/prolog.sh
PrologFlags=Alloc
Epilog=/etc/slurm/netdoctor/epilog.sh
PrologEpilogTimeout=90
BatchStartTimeout=120
TaskProlog=/etc/slurm/netdoctor/task_prolog.sh
HealthCheckProgram=/etc/slurm/netdoctor/health_check.sh
HealthCheckNodeState=ANY
HealthCheckInterval=0
"""
SCENARIO = r"""
seen = {}
sh(f"{sys.executable} -I {PYZ} deploy slurm --to {SCRIPTS} >/dev/null")
settings()
def job(name, *argv, seconds=60):
    return text("srun", "-w", name, *(argv or ("hostname",)), seconds=seconds)
def health_checks(seconds):
    conf = pathlib.Path("/etc/slurm/slurm.conf")
    lines = [l for l in conf.read_text().splitlines() if not l.startswith("HealthCheckInterval")]
    conf.write_text("\n".join(lines) + f"\nHealthCheckInterval={seconds}\n")
    sh("scontrol reconfigure")

# One node lost a card; jobs go to all of them.
machine("n3", 7)
seen["jobs"] = dict(zip(NODES, together(*(lambda name=name: job(name) for name in NODES))))
wait_for(lambda: drained() and "COMPLETING" not in str(states()))
seen["after jobs"] = states()
seen["kept"] = {p.name: json.loads(p.read_text()) for p in pathlib.Path("/var/lib/netdoctor-slurm").glob("*")}
seen["prolog log"] = pathlib.Path("/run/slurm/slurmd-n3.log").read_text()

seen["asleep"] = [c for c in map(command, processes()) if c.startswith("sleep")]

# The one file was tried; an installed netdoctor starts faster.
PROGRAM = f"{sys.executable} -I -m netdoctor"
settings()

# netdoctor breaks, in every way; the other nodes are as bad as n3, so that nothing but the defect keeps them in service.
for name in ("n1", "n2", "n4"):
    machine(name, 7)
broken = {
    "raises": {"NETDOCTOR": f"{sys.executable} -c 1/0"},
    "is killed": {"NETDOCTOR": "/etc/slurm/netdoctor/killed"},
    "usage": {"NETDOCTOR": f"{sys.executable} -I {PYZ} --no-such-option"},
    "unhealthy without a report": {"NETDOCTOR": f"{sys.executable} -c exit(3)"},
    "a report that says otherwise": {"NETDOCTOR": "/etc/slurm/netdoctor/lies"},
    "inconclusive": {"NETDOCTOR": "/etc/slurm/netdoctor/inconclusive"},
    "hangs": {"NETDOCTOR": "/usr/bin/sleep 600", "DEADLINE": "1"},
    "hangs and ignores TERM": {"NETDOCTOR": "/etc/slurm/netdoctor/deaf", "DEADLINE": "1"},
    "no interpreter": {"PYTHON": "/nonexistent/python3"},
    "interpreter on a file system that hangs": {"PYTHON": "/etc/slurm/netdoctor/stuck", "DEADLINE": "1"},
    "no netdoctor": {"NETDOCTOR": "/nonexistent/netdoctor"},
    "settings with a typing error": {"DEADLINE": "'("},
    "a deadline that is no number": {"DEADLINE": "1x"},
}
def script(name, body):
    path = pathlib.Path(SCRIPTS, name)
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
script("lies", f"{sys.executable} -I {PYZ} \"$@\"; exit 4\n")
script("killed", "kill -9 $$\n")
script("inconclusive", "printf '%s' '" + json.dumps({"schema": "netdoctor.report/1", "checks": [{"id": "a.b",
    "status": "unknown", "findings": [{"check": "a.b", "status": "unknown", "blocking": True, "message": "?"}]}],
    "verdict": {"status": "inconclusive", "exit_code": 4, "text": "inconclusive: a.b"}}) + "'; exit 4\n")
script("deaf", "trap '' TERM; while :; do sleep 5; done\n")
# stands for a process that no signal ends: its supervisor is stopped and can do nothing about it
script("stuck", "kill -STOP $PPID; exec sleep 600\n")
def breaks(name, *whats):
    for what in whats:
        settings_of(name, **broken[what])
        one = {"node": name, "job": job(name), "drained": drained()}
        wait_for(lambda: "COMPLETING" not in node(name)["state"])
        seen["broken"][what] = one | {"after": node(name)}
def stuck_health_check(name):
    settings_of(name, DEADLINE="1", PYTHON=SCRIPTS + "/stuck")
    seen["stuck health check"] = inside(name, SCRIPTS + "/health_check.sh")
seen["broken"] = {}
slow = ("interpreter on a file system that hangs", "hangs and ignores TERM")
together(lambda: breaks("n4", slow[0]), lambda: (breaks("n2", slow[1]), stuck_health_check("n2")),
         lambda: breaks("n1", *(what for what in broken if what not in slow)))
for name in ("n1", "n2", "n4"):
    settings_of(name)
left = {p: command(p) for p in processes()}
seen["left"] = [c for c in left.values() if "sleep 600" in c or "deaf" in c]
for p, c in left.items():  # those whose supervisors were stopped
    if "sleep 600" in c:
        os.kill(p, signal.SIGKILL)
settings(ACTION="report")
seen["report only"] = [job("n1"), drained()]
wait_for(lambda: "COMPLETING" not in node("n1")["state"])

# What the site asks for.
settings(ON_UNKNOWN="drain", NETDOCTOR="/etc/slurm/netdoctor/inconclusive")
machine("n4", 8)
seen["site asks"] = [job("n4"), wait_for(lambda: "DRAIN" in node("n4")["state"]), node("n4")]
settings()
seen["undo"] = inside("n4", sys.executable, "-I", SCRIPTS + "/netdoctor_slurm.py", "undo",
                      env={**os.environ, "STATE": "/var/lib/netdoctor-slurm"}), node("n4")

# Only our own is undone: n2 is drained by somebody who copied our very words.
for name in ("n1", "n2", "n4"):
    machine(name, 8)
ours = node("n3")["reason"].rpartition(" [")[0]
sh(f"scontrol update NodeName=n2 State=DRAIN 'Reason={ours}'")
kept = pathlib.Path("/var/lib/netdoctor-slurm")
forged = json.loads((kept / "n3.json").read_text()) | {"node": "n2"}
(kept / "n2.json").write_text(json.dumps(forged))
settings(RESUME="yes")
seen["n3 stays"] = inside("n3", SCRIPTS + "/health_check.sh"), node("n3")
# Meanwhile the health check finds a fault on n4, where nobody's job starts.
machine("n3", 8)
machine("n4", 5)
health_checks(2)
seen["n3 back"] = wait_for(lambda: not ("DRAIN" in node("n3")["state"]) and node("n3"), 60)
seen["n4 drained"] = wait_for(lambda: "DRAIN" in node("n4")["state"] and node("n4"), 60)
health_checks(0)
seen["n2 by hand"] = inside("n2", SCRIPTS + "/health_check.sh"), node("n2")
seen["health again"] = inside("n4", SCRIPTS + "/health_check.sh"), node("n4")
seen["controller log"] = pathlib.Path("/run/slurm/slurmctld.log").read_text()
seen["slurmd log"] = pathlib.Path("/run/slurm/slurmd-n4.log").read_text()

# A job breaks its node: the Epilog.
wait_to_go = "touch /run/started-$SLURM_PROCID; until [ -e /run/go ]; do sleep 0.05; done"
running = subprocess.Popen(["srun", "-w", "n1", "-n", "2", "sh", "-c", wait_to_go], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
wait_for(lambda: os.path.exists("/run/started-0") and os.path.exists("/run/started-1"), 60)
machine("n1", 6)
pathlib.Path("/run/go").touch()
seen["task prolog"] = running.communicate(timeout=60)[0]
seen["epilog"] = wait_for(lambda: "DRAIN" in node("n1")["state"] and "COMPLETING" not in node("n1")["state"] and node("n1"), 60)

# A controller that does not answer is not waited for, and is no verdict.
script("scontrol", "exec sleep 600\n")
machine("n3", 7)
settings(SCONTROL=SCRIPTS + "/scontrol")
seen["no controller"] = inside("n3", SCRIPTS + "/health_check.sh"), node("n3")
say(seen)
"""
FAULT = "netdoctor: rdma.dev_infiniband: 7 RDMA devices, 8 expected"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pyz = tmp_path_factory.mktemp("pyz") / "netdoctor.pyz"
    subprocess.run([sys.executable, ROOT / "tools" / "build_pyz.py", pyz], check=True, capture_output=True, timeout=120)
    return slurm.run(SCENARIO, str(pyz), more=MORE, timeout=400)


def test_one_bad_node_is_drained_with_its_reason_and_no_other(seen: Any) -> None:
    after = seen["after jobs"]
    assert "DRAIN" in after["n3"]["state"] and after["n3"]["reason"].startswith(FAULT), after
    assert {name: one["state"] for name, one in after.items() if name != "n3"} == dict.fromkeys(("n1", "n2", "n4"), "IDLE")
    assert [name for name, one in seen["jobs"].items() if one["exit"]] == ["n3"]
    assert all(name in one["out"] for name, one in seen["jobs"].items() if name != "n3")
    assert list(seen["kept"]) == ["n3.json"]
    assert seen["kept"]["n3.json"]["reason"] == FAULT
    assert seen["kept"]["n3.json"]["fails"] == [{"check": "rdma.dev_infiniband", "subject": "count"}]
    assert FAULT in seen["prolog log"]
    assert seen["asleep"] == []  # no watchdog outlives its script


def test_a_defect_of_netdoctor_drains_nobody_and_stops_no_job(seen: Any) -> None:
    assert len(seen["broken"]) == 13
    for what, one in seen["broken"].items():
        assert one["job"]["exit"] == 0 and one["node"] in one["job"]["out"], (what, one)
        assert one["drained"] == ["n3"] and "DRAIN" not in one["after"]["state"], (what, one)
    assert seen["left"] and set(seen["left"]) == {"sleep 600"}  # what no signal ends is left behind, not waited for
    assert seen["stuck health check"]["exit"] == 0 and "left as it is" in seen["stuck health check"]["out"]


def test_a_site_that_only_wants_to_be_told(seen: Any) -> None:
    job, drained = seen["report only"]
    assert job["exit"] == 0 and drained == ["n3"]


def test_a_site_may_ask_to_drain_what_could_not_be_judged(seen: Any) -> None:
    job, _, node = seen["site asks"]
    assert job["exit"] != 0 and node["reason"].startswith("netdoctor: inconclusive: a.b")
    undone, after = seen["undo"]
    assert "resumed: our own drain" in undone["out"] and "DRAIN" not in after["state"]


def test_only_our_own_drain_is_undone_when_what_failed_passes(seen: Any) -> None:
    check, node = seen["n3 stays"]
    assert check["exit"] == 0 and "DRAIN" in node["state"] and node["reason"].startswith(FAULT)
    assert seen["n3 back"]["reason"] == ""
    check, node = seen["n2 by hand"]
    assert check["exit"] == 0 and "DRAIN" in node["state"] and node["reason"].startswith(FAULT)
    assert "left alone" in check["out"] and "resumed" not in check["out"]


def test_the_health_check_drains_and_exits_0(seen: Any) -> None:
    assert seen["n4 drained"]["reason"].startswith("netdoctor: rdma.dev_infiniband: 5 RDMA devices, 8 expected")
    check, node = seen["health again"]
    assert check["exit"] == 0 and "is drained already, by us" in check["out"] and node == seen["n4 drained"]
    assert "health_check failed" not in seen["slurmd log"] and "health_check failed" not in seen["controller log"]


def test_one_task_of_the_node_says_one_line_into_the_jobs_output(seen: Any) -> None:
    lines = [line for line in seen["task prolog"].splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith(("healthy:", "nothing failed ", "unhealthy:", "inconclusive:")), lines


def test_the_epilog_drains_a_node_that_the_job_broke(seen: Any) -> None:
    assert seen["epilog"]["reason"].startswith("netdoctor: rdma.dev_infiniband: 6 RDMA devices, 8 expected")


def test_a_controller_that_does_not_answer_is_not_waited_for(seen: Any) -> None:
    check, node = seen["no controller"]
    assert check["exit"] == 0 and "could not be drained" in check["out"] and "DRAIN" not in node["state"]
