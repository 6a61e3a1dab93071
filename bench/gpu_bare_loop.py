"""``python gpu_bare_loop.py BYTES RANKS PAIRS``: for each line on stdin, an all-reduce as a person would write it.

Forks RANKS ranks with a FileStore, a GPU each, and prints the median seconds of the slowest rank by CUDA events.  Standard
library and torch only: it runs in the job's Python.
"""

import json
import os
import sys
import tempfile

REPEATS = 20


def rank_of(number: int, ranks: int, size: int, store: str, result: int) -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=number, world_size=ranks)
    tensor = torch.ones(size // 4, device=device)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    events[0].record()
    for event in events[1:]:
        dist.all_reduce(tensor)
        event.record()
    torch.cuda.synchronize()
    times = sorted(events[n].elapsed_time(events[n + 1]) / 1e3 for n in range(REPEATS))
    middle = REPEATS // 2
    os.write(result, f"{(times[middle - 1] + times[middle]) / 2}\n".encode())
    dist.destroy_process_group()


def loop(size: int, ranks: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        reader, writer = os.pipe()
        pids = []
        for number in range(ranks):
            pid = os.fork()
            if pid == 0:
                try:
                    rank_of(number, ranks, size, f"{folder}/store", writer)
                    os._exit(0)
                except BaseException as error:  # noqa: BLE001  (the parent prints it)
                    print(json.dumps(str(error)), file=sys.stderr)
                finally:
                    os._exit(1)
            pids.append(pid)
        os.close(writer)
        for pid in pids:
            os.waitpid(pid, 0)
        with os.fdopen(reader) as stream:
            seconds = [float(line) for line in stream]
    if len(seconds) < ranks:
        raise RuntimeError("a rank of the bare loop failed")
    return max(seconds)


def main() -> None:
    size, ranks = int(sys.argv[1]), int(sys.argv[2])
    import torch.distributed  # imported once; the ranks are forked from here, and this process never touches CUDA

    assert torch.distributed.is_available()
    for _ in sys.stdin:
        print(loop(size, ranks), flush=True)


if __name__ == "__main__":
    main()
