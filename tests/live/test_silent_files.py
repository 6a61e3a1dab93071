"""A FUSE file system that stands still, as a dead NFS server does: what lies there is unknown, and a report comes."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import pytest

from tests.support.sources import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounts a FUSE file system: root")


def look(folder: pathlib.Path, name: str, below: str, *words: str) -> subprocess.CompletedProcess[str]:
    """netdoctor where a variable leads to the file system that stands still."""
    value = f"{folder}/{below}" + (":/usr/bin:/bin" if name == "PATH" else "")
    inside = [sys.executable, "-I", "-m", "netdoctor", *words]
    mounted = [sys.executable, "-m", "tests.support.namespaces.silent", str(folder), "--", *inside]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NETDOCTOR_")}
    return subprocess.run(
        mounted, cwd=ROOT, env={**clean, name: value}, capture_output=True, text=True, timeout=120, check=False
    )


SYSTEM = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"  # where the interpreter's own libraries are
PLACES = {
    "NCCL_CONF_FILE": "{}/nccl.conf",
    "HOME": "{}/ada",
    "VIRTUAL_ENV": "{}/venv",
    "PATH": "{}/bin:/usr/bin:/bin",
    "LD_LIBRARY_PATH": SYSTEM + ":{}/lib",
    "PYTHONPATH": "{}/lib",
}
BUDGET = 60  # seconds of the all-reduce
COMMANDS = {
    "preflight": ("preflight", "-f", "json", "--vantage", "job"),
    "the gate": ("run", "--gate", "--", "/bin/echo", "begun"),
    "snapshot": ("snapshot", "--no-allreduce", "-o", "OUT"),
    "prolog": ("preflight", "-f", "json", "--profile", "prolog"),
    "audit": ("preflight", "-f", "json", "--profile", "audit", "--no-allreduce"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_ends_and_names_what_hangs(command: str) -> None:
    """Each variable by itself, all at once; two with the all-reduce, within its budget and 5 s (a healthy look takes 5)."""
    with tempfile.TemporaryDirectory(prefix="nd-", dir="/run") as place:  # short: a line of a report is bounded
        ends_and_names(pathlib.Path(place), command)


def ends_and_names(tmp_path: pathlib.Path, command: str) -> None:
    begun = {}
    for name, value in PLACES.items():
        folder, out = tmp_path / name, tmp_path / f"{name}.json"
        folder.mkdir()
        inside = [sys.executable, "-I", "-m", "netdoctor", *(str(out) if word == "OUT" else word for word in COMMANDS[command])]
        inside[5:5] = ["-q"]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("NETDOCTOR_")}
        begun[name] = subprocess.Popen(
            [sys.executable, "-m", "tests.support.namespaces.silent", str(folder), "--", *inside],
            cwd=ROOT,
            env={**clean, "NETDOCTOR_BUDGET_S": str(BUDGET), name: value.format(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    for name, process in begun.items():
        said = "".join(process.communicate(timeout=BUDGET + 5))
        said += (tmp_path / f"{name}.json").read_text() if command == "snapshot" else ""
        assert process.returncode == 4, (name, said)
        assert f"(fuse.silent of netdoctor-silent on {tmp_path}/{name})" in said, (name, said)
        assert "begun" not in said and "Traceback" not in said, (name, said)


def test_a_snapshot_is_written(tmp_path: pathlib.Path) -> None:
    (tmp_path / "there").mkdir()
    out = tmp_path / "snapshot.json"
    done = look(tmp_path / "there", "NCCL_CONF_FILE", "x", "snapshot", "-q", "--no-allreduce", "-o", str(out))
    assert done.returncode == 4, done.stderr
    kept = json.loads(out.read_text())["answers"][f"file:{tmp_path}/there/x"]
    assert kept["unavailable"] == "timed out"


def test_where_nothing_can_be_written_the_report_is_printed(tmp_path: pathlib.Path) -> None:
    done = look(
        tmp_path, "NCCL_DEBUG", "x", "preflight", "--no-allreduce", "-q", "--only", "net.port_range", "-o", f"{tmp_path}/r.json"
    )
    assert "net.port_range" in done.stdout and f"on {tmp_path}) did not answer" in done.stderr


def test_the_folder_of_the_checkpoints(tmp_path: pathlib.Path) -> None:
    folder, config = tmp_path / "ckpt", tmp_path / "config.yaml"
    folder.mkdir()
    config.write_text(f"job: {{nodes: 1, paths: [{folder}/run7]}}\n")
    words = ("preflight", "-q", "--no-allreduce", "--only", "node.folders", "-f", "json", "--vantage", "job")
    done = look(folder, "HOME", "ada", *words, "--config", str(config))
    (found,) = json.loads(done.stdout)["checks"][0]["findings"]
    assert (found["status"], found["subject"]) == ("unknown", f"{folder}/run7")
    assert f"(fuse.silent of netdoctor-silent on {folder})" in found["message"], found


FROZEN = """
set -e
mkfs.ext4 -q {disk}; mkdir -p {at}; mount -o loop {disk} {at}; mount -t tmpfs none /var/lib
mkdir -p {at}/state /var/lib/netdoctor; mount --bind {at}/state /var/lib/netdoctor
trap 'fsfreeze -u {at}' EXIT
fsfreeze -f {at}
set +e
{netdoctor} -o {at}/r.json 2>&1 | cat
echo "code ${{PIPESTATUS[0]}}"
{netdoctor} 2>&1 | cat
echo "code ${{PIPESTATUS[0]}}"
TMPDIR={at} {netdoctor} --only node.system 2>&1 | cat
echo "code ${{PIPESTATUS[0]}}"
"""


@pytest.mark.skipif(not shutil.which("fsfreeze") or not os.path.exists("/dev/loop-control"), reason="mounts a file as a disk")
def test_a_frozen_disk_keeps_nobody_from_the_report(tmp_path: pathlib.Path) -> None:
    """A writer there ends not even of SIGKILL: it is left behind, and neither we nor who reads our output wait for it."""
    with open(tmp_path / "disk", "wb") as disk:
        disk.truncate(64 << 20)
    look = f"{shlex.quote(sys.executable)} -I -m netdoctor preflight -q --no-allreduce --vantage job"
    script = FROZEN.format(disk=tmp_path / "disk", at=tmp_path / "at", netdoctor=look)
    inside = ["unshare", "-m", "--propagation", "private", "bash", "-c", script]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NETDOCTOR_")}
    done = subprocess.run(
        inside, cwd=ROOT, env={**clean, "NETDOCTOR_JOB_NODES": "1"}, capture_output=True, text=True, timeout=100, check=False
    )
    codes = [line for line in done.stdout.splitlines() if line.startswith("code ")]
    assert len(codes) == 3 and "code 0" not in codes[:1] and codes[2] == "code 4", done
    assert f"on {tmp_path}/at) did not answer within 5 s" in done.stdout, done
    assert f"on {tmp_path}/at) did not answer within 20 s" in done.stdout and done.stdout.count("nccl.environment") >= 2, done


def test_a_job_behind_the_gate_begins(tmp_path: pathlib.Path) -> None:
    done = look(tmp_path, "VIRTUAL_ENV", "venv", "run", "-q", "--", "/bin/sh", "-c", "echo begun; kill -PIPE $$")
    assert "begun" in done.stdout and done.returncode in (-13, 141, 256 - 13), done.stderr


ENDED = """
import json, os, sys
from netdoctor.host.live import LiveHost
from tests.support.namespaces import silent
os.close(silent.mount(sys.argv[1]))
print(json.dumps(LiveHost().ask(f"room:{sys.argv[1]}")))
"""


def test_a_mount_whose_program_has_ended_takes_no_file(tmp_path: pathlib.Path) -> None:
    """As gcsfuse, sshfs or JuiceFS leave one when they crash: it answers at once, and every call fails."""
    inside = ["unshare", "--mount", sys.executable, "-c", ENDED, str(tmp_path)]
    done = subprocess.run(inside, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"errno": 107, "name": "ENOTCONN", "tried": True, "size": 0, "free": 0}
