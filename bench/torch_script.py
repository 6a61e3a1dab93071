"""One rank of a plain torch.distributed script, as people write it: the reference that the doctor is measured against."""

import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    torch.set_num_threads(1)
    size, times = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    tensor = torch.ones(size // 4)
    dist.all_reduce(tensor)
    for _ in range(times):
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        took = time.perf_counter() - begin
        if dist.get_rank() == 0:
            print(f"{size} bytes {took:.6f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
