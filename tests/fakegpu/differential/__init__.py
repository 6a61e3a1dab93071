"""What netdoctor predicts of NCCL against what the real NCCL does, on machines, settings and values drawn by seed.

The prediction is netdoctor's own public code, fed with facts that it probes on the same machine; nothing of it is written
again here.  What was seen is NCCL's: its log, its own functions, its sockets and files.  docs/fakegpu.md says more.
"""
