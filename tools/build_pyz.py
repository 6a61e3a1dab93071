"""Build netdoctor.pyz: the package and its pure-Python dependencies in one file, the same bytes on every build.

    python tools/build_pyz.py [build/netdoctor.pyz]

Run it with a Python that has netdoctor's dependencies.  Nothing is ever unpacked: modules come through zipimport, data through
importlib.resources, helper programs as source text.  Compiled packages stay out: psutil has another file for every
architecture, and libyaml's binding another for every Python.  rich, which typer uses only where it finds it, stays out too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Distribution -> the modules that are taken from it.  click: typer before 0.26 needs it, later ones carry their own.
TAKEN = {
    "typer": ("typer",),
    "annotated-doc": ("annotated_doc",),
    "shellingham": ("shellingham",),
    "click": ("click",),
    "typing-extensions": ("typing_extensions",),
    "pyyaml": ("yaml",),
    "pyudev": ("pyudev",),
    "nvidia-ml-py": ("pynvml",),
    "junitparser": ("junitparser",),
    "prometheus-client": ("prometheus_client",),
}
EXTRAS = ("junitparser", "prometheus-client")
LEFT_OUT = {"psutil": "compiled", "rich": "typer works without it"}
DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can hold: a build is the same whenever it is made
# With -I neither the job's PYTHONPATH nor the folder of the file comes before the standard library.
SHEBANG = b"#!/usr/bin/python3 -I\n"
# Syntax of Python 2.7 and later: an old interpreter shall say so in one line.
MAIN = """\
import sys

if sys.version_info < (3, 10):
    found = (sys.executable,) + sys.version_info[:2]
    sys.stderr.write("netdoctor needs Python >= 3.10; %s is %d.%d: name another\\n" % found)
    sys.exit(2)
sys.dont_write_bytecode = True
from netdoctor.__main__ import main

main()
"""


def main() -> int:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/netdoctor.pyz")
    target.parent.mkdir(parents=True, exist_ok=True)
    entries = {"__main__.py": MAIN.encode(), **dict(package()), **dict(dependencies())}
    beside = target.with_name(f".{target.name}.tmp")
    with beside.open("wb") as stream:
        stream.write(SHEBANG)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name in sorted(entries):
                info = zipfile.ZipInfo(name, DATE)
                info.external_attr = 0o100644 << 16
                info.create_system = 3  # Unix, whatever builds it
                archive.writestr(info, entries[name], zipfile.ZIP_DEFLATED, 9)
    beside.chmod(0o755)
    beside.replace(target)
    print(f"{target}: {len(entries)} files, {target.stat().st_size >> 10} KiB")
    return 0


def package() -> Iterator[tuple[str, bytes]]:
    """The package as it lies in the tree, netdoctor/checks through its link, with all its data, and the licence."""
    yield "licenses/netdoctor/LICENSE", (ROOT / "LICENSE").read_bytes()
    yield from folder(ROOT / "netdoctor", "netdoctor")


def folder(path: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """Every file below `path`, but what Python or an editor leaves."""
    for below, folders, files in os.walk(path, followlinks=True):
        folders[:] = [one for one in folders if one != "__pycache__" and not one.startswith(".")]
        for file in files:
            if not file.startswith(".") and not file.endswith((".pyc", ".pyo", ".so", ".pyd", "~")):
                full = Path(below, file)
                yield f"{name}/{full.relative_to(path).as_posix()}", full.read_bytes()


def dependencies() -> Iterator[tuple[str, bytes]]:
    """What the package needs, all the way down, as it is installed beside this Python, each with its licence."""
    for name in sorted(needed()):
        if name in LEFT_OUT:
            continue
        if name not in TAKEN:
            raise SystemExit(f"{name} is a new dependency: is it pure Python?  Say so in {__file__}")
        found = distribution(name)
        for module in TAKEN[name]:
            yield from module_files(module)
        for file in found.files or ():
            if name in EXTRAS and str(file).endswith(".dist-info/METADATA"):  # asks for its own version when it is imported
                yield str(file), Path(str(file.locate())).read_bytes()
            if re.search(r"(?i)(^|/)(licen[cs]e|copying|notice)[^/]*$", str(file)) and ".dist-info/" in str(file):
                yield f"licenses/{name}/{file.name}", Path(str(file.locate())).read_bytes()


def module_files(module: str) -> Iterator[tuple[str, bytes]]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{module} is not installed for {sys.executable}")
    if spec.submodule_search_locations:
        yield from folder(Path(spec.origin).parent, module)
    else:
        yield f"{module}.py", Path(spec.origin).read_bytes()


def needed() -> set[str]:
    """Names of all distributions that cluster-netdoctor needs here; of the extras, those that are pure Python and small."""
    todo, seen = ["cluster-netdoctor", *EXTRAS], set(EXTRAS)
    while todo:
        found = _installed(todo.pop())
        for requirement in found.requires or () if found else ():
            text, _, marker = requirement.partition(";")
            name = re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", text.strip())[0]).lower()  # type: ignore[index]
            if name not in seen and "extra ==" not in marker and "Windows" not in marker and "win32" not in marker:
                seen.add(name)
                todo += [] if name in LEFT_OUT else [name]
    return seen


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise SystemExit(f"{name} is not installed for {sys.executable}: make pyz") from None


if __name__ == "__main__":
    sys.exit(main())
