"""A fake: a torch that cannot be imported, in the way that BROKEN says."""

import os
import signal
import sys
import time

how = os.environ.get("BROKEN")
if how == "absent":
    raise ModuleNotFoundError("No module named 'torch'", name="torch")
if how == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if how == "raise":
    raise OSError("libcudart.so.12: cannot open shared object file: No such file or directory")
if how == "quit":
    sys.exit(0)
if how == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("hanging", flush=True)
    while True:
        time.sleep(3600)
if how == "flood":
    for _ in range(256):
        os.write(1, b"y" * (1 << 18))
    raise ImportError("after the flood")
