"""Root's netdoctor and a user who would have it run code: root's folder, eve's folder, and marks that tell who ran it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from netdoctor.allreduce.runner import Session
from netdoctor.facts.runs import AllReduce, Run
from tests.support.machines.native import gcc
from tests.support.namespaces.folders import own_folder
from tests.support.sources import ROOT

EVE = 64001
SYSTEM = "/usr/bin/python3"  # that of the distribution: everybody may run it
SMALL = AllReduce("gloo", 2, "cpu", sizes=(4096,))
STUB = ROOT / "tests/fakes/stub_torch/torch"


@dataclass
class Scene:
    """Root's folder, eve's folder, and a place where anybody may leave a mark."""

    root: Path
    eve: Path
    marks: Path
    variables: dict[str, str] = field(default_factory=dict)

    def evil(self, name: str) -> str:
        """Python that tells who runs it."""
        return f"import os\nopen({str(self.marks)!r} + '/{name}', 'w').write(str(os.geteuid()))\n"

    def c(self, name: str, more: str = "") -> Path:
        """A shared library of eve's that tells who loads it."""
        source, made = self.eve / f"{name}.c", self.eve / name
        source.write_text(
            f"#include <stdio.h>\n#include <unistd.h>\n{more}\n__attribute__((constructor)) static void run(void) {{"
            f' FILE *f = fopen("{self.marks}/{name}", "w"); if (f) {{ fprintf(f, "%d", geteuid()); fclose(f); }} }}\n'
        )
        subprocess.run([gcc(), "-shared", "-fPIC", "-o", made, source], check=True, timeout=60)
        self.give(self.eve)
        return made

    def give(self, path: Path) -> None:
        """To eve, with all below it."""
        for one in (path, *path.rglob("*")):
            os.chown(one, EVE, EVE, follow_symlinks=False)

    def venv(self, *options: str, name: str = "venv") -> Path:
        """Root's own virtual environment with a torch that does next to nothing; its interpreter."""
        made = self.root / name
        subprocess.run([SYSTEM, "-m", "venv", "--without-pip", *options, made], check=True, timeout=60)
        (site,) = made.glob("lib/python3*/site-packages")
        subprocess.run(["cp", "-R", STUB, site], check=True)
        return made / "bin/python3"

    def ran(self) -> dict[str, int]:
        """Which marks there are, and the uid in each."""
        return {one.name: int(one.read_text()) for one in self.marks.iterdir()}


@contextmanager
def scenes() -> Iterator[Scene]:
    with own_folder() as folder:
        folder.chmod(0o755)
        parts = [folder / name for name in ("root", "eve", "marks")]
        for part, mode in zip(parts, (0o755, 0o755, 0o1777), strict=True):
            part.mkdir()
            part.chmod(mode)
        os.chown(parts[1], EVE, EVE)
        yield Scene(*parts)


def all_reduce(python: Path | str, library: str = "", **variables: str) -> Run:
    given = {"PATH": os.environ["PATH"], **variables}
    with closing(Session(str(python), given, library=library, lock=False)) as session:
        return session.run(SMALL)


def site_of(python: Path) -> Path:
    (site,) = python.parents[1].glob("lib/python3*/site-packages")
    return site
