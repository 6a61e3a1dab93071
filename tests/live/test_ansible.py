"""The Ansible collection against real sshd hosts, most of them with a fault of their own."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
from typing import Any

import jsonschema
import pytest

from tests.support.clusters import ssh

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.live
needs_hosts = pytest.mark.skipif(bool(ssh.why_not()), reason=ssh.why_not() or "-")
SCENARIO = r"""
PYZ = str(LAB / "netdoctor.pyz")
shutil.copy(sys.argv[2], PYZ)
def script(name, body, interpreter="/bin/sh"):
    path = LAB / name
    path.write_text(f"#!{interpreter}\n{body}")
    path.chmod(0o755)
    return str(path)
def runs(*argv):
    return f"audit_pyz='' audit_command='{json.dumps(argv)}'"
asked = ["--profile", "audit", "--no-allreduce", "--only", "hardware.accelerator", "--format", "json", "--quiet"]
good = subprocess.run([sys.executable, PYZ, "preflight", *asked], capture_output=True, text=True, check=True).stdout
def forged(change):
    report = json.loads(good)
    change(report)
    (LAB / "forged").mkdir(exist_ok=True)
    path = LAB / "forged" / f"{len(os.listdir(LAB / 'forged'))}.json"
    path.write_text(json.dumps(report))
    return runs("sh", "-c", f"cat {path} # ")
def hostile(report):
    report["identity"]["host"] = "hostile"
    report["checks"][0]["findings"][0]["message"] = (
        "{{ lookup('pipe', 'touch " + str(LAB) + "/pwned') }}\x1b[2J\"><script>alert(1)</script> $(id)")
(LAB / "site.yaml").write_text("expected: {hcas: 8}\n")
hide = "for p in /usr/bin/python3*; do [ -L $p ] || mount --bind /dev/null $p; done"
os.makedirs("/opt/python", exist_ok=True)
shutil.copy2(os.path.realpath("/usr/bin/python3"), "/opt/python/python3")
old = script("fake-old-python", "case \"$*\" in *version_info*) exit 1;; esac; exec /usr/bin/python3 \"$@\"\n")

for n in range(1, 4):
    host(f"gpu{n:02}")
host("domain", setup="hostname domain.cluster.example")
host("silent", setup="exec sleep 1000")
host("no-python", setup=hide)
host("old-python", variables=f"audit_interpreter={old}")
host("only-old-python", setup=f"mount --bind {old} $(readlink -f /usr/bin/python3)",
     variables="ansible_python_interpreter=/opt/python/python3")
host("other-python", setup=f"mount --bind {old} $(readlink -f /usr/bin/python3)",
     variables="ansible_python_interpreter=/opt/python/python3 audit_interpreter=/opt/python/python3")
host("misnamed", setup="hostname somebody-else")
host("nickname", setup="hostname its-own-name", variables="audit_check_name=false")
host("hangs", variables=runs("sh", "-c", "exec sleep 600") + " audit_timeout=2")
host("crashes", variables=runs("sh", "-c", "echo boom >&2; exit 1"))
host("absent", variables=runs("/nonexistent/netdoctor"))
host("rubbish", variables=runs("echo", "no JSON"))
host("large", variables=runs("sh", "-c", "yes | head -c 6000000 # "))
host("huge", variables=forged(lambda r: r["inventory"].update(pad="x" * 5_100_000)))
host("old-schema", variables=forged(lambda r: r.update(schema="netdoctor.report/0")))
host("no-checks", variables=forged(lambda r: r.update(checks=[])))
host("two-minds", variables=forged(lambda r: r["verdict"].update(status="healthy", exit_code=3)))
never = script("fake-broken-python", "echo no luck today >&2; exit 1\n")
once = script("fake-python-that-fails-once", "[ -e /run/netdoctor/x ] || { : >/run/netdoctor/x; exit 1; }\n"
              "exec /usr/bin/python3 \"$@\"\n")
host("no-module", variables=runs("echo") + f" ansible_python_interpreter={never}")
def passes(report):
    report["identity"]["host"] = "second-try"
    for one in (report["checks"][0], report["checks"][0]["findings"][0]):
        one["status"] = "pass"
    report["verdict"].update(status="healthy", text="healthy: 1 passed")
host("second-try", variables=forged(passes) + f" ansible_python_interpreter={once}")
host("hostile", variables=forged(hostile))
host("full", setup="mount -t tmpfs -o size=8k full /tmp")
host("short-of-cards", variables=f"audit_config={LAB}/site.yaml")
inventory()
with open(LAB / "hosts.ini", "a") as file:
    file.write(f"audit_pyz={PYZ}\n")
