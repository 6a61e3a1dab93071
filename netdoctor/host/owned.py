"""A Python that root may run though it is not netdoctor's own: every file that it would load is root's alone.

`trusted` asks a path and the way to it; here each file of the standard library and of site-packages is asked, for a package of
root's may hold a file of a user's, and each folder in which the loader would look for what their libraries need.  It is run
with ``-I -S``, in "/": no .pth file, sitecustomize, user's folder or working directory adds to that, and site-packages is put
behind the standard library by name.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from typing import Final

from netdoctor.host.helpers import elf
from netdoctor.host.trust import foreign_library, may_lead_to_others, roots_alone, trusted
from netdoctor.process import far

MOST: Final = 500_000  # files; torch with CUDA and all its dependencies has 40,000
PATIENCE: Final = 15.0  # seconds: a cold disk reads the inodes of torch in two
_NEEDS: Final = (elf.DT_RPATH, elf.DT_RUNPATH, elf.DT_NEEDED)


class NotOursError(Exception):
    """Others can change what would be loaded; the text is for people."""


def site_packages(python: str) -> str:
    """The folder that `python` is to import from, all of it root's.  Raises NotOursError."""
    return _asked(_python, python)


def all_roots(folder: str) -> None:
    """Raises NotOursError where something below a folder is not root's alone."""
    _asked(_folder, folder)


def _asked(work: Callable[[str], str], path: str) -> str:
    try:
        return far.call(work, path, path=path, limit=PATIENCE + 5)
    except OSError as error:
        raise NotOursError(f"{error.filename or path}: {error.strerror}") from None


def _folder(folder: str) -> str:
    if reason := may_lead_to_others(folder):
        raise NotOursError(f"{folder}: {reason}")
    if os.path.lexists(folder):
        _Look((folder,)).trees()
    return folder


def _python(python: str) -> str:
    if os.path.normpath(python) != python or ":" in python:  # getpath.py goes by its letters
        raise NotOursError(f"{python} is no plain path")
    _root_alone(python)
    prefix, real = os.path.dirname(os.path.dirname(python)), os.path.realpath(python)
    base = _base(prefix, real)
    found = re.search(r"python(3\.\d+)$", real)
    if found is None:
        raise NotOursError(f"{real} does not name its version")
    with open(real, "rb") as stream:
        if stream.read(4) != b"\x7fELF":
            raise NotOursError(f"{real} is a script")
    lib = os.path.join(base, "lib", f"python{found[1]}")
    # getpath.py goes by these landmarks; without them it goes elsewhere, to what was compiled in.
    for landmark in ("os.py", "lib-dynload"):
        if not os.path.exists(os.path.join(lib, landmark)):
            raise NotOursError(f"{lib} has no {landmark}: where the standard library lies is not known")
    site = os.path.join(prefix, "lib", f"python{found[1]}", "site-packages")
    look = _Look((lib, site))
    look.trees()
    look.searched(os.path.join(base, "lib"))
    look.library(real)
    _zipped(os.path.join(base, "lib"))
    return site


def _base(prefix: str, real: str) -> str:
    """Where the standard library lies: of a virtual environment at its `home` (PEP 405), else beside the interpreter."""
    settings, base = os.path.join(prefix, "pyvenv.cfg"), os.path.dirname(os.path.dirname(real))
    for other in (f"{prefix}/bin", os.path.dirname(real), base):
        if os.path.lexists(f"{other}/pyvenv.cfg") and other != prefix:
            raise NotOursError(f"{other}/pyvenv.cfg beside the interpreter")
    if not os.path.lexists(settings):
        return base
    _root_alone(settings)
    with open(settings, encoding="utf-8") as stream:
        homes = [line.partition("=")[2].strip() for line in stream if line.partition("=")[0].strip().lower() == "home"]
    if len(homes) != 1:
        raise NotOursError(f"{settings} names no one home")
    _root_alone(homes[0])
    return os.path.dirname(os.path.normpath(homes[0]))  # no link is resolved there either


def _zipped(folder: str) -> None:
    """The standard library as an archive, which comes first in sys.path."""
    for name in os.listdir(folder):
        if name.endswith(".zip"):
            _root_alone(os.path.join(folder, name))


