"""The forms in which the log of one run reaches whoever reads it.

`files`: a file a rank, as NCCL_DEBUG_FILE and torchrun's --redirects make them.  `srun`: all ranks in one stream, the task
before each line (srun --label).  `torch`: nothing of NCCL's log, for NCCL_DEBUG is not set, and the exception by which
torch passes on what NCCL's and CUDA's own functions said of the failure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Final

from tests.fakegpu import lab

# torch/csrc/distributed/c10d/NCCLUtils.cpp, getNcclErrorDetailStr: by ncclResult_t.
DETAILS: Final = {
    1: "ncclUnhandledCudaError: Call to CUDA function failed.",
    2: "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
    3: "ncclInternalError: Internal check failed.",
    4: "ncclInvalidArgument: Invalid value for an argument.",
    5: "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    6: "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
}
# What torch says where CUDA itself does not begin, by the result of cuInit: c10/cuda/CUDAFunctions.cpp, device_count_impl.
NO_GPUS: Final = "No CUDA GPUs are available"
COUNT: Final = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might "
    "have already set an error? Error {code}: {text}"
)
# cudaGetErrorString of what a knob makes a call of ours answer.
CUDA: Final = {802: "system not yet initialized", 719: "unspecified launch failure", 999: "unknown error"}


def _of_nccl(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith(("rank: {", "[fake ", "fakegpu: "))]


def files(done: lab.Run, version: str) -> dict[str, str]:
    return {f"rank{n}.log": "".join(f"{line}\n" for line in _of_nccl(one.log)) for n, one in enumerate(done.ranks)}


def srun(done: lab.Run, version: str) -> dict[str, str]:
    """Ranks do the same at the same time: line by line."""
    own = [[f"{n}: {line}" for line in _of_nccl(one.log)] for n, one in enumerate(done.ranks)]
    lines = [line for row in itertools.zip_longest(*own) for line in row if line is not None]
    return {"job.log": "".join(f"{line}\n" for line in lines)}


def torch(done: lab.Run, version: str) -> dict[str, str]:
    """Nothing where no rank failed, or by a call whose exception we do not know by torch's source."""
    lines = [line for n, one in enumerate(done.ranks) for line in _exception(n, one, version)]
    return {"job.log": "".join(f"{line}\n" for line in lines)} if lines else {}


def _exception(n: int, one: lab.Outcome, version: str) -> list[str]:
    what = next((step["what"] for step in one.steps if step["step"] == "failed"), None)
    if what is None or len(what) != 3:
        return []
    name, code, text = what[0], int(what[1]), what[2]
    begin = ["Traceback (most recent call last):", '  File "/workspace/train.py", line 87, in <module>']
    if name.startswith("cu"):
        if code not in CUDA and code != 100:
            return []
        told = NO_GPUS if code == 100 else COUNT.format(code=code, text=CUDA[code])
        if name != "cuInit":
            told = (
                f"CUDA error: {CUDA.get(code, '')}\nCUDA kernel errors might be asynchronously reported at some other API call"
            )
        said = [*begin, "    torch.cuda.set_device(local_rank)", f"RuntimeError: {told}"]
    else:
        result, _, last = text.partition(" / ")
        if not last or code not in DETAILS:
            return []
        where = "/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690"
        said = [*begin, "    dist.all_reduce(x)", *_WRAPPED]
        said += [f"torch.distributed.DistBackendError: NCCL error in: {where}, {result}, NCCL version {version}"]
        said += [DETAILS[code], "Last error:", last]
    return [f"[rank{n}]: {line}" for text in said for line in text.split("\n")]


_WRAPPED: Final = (
    '  File "/usr/lib/python3/dist-packages/torch/distributed/c10d_logger.py", line 81, in wrapper',
    "    return func(*args, **kwargs)",
    '  File "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", line 2810, in all_reduce',
    "    work = group.allreduce([tensor], opts)",
)
FORMS: Final[Mapping[str, Callable[[lab.Run, str], dict[str, str]]]] = {"files": files, "srun": srun, "torch": torch}
