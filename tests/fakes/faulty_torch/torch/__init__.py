"""A fake: the real torch, with a fault in the ranks whose environment has TORCH_FAULT="PHASE:ACTION"."""

import os
import signal
import sys
import time

sys.path.remove(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
del sys.modules["torch"]
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

FIRST, TIMED = 1, 10  # collectives


def fault(phase: str) -> str | None:
    planted, _, action = os.environ.get("TORCH_FAULT", "").partition(":")
    if planted != phase:
        return None
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "sleep":
        time.sleep(600)
    elif action == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif action.isdigit():
        os._exit(int(action))
    elif action == "raise":
        raise RuntimeError("planted failure\nwith a second line\nException raised from planted at file.cpp:1")
    elif action == "quit":
        sys.exit(3)
    elif action == "rubbish":
        os.write(1, os.urandom(1 << 16))
        os.write(2, b"\x1b[31m\xff\xfe{}\n" * 100)
    elif action == "flood":
        for _ in range(256):
            os.write(1, b"x" * (1 << 18))
    return action


def wrap(module: object, name: str, phase: str) -> None:
    real = getattr(module, name)

    def wrapped(*args: object, **kwargs: object) -> object:
        fault(phase)
        return real(*args, **kwargs)

    setattr(module, name, wrapped)


wrap(dist, "FileStore", "rendezvous")
wrap(dist, "TCPStore", "meeting")  # the rendezvous of several nodes
wrap(dist, "init_process_group", "init")
wrap(torch, "tensor", "between")  # the rank program's, before its first collective
_all_reduce, _calls = dist.all_reduce, [0]


def all_reduce(tensor: torch.Tensor) -> object:
    _calls[0] += 1
    if tensor.numel() >= 1 << 24 and fault("large") == "slow":
        time.sleep(0.8)
    action = fault("first") if _calls[0] == FIRST else fault("timed") if _calls[0] == TIMED else None
    got = _all_reduce(tensor)
    if action == "wrong":
        tensor[7] += 1
    return got


dist.all_reduce = all_reduce
