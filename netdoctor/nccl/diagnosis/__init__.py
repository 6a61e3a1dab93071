"""What a NCCL log means: facts and events in, findings out, the likeliest cause first.

`sockets`, `rdma`, `gpu`, `network`, `software` and `termination` hold a rule a mechanism, from `LogFacts` to `hypothesis`;
`judge` puts the hypotheses in order.
"""

from netdoctor.nccl.diagnosis.judge import diagnose

__all__ = ["diagnose"]
