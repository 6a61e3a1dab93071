"""What this machine is, as far as the plan of the proof depends on it.  Nothing that names it: no host name, no address."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass, field
from typing import Any, Final

TORCH: Final = """
import json, sys
out = {"python": sys.version.split()[0]}
try:
    import torch
    out["torch"] = str(torch.__version__)
    out["cuda"] = torch.version.cuda
    out["count"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if out["count"]:
        out["nccl"] = ".".join(str(n) for n in torch.cuda.nccl.version())
except Exception as error:
    out["error"] = f"{type(error).__name__}: {error}"[:300]
print("\\n" + json.dumps(out))
"""


@dataclass(frozen=True)
class Machine:
    """`gpus` that libcuda shows; `torch_gpus` that the torch of `python` can use."""

    gpus: int
    name: str  # of the first GPU, "" none
    why_no_gpu: str
    torch_gpus: int
    why_no_torch: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """For names of files: ``nvidia-h100-80gb-hbm3-x1``."""
        text = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-") or "no-gpu"
        return f"{text}-x{self.gpus}" if self.gpus else text


def look(python: str) -> Machine:
    """Ask libcuda and NVML through netdoctor's own probe, and `python` for its torch (only where there is a GPU)."""
    from netdoctor.facts import gpu
    from netdoctor.host.live import LiveHost
    from netdoctor.model import Unavailable

    host = LiveHost()
    try:
        found = gpu.probe(host)
    finally:
        host.close()
    visible, every = found.visible, found.all
    count = 0 if isinstance(visible, Unavailable) else len(visible)
    name = "" if isinstance(visible, Unavailable) or not visible else str(visible[0].name)
    facts: dict[str, Any] = {"gpu": f"{count} x {name}" if count else ""}
    facts["kernel"], facts["cpus"] = re.split(r"[^\d.]", platform.release())[0], os.cpu_count()  # its suffix names who built it
    facts["driver"] = str(found.driver)
    if not count:
        why = f"libcuda: {visible}" if isinstance(visible, Unavailable) else "libcuda shows no device"
        more = f"; NVML: {every}" if isinstance(every, Unavailable) else f"; NVML shows {len(every)}"
        return Machine(0, "", f"no GPU: {why}{more}", 0, "not asked: no GPU", facts)
    asked = _torch(python)
    facts |= {k: v for k, v in asked.items() if k != "count"}
    usable = int(asked.get("count") or 0)
    why = (
        ""
        if usable
        else f"the torch of {os.path.basename(python)} uses no CUDA device: {asked.get('error') or asked.get('torch')}"
    )
    return Machine(count, name, "", usable, why, facts)


def _torch(python: str) -> dict[str, Any]:
    """In a child: this process stays free of torch and CUDA."""
    import json

    try:
        done = subprocess.run([python, "-c", TORCH], capture_output=True, text=True, timeout=120, check=False)
        told = json.loads(done.stdout.rpartition("\n{")[2].join(("{", "")))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    return told if isinstance(told, dict) else {"error": "no answer"}
