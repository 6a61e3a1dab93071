"""The whole run as a user without rights: read-only root, no /tmp, no capabilities, signals, full disks."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import tempfile
from typing import Any

import pytest

from tests.support.machines import native
from tests.support.machines.sysfs import dgx_h100
from tests.support.namespaces import world

pytestmark = [pytest.mark.live, pytest.mark.root, pytest.mark.skipif(bool(world.why_not()), reason=world.why_not() or "-")]

PROGRAM = r"""
PYTHON, TREE, LIBRARIES = sys.argv[1:4]
USER = "setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all".split()
# In this copy of the root alone: the way to the interpreter is open to others.
for path in pathlib.Path(os.path.realpath(PYTHON)).parents:
    if not path.stat().st_mode & 1: path.chmod(path.stat().st_mode | 0o55)
for one in ("target", "full", "theirs", "anyone"): os.mkdir("/" + one)
pathlib.Path("/target/report").touch(); os.chmod("/target/report", 0o666)
# Writable by its mode: only the read-only mount can refuse here. Of two obstacles each kernel names its own first.
os.chmod("/anyone", 0o1777)
sh("mount -t tmpfs -o size=8k,mode=1777 none /full", "mount -t tmpfs -o mode=755,uid=65534 none /theirs",
   "touch /theirs/point", "mount --bind /target/report /theirs/point")
os.symlink("/target/new", "/theirs/link")
environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"], "HOME": os.devnull, "USER": "nobody"}
def run(prefix, *options, env=environment, quiet=("--quiet",)):
    command = [*prefix, *NETDOCTOR, "preflight", "--vantage", "job", "--python", PYTHON, "-f", "json", *quiet, *options]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
def said(process):
    out, err = process.communicate()
    return {"exit": process.returncode, "report": json.loads(out) if out.strip() else None, "err": err[-1500:]}
result = {"root": said(run([]))}
sh(*(f"mount -t tmpfs -o ro,mode=555 none {folder}" for folder in ("/tmp", "/var/tmp", "/run")), "mount -o remount,bind,ro /")
result["user"] = said(run(USER))
result["full"] = said(run(USER, "--no-allreduce", "-o", "/full/report.json"))
result["full left"] = os.listdir("/full")
result["point"] = said(run(USER, "--no-allreduce", "-o", "/theirs/point"))
result["point content"] = pathlib.Path("/target/report").read_text()[:20]
result["link"] = said(run([], "--no-allreduce", "-o", "/theirs/link"))
result["target"] = os.listdir("/target")
result["read-only"] = said(run(USER, "--no-allreduce", "-o", "/anyone/report.json"))
for name in ("SIGINT", "SIGTERM"):
    process = run(USER, quiet=())
    seen = ""
    while "all-reduce" not in seen:
        line = process.stderr.readline()
        if not line: break
        seen += line
    process.send_signal(getattr(signal, name))
    result[name] = said(process)
sh(f"mount -t overlay over -o lowerdir={TREE}:/sys /sys")
libraries = {**environment, "LD_LIBRARY_PATH": LIBRARIES}
result["dgx root"] = said(run([], "--no-allreduce", env=libraries))
result["dgx user"] = said(run(USER, "--no-allreduce", env=libraries))
result["left"] = settle()
say(result)
"""


@pytest.fixture(scope="module")
def seen() -> Any:
    with tempfile.TemporaryDirectory(dir="/var/lib") as folder:
        pathlib.Path(folder).chmod(0o755)
        tree = dgx_h100(pathlib.Path(folder) / "sys", cpus=("0", "1"))
        libraries = ":".join(map(str, (native.nvml(), native.cuda(), native.ibverbs())))
        return world.run(PROGRAM, sys.executable, str(tree), libraries, timeout=200)


def statuses(report: Any) -> dict[tuple[str, str], str]:
    return {(c["id"], f["subject"]): f["status"] for c in report["checks"] for f in c["findings"]}


def test_a_user_gets_the_verdicts_of_root(seen: Any) -> None:
    root, user = seen["root"], seen["user"]
    assert user["exit"] == root["exit"] == 0, user
    theirs, roots = statuses(user["report"]), statuses(root["report"])
    # Which folders take a file is the user's own.
    assert (
        theirs.pop(("node.system", "temporary files")) == "unknown" and roots.pop(("node.system", "temporary files")) == "pass"
    )
    # The kernel shows its log to root alone where kernel.dmesg_restrict is set; what root sees depends on how long it is up.
    assert theirs.pop(("node.system", "kernel log")) in {"unknown", roots.pop(("node.system", "kernel log"))}
    assert theirs == roots
    torch = importlib.util.find_spec("torch") is not None  # make TORCH= installs none
    assert user["report"]["runs"][0]["state"] == ("finished" if torch else "not started")
    assert seen["left"] == {}


def test_less_evidence_is_unknown_and_says_why(seen: Any) -> None:
    root, user = statuses(seen["dgx root"]["report"]), statuses(seen["dgx user"]["report"])
    # Locked memory is the user's own: without CAP_IPC_LOCK its limit holds.
    own = ("rdma.dev_infiniband", "memlock")
    assert root.pop(own) == "pass" and user.pop(own) in ("pass", "fail", "unknown")
    assert {key: (root.get(key), status) for key, status in user.items() if status not in (root.get(key), "unknown")} == {}
    assert set(root) - set(user) == set()
    unknown = [f for c in seen["dgx user"]["report"]["checks"] for f in c["findings"] if f["status"] == "unknown"]
    assert all(f["message"] for f in unknown)
    assert "error" not in user.values()


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interrupted_run_ends_with_what_it_has(seen: Any, name: str, code: int) -> None:
    got = seen[name]
    assert got["exit"] == code, got
    assert name in got["report"]["partial"]
    assert [c["id"] for c in got["report"]["checks"]] == [c["id"] for c in seen["user"]["report"]["checks"]]
    before = statuses(seen["user"]["report"])
    better = {k: s for k, s in statuses(got["report"]).items() if s not in ("unknown", before.get(k))}
    assert better == {}
    run = next(c for c in got["report"]["checks"] if c["id"] == "allreduce.run")
    assert {f["status"] for f in run["findings"]} == {"unknown"}


def test_a_report_that_finds_no_room_is_said_and_still_printed(seen: Any) -> None:
    got = seen["full"]
    assert got["exit"] == 1 and "No space left on device" in got["err"]
    assert got["report"]["checks"] and seen["full left"] == []
    assert seen["read-only"]["exit"] == 1 and "Read-only file system" in seen["read-only"]["err"]


def test_a_mount_point_is_written_in_place(seen: Any) -> None:
    assert seen["point"]["exit"] in (0, 4), seen["point"]["err"]
    assert seen["point content"].startswith("{")


def test_root_follows_no_link_of_others(seen: Any) -> None:
    assert seen["link"]["exit"] == 1 and "symbolic link" in seen["link"]["err"]
    assert seen["target"] == ["report"]
