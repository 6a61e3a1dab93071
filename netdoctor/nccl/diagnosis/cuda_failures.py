"""What a failed CUDA call means, by its error: one table for what NCCL, torch and nccl-tests print of it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from netdoctor.causes.cost import STOPS
from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis

MAP = Fix(
    "one rank a GPU: each rank takes the GPU of its LOCAL_RANK, and every rank of a node sees all of them",
    ("torch.cuda.set_device(int(os.environ['LOCAL_RANK']))", "echo $CUDA_VISIBLE_DEVICES"),
)
DRIVER = Fix("use a driver that the CUDA of this NCCL supports", ("nvidia-smi", "cat /proc/driver/nvidia/version"))
FABRIC_MANAGER = Fix(
    "stop the jobs of the node, stop Fabric Manager, reset the GPUs, start Fabric Manager of the driver's version",
    (
        "systemctl stop nvidia-fabricmanager && nvidia-smi -r && systemctl start nvidia-fabricmanager",
        "journalctl -u nvidia-fabricmanager; less /var/log/fabricmanager.log",
    ),
)
IMEX = Fix(
    "start nvidia-imex on every node of the rack with the same node list, and give the job an IMEX channel",
    ("nvidia-imex-ctl -N", "ls /dev/nvidia-caps-imex-channels"),
)


class CudaFailure:
    """What a failed CUDA call means, by its error text (cudaGetErrorString's), its code, or NCCL's source file that made it.

    `{what}` in a message is the error text.
    """

    def __init__(self, text: str, *hypotheses: Hypothesis, source: str = "", code: str = "") -> None:
        self.hypotheses = hypotheses
        self._text, self._source, self._code = re.compile(text), source, code

    def fits(self, text: str, source: str, code: str) -> bool:
        by_source = bool(self._source) and self._source in source
        return by_source or (bool(code) and code == self._code) or self._text.search(text) is not None


_BROKEN = Hypothesis(
    "rank_died",
    Confidence.LIKELY,
    "a kernel of the program broke the GPU context ({what}); who reports it only asked for the GPU next",
    fix=Fix("find the kernel", ("CUDA_LAUNCH_BLOCKING=1 python …", "compute-sanitizer python …")),
    fault=Fault.KERNEL,
)
_UNUSABLE = Hypothesis("cuda_driver_mismatch", Confidence.STRONG_PLUS, "CUDA cannot be used here: {what}", fix=DRIVER)
# The first that fits decides.  A failure in nvls.cc is judged before them, whatever its error is.
CUDA_FAILURES: Final = (
    CudaFailure(
        "fabric",
        Hypothesis("imex", Confidence.STRONG, "multi-node NVLink could not be set up: {what}", fix=IMEX),
        source="mnnvl",
    ),
    CudaFailure(
        "system not yet initialized",
        Hypothesis(
            "fabric_manager",
            Confidence.STRONG_PLUS,
            "CUDA error 802: the NVSwitch fabric is not initialised, Fabric Manager does not run",
            fix=FABRIC_MANAGER,
        ),
        Hypothesis("cuda_driver_mismatch", Confidence.OPEN_MINUS, "CUDA cannot be initialised", fix=DRIVER),
        code="802",
    ),
    CudaFailure(
        "invalid device ordinal|invalid number of gpus",
        Hypothesis(
            "device_mapping",
            Confidence.STRONG_PLUS,
            "a GPU that a rank must open is not visible to it",
            fix=MAP,
            notes=("ranks of one node must all see every GPU of the job on it (CUDA_VISIBLE_DEVICES, --gpus-per-task)",),
        ),
        Hypothesis("env_misuse", Confidence.OPEN_MINUS, "CUDA_VISIBLE_DEVICES differs between ranks of a node"),
    ),
    CudaFailure(
        "stub library",  # cudaErrorStubLibrary
        Hypothesis(
            "cuda_driver_mismatch",
            Confidence.STRONG_PLUS,
            "the loader took CUDA's stub of libcuda.so, which programs are linked with, and not the driver's: {what}",
            fix=Fix(
                "take the folder of the stubs out of the loader's way; the driver's own libcuda.so.1 must come first",
                (
                    "echo $LD_LIBRARY_PATH | tr : '\\n' | grep stubs; ldconfig -p | grep libcuda.so",
                    "docker run --gpus all …   # a container gets the driver's libraries from NVIDIA's runtime",
                ),
            ),
        ),
    ),
    CudaFailure(
        "no cuda-capable device",
        _UNUSABLE,
        Hypothesis("device_mapping", Confidence.OPEN_MINUS, "no GPU is visible to this process", fix=MAP),
    ),
    CudaFailure(
        "busy or unavailable",  # cudaErrorDevicesUnavailable: also where the process may open no further descriptor
        Hypothesis(
            "other",
            Confidence.OPEN,
            "the GPU cannot be opened: another process has it for itself, or this one may not ({what})",
            how="nvidia-smi -q -d COMPUTE,PIDS   # exclusive mode, and who; ulimit -n; ls -l /dev/nvidia*; MIG",
        ),
    ),
    CudaFailure(
        "driver shutting down",  # what the runtime answers in a process that is leaving: the echo of any failed exit
        Hypothesis("rank_died", Confidence.EFFECT_MINUS, "the process was leaving already: something failed before"),
    ),
    CudaFailure(
        "no kernel image|invalid device function",  # cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction
        Hypothesis(
            "cuda_driver_mismatch",
            Confidence.STRONG_PLUS,
            "the program holds no code for this GPU: {what}",
            fix=Fix(
                "install a torch (and NCCL) that was built for this GPU",
                ("python -c 'import torch; print(torch.cuda.get_arch_list())'",),
            ),
            fault=Fault.TOO_OLD,
        ),
    ),
    CudaFailure(
        "kernel image is invalid",  # CUDA_ERROR_INVALID_IMAGE, as the driver answers cuModuleLoadData of what it cannot read
        Hypothesis(
            "cuda_driver_mismatch",
            Confidence.STRONG_PLUS,
            "a kernel was compiled in a form that this driver or this GPU does not take: {what}",
            fix=Fix(
                "compile kernels with a CUDA that the driver knows, and for this GPU; Triton brings a ptxas of its own",
                (
                    "nvidia-smi   # the newest CUDA that the driver knows",
                    "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas; rm -rf ~/.triton/cache",
                ),
            ),
            fault=Fault.TOO_OLD,
        ),
    ),
    CudaFailure(
        "driver version is insufficient|initialization error|forward compat|unsupported toolchain"
        "|unsupported ptx|not supported in the installed|unsupported display driver"
        "|shared object initialization",
        _UNUSABLE,
    ),
    CudaFailure(
        "out of memory|alloc_failed",
        Hypothesis(
            "other",
            Confidence.LIKELY,
            "the GPU's memory was full when NCCL asked for buffers",
            fix=Fix(
                "leave room for NCCL's buffers (about 1 GB a communicator on many channels)",
                ("nvidia-smi   # another process on that GPU?",),
            ),
            fault=Fault.GPU_MEMORY,
        ),
        Hypothesis("rank_died", Confidence.LIKELY_MINUS, "a rank ran out of GPU memory"),
    ),
    CudaFailure(
        "launch failure|launch failed",  # cudaErrorLaunchFailure: also what __trap() leaves
        replace(
            _BROKEN,
            notes=(
                "where TORCH_NCCL_NAN_CHECK=1 is set, torch ends a rank so that gives NCCL a NaN (NanCheck.cu): see its loss",
            ),
        ),
    ),
    CudaFailure(
        "illegal memory access|illegal address|misaligned|assert|illegal instruction|hardware stack"
        "|address space|invalid program counter",
        _BROKEN,
    ),
    CudaFailure(
        "uncorrectable nvlink",  # cudaErrorNvlinkUncorrectable
        Hypothesis(
            "gpu_error",
            Confidence.STRONG_MINUS,
            "an NVLink of a GPU had an error that it could not correct: {what}",
            how="dmesg | grep -i xid   # 74; nvidia-smi nvlink -e; nvidia-smi nvlink -s",
        ),
        Hypothesis("link_degraded", Confidence.OPEN, "an NVLink, its bridge or its switch may be bad"),
    ),
    CudaFailure(
        "ecc|uncorrectable",
        Hypothesis(
            "other",
            Confidence.LIKELY,
            "a memory error of the GPU that it could not correct: {what}",
            how="dmesg | grep -i xid; nvidia-smi -q -d ECC,ROW_REMAPPER   # which GPU, and whether it needs a reset",
            fault=Fault.ECC,
        ),
        Hypothesis("inventory", Confidence.LIKELY_MINUS, "the GPU may need a reset or replacement: its counters tell"),
        Hypothesis("rank_died", Confidence.OPEN, "the rank on that GPU ended"),
    ),
    CudaFailure(
        "gpu hang|gpu reset",
        Hypothesis(
            "gpu_error",
            Confidence.LIKELY,
            "the driver took the GPU from the program ({what}): a kernel that did not end, or the GPU itself",
            how="dmesg | grep -i amdgpu   # a ring that timed out, a reset, or a fault of the memory",
        ),
    ),
    CudaFailure(
        "gpu is lost",
        Hypothesis("inventory", Confidence.STRONG, "a GPU is lost to its driver", how="dmesg | grep -i xid; nvidia-smi"),
    ),
    CudaFailure(
        "nvlink was|hardware error|unspecified hardware",
        Hypothesis("rank_died", Confidence.LIKELY, "the GPU failed: {what}", how="dmesg | grep -i xid; nvidia-smi -q -d ECC"),
        Hypothesis("inventory", Confidence.OPEN, "the GPU may need a reset: dmesg tells"),
    ),
    CudaFailure(
        "peer access|mapping of buffer|(?:cuda|hip)ipc(?:get|open)memhandle failed",
        Hypothesis(
            "p2p_disabled",
            Confidence.STRONG_MINUS,
            "peer-to-peer between GPUs does not work: {what}",
            loss=STOPS,
        ),
        Hypothesis("acs_iommu", Confidence.OPEN_MINUS, "ACS or the IOMMU may stand between the GPUs"),
        source="p2p.cc",
    ),
    CudaFailure("", Hypothesis("other", Confidence.OPEN, "CUDA failed: {what}")),  # also "unknown error", which condemns no GPU
)
