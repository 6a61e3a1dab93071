"""What a NCCL log means: facts and events in, findings out, the likeliest cause first.

`context` is what the rules look at; `sockets`, `rdma`, `gpu`, `network`, `software` and `termination` hold a small function a
mechanism, or a table of them; `judge` puts their hypotheses in order.
"""

from netdoctor.nccl.diagnosis.judge import diagnose

__all__ = ["diagnose"]
