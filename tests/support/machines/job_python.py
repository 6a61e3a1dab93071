"""A job's Python with torch, and its libnccl, put into a `ComposedHost`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from netdoctor.facts.runs import TorchFacts
from netdoctor.host.base import question
from tests.support.facts.nccl_logs import torch_facts
from tests.support.machines.composed_host import ComposedHost

VENV: Final = "/opt/venv"
SITE: Final = f"{VENV}/lib/python3.12/site-packages"
DIST: Final = "/usr/local/lib/python3.12/dist-packages"
REAL: Final = "/usr/bin/python3.12"


class Job:
    """`told`: ``{in: venv | image, torch: VERSION, cuda: VERSION, nccl: VERSION}`` of a description, `gpus` that torch sees.

    venv: torch and its nvidia-nccl wheel in /opt/venv.  image: as in NVIDIA's PyTorch image, torch in dist-packages, NCCL from
    a Debian package, found by the loader's cache.
    """

    def __init__(self, host: ComposedHost, told: Mapping[str, Any], gpus: int, machine: int) -> None:
        self.host, self.machine = host, machine  # e_machine of its ELF files
        self.venv = told["in"] == "venv"
        self.version, self.cuda, self.nccl = str(told["torch"]), told.get("cuda"), str(told.get("nccl", ""))
        self.python = f"{VENV}/bin/python3" if self.venv else "/usr/bin/python3"
        self.site = SITE if self.venv else DIST
        wheel = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
        self.libnccl = "" if not self.nccl else wheel if self.venv else "/usr/lib/x86_64-linux-gnu/libnccl.so.2"
        self.torch: TorchFacts = torch_facts(self.version, self.cuda, gpus, self.nccl)
        self.environment = {"HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin"}
        if self.venv:
            self.environment = {"VIRTUAL_ENV": VENV, "HOME": "/home/ada", "PATH": f"{VENV}/bin:/usr/bin:/bin"}

    def write(self) -> None:
        """The interpreter, torch and the wheel; a CUDA build needs libnccl.so.2 by DT_RPATH of its own libraries."""
        write, library = self.host.files.write, self.host.library
        self.host.files.link(self.python, REAL)
        library(REAL, ("libc.so.6",), machine=self.machine)
        if self.venv:
            text = "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.12.3\n"
            write(f"{VENV}/pyvenv.cfg", text)
        said = "None" if self.cuda is None else f"'{self.cuda}'"
        write(
            f"{self.site}/torch/version.py",
            f"__version__ = '{self.version}'\ndebug = False\ncuda: Optional[str] = {said}\n",
        )
        wheel = self.venv and self.nccl
        requires = f'Requires-Dist: nvidia-nccl-cu12=={self.nccl}; platform_system == "Linux"\n' if wheel else ""
        metadata = f"Metadata-Version: 2.4\nName: torch\nVersion: {self.version}\n{requires}"
        write(f"{self.site}/torch-{self.version}.dist-info/METADATA", metadata)
        if wheel:
            named = f"Name: nvidia-nccl-cu12\nVersion: {self.nccl}\n"
            write(f"{SITE}/nvidia_nccl_cu12-{self.nccl}.dist-info/METADATA", named)
        needs = ("libnccl.so.2",) if self.cuda else ()
        rows = {"global_deps": ("libc.so.6", *needs), "cpu": ("libc10.so",), "python": ("libtorch.so",)}
        rows |= {"cuda": ("libc10_cuda.so", *needs)} if self.cuda else {}
        for name, needed in rows.items():
            rpath = "$ORIGIN/../../nvidia/nccl/lib:$ORIGIN" if "libnccl.so.2" in needed else "$ORIGIN"
            library(f"{self.site}/torch/lib/libtorch_{name}.so", needed, rpath=rpath, machine=self.machine)

    def write_nccl(self, hostname: str, interface: str, address: str) -> None:
        """The libnccl, and what it says when it is asked for its version and where it listens."""
        path, version = self.libnccl, tuple(map(int, self.nccl.split(".")))
        self.host.library(path, ("libc.so.6",), exports=("ncclGetVersion", "ncclCommInitRank"), machine=self.machine)
        if not self.venv:
            self.host.cache.append(["libnccl.so.2", path])
        said = f"Bootstrap{':' if version >= (2, 24, 0) else ' :'} Using {interface}:{address}<0>"
        log = [f"{hostname}:4242:4242 [0] NCCL INFO {one}" for one in (said, f"NCCL version {self.nccl}+cuda12.9")]
        answer = {"version": list(version), "code": 0, "interface": interface, "address": address, "error": "", "log": log}
        self.host.answers[question("nccl", path=path)] = answer
