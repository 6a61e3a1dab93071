"""Whole machines as answers, composed in memory: a tree of files and links, and what the helper programs would say.

`ComposedHost` answers the same questions as `LiveHost`, with the kernel's rules for links, absent entries and errno names, so
that probes meet it as they meet a machine; behind a `RecordingHost` it gives a snapshot.  Nothing here touches this machine.
"""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from netdoctor.host.base import Answer, split_question, unavailable
from netdoctor.host.helpers import pci_config
from netdoctor.model import Kind, Unavailable
from tests.support.machines.sysfs import Tree, relative

ABSENT, NO_FILE, NO_FOLDER, NO_LINK = (
    unavailable(OSError(number, "")) for number in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EINVAL)
)
MODULES = ("kernel", "printk", "tcp_cubic", "ipv6", "workqueue")  # every kernel has built-in ones with parameters
SYSCTLS = {
    "net/ipv4/ip_local_port_range": "32768\t60999",
    "net/ipv4/ip_local_reserved_ports": "",
    "net/ipv4/ip_unprivileged_port_start": "1024",
    "net/ipv4/tcp_rmem": "4096\t131072\t67108864",
    "net/ipv4/tcp_wmem": "4096\t65536\t67108864",
    "net/ipv4/tcp_mem": "6169632\t8226179\t12339264",
    "net/ipv4/tcp_congestion_control": "cubic",
    "net/ipv4/tcp_available_congestion_control": "reno cubic",
    "net/ipv4/tcp_moderate_rcvbuf": "1",
    "net/ipv4/tcp_adv_win_scale": "1",
    "net/ipv4/tcp_window_scaling": "1",
    "net/ipv4/tcp_slow_start_after_idle": "1",
    "net/ipv4/tcp_mtu_probing": "0",
    "net/ipv4/tcp_syn_retries": "6",
    "net/ipv4/neigh/default/gc_thresh1": "128",
    "net/ipv4/neigh/default/gc_thresh2": "512",
    "net/ipv4/neigh/default/gc_thresh3": "1024",
    "net/ipv6/neigh/default/gc_thresh1": "128",
    "net/ipv6/neigh/default/gc_thresh2": "512",
    "net/ipv6/neigh/default/gc_thresh3": "1024",
    "net/core/rmem_max": "67108864",
    "net/core/wmem_max": "67108864",
    "net/core/somaxconn": "4096",
    "kernel/numa_balancing": "0",
    "kernel/pid_max": "4194304",
    "kernel/threads-max": "16509500",
    "fs/file-nr": "9216\t0\t9223372036854775807",
}


