"""A fake: the real torch of REAL_TORCH, which says of itself that it was built for CUDA.

TORCH_SAYS: "no driver" (CUDA cannot be used), "no nccl" (built without it), "dies" (asking for CUDA kills the process).
"""

import os
import signal
import sys
import warnings

sys.path.append(os.environ["REAL_TORCH"])
sys.path.remove(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
del sys.modules["torch"]
import torch  # noqa: E402

says = os.environ["TORCH_SAYS"]
torch.version.cuda = "12.9"


def is_available() -> bool:
    if says == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if says == "no driver":
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)", stacklevel=2)
    return says != "no driver"


torch.cuda.is_available = is_available
torch.cuda.device_count = lambda: 8
