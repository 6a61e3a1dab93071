"""Small factories for every fact.  The defaults are one healthy DGX H100; each takes the fields that a test changes.

`machine()` is all facts of one node by type; `judge(check, facts)` calls a check as the engine does: by the types of its
parameters, so a test names only what it changes::

    judge(gpudirect, machine() | {Kernel: kernel(modules={})})
"""

from __future__ import annotations

from netdoctor.cluster.observations import Cluster
from netdoctor.facts.cgroups import Cgroups, LimitsMet
from netdoctor.facts.cpu import Cpu
from netdoctor.facts.device_names import DeviceNames
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.interrupts import Interrupts
from netdoctor.facts.job import Expected
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import LocalPorts, Net
from netdoctor.facts.pci import Pci
from netdoctor.facts.pci_path import PciPath
from netdoctor.facts.platform import Platform
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.facts.sysctl_files import SysctlFiles
from netdoctor.facts.system import System
from netdoctor.facts.tasks import Tasks
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Unavailable
from netdoctor.nccl.shm_proof import ShmProof
from tests.support.facts.hardware import *
from tests.support.facts.judging import *
from tests.support.facts.runs import *
from tests.support.facts.software import *

# Of a node of which neither PCI nor NVML shows a GPU.
NO_GPU: dict[type, object] = {Pci: pci(0, 0), Gpus: gpus(0, all=Unavailable("absent"), visible=Unavailable("absent"))}


def machine(changes: Facts | None = None) -> dict[type, object]:
    """All facts of a healthy DGX H100 on one node, seen by the job; `changes` replace facts by type."""
    return {
        Vantage: vantage(),
        DeviceNames: DeviceNames(),
        Kernel: kernel(),
        SysctlFiles: SysctlFiles({}),
        System: system(),
        Platform: Platform("NVIDIA", "DGXH100", "DGXH100"),
        Cgroups: Cgroups((), (), (), hidden=False),
        Tasks: Tasks(400),
        LimitsMet: LimitsMet(None, None),
        Cpu: cpu(),
        Interrupts: interrupts(),
        Pci: pci(),
        PciPath: pci_path(),
        Gpus: gpus(),
        Rdma: rdma(),
        Net: net(),
        LocalPorts: ports(),
        Environ: environ(),
        Libraries: libraries(),
        NcclChoice: nccl_choice(),
        Intent: job(nodes=2),
        Expected: expected(),
        Baseline: baseline(),
        PathRun: path_run(),
        ShmProof: ShmProof(1 << 40, ""),
        Cluster: cluster(),
        **(changes or {}),
    }