def _root_alone(path: str) -> None:
    if reason := trusted(path):
        raise NotOursError(f"{path}: {reason}")


class _Look:
    """A walk through folders, and through what their libraries need."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.roots = [os.path.realpath(one) for one in folders]
        self.until, self.seen = time.monotonic() + PATIENCE, 0
        self.devices = set[int]()
        self.known = set[str]()  # where the loader looks
        for folder in folders:
            _root_alone(folder)

    def trees(self) -> None:
        for root in self.roots:
            self.tree(root)

    def tree(self, folder: str) -> None:
        """Every entry below is root's, and nobody else may write it."""
        todo = [folder]
        while todo:
            at = todo.pop()
            with os.scandir(at) as entries:
                todo.extend(entry.path for entry in entries if self.judged(entry, folder))

    def judged(self, entry: os.DirEntry[str], folder: str) -> bool:
        """Whether it is a folder."""
        self.seen += 1
        if self.seen > MOST or time.monotonic() > self.until:
            raise NotOursError(f"{folder} was not looked through: {self.seen} files in {PATIENCE:g} s")
        facts = entry.stat(follow_symlinks=False)
        if facts.st_uid != 0:
            raise NotOursError(f"{entry.path} belongs to uid {facts.st_uid}")
        if stat.S_ISLNK(facts.st_mode):
            self.link(entry.path)
            return False
        if not stat.S_ISDIR(facts.st_mode) and not stat.S_ISREG(facts.st_mode):
            raise NotOursError(f"{entry.path} is neither a file nor a folder")
        if not roots_alone(facts):
            raise NotOursError(f"{entry.path} is writable by others")
        if facts.st_dev not in self.devices:
            self.devices.add(facts.st_dev)
            _of_this_machine(entry.path)
        if ".so" in entry.name and stat.S_ISREG(facts.st_mode):
            self.library(entry.path)
        return stat.S_ISDIR(facts.st_mode)

    def link(self, path: str) -> None:
        """Every step of it is root's, and it leads to what is walked as well, to a file, or to what root alone can make."""
        target = os.path.realpath(path)
        if not os.path.lexists(target):
            if reason := may_lead_to_others(path):
                raise NotOursError(f"{path}: {reason}")
            return
        _root_alone(path)
        if not any(far.below(target, root) for root in self.roots) and not os.path.isfile(target):
            raise NotOursError(f"{path} leads to {target}")
        if ".so" in os.path.basename(path) and os.path.isfile(target):
            self.library(path)  # $ORIGIN is the folder of the link

    def library(self, path: str) -> None:
        """Where the loader would look for what a library needs (ld.so(8)); a relative path is one below "/"."""
        try:
            with elf.mapped(path) as data:
                rpath, runpath, needed = (elf.Elf(data).strings(tag) for tag in _NEEDS)
        except ValueError:
            return  # no library: the loader takes it as little
        origin = os.path.dirname(path)
        folders = [part for text in (*rpath, *runpath) for part in text.split(":")]
        for part in (*folders, *(name for name in needed if "/" in name)):
            plain = part.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
            if "$" in plain:
                raise NotOursError(f"{path} has the loader look in {part}")
            self.searched(os.path.join("/", plain), f"{path}, which has the loader look there")

    def searched(self, folder: str, why: str = "") -> None:
        """A folder (or file) where the loader looks is root's, and so is each library in it."""
        if folder in self.known:
            return
        self.known.add(folder)
        if reason := may_lead_to_others(folder) or foreign_library(folder):
            raise NotOursError(f"{folder}: {reason}" + (f": {why}" if why else ""))
        real = os.path.realpath(folder)
        if os.path.isdir(real) and not any(far.below(real, root) for root in self.roots):
            with os.scandir(real) as entries:
                for entry in entries:
                    if ".so" in entry.name and entry.is_file():
                        self.library(entry.path)


def _of_this_machine(path: str) -> None:
    """Elsewhere somebody else says whose a file is: a server, by ids of its own and by access lists that no bits show."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mount, _ = far.mount_of(fd) or (None, "")
    finally:
        os.close(fd)
    if mount is not None and mount.kind not in far.LOCAL:
        raise NotOursError(f"{path} is on a file system ({mount.kind}) that is not this machine's own")
