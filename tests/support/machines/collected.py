"""Trees of /sys and /proc that others keep for their tests, put into build/trees by fetch_trees.sh beside this file."""

from __future__ import annotations

import contextlib
import pathlib
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.support.machines.sysfs import scratch

TREES: Final = pathlib.Path(__file__).parents[3] / "build" / "trees"
MISSING: Final = f"no trees of others in {TREES.name}: sh tests/support/machines/fetch_trees.sh fetches them"
_TARBALLS: Final = {"hwloc": "tests/hwloc/linux/*.tar.bz2", "util-linux": "tests/ts/lscpu/dumps/*.tar.gz"}
_PROCFS: Final = "golang-github-prometheus-procfs"


@dataclass(frozen=True)
class Tree:
    """One recorded machine, still packed."""

    package: str
    path: pathlib.Path

    @property
    def name(self) -> str:
        return f"{self.package}/{self.path.name.partition('.')[0]}"

    @property
    def expected(self) -> pathlib.Path | None:
        """What `lstopo` says about it, as hwloc keeps it: XML, or text for people."""
        stem = self.path.with_name(self.path.name.partition(".tar")[0])
        # "kept": with the NUMA nodes that are memory of GPUs, which lstopo leaves out otherwise.
        return next((p for end in (".kept.output", ".output") if (p := pathlib.Path(f"{stem}{end}")).exists()), None)

    @contextlib.contextmanager
    def unpacked(self) -> Iterator[pathlib.Path]:
        """The folder that holds sys and proc."""
        with scratch() as folder:
            if self.path.suffix == ".ttar":
                unpack_ttar(self.path.read_text(encoding="utf-8"), folder)
            else:
                with tarfile.open(self.path) as packed:
                    # The members are sysfs's: files, folders and links; nothing else is taken out, and nothing out of `folder`.
                    packed.extractall(folder, [m for m in packed if m.isfile() or m.isdir() or m.issym()], filter="tar")
            (root,) = (one for one in folder.iterdir() if one.is_dir())
            yield root


def every() -> tuple[Tree, ...]:
    """All of them, in the order of their names; () where none were fetched."""
    found = [Tree(name, path) for name, where in _TARBALLS.items() for path in TREES.joinpath(name).glob(where)]
    found += [Tree("procfs", path) for path in TREES.joinpath(_PROCFS).glob("testdata/*.ttar")]
    return tuple(sorted(found, key=lambda one: one.name))


def unpack_ttar(text: str, folder: pathlib.Path) -> None:
    """procfs's plain text archive (github.com/prometheus/procfs, ``ttar``): Path, Lines or SymlinkTo, Mode, a rule between.

    ``NULLBYTE`` stands for a zero byte and ``EOF`` at the end of a last line for "no newline here"; a backslash before
    either is a literal one.  Raises ValueError for a name that would leave `folder`.
    """
    lines = iter(text.splitlines(keepends=True))
    path = folder
    for line in lines:
        word, _, value = line.rstrip("\n").partition(": ")
        if word in ("Path", "Directory"):
            path = folder / value
            if ".." in path.parts or not path.is_relative_to(folder):
                raise ValueError(f"{value} leaves the archive")
            (path if word == "Directory" else path.parent).mkdir(parents=True, exist_ok=True)
        elif word == "SymlinkTo":
            path.symlink_to(value)
        elif word == "Lines":
            body = "".join(next(lines) for _ in range(int(value)))
            body = re.sub(r"(?<!\\)EOF\n\Z", "", body).replace("\\EOF", "EOF")
            path.write_text(re.sub(r"(?<!\\)NULLBYTE", "\0", body).replace("\\NULLBYTE", "NULLBYTE"), encoding="utf-8")
