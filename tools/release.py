"""Build a release: wheel, sdist, netdoctor.pyz and its bill of materials (CycloneDX), deb, rpm, Ansible collection, Helm chart,
container image, and SHA256SUMS; the same bytes on every build.

    python -m tools.release [--twice] [--image-base NAME] [dist]

Builds what is committed (git archive HEAD), dated by its commit.  What the pyz carries is installed by the hashes of
tools/carried.txt and nothing else.  ``--twice`` builds again elsewhere and compares.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.support.machines.fetch import HELM, helm
from tools import packages

ROOT = Path(__file__).resolve().parent.parent
TOOLS = (
    "build==1.6.1",
    "setuptools==84.2.1",
    "wheel==0.48.0",
    "cyclonedx-bom==7.5.0",
    "ansible-core==2.18.12",
)  # of the build alone: nothing of them is shipped
SUMS = "SHA256SUMS"


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("target", nargs="?", default=ROOT / "dist", type=Path)
    asked.add_argument("--twice", action="store_true", help="build again elsewhere, and compare")
    asked.add_argument("--image-base", help="an image with Python >= 3.10 that podman has (default: that of the Containerfile)")
    given = asked.parse_args()
    tools = environment(ROOT / "build/release-tools", *TOOLS)
    made = release(given.target.resolve(), tools, given.image_base)
    if given.twice:
        with tempfile.TemporaryDirectory() as folder:
            again = release(Path(folder), tools, given.image_base)
        if again != made:
            raise SystemExit(f"not reproducible:\n{made}\n{again}")
        print("built twice, the same bytes", file=sys.stderr)
    print(made, end="")
    return 0


def release(target: Path, tools: Path, base: str | None) -> str:
    """The artefacts in `target`; the text of SHA256SUMS.  What had to be left out is said on stderr."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    date = said("git", "-C", str(ROOT), "log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            # Our own commit: netdoctor/checks is a link.  `filter=` is unknown before Python 3.10.12 and 3.11.4 (PEP 706).
            tar.extraction_filter = lambda member, _path: member
            tar.extractall(source)
        variables = {**os.environ, "SOURCE_DATE_EPOCH": date, "PYTHONHASHSEED": "0", "TZ": "UTC"}
        run(tools, "-m", "build", "--no-isolation", "--outdir", str(target), str(source), env=variables)
        (sdist,), (wheel,) = target.glob("*.tar.gz"), target.glob("*.whl")
        tidy(sdist, int(date))
        carried = environment(
            Path(folder, "carried"), "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", "tools/carried.txt"
        )
        run(carried, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel))
        run(carried, str(source / "tools/build_pyz.py"), str(target / "netdoctor.pyz"))
        run(carried, "-m", "pip", "uninstall", "-q", "-y", "setuptools", "pip")
        bill = ("--output-reproducible", "--of", "JSON", "-o", str(target / "netdoctor.cdx.json"))
        main_part = ("--pyproject", str(source / "pyproject.toml"), "--mc-type", "application")
        run(tools, "-m", "cyclonedx_py", "environment", *main_part, *bill, str(carried))
        one = packages.Release(source, target, target / "netdoctor.pyz", _version(wheel), int(date))
        man = Path(folder, "netdoctor.1")
        run(carried, "-m", "tools.reference", "--man", str(man), cwd=source)
        made = Path(folder, "tree")
        packages.tree(one, made, man.read_text(encoding="utf-8"))
        program = str(HELM) if helm() else None
        for name, step in (
            ("deb", lambda: packages.deb(one, made)),
            ("rpm", lambda: packages.rpm(one, made)),
            ("Ansible collection", lambda: tidy(packages.collection(one, str(tools.with_name("ansible-galaxy"))), int(date))),
            ("Helm chart", lambda: tidy(packages.chart(one, program), int(date))),
            ("container image", lambda: packages.image(one, base)),
        ):
            if line := packages.left_out(name, step):
                print(line, file=sys.stderr)
    files = sorted(path for path in target.iterdir() if path.name != SUMS)
    text = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (target / SUMS).write_text(text)
    return text


def environment(folder: Path, *wanted: str) -> Path:
    """The Python of a virtual environment with these."""
    if not (folder / "bin/python").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted)
    return python


def run(python: Path, *words: str, env: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
    subprocess.run([python, *words], check=True, env=env, cwd=cwd, stdout=sys.stderr)


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def tidy(sdist: Path, date: int) -> None:
    """The same files in one order, with one date and no owner (who packs keeps those of the folder, or takes today's)."""
    with tarfile.open(sdist) as tar:
        rows = sorted(((row, tar.extractfile(row)) for row in tar.getmembers()), key=lambda one: one[0].name)
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as out:
            for row, content in rows:
                row.mtime, row.uid, row.gid, row.uname, row.gname, row.pax_headers = date, 0, 0, "", "", {}
                row.mode = 0o755 if row.isdir() or row.mode & 0o100 else 0o644
                out.addfile(row, content)
    with sdist.open("wb") as stream, gzip.GzipFile("", "wb", 9, stream, mtime=date) as packed:
        packed.write(plain.getvalue())


if __name__ == "__main__":
    sys.exit(main())
