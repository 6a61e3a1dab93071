"""Start-up and a look at an 8-GPU machine: a DGX H100 tree laid over /sys in a mount namespace of its own (root), fake NVML,
one libnccl where the loader finds it.
"""

from __future__ import annotations

import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

from bench import Row, at_most, interleaved, row, seconds

ROOT = pathlib.Path(__file__).parents[1]
NETDOCTOR = [str(pathlib.Path(sys.executable).parent / "netdoctor")]
LOOK = [*NETDOCTOR, "preflight", "--no-allreduce", "--format", "json", "--quiet"]


def rows() -> Iterator[Row]:
    version, typer = interleaved(
        15, lambda: seconds([*NETDOCTOR, "--version"]), lambda: seconds([sys.executable, "-c", "import typer"])
    )
    yield at_most("cli.version", version, "s", typer, 1.5)
    yield from _dgx()
    yield from _size()
    yield from _diagnose()


def _dgx() -> Iterator[Row]:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        print("cli.preflight_dgx and its companions: not run (needs root and unshare)", file=sys.stderr)
        return
    sys.path.insert(0, str(ROOT))
    from tests.support.machines import native, sysfs as trees

    with tempfile.TemporaryDirectory() as folder:
        sysfs = trees.dgx_h100(pathlib.Path(folder) / "sys")
        libraries = [str(native.nvml())]
        libraries += [str(p.parent) for p in sorted((ROOT / "build" / "nccl").rglob("libnccl.so.2"))[:1]]
        # As arguments: the folder of the checkout may have a blank.
        script = 'mount --make-rprivate / && mount -t overlay ov -o "lowerdir=$0:/sys" /sys && exec "$@"'
        measured = [str(sysfs), sys.executable, "-m", "bench.cli"]
        environment = os.environ | {"LD_LIBRARY_PATH": ":".join(libraries)}
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, *measured],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    yield from json.loads(done.stdout)


def inside() -> list[Row]:
    """The rows that are measured where the tree lies over /sys."""
    from bench import trace

    report = json.loads(subprocess.run(LOOK, capture_output=True, text=True, check=False).stdout)
    gpus = report["inventory"]["gpus"]
    if len(gpus) != 8:
        raise RuntimeError(f"the doctor sees {len(gpus)} GPUs, not 8: {gpus}")
    look, version = interleaved(11, lambda: seconds(LOOK), lambda: seconds([*NETDOCTOR, "--version"]))
    out = [at_most("cli.preflight_dgx", look, "s", version, 5.0)]
    seen = trace.look(LOOK)
    out.append(row("cli.children_at_once", seen.children, "", None, "<= 5 alive at once", seen.children <= 5))
    out.append(
        row("cli.opened_twice", len(seen.twice), "paths", None, f"no path opened twice {seen.twice[:5]}", not seen.twice)
    )
    memory = trace.peak_memory(LOOK) / 1e6
    out.append(row("cli.memory", memory, "MB", None, "main process <= 60 MB", memory <= 60))
    return out


def _size() -> Iterator[Row]:
    """What netdoctor adds to a bare environment, and which of its packages are compiled."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = {}
        for name, install in (("bare", []), ("netdoctor", [str(ROOT)])):
            venv = pathlib.Path(folder) / name
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            if install:
                pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *install]
                subprocess.run(pip, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            sizes[name] = sum(f.stat().st_size for f in venv.rglob("*") if f.is_file() and not f.is_symlink())
        packages = next((pathlib.Path(folder) / "netdoctor").rglob("site-packages"))
        compiled = sorted({f.relative_to(packages).parts[0] for f in packages.rglob("*.so")} - {"pip", "setuptools"})
    added = (sizes["netdoctor"] - sizes["bare"]) / 1e6
    yield row("cli.environment", added, "MB", None, f"<= 30 MB above a bare one; compiled: {', '.join(compiled)}", added <= 30)


def _diagnose() -> Iterator[Row]:
    """The pure part on the largest recorded machine, against copy.deepcopy of the same file's JSON.

    The reference is Python over many objects as we are, so that a busy machine slows both alike, and none of our code, so that
    it does not get slower with us.  Both are CPU time of this process.  Eight runs at a load of 10 gave 2.97 to 3.15 (against
    json.loads, in C, 7.2 to 10); the goal leaves the room that the 10 ms of before left above the 7.3 ms measured then.
    """
    import time

    from netdoctor.cli import setup
    from netdoctor.config.load import Config
    from netdoctor.snapshot import snapshot
    from netdoctor.snapshot.diagnose import diagnose

    recorded = sorted((ROOT / "fixtures" / "hosts").rglob("snapshot.json"), key=lambda p: p.stat().st_size)
    if not recorded:
        print("cli.diagnose: not run (no recorded machine)", file=sys.stderr)
        return
    config = Config()
    specs, extra = setup.load_checks(config, ())
    text = recorded[-1].read_text()
    taken, plain = snapshot.loads(text), json.loads(text)

    def milliseconds(work: Callable[[], object]) -> float:
        begin = time.process_time()
        work()
        return (time.process_time() - begin) * 1e3

    ours, copying = interleaved(
        21,
        lambda: milliseconds(lambda: diagnose(taken, specs, setup.decider(config), config.profile, extra)),
        lambda: milliseconds(lambda: copy.deepcopy(plain)),
    )
    yield at_most("cli.diagnose", ours, "ms", copying, 4.0)


if __name__ == "__main__":
    print(json.dumps(inside()))
