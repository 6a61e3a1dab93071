"""What NVML and libcuda say of the driver itself: that they are not its own, or that no driver is there.

The driver takes libraries of its own version alone (kernel-open/common/inc/nv-ioctl.h, nv_ioctl_rm_api_version), and an upgrade
of the packages leaves the loaded one as it was.  A container has the libraries that its runtime gave it when it began, or its
image's, so that they say of the node nothing for certain.
"""

from __future__ import annotations

from typing import Final

from netdoctor.causes import cost
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.job import Expected
from netdoctor.facts.layers import Bound, Said, bound, named_gpus, said_gpus
from netdoctor.facts.pci import PciDevice
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Fix, Status, Unavailable, count

CAUSE: Final = "cuda_driver_mismatch"
NOT_LOADED, MISMATCH = 9, 18  # nvmlReturn_t: NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIB_RM_VERSION_MISMATCH
# cuda.h: what cuInit says of a libcuda that is not this driver's.
MISFITS: Final = {
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): the libcuda that is loaded here is not of the driver that runs",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE (804): the libcuda of cuda-compat does not serve these GPUs",
}
COMPAT: Final = Fix(
    "take cuda-compat off LD_LIBRARY_PATH; where the driver was upgraded and still runs as it was, restart the node",
    ("echo $LD_LIBRARY_PATH; ldconfig -p | grep libcuda", "cat /proc/driver/nvidia/version"),
)
RESTART: Final = Fix(
    "the driver was upgraded and still runs as it was: drain the node and restart it",
    ("cat /proc/driver/nvidia/version; ldconfig -p | grep -e libnvidia-ml -e libcuda", "dmesg | grep -i 'api mismatch'"),
    ("apt-mark hold 'nvidia-*' 'libnvidia-*'   # so that no upgrade comes unasked; dnf: versionlock",),
)
ANEW: Final = Fix(
    "start the container again, which gets the driver's libraries when it begins, and keep others out of its image; where "
    "nvidia-smi says the same on the node, restart the node",
    ("cat /proc/driver/nvidia/version; ldconfig -p | grep -e libnvidia-ml -e libcuda", "nvidia-smi   # on the node"),
)
LOAD: Final = Fix(
    "load the driver, or see why it does not load: it was not built for this kernel, or another driver has the GPUs",
    ("modprobe nvidia && nvidia-smi", "dmesg | grep -i nvrm", "dkms status; uname -r"),
)
UNSAID: Final = "nothing says that GPUs are meant to work here"
HOW: Final = f"{LOAD.commands[0]}; {LOAD.commands[1]}; expected.gpus in the configuration says that they are"
_GIVEN: Final = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")


def gpus_meant(expected: Expected, job: Intent, environ: Environ) -> bool:
    """Whether something says that GPUs are to work here.  A notebook that leaves its own off and a hypervisor that keeps
    its own for virtual machines have no driver loaded on purpose."""
    said = said_gpus(job, environ)
    given = any(named_gpus(environ.get(name) or "") for name in _GIVEN) or (isinstance(said, Said) and said.gpus > 0)
    return bool(given or expected.gpus or expected.gpu_model or expected.gpu_addresses)


def misfit(gpus: Gpus, own: list[PciDevice], vantage: Vantage, ran: bool, meant: bool) -> Finding | None:
    """What NVML says of the node's driver when it starts; None: nothing, or nothing certain.  `ran`: NCCL had GPUs all the
    same; `meant`: by `gpus_meant`; `own`: the GPUs on PCI that the driver has or could have.  Of these /sys says it of the
    whole machine, where a sandbox may have none of the driver's device files, which is no driver to NVML."""
    code = gpus.nvml_refused
    if ran or not own or isinstance(vantage.runtime, Unavailable) or (vantage.in_container and not vantage.job_environment):
        return None
    if code == MISMATCH:
        words = "the libnvidia-ml that is loaded here is not of the driver that runs"
        if vantage.in_container:
            fix = ANEW
        else:
            fix = COMPAT if gpus.refused in MISFITS and "compat" in gpus.libcuda else RESTART
        return _fail(f"NVML does not start: {words} ({gpus.all})", fix)
    if code == NOT_LOADED and not vantage.in_container and all(bound(one) is Bound.NONE for one in own):
        text = f"PCI shows {count(len(own), 'GPU')}, and no driver is loaded for them: {gpus.all}"
        return _fail(text, LOAD) if meant else Finding(Status.UNKNOWN, f"{text}; {UNSAID}", how=HOW)
    return None


def cuda_misfit(gpus: Gpus, vantage: Vantage) -> Finding | None:
    """What libcuda says of itself in the job; one cause with what NVML says has one mend."""
    words = MISFITS.get(gpus.refused or 0)
    if not words:
        return None
    took = f"; the loader took {gpus.libcuda}" if gpus.libcuda else ""
    fix = COMPAT
    if gpus.nvml_refused == MISMATCH and "compat" not in gpus.libcuda:
        fix = ANEW if vantage.in_container else RESTART
    known = {} if isinstance(gpus.driver, Unavailable) else {"driver": gpus.driver}
    return Finding(Status.FAIL, f"cuInit: {words}{took}", cause=CAUSE, fix=fix, evidence=known)


def _fail(text: str, fix: Fix) -> Finding:
    return Finding(Status.FAIL, text, cause=CAUSE, loss=cost.STOPS, fix=fix)
