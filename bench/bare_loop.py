"""The same all-reduces by the doctor's session and by two bare forked ranks of torch.distributed, in turn.

``python -m bench.bare_loop BYTES PAIRS`` prints JSON: ours_seconds, bare_seconds (a whole experiment), ours_busbw, bare_busbw
(GB/s, nccl-tests' formula, median of the timed repetitions of the slower rank).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

REPEATS = 5


def bare(torch: Any, dist: Any, size: int) -> tuple[float, float]:
    """(seconds of the whole, busbw) of two forked ranks with a FileStore, as a person would write it."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        reader, writer = os.pipe()
        children = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                try:
                    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
                    times = []
                    for count in (4096, 1 << 20, size):  # the sizes that the doctor's default has, too
                        tensor = torch.ones(count // 4)
                        dist.all_reduce(tensor)
                        times = []
                        for _ in range(REPEATS):
                            dist.barrier()
                            start = time.perf_counter()
                            dist.all_reduce(tensor)
                            times.append(time.perf_counter() - start)
                    os.write(writer, f"{statistics.median(times)}\n".encode())
                    dist.destroy_process_group()
                finally:
                    os._exit(0)
            children.append(pid)
        os.close(writer)
        for pid in children:
            os.waitpid(pid, 0)
        took = time.perf_counter() - begin
        with os.fdopen(reader) as stream:
            slowest = max(float(line) for line in stream)
    return took, size / slowest / 1e9


def main() -> None:
    size, pairs = int(sys.argv[1]), int(sys.argv[2])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    from netdoctor.allreduce.runner import Session
    from netdoctor.facts.runs import AllReduce

    session = Session(sys.executable, dict(os.environ))
    session.start()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    sizes = (4096, 1 << 20, size)
    out: dict[str, list[float]] = {"ours_seconds": [], "bare_seconds": [], "ours_busbw": [], "bare_busbw": []}
    try:
        for number in range(-1, pairs):  # the first pair warms up
            experiment = AllReduce("gloo", 2, sizes=sizes, repeats=REPEATS)
            begin = time.perf_counter()
            run = session.run(experiment, time.monotonic() + 60.0, again=True)
            took = time.perf_counter() - begin
            if not run.finished or not run.verified:
                raise RuntimeError(f"{run.state}: {run.reason}")
            seconds, busbw = bare(torch, dist, size)
            if number >= 0:
                for name, value in zip(out, (took, seconds, run.busbw[size], busbw), strict=True):
                    out[name].append(value)
    finally:
        session.close()
    print(json.dumps(out))


if __name__ == "__main__":
    main()
