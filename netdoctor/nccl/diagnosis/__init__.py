"""What a NCCL log means: facts and events in, findings out, the likeliest cause first.

`scene` is what the rules look at, the modules `links`, `verbs`, `gpu`, `network`, `software` and `ends` hold one small function
a mechanism, `judge` puts their hypotheses in order.
"""

from netdoctor.nccl.diagnosis.judge import diagnose

__all__ = ["diagnose"]
