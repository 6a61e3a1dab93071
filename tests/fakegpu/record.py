"""Recordings of fake machines: `netdoctor snapshot` itself, on a real kernel, asks a fake driver, and the real NCCL runs on it.

python -m tests.fakegpu.record [NAME…]     fixtures/hosts/NAME/snapshot.json again; then `make golden`, and look at the diff

What is not the machine's is at paths that name nobody: a Python without torch in /opt/job with NCCL's wheel, the fake libraries
in /opt/fakegpu.  Names, addresses and the rest are netdoctor's pseudonyms, with a key that nobody keeps.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakegpu import build, lab, machine, namespace

VERSION: Final = "2.27.5"
# What a fake takes means nothing, so nobody judges it.
CONFIG: Final = "disabled: [allreduce.bandwidth]\n"
TWO_NODES: Final = "job: {nodes: 2, gloo_groups: 0}\n"  # what lies between nodes is a fault of a job that has some
OPT: Final = pathlib.Path("/opt")
SITE: Final = "job/lib/python3.11/site-packages"


@dataclass(frozen=True)
class Recording:
    """A machine, what is changed on it, and what netdoctor has to say of it."""

    machine: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    fails: frozenset[tuple[str, str]] = frozenset()  # check and subject
    exit_code: int = 0


# 256 MiB between more ranks take the kernels' stand-in so long on two CPUs that a run counts as hanging.
TWO: Final = {"gpus.3": None, "gpus.2": None}
RECORDINGS: Final[Mapping[str, Recording]] = {
    "fake-one-gpu": Recording("one-gpu"),
    "fake-a100-infiniband": Recording("two-a100", TWO),
    "fake-l40s-roce": Recording("pcie-l40s", TWO),
    "fake-hcas-withheld": Recording(
        "two-a100",
        {**TWO, "hcas.0.mode": "none", "hcas.1.state": "DOWN"},
        frozenset({("allreduce.run", "inter-node mlx5_0:1"), ("rdma.dev_infiniband", "mlx5_0")}),
        3,
    ),
    "fake-hca-refuses-memory": Recording(
        "two-a100", {**TWO, "faults": ["registration * 12"]}, frozenset({("allreduce.run", "inter-node mlx5_0:1")}), 3
    ),
    # The driver was not ready to be asked anything: that is known, and nothing is called right.
    "fake-driver-not-ready": Recording("one-gpu", {"faults": ["cuInit * 802"]}, frozenset({("gpu.fabric", "driver")}), 3),
}


def folder_of(one: machine.Machine, folder: pathlib.Path, config: str) -> pathlib.Path:
    """What the recorded process finds in /opt."""
    opt = folder / "opt"
    kernels = build.kernels()
    for one_folder in (*build.libraries(), kernels.parent):
        shutil.copytree(one_folder, opt / "fakegpu" / one_folder.name, symlinks=True)
    one.write(opt / "fakegpu" / "machine", kernels=f"{OPT}/fakegpu/kernels/{kernels.name}")
    python = opt / "job" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.symlink_to("/usr/bin/python3")
    (opt / "job" / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.2\n", encoding="ascii")
    (opt / "job" / "netdoctor.yaml").write_text(config, encoding="ascii")
    wheel = opt / SITE / "nvidia" / "nccl" / "lib"
    wheel.mkdir(parents=True)
    (wheel / "libnccl.so.2").touch()
    for path in (opt, *opt.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    return opt


def record(one: Recording, output: pathlib.Path) -> None:
    """Take the snapshot; RuntimeError with netdoctor's words where it could not."""
    told = machine.read(one.machine).on_one_node().with_changes(one.changes)
    with namespace.scratch() as folder:
        namespace.prepare(told, folder, network=True)
        opt = folder_of(told, folder, CONFIG + (TWO_NODES if one.fails else ""))
        nccl = lab.library(VERSION).resolve()
        child = os.fork()
        if child == 0:
            try:
                namespace.enter(folder)
                namespace.bind(str(nccl), str(opt / SITE / "nvidia/nccl/lib/libnccl.so.2"))
                namespace.bind(str(opt), str(OPT))
                os._exit(_snapshot(folder / "snapshot.json"))
            except OSError as error:
                print(f"fakegpu: {error}", file=sys.stderr)
            os._exit(126)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        made = folder / "snapshot.json"
        if code or not made.exists():
            raise RuntimeError(f"netdoctor snapshot on {one.machine}: exit {code}")
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(_plain(made.read_text(encoding="utf-8")), encoding="utf-8")


def _plain(text: str) -> str:
    """Without where the recorder's own files are, and without what its kernel's builder calls himself."""
    for path in (sys.prefix, str(build.ROOT)):
        text = text.replace(path, f"{OPT}/netdoctor")
    release = os.uname().release
    return text.replace(release, release.partition("-")[0])


def _snapshot(output: pathlib.Path) -> int:
    """In the namespace."""
    command = [sys.executable, "-m", "netdoctor", "snapshot", "--pseudonymise", "--vantage", "job", "--user", "root", "--quiet"]
    command += ["--python", str(OPT / "job/bin/python3"), "--config", str(OPT / "job/netdoctor.yaml")]
    command += ["--output", str(output)]
    env = {
        "HOME": "/root",
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": f"{OPT}/fakegpu/lib:{OPT}/fakegpu/libib",
        "FAKEGPU_MACHINE": f"{OPT}/fakegpu/machine",
    }
    return subprocess.run(command, env=env, cwd="/", timeout=300, check=False).returncode


def main(names: list[str]) -> int:
    if why := namespace.missing():
        print(f"fakegpu: {why}", file=sys.stderr)
        return 77
    for name in names or RECORDINGS:
        record(RECORDINGS[name], machine.HOSTS / name / "snapshot.json")
        print(f"recorded {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