class Files:
    """Files, folders and links by absolute path."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.folders: dict[str, set[str]] = {"/": set()}
        self.errors: dict[str, Unavailable] = {}  # paths that are there and refuse

    def folder(self, path: str) -> None:
        while path not in self.folders:
            self.folders[path] = set()
            above, _, name = path.rpartition("/")
            path = above or "/"
            fresh = path not in self.folders
            if fresh:
                self.folder(path)
            self.folders[path].add(name)

    def write(self, path: str, text: str) -> None:
        above, _, name = path.rpartition("/")
        self.folder(above or "/")
        self.folders[above or "/"].add(name)
        self.files[path] = text

    def link(self, path: str, target: str) -> None:
        above, _, name = path.rpartition("/")
        self.folder(above or "/")
        self.folders[above or "/"].add(name)
        self.links[path] = target

    def resolve(self, path: str, follow_last: bool = True, left: int = 40) -> str | None:
        """The path without links; None where it leads nowhere."""
        at = "/"
        steps = [s for s in path.split("/") if s]
        for number, step in enumerate(steps):
            if step == "..":
                at = at.rpartition("/")[0] or "/"
                continue
            here = f"/{step}" if at == "/" else f"{at}/{step}"
            if here in self.links and (follow_last or number < len(steps) - 1):
                if not left:
                    return None
                target = self.links[here]
                whole = target if target.startswith("/") else f"{at}/{target}"
                got = self.resolve(whole, True, left - 1)
                if got is None:
                    return None
                here = got
            elif here not in self.folders and here not in self.files and here not in self.links:
                return None
            at = here
        return at


def _word(content: bytes, at: int, size: int) -> int:
    return int.from_bytes(content[at : at + size], "little")


class SysTree(Tree):
    """`Tree` in memory, at /sys."""

    def __init__(self, files: Files) -> None:
        super().__init__(pathlib.Path("/sys"))
        self.files = files
        self.config: dict[str, Answer] = {}  # of ask:pci_config

    def folder(self, name: str) -> None:
        self.made.add(name)
        self.files.folder(f"/sys/{name}")

    def write(self, folder: str, **files: str | bytes) -> None:
        self.folder(folder)
        for name, content in files.items():
            if not isinstance(content, bytes):
                self.files.write(f"/sys/{folder}/{name}", content + "\n")
            elif content[11] in (0x02, 0x06):  # network controllers and bridges, of which the helper tells
                told: Any = pci_config.told(partial(_word, content), len(content))
                self.config[folder.rpartition("/")[2]] = told

    def refuse(self, folder: str, name: str) -> None:
        self.write(folder, **{name: ""})
        self.files.errors[f"/sys/{folder}/{name}"] = unavailable(OSError(errno.EINVAL, os.strerror(errno.EINVAL)))

    def link(self, name: str, target: str) -> None:
        self.files.link(f"/sys/{name}", relative(target, os.path.dirname(name)))


@dataclass
class ComposedHost:
    """Answers from `files`, `answers` and the ELF table; what is in none of them is absent, as on a machine."""

    files: Files = field(default_factory=Files)
    answers: dict[str, Answer] = field(default_factory=dict)  # env:, config:, ask:…, open:…, stat:… of devices
    elf: dict[str, dict[str, Any]] = field(default_factory=dict)  # path -> row of ask:elf
    cache: list[list[str]] = field(default_factory=list)  # [soname, path] of the loader's cache
    addresses_of: dict[str, list[str]] = field(default_factory=dict)  # name -> addresses, for ask:resolve

    def ask(self, question: str) -> Answer:
        if question in self.answers:
            return self.answers[question]
        kind, _, rest = question.partition(":")
        kind = kind.replace("again", "file")
        if kind in ("file", "dir", "link", "stat", "statvfs", "room", "open"):
            return self._path(kind, rest)
        if kind == "ask":
            return self._helper(question)
        return Unavailable(Kind.UNSUPPORTED, f"no answer composed for {question}")

    def prefetch(self, questions: Iterable[str]) -> None:
        pass

    def _path(self, kind: str, rest: str) -> Answer:
        path, mode = (rest.rpartition(":")[0], rest.rpartition(":")[2]) if kind == "open" else (rest, "")
        real = self.files.resolve(path, follow_last=kind != "link")
        refused = self.files.errors.get(real or path, self.files.errors.get(path))  # an Unavailable is false
        if refused is not None:
            return refused
        if real is None:
            return {"errno": errno.ENOENT, "name": "ENOENT"} if mode else ABSENT
        if kind == "file":
            return self.files.files.get(real, NO_FILE)
        if kind == "dir":
            return sorted(self.files.folders[real]) if real in self.files.folders else NO_FOLDER
        if kind == "link":
            return self.files.links.get(real, NO_LINK)
        if kind == "stat":
            if real in self.files.folders:
                return {"mode": 0o755, "uid": 0, "gid": 0, "type": "dir", "major": 0, "minor": 0, "dev": 1}
            return {"mode": 0o755, "uid": 0, "gid": 0, "type": "file", "major": 0, "minor": 0, "dev": 1}
        if kind == "room":
            return {"errno": 0, "name": "", "tried": True, "size": 1 << 40, "free": 1 << 39}
        return {"errno": 0, "name": ""}

    def _helper(self, question: str) -> Answer:
        name, parameters = split_question(question)
        if name == "resolve":
            found = self.addresses_of.get(parameters["name"])
            return {"addresses": list(found)} if found else {"addresses": [], "error": "EAI_NONAME", "detail": ""}
        if name == "reach":
            good = {"small": True, "middle": True, "full": True, "told": None, "error": None}
            return {"paths": {one.rpartition("/")[0]: dict(good) for one in parameters["to"].split(",")}}
        if name == "shm":
            room: Any = self.answers["statvfs:/dev/shm"]
            size = int(parameters["files"]) * int(parameters["each"]) + int(parameters["beside"])
            return {"error": "ENOSPC" if size > room["free"] else ""}
        if name == "elf":
            return self._elf(parameters)
        return Unavailable(Kind.UNSUPPORTED, f"no answer composed for {question}")

    def _elf(self, parameters: Mapping[str, str]) -> Answer:
        """As netdoctor/host/helpers/elf.py: the files asked for, the folders that they name, and every libnccl in these."""
        if "cache" in parameters:
            return {"entries": [row for row in self.cache if row[0].startswith(parameters["cache"])]}
        if "version" in parameters:
            return {"text": self.elf.get(parameters["version"], {}).get("version_text")}
        if "needed" in parameters:
            return self._needed(parameters)
        missing = {"error": "No such file or directory", "kind": "absent"}
        files = {p: self._row(p) for p in parameters.get("files", "").split("\n") if p}
        wanted = [d for d in parameters.get("dirs", "").split("\n") if d]
        for path, row in list(files.items()):
            text = row.get("runpath") or row.get("rpath") or ""
            wanted += [p for part in text.split(":") if (p := part.replace("$ORIGIN", path.rpartition("/")[0])).startswith("/")]
        dirs: dict[str, Any] = {}
        for folder in dict.fromkeys(wanted):
            real = self.files.resolve(folder)
            if real is None or real not in self.files.folders:
                dirs[folder] = dict(missing)
                continue
            dirs[folder] = sorted(n for n in self.files.folders[real] if n.startswith("libnccl") and ".so" in n)
            for entry in dirs[folder]:
                files.setdefault(f"{folder}/{entry}", self._row(f"{folder}/{entry}"))
        return {"files": files, "dirs": dirs}

    def _needed(self, parameters: Mapping[str, str]) -> Answer:
        """What lies under the names that some files need, in the folders and the cache."""
        folders = [d for d in parameters.get("dirs", "").split("\n") if d]
        cache = {name: [p for n, p in self.cache if n == name] for name, _ in self.cache}
        files: dict[str, Any] = {}
        todo = [p for p in parameters["needed"].split("\n") if p]
        while todo:
            path = todo.pop()
            files[path] = {"wants": [], "defines": [], "providers": [], **self._row(path)}
            could = [
                p for name in files[path].get("needed", ()) for p in (*(f"{d}/{name}" for d in folders), *cache.get(name, ()))
            ]
            todo += [p for p in could if p not in files and self.files.resolve(p) in self.elf]
        names = {name for row in files.values() for name in row.get("needed", ())}
        return {"files": files, "cache": {n: cache[n] for n in sorted(names & cache.keys())}, "loaded": [], "cut": False}

    def _row(self, path: str) -> dict[str, Any]:
        real = self.files.resolve(path)
        row = self.elf.get(real or "")
        if row is None:
            return {"error": "No such file or directory", "kind": "absent", "real": real or path}
        return {"real": real, **{k: v for k, v in row.items() if k != "version_text"}}

    def library(
        self, path: str, needed: Iterable[str] = (), *, rpath: str | None = None, exports: Iterable[str] = (), machine: int = 62
    ) -> None:
        """Put an ELF file at `path`."""
        self.files.write(path, "")
        self.elf[path] = {
            "machine": machine,
            "order": "little",
            "needed": list(needed),
            "soname": path.rpartition("/")[2],
            "rpath": rpath,
            "runpath": None,
            "default_dirs": True,
            "exports": list(exports),
            "size": 1 << 20,
        }
