"""Judging settings of NCCL, torch, Gloo, UCX and libfabric, and reading them from files that are never run."""
