"""What a NCCL log means: facts and events in, findings out, the likeliest cause first.

`outcome` says how the job ended, before why.  `sockets`, `rdma`, `gpu`, `network`, `software`, `ranks`, `program`, `settings`
and `termination` hold a rule a mechanism, from `LogFacts` to `hypothesis`; `judge` makes one story of the hypotheses, and
`job` says what nothing explains.
"""

from netdoctor.nccl.diagnosis.judge import diagnose

__all__ = ["diagnose"]
