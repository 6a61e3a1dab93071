"""A whole `netdoctor preflight` of a job without torch on a machine that is not there: facts, all-reduces, checks, verdict.

    python -m tests.fakegpu.doctor preflight …      netdoctor, whose all-reduces are as short as those of ranks that share a GPU

The fake GPUs move data by this machine's CPUs: 256 MiB on eight of them take minutes and tell nothing more than 1 MiB.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fakegpu import build, lab, namespace
from tests.fakegpu.machine import Machine

# What a run has nothing of: each is the job's own affair, or another test's.
TRIALS = "FAKEGPU_TRIALS"  # set: the runs of cures are told on standard error
FOREIGN = ("NCCL_", "TORCH_NCCL_", "LD_", "CUDA_", "GLOO_", "NETDOCTOR_", "SLURM_", "OMP_", "MASTER_")


@dataclass(frozen=True)
class Around:
    """What is around the job beside its machine."""

    env: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""  # shell, in the machine's namespaces, before netdoctor
    wrap: str = ""  # what stands before netdoctor: taskset, prlimit, …
    options: Sequence[str] = ()
    config: str = ""  # YAML
    kernels: bool = True


@dataclass(frozen=True)
class Report:
    """What netdoctor said."""

    data: dict[str, Any]
    said: str  # on standard error

    @property
    def findings(self) -> list[tuple[str, dict[str, Any]]]:
        return [(check["id"], one) for check in self.data["checks"] for one in check["findings"]]

    def of(self, id: str) -> list[dict[str, Any]]:
        return [finding for check, finding in self.findings if check == id]

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The runs with and without cures; only where `TRIALS` is set."""
        return [json.loads(line[7:]) for line in self.said.splitlines() if line.startswith("trial: ")]

    @property
    def fails(self) -> list[str]:
        """All that is wrong with the machine: fails, and checks that ended with an error."""
        bad = [(id, one) for id, one in self.findings if one["status"] in ("fail", "error")]
        return [f"{id} {one['subject']}: {one['status']}: {one['message']}" for id, one in bad]


@contextmanager
def job(version: str) -> Iterator[pathlib.Path]:
    """A Python without torch, whose packages have NCCL's wheel of that version, as JAX's have."""
    library = lab.library(version)
    with tempfile.TemporaryDirectory(dir="/run" if os.geteuid() == 0 else None) as name:
        made = pathlib.Path(name)
        made.chmod(0o755)
        (made / "bin").mkdir()
        base = pathlib.Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        (made / "bin" / "python3").symlink_to(base)
        (made / "pyvenv.cfg").write_text(f"home = {base.parent}\nversion = {sys.version.split()[0]}\n", encoding="ascii")
        wheel = made / "lib" / base.name / "site-packages" / "nvidia" / "nccl" / "lib"
        wheel.mkdir(parents=True)
        (wheel / "libnccl.so.2").symlink_to(library)
        yield made / "bin" / "python3"


def preflight(one: Machine, python: pathlib.Path | None, around: Around | None = None, timeout: float = 280) -> Report:
    """What netdoctor says of the machine, seen as the job sees it; `python`: the job's, None where it has none."""
    around = around or Around()
    with namespace.scratch() as folder:
        namespace.prepare(one, folder, bool(shutil.which("ip")))
        one.write(folder / "machine", **({"kernels": str(build.kernels())} if around.kernels else {}))
        (folder / "config.yaml").write_text(around.config or "{}", encoding="utf-8")
        found = namespace.environment(folder)
        told = {**found, **{k: v.replace("LIBRARIES", found["LD_LIBRARY_PATH"]) for k, v in around.env.items()}}
        command = [sys.executable, "-m", "tests.fakegpu.doctor", "preflight", "--vantage", "job", "--format", "json", "--quiet"]
        command += ["--user", "root"]  # root's helpers go by no variable of a fake's, unless the job is root's own
        command += [
            "--config",
            str(folder / "config.yaml"),
            *(("--python", str(python)) if python and "--python" not in around.options else ()),
        ]
        begin = ["/bin/sh", "-ec", f'{around.setup}\nexec {around.wrap} "$@"', "sh"]
        done = subprocess.run(
            [
                *namespace.inside(folder),
                "/usr/bin/env",
                *(f"{name}={value}" for name, value in told.items()),
                *begin,
                *command,
                *around.options,
            ],
            cwd=build.ROOT,
            env={**{k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}, **found},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    if "Traceback" in done.stderr or not done.stdout:
        raise RuntimeError(f"no report: exit {done.returncode}: {done.stderr[-3000:]}")
    return Report(json.loads(done.stdout), done.stderr)


def main() -> None:
    from netdoctor.allreduce import plan
    from netdoctor.cli.main import main as netdoctor

    plan.CUDA_SIZES = plan.PATH_SIZES = plan.SHARED_GPU_SIZES  # type: ignore[assignment, misc]
    if TRIALS in os.environ:
        _tell_trials()
    netdoctor()


def _tell_trials() -> None:
    """Each run of a cure's comparison on standard error: what it changed, and what carried the data."""
    from netdoctor.allreduce import comparison
    from netdoctor.nccl.log.parser import parse_text

    # How long a run takes means nothing here: of the pairs that statistics need, two show what both sides do.
    comparison.LOOKS, comparison.PAIRS = ((2, 0),), 2  # type: ignore[misc, assignment]
    plain = comparison._Trial.run  # the report has the comparison's outcome alone

    def told(self: comparison._Trial, changed: bool) -> Any:
        run = plain(self, changed)
        transports = parse_text(run.log_text).transports if run.log_text else {}
        of = run.experiment
        said = {"changed": changed, "cure": self.cure.label, "state": run.state.value, "transports": transports}
        print("trial:", json.dumps({**said, "path": of.path.pinned, "verified": run.verified}), file=sys.stderr)
        return run

    comparison._Trial.run = told  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
