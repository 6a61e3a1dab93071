"""What a child process can try of the mend of a fail: the all-reduce that ran, with the variables that the mend changes.

A check may name a cure itself (a binding, another backend); for every other fail this is the one place where it is decided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from netdoctor.facts.runs import AllReduce, Baseline, Cure, PathRun
from netdoctor.model import Finding, Status

# NCCL reads these for the network alone, which one node by itself uses on the path runs only; torch and Gloo read the others.
_NETWORK: Final = (
    "NCCL_IB_",
    "NCCL_NET",
    "NCCL_SOCKET_",
    "NCCL_CROSS_NIC",
    "NCCL_DMABUF",
    "NCCL_NSOCKS",
    "NCCL_PXN",
    "FI_",
    "OFI_",
)
_OF_NCCL: Final = ("NCCL_", "CUDA_", "FI_", "OFI_")
_AT_LOAD: Final = ("LD_", "OMP_", "KMP_", "GOMP_", "MKL_")  # read while libraries are loaded
_PINNED: Final = "NCCL_IB_HCA"  # a path run sets it to the port that it is about, where the job's own leaves it one


def cure_of(finding: Finding, baseline: Baseline, paths: PathRun) -> Cure | None:
    """The cure of a fail; None where there is none, or nothing ran that would show it."""
    if finding.status is not Status.FAIL or finding.waived:
        return None
    if isinstance(finding.cure, Cure):
        return finding.cure
    changes = finding.fix.tries if finding.fix else ()
    base = _base(changes, baseline, paths) if changes else None
    if base is None:
        return None
    fresh = base.fresh_import or any(name.startswith(_AT_LOAD) for name, _ in changes)
    label = ", ".join(f"without {name}" if value is None else f"{name}={value}" for name, value in changes)
    return Cure(replace(base, env=(*base.env, *changes), fresh_import=fresh), replace(base, fresh_import=fresh), label)


def _base(changes: tuple[tuple[str, str | None], ...], baseline: Baseline, paths: PathRun) -> AllReduce | None:
    """The run that shows such a change."""
    names = [name for name, _ in changes]
    run = baseline.run or None
    if run is None or run.experiment.backend != "nccl":
        return None if run is None or any(name.startswith(_OF_NCCL) for name in names) else run.experiment
    if any(name.startswith("GLOO_") for name in names):
        return None
    if not any(name.startswith(_NETWORK) for name in names):
        return run.experiment
    return next((one.experiment for one in paths.runs or () if _PINNED not in names or not one.experiment.path.device), None)
