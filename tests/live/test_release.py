"""What `make release` builds, each tried in a place that has nothing of this checkout: roots of Debian, fresh environments."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from netdoctor import __version__
from tests.support.clusters import pods, pyz
from tests.support.machines.fetch import HELM, ROOT, FetchError, pip
from tests.support.namespaces import checkout
from tools import packages, release

pytestmark = [pytest.mark.live, pytest.mark.root]
LOOK = ("preflight", "--no-allreduce", "--profile", "audit", "-q", "--brief")


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, check=False).returncode:
        pytest.skip("no repository: a release is of a commit")
    try:
        pip("index", "versions", "build")
    except FetchError as error:
        pytest.skip(f"the tools of a release cannot be fetched: {error}")
    target = tmp_path_factory.mktemp("dist")
    release.release(target, release.environment(ROOT / "build/release-tools", *release.TOOLS), None)
    yield target
    shutil.rmtree(target)


@pytest.fixture(scope="module")
def clean() -> Iterator[Path]:
    """A Debian of nothing but apt, kept as an archive from run to run."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("no mmdebstrap")
    tar = checkout.cache() / "apt-root.tar"
    if not tar.exists():
        tar.parent.mkdir(exist_ok=True)
        half = tar.with_suffix(".half.tar")
        done = subprocess.run(["mmdebstrap", "--variant=apt", "bookworm", half], capture_output=True, text=True, check=False)
        if done.returncode:
            half.unlink(missing_ok=True)
            pytest.skip(f"mmdebstrap made no root file system: {done.stderr.strip()[-200:]}")
        half.rename(tar)
    # Not in build/: files of other users there would make the checkout one that root does not run.  /tmp may allow no devices.
    with tempfile.TemporaryDirectory(prefix="netdoctor-apt-root-", dir="/var/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        run("tar", "-xf", tar, "-C", root, "--exclude=./dev/*")
        for name in ("null", "urandom"):
            run("cp", "-a", f"/dev/{name}", root / "dev")
        for name in ("resolv.conf", "hosts"):
            shutil.copy(f"/etc/{name}", root / "etc" / name)
        yield root


def test_everything_is_there_and_summed(dist: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dist.iterdir() if path.name in sums}
    kinds = (
        {"whl", "gz", "pyz", "json", "deb"}
        | ({"rpm"} if shutil.which("rpmbuild") else set())
        | ({"tgz"} if HELM.exists() else set())
    )
    assert {name.rpartition(".")[2] for name in sums} == kinds


def test_the_deb_in_a_clean_debian(dist: Path, clean: Path) -> None:
    (deb,) = dist.glob("*.deb")
    shutil.copy(deb, clean / "tmp")
    run("chroot", clean, "apt-get", "-qq", "update")
    run("chroot", clean, "apt-get", "-qq", "install", "-y", "--no-install-recommends", f"/tmp/{deb.name}")  # and its Python
    assert run("chroot", clean, "netdoctor", "--version") == f"netdoctor {__version__}\n"
    said = subprocess.run(["chroot", clean, "netdoctor", *LOOK], capture_output=True, text=True, check=False)
    assert said.returncode in (0, 3) and len(said.stdout.splitlines()) == 1, said.stderr
    unit = (clean / "usr/lib/systemd/system/netdoctor.service").read_text()
    assert "ExecStart=/usr/bin/netdoctor preflight" in unit and "/opt/" not in unit and "man:netdoctor(1)" in unit
    run("chroot", clean, "dpkg", "-P", "netdoctor")
    assert not list(clean.glob("usr/**/netdoctor*"))


def test_the_rpm_in_the_same_root(dist: Path, clean: Path) -> None:
    found = list(dist.glob("*.rpm"))
    if not found:
        pytest.skip("no rpmbuild")
    assert "python3 >= 3.10" in run("rpm", "-qp", "--requires", found[0])
    run("rpm", "--root", clean, "-i", "--nodeps", found[0])  # no Python is in its database
    assert run("chroot", clean, "netdoctor", "--version") == f"netdoctor {__version__}\n"
    assert run("rpm", "--root", clean, "-qf", "/usr/bin/netdoctor").startswith(f"netdoctor-{__version__}-1")


@pytest.mark.parametrize("what", ["*.whl", "cluster_netdoctor-*.tar.gz"])
def test_wheel_and_sdist_in_a_fresh_environment(what: str, dist: Path, tmp_path: Path) -> None:
    (file,) = dist.glob(what)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    run(tmp_path / "venv/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", file, cwd=tmp_path)
    assert run(tmp_path / "venv/bin/netdoctor", "--version", cwd=tmp_path) == f"netdoctor {__version__}\n"
    assert "net.port_range" in run(tmp_path / "venv/bin/netdoctor", "list", cwd=tmp_path)
    assert "overlays/node-health/daemonset.yaml" in run(tmp_path / "venv/bin/netdoctor", "deploy", "kubernetes", cwd=tmp_path)


def test_the_one_file_by_itself(dist: Path, tmp_path: Path) -> None:
    shutil.copy(dist / "netdoctor.pyz", tmp_path)
    assert run(sys.executable, "-I", "netdoctor.pyz", "--version", cwd=tmp_path) == f"netdoctor {__version__}\n"


def test_the_collection_installs(dist: Path, tmp_path: Path) -> None:
    (file,) = dist.glob("netdoctor-cluster-*.tar.gz")
    galaxy = ROOT / "build/release-tools/bin/ansible-galaxy"
    run(galaxy, "collection", "install", "--offline", file, "-p", tmp_path)
    assert (tmp_path / "ansible_collections/netdoctor/cluster/playbooks/audit.yml").exists()


@pytest.mark.skipif(not HELM.exists(), reason="no helm: make parts")
def test_the_chart_renders_from_its_archive(dist: Path) -> None:
    (file,) = dist.glob("netdoctor-chart-*.tgz")
    assert "kind: DaemonSet" in run(HELM, "template", "netdoctor", file)
    with tarfile.open(file) as tar:
        assert not [name for name in tar.getnames() if "__pycache__" in name]


def test_the_image_is_an_archive_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pods.podman() as podman:
        monkeypatch.setenv("CONTAINERS_CONF", str(podman.folder / "containers.conf"))
        one = packages.Release(ROOT, tmp_path, pyz.built(), __version__, 1_700_000_000)
        packages.image(one, pods.JOB, *podman._base)
        (file,) = tmp_path.glob("netdoctor-image-*.tar")
        podman("rmi", "-f", f"localhost/netdoctor:{__version__}")
        podman("load", "-q", "-i", str(file))
        done = podman("run", "--rm", "--network=none", "--read-only", f"localhost/netdoctor:{__version__}", "--version")
        assert done.stdout == f"netdoctor {__version__}\n"
    pyz.forget()