answering([name for name in HOSTS if name != "silent"])
extra = json.dumps({"audit_fleet_command": [sys.executable, PYZ], "audit_fleet_output": str(LAB / "fleet.json")})
def files(folder):
    return {p.stem: p.read_text() for p in (LAB / folder).glob("*.json")}
def left():
    return {name: os.listdir(f"/proc/{child.pid}/root/tmp") for name, (child, _, _) in HOSTS.items() if child.poll() is None}
seen = {"hosts": list(HOSTS)}
seen["run"] = text("ansible-playbook", "netdoctor.cluster.audit", "-e", extra)
seen["reports"], seen["left"] = files("netdoctor-reports"), left()
seen["sleeping"] = [c for c in map(command, processes()) if c.startswith("sleep 600")]
seen["pwned"] = (LAB / "pwned").exists()
seen["fleet"] = json.loads((LAB / "fleet.json").read_text())
seen["check"] = text("ansible-playbook", "netdoctor.cluster.audit", "--check", "--limit", "gpu01,misnamed,localhost",
                     "-e", extra, "-e", f"audit_reports={LAB}/check")
seen["check reports"], seen["left after check"] = files("check"), left()
seen["ad hoc"] = text("ansible", "gpu01", "-m", "netdoctor.cluster.preflight_info",
                      "-a", f"pyz={PYZ} only=hardware.accelerator")
if sys.argv[3]:
    seen["allreduce"] = text("ansible-playbook", "netdoctor.cluster.allreduce", "-e", json.dumps({
        "netdoctor_hosts": "gpu01:gpu02:gpu03", "netdoctor_pyz": PYZ, "netdoctor_python": sys.argv[3]}))
    seen["left after all-reduce"] = left()
    kept = pathlib.Path("/root/.ansible_async")
    seen["kept jobs"] = os.listdir(kept) if kept.is_dir() else []
alone = {"audit_pyz": PYZ, "audit_reports": f"{LAB}/alone", "audit_only": ["hardware.accelerator"]}
seen["alone"] = text("ansible-playbook", "-i", "localhost,", "-c", "local", "netdoctor.cluster.audit", "-e", extra,
                     "-e", json.dumps(alone))
seen["alone reports"] = files("alone")
seen["not there"] = text("ansible-playbook", "netdoctor.cluster.allreduce", "-e", "netdoctor_hosts=gpu01",
                         "-e", "netdoctor_command='/nowhere/netdoctor --words'")
say(seen)
"""
INCONCLUSIVE = {
    "no-python": "netdoctor did not run",
    "old-python": "no Python of 3.10 or later: tried /run/lab/fake-old-python (older than 3.10)",
    "only-old-python": "(older than 3.10); name one with interpreter",
    "misnamed": "calls itself somebody-else",
    "hangs": "gave no answer within 2 s",
    "crashes": "netdoctor ended with 1: boom",
    "absent": "could not be started",
    "rubbish": "it gave no JSON",
    "large": "larger than 5000000 bytes",
    "huge": "larger than 5000000 bytes",
    "old-schema": "its schema is netdoctor.report/0",
    "no-checks": "it has no checks",
    "two-minds": "its verdict is none",
    "no-module": "no luck today",
    "full": "netdoctor did not run",
}
FINE = ("gpu01", "gpu02", "gpu03", "domain", "nickname", "other-python", "hostile", "second-try")
SCHEMA = json.loads((ROOT / "netdoctor" / "schemas" / "report-1.json").read_text())


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pyz = tmp_path_factory.mktemp("pyz") / "netdoctor.pyz"
    subprocess.run([sys.executable, ROOT / "tools" / "build_pyz.py", pyz], check=True, capture_output=True, timeout=120)
    torch = sys.executable if importlib.util.find_spec("torch") else ""
    return ssh.run(SCENARIO, str(pyz), torch, timeout=500)


@pytest.fixture(scope="module")
def reports(seen: Any) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in seen["reports"].items()}


@pytest.mark.root
@needs_hosts
def test_every_host_has_a_report_that_keeps_the_schema(seen: Any, reports: dict[str, Any]) -> None:
    assert len(seen["hosts"]) >= 20
    assert sorted(reports) == sorted(seen["hosts"]), seen["run"]["out"][-3000:]
    for name, report in reports.items():
        jsonschema.validate(report, SCHEMA)
        assert report["identity"]["host"] == name


def fine(report: dict[str, Any]) -> bool:
    """A report of the host's own with nothing against it: from outside a job, and without a GPU, little can be told."""
    return report["verdict"]["exit_code"] == 0 and [c["id"] for c in report["checks"]] != ["fleet.audited"]


