"""``netdoctor deploy``: the integrations that come with the package, printed or written."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from netdoctor.cli import deliver
from netdoctor.cli.options import Options
from netdoctor.process import given
from netdoctor.textsafe import listed, nearest

if TYPE_CHECKING:
    from importlib.abc import Traversable


# github.com/distribution/reference, regexp.go: [host[:port]/]path[:tag][@digest]; only the host may have capitals.
_IMAGE: Final = re.compile(
    r"(?:(?:[a-zA-Z0-9.-]+|\[[0-9a-fA-F:]+\])(?::\d+)?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::\w[\w.-]{0,127})?(?:@[A-Za-z][\w+.-]*:[0-9a-fA-F]{32,})?",
    re.ASCII,
)
# What the files say of their own place; written elsewhere they say that.
_PLACES: Final = {"slurm": "/etc/slurm/netdoctor"}
# What the first step asks to edit: it stays, and the rest is written.
_EDITED: Final = {"slurm": "netdoctor.conf"}
# Three steps after the files are written; DIR is where.
_NEXT: Final = {
    "slurm": (
        "put netdoctor.pyz (make pyz) on every node, at the place that DIR/netdoctor.conf names",
        "add DIR/slurm.conf.snippet to slurm.conf on every node, then: scontrol reconfigure",
        "sinfo -R shows what was drained, and why",
    ),
    "kubernetes": (
        "podman build -t netdoctor -f DIR/Containerfile build, after make pyz, and push it where your nodes pull from",
        "cp my-job.yaml DIR/base/job.yaml, and write what you expect into DIR/components/gate/config.yaml",
        "kubectl apply -k DIR/overlays/training-pod",
    ),
    "ansible": (
        "ansible-galaxy collection install DIR",
        "make pyz",
        # Ansible splits the words of -e once more
        "ansible-playbook -i hosts.ini netdoctor.cluster.audit -e \"audit_pyz='$PWD/build/netdoctor.pyz'\"",
    ),
    "prometheus": (
        "netdoctor preflight --serve 9469 --profile audit --no-allreduce on each node (Kubernetes: components/metrics)",
        "rule_files: [DIR/alerts.yaml] in prometheus.yml, and the nodes' port 9469 among its targets",
        "import DIR/dashboard.json in Grafana",
    ),
    "systemd": (
        "install -D build/netdoctor.pyz /opt/netdoctor/netdoctor.pyz, after make pyz",
        "cp DIR/netdoctor.service DIR/netdoctor.timer /etc/systemd/system, then: systemctl daemon-reload",
        "systemctl enable --now netdoctor.timer",
    ),
}


def refused(why: str) -> int:
    """Bad usage."""
    return deliver.refuse(f"deploy: {why}", Options())


def deploy(what: str | None, to: str | None, manifest: str | None, image: str | None) -> int:
    """One integration as files, or one manifest with the gate in it; the exit code."""
    if manifest is not None and what != "kubernetes":
        return refused("--gate: of kubernetes alone")
    if manifest is not None and to is not None:
        return refused("--gate and --to: the gated manifest is printed: netdoctor deploy kubernetes --gate FILE > NEW")
    if manifest is None and image is not None:
        return refused("--image: of --gate alone; the files have a place of their own for it")
    return run(what, to) if manifest is None else gate(manifest, image)


def gate(file: str, image: str | None) -> int:
    """Print the manifest in `file` with the gate in its pods."""
    from importlib.resources import files

    from netdoctor.cli.gate import GateError, gated

    if image is not None and not _IMAGE.fullmatch(image):
        return refused(f"--image: no name of an image: {image!r} (registry.example.com/netdoctor:1 is one)")
    try:
        deliver.put(gated(given.text(file), files("netdoctor.deploy") / "kubernetes/components/gate", image))
    except (OSError, UnicodeDecodeError, GateError) as error:
        return refused(f"{file}: {getattr(error, 'strerror', None) or error}")
    return 0


def known() -> list[str]:
    """What can be deployed."""
    from importlib.resources import files

    entries = files("netdoctor.deploy").iterdir()
    return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(("_", ".")))


def run(what: str | None, to: str | None) -> int:
    """Print the files of one integration with a line of their name before each, or write them below `to`."""
    from importlib.resources import files

    here, there = files("netdoctor.deploy"), known()
    if what is None:
        print("\n".join(there))
        return 0
    if to == "":  # an empty variable of a script must not become the working folder
        return refused("--to: it names no folder")
    if to is not None and os.path.lexists(to) and not os.path.isdir(to):
        return refused(f"--to: {to}: it is there, and no folder: the files are several")
    if what not in there:
        return refused(f"there is {', '.join(there)}; not {what!r}{nearest(what, there)}")
    found = list(_below(here / what))
    return _print(found) if to is None else _put(what, found, os.path.abspath(to))


def _below(folder: Traversable, at: str = "") -> Iterator[tuple[str, bytes]]:
    """(path inside the folder, content) of every file, sorted; the same from a folder and from a zip file."""
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _below(entry, f"{at}{entry.name}/")
        elif not entry.name.endswith(".pyc"):
            yield at + entry.name, entry.read_bytes()


def _print(found: list[tuple[str, bytes]]) -> int:
    for name, data in found:
        text = data.decode("utf-8", "replace")
        deliver.put(f"# ---- {name}\n{text}" + ("" if text.endswith("\n") else "\n"))
    return 0


def _put(what: str, found: list[tuple[str, bytes]], to: str) -> int:
    """Write them as files of that place, and say what comes next."""
    if place := _PLACES.get(what):
        if re.search(r"[^\w./+-]", to):
            return refused(f"{to}: slurm.conf takes letters, digits, and . / + - _ in a path")
        found = [(name, data.replace(place.encode(), os.fsencode(to))) for name, data in found]
    edited = [name for name, data in found if name == _EDITED.get(what) and _differs(os.path.join(to, name), data)]
    found = [(name, data) for name, data in found if name not in edited]
    code = _write(found, to)
    for name in edited if code == 0 else ():
        why = "it differs from what this version writes"
        print(f"netdoctor: kept as it is, for {why}: {os.path.join(to, name)}", file=sys.stderr)
    if code == 0:
        steps = (step.replace("DIR", shlex.quote(to)) for step in _NEXT.get(what, ()))
        print("\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1)), file=sys.stderr)
    return code


def _write(found: list[tuple[str, bytes]], to: str) -> int:
    """Nothing that is there is overwritten: it may have been edited."""
    paths = [(os.path.join(to, name), data) for name, data in found]
    there = [path for path, data in paths if os.path.lexists(path) and not _same(path, data)]
    if there:
        return refused(f"not overwritten: {listed(there)}; nothing was written")
    try:
        for path, data in paths:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            mode = 0o755 if data.startswith(b"#!") else 0o644
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "wb") as stream:
                stream.write(data)
            print(path)
    except OSError as error:
        print(f"netdoctor: deploy: {error.filename or to}: {error.strerror}", file=sys.stderr)
        return deliver.BROKEN
    return 0


def _differs(path: str, data: bytes) -> bool:
    return os.path.isfile(path) and not _same(path, data)


def _same(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(len(data) + 1) == data
    except OSError:
        return False
