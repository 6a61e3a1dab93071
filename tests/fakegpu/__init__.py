"""A machine with GPUs that are not there: fake driver libraries on which the real, unmodified libnccl runs.

What it proves: what NCCL itself decides, prints and refuses on a machine of a given shape.  What it never can: how fast
anything is, what hardware or its driver does beyond what is told here, anything about a kernel's memory model.
docs/fakegpu.md says more.
"""