@pytest.mark.root
@needs_hosts
def test_each_fault_is_told_apart(reports: dict[str, Any]) -> None:
    told = {name: (r["verdict"]["status"], r["verdict"]["text"]) for name, r in reports.items()}
    assert {name for name, r in reports.items() if fine(r)} == set(FINE), told
    for name, words in INCONCLUSIVE.items():
        assert told[name][0] == "inconclusive" and words in told[name][1], (name, told[name])
    assert told["silent"][0] == "unhealthy" and "unreachable: " in told["silent"][1]
    assert told["short-of-cards"][0] == "unhealthy" and "rdma.dev_infiniband" in told["short-of-cards"][1]
    assert set(told) == {*FINE, *INCONCLUSIVE, "silent", "short-of-cards"}


@pytest.mark.root
@needs_hosts
def test_nothing_changes_and_nothing_is_left(seen: Any) -> None:
    recap = [line for line in seen["run"]["out"].splitlines() if "changed=" in line]
    assert len(recap) == len(seen["hosts"]) + 1 and all(" changed=0 " in line for line in recap), recap
    assert all(" unreachable=0 " in line for line in recap)  # an unreachable host is a finding, and the play goes on
    assert len(seen["left"]) >= len(seen["hosts"]) - 1 and set(map(tuple, seen["left"].values())) == {()}, seen["left"]
    assert seen["sleeping"] == []


@pytest.mark.root
@needs_hosts
def test_what_a_host_says_is_only_text(seen: Any, reports: dict[str, Any]) -> None:
    assert not seen["pwned"]
    message = reports["hostile"]["checks"][0]["findings"][0]["message"]
    assert message.startswith("{{ lookup('pipe'") and message.endswith("$(id)")


@pytest.mark.root
@needs_hosts
def test_the_fleets_report_has_every_host(seen: Any) -> None:
    assert seen["run"]["exit"] == 2  # the fleet is not healthy
    have = seen["fleet"]["accounting"]
    assert have["given"] == len(seen["hosts"]) and have["missing"] == 0 and have["bad"] >= 2
    assert f"{len(seen['hosts'])} nodes given" in seen["run"]["out"]
    flaky = {node["name"]: node["reasons"] for node in seen["fleet"]["nodes"] if node["state"] == "flaky"}
    assert flaky == {"second-try": ["answered only when it was asked again (attempt 2)"]}


@pytest.mark.root
@needs_hosts
def test_check_mode_looks_too(seen: Any) -> None:
    assert {name: fine(json.loads(text)) for name, text in seen["check reports"].items()} == {"gpu01": True, "misnamed": False}
    assert set(map(tuple, seen["left after check"].values())) == {()}


@pytest.mark.root
@needs_hosts
def test_the_module_by_itself(seen: Any) -> None:
    assert seen["ad hoc"]["exit"] == 0, seen["ad hoc"]
    head, _, body = seen["ad hoc"]["out"].partition(" => ")
    result = json.loads(body)
    assert head == "gpu01 | SUCCESS" and result["changed"] is False and result["status"] in ("healthy", "inconclusive")
    assert result["rc"] == 0 and result["interpreter"].startswith("/") and result["report"]["schema"] == "netdoctor.report/1"


@pytest.mark.root
@needs_hosts
def test_one_all_reduce_over_all_hosts(seen: Any) -> None:
    if "allreduce" not in seen:
        pytest.skip("no torch beside the tests")
    out = seen["allreduce"]["out"]
    assert seen["allreduce"]["exit"] == 0, out[-4000:]
    assert out.count("all-reduce: Gloo, 3 ranks on cpu, between nodes: finished, data right") == 3
    recap = [line for line in out.splitlines() if "changed=" in line]
    assert len(recap) == 3 and all(" changed=0 " in line for line in recap) and seen["kept jobs"] == []
    assert not any(name.startswith("netdoctor") for names in seen["left after all-reduce"].values() for name in names)


@pytest.mark.root
@needs_hosts
def test_localhost_alone_is_a_host(seen: Any) -> None:
    """Whatever it calls itself."""
    assert list(seen["alone reports"]) == ["localhost"], seen["alone"]["out"][-3000:]
    report = json.loads(seen["alone reports"]["localhost"])
    assert [check["id"] for check in report["checks"]] == ["hardware.accelerator"], report["verdict"]["text"]
    assert report["identity"]["host"] == "localhost"
    assert "missing" not in seen["alone"]["out"].rpartition("fleet report")[2].splitlines()[0]


@pytest.mark.root
@needs_hosts
def test_what_cannot_be_started_is_told_in_its_own_words(seen: Any) -> None:
    """A command in words, as it is typed; where it is not there the host's own error is the reason."""
    out = seen["not there"]["out"]
    assert seen["not there"]["exit"] != 0
    said = next(line for line in out.splitlines() if "fatal: " in line)
    assert "/nowhere/netdoctor: " in said and "not found" in said, out[-3000:]
