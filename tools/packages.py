"""What a release has beside wheel and one file: deb, rpm, the Ansible collection, the Helm chart, a container image.

Each is made by the tool of its kind: dpkg-deb, rpmbuild, ansible-galaxy, helm, podman.  A tool that is not here leaves its
artefact out, with the line that says which tool that was.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

DEPLOY: Final = Path("netdoctor/deploy")
ABOUT: Final = "Finds what silently slows or hangs distributed GPU jobs"

CONTROL: Final = """\
Package: netdoctor
Version: {version}
Architecture: all
Maintainer: The netdoctor authors <netdoctor@localhost>
Depends: python3 (>= 3.10)
Recommends: libibverbs1
Section: admin
Priority: optional
Description: {about}
 Looks at the node as it is, runs a short all-reduce through the very library
 that the job will use, and says what is wrong, what it costs and what mends it.
"""
# The files are made already.  One date, one host: the same bytes on every build.
SPEC: Final = """\
Name: netdoctor
Version: {version}
Release: 1
Summary: {about}
License: Apache-2.0
BuildArch: noarch
Requires: python3 >= 3.10
AutoReqProv: no
%description
Looks at the node as it is, runs a short all-reduce through the very library
that the job will use, and says what is wrong, what it costs and what mends it.
%install
cp -a {tree}/. %{{buildroot}}/
%files
/usr/bin/netdoctor
/usr/lib/systemd/system/netdoctor.service
/usr/lib/systemd/system/netdoctor.timer
/usr/share/man/man1/netdoctor.1.gz
/usr/share/doc/netdoctor/copyright
"""


class Release(NamedTuple):
    """What all of them are made from."""

    source: Path  # the tree of the commit
    target: Path
    pyz: Path
    version: str
    date: int  # of the commit


class Lacking(Exception):  # noqa: N818 - no error: what cannot be made here
    """One line: what is needed."""


def tree(release: Release, folder: Path, man: str) -> None:
    """What deb and rpm install: the one file as /usr/bin/netdoctor, its man page, its units."""
    files: dict[str, tuple[bytes, int]] = {
        "usr/bin/netdoctor": (release.pyz.read_bytes(), 0o755),
        "usr/share/man/man1/netdoctor.1.gz": (gzip.compress(man.encode(), 9, mtime=release.date), 0o644),
        "usr/share/doc/netdoctor/copyright": ((release.source / "LICENSE").read_bytes(), 0o644),
    }
    for name in ("netdoctor.service", "netdoctor.timer"):
        text = (release.source / DEPLOY / "systemd" / name).read_text(encoding="utf-8")
        text = text.replace("/usr/bin/python3 -I /opt/netdoctor/netdoctor.pyz", "/usr/bin/netdoctor")
        text = text.replace("/opt/netdoctor/netdoctor.pyz", "/usr/bin/netdoctor")
        # Beside the one file alone there is no such page.
        text = text.replace("After=network.target\n", "Documentation=man:netdoctor(1)\nAfter=network.target\n")
        files[f"usr/lib/systemd/system/{name}"] = (text.encode(), 0o644)
    for name, (data, mode) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
    for at, folders, names in os.walk(folder, topdown=False):
        for path in (*(Path(at, name) for name in names), *(Path(at, name) for name in folders)):
            os.utime(path, (release.date, release.date))
            if path.is_dir():
                path.chmod(0o755)


def deb(release: Release, made: Path) -> None:
    _needs("dpkg-deb", "apt-get install dpkg")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(made, Path(folder, "root"), dirs_exist_ok=True)
        control = Path(folder, "root/DEBIAN/control")
        control.parent.mkdir(mode=0o755)
        control.write_text(CONTROL.format(version=release.version, about=ABOUT))
        for path in (control, control.parent, Path(folder, "root")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        out = release.target / f"netdoctor_{release.version}_all.deb"
        _run("dpkg-deb", "--build", "--root-owner-group", "-Zxz", str(Path(folder, "root")), str(out), date=release.date)


def rpm(release: Release, made: Path) -> None:
    _needs("rpmbuild", "apt-get install rpm")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "netdoctor.spec").write_text(SPEC.format(version=release.version, about=ABOUT, tree=made))
        settings = {
            "_topdir": folder,
            "_rpmdir": str(release.target),
            "_build_name_fmt": "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
            "_buildhost": "localhost",
            "use_source_date_epoch_as_buildtime": "1",
            "clamp_mtime_to_source_date_epoch": "1",
            "_binary_payload": "w9.gzdio",  # that of every rpm there is
            "__os_install_post": "%{nil}",  # the files are as they are to be
        }
        defines = [word for name, value in settings.items() for word in ("--define", f"{name} {value}")]
        _run("rpmbuild", "-bb", "--quiet", *defines, f"{folder}/netdoctor.spec", date=release.date)


def collection(release: Release, galaxy: str | None = None) -> Path:
    """The tarball for Galaxy, or for `ansible-galaxy collection install FILE`."""
    program = galaxy or shutil.which("ansible-galaxy")
    if program is None:
        raise Lacking("ansible-galaxy (pip install ansible-core)")
    _run(program, "collection", "build", "--output-path", str(release.target), str(release.source / DEPLOY / "ansible"))
    (made,) = release.target.glob("netdoctor-cluster-*.tar.gz")
    return made


def chart(release: Release, helm: str | None = None) -> Path:
    program = helm or shutil.which("helm")
    if program is None:
        raise Lacking("helm (make parts)")
    _run(program, "package", "--destination", str(release.target), str(release.source / DEPLOY / "kubernetes"))
    made = release.target / f"netdoctor-{release.version}.tgz"
    return made.rename(release.target / f"netdoctor-chart-{release.version}.tgz")


def image(release: Release, base: str | None, *podman: str) -> None:
    """As an OCI archive (`podman load`, `skopeo copy oci-archive:FILE docker://…`), on a `base` that podman has or reaches."""
    _needs("podman", "apt-get install podman")
    words = podman or ("podman",)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(release.pyz, Path(folder, "netdoctor.pyz"))
        based = [f"--build-arg=BASE={base}"] if base else []
        name, file = f"localhost/netdoctor:{release.version}", str(release.source / DEPLOY / "kubernetes/Containerfile")
        try:
            _run(*words, "build", "-q", *based, f"--timestamp={release.date}", "-t", name, "-f", file, folder)
        except subprocess.CalledProcessError:
            raise Lacking("a base image that podman has or reaches: IMAGE_BASE=NAME") from None
        _run(
            *words,
            "save",
            "-q",
            "--format",
            "oci-archive",
            "-o",
            str(release.target / f"netdoctor-image-{release.version}.tar"),
            name,
        )


def left_out(name: str, step: Callable[[], object]) -> str:
    """Take the step; the line of what had to be left out, "" where nothing was."""
    try:
        step()
    except Lacking as lacking:
        return f"left out: {name}: needs {lacking}"
    return ""


def _needs(program: str, how: str) -> None:
    if shutil.which(program) is None:
        raise Lacking(f"{program} ({how})")


def _run(*command: str, date: int | None = None) -> None:
    variables = {**os.environ, "TZ": "UTC", **({} if date is None else {"SOURCE_DATE_EPOCH": str(date)})}
    subprocess.run(command, check=True, stdout=sys.stderr, env=variables)
