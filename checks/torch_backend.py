"""Which backend the job's torch gives CUDA tensors, if the job passes none or "nccl".

What the job itself passes to init_process_group decides in the end; only the job, or its log (`netdoctor log`) can tell that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from netdoctor.api import (
    GIVE_PYTHON,
    WITH_RUN,
    Accelerator,
    Baseline,
    Caller,
    Cure,
    Finding,
    Gpus,
    JobPython,
    Kind,
    Libraries,
    Pci,
    Run,
    Torch,
    TorchFacts,
    Unavailable,
    Vantage,
    accelerator,
    check,
    fail,
    hcas,
    layers,
    ok,
    skip,
    unknown,
)

ELSEWHERE = frozenset({"gloo", "mpi", "ucc"})  # of by_torch.CARRIERS: all but NCCL; any other name is a class that is not known


@check(id="torch.backend", title="CUDA tensors would go by NCCL if the job passes no backend or nccl", cause="gloo_backend")
def torch_backend(
    vantage: Vantage,
    baseline: Baseline,
    libraries: Libraries,
    pci: Pci,
    gpus: Gpus,
) -> Iterator[Finding]:
    there = accelerator(pci, gpus)
    if isinstance(there, Unavailable):
        yield unknown(f"whether there is an accelerator could not be read: {there}")
    elif there.none:
        yield skip("no accelerator: PCI was read and shows none, and NVML shows none or is not there")
    elif why := hcas.nothing_for_nccl(pci, gpus):
        yield skip(why)
    elif not there.nvidia:
        yield unknown(f"accelerators that netdoctor does not judge: {there.others}")
    else:
        yield _nvidia(there, vantage, baseline, libraries)


def _nvidia(there: Accelerator, vantage: Vantage, baseline: Baseline, libraries: Libraries) -> Finding:
    python, torch = libraries.python, libraries.torch
    if isinstance(python, Unavailable):
        return unknown(f"the job's Python is not known: {python}", how=GIVE_PYTHON)
    if python.ours:
        return unknown("this is netdoctor's torch, not the job's", how=GIVE_PYTHON)
    if isinstance(torch, Unavailable) and torch.kind == Kind.ABSENT:
        return unknown(f"{python.path} has no torch", how=GIVE_PYTHON)
    if not vantage.job_environment and not python.given:
        return unknown(f"{vantage.elsewhere}: {python.path} need not be the job's Python", how=GIVE_PYTHON)
    if there.hidden:
        text = "libcuda shows this process no GPU (CUDA_VISIBLE_DEVICES, or none was given to the container)"
        return unknown(text, how=f"echo $CUDA_VISIBLE_DEVICES; {layers.asks_for_gpus(vantage)}")
    if not there.visible:
        text = f"{there.nvidia} here, but no driver library shows any: were they meant for this process?"
        driver = "nvidia-smi; modprobe nvidia, where the driver is installed"
        return unknown(text, how=layers.asks_for_gpus(vantage) if vantage.in_container else driver)
    return _static(torch) or _asked(python, baseline)


def _static(torch: Torch | Unavailable) -> Finding | None:
    """A CPU build can be told from its files alone."""
    if not torch or torch.cuda is not None or not torch.version:
        return None
    return fail(
        "the job's torch is a CPU build: CUDA tensors cannot be made, and everything goes by Gloo",
        expected="a CUDA build of torch, with NCCL",
        how="pip install torch from the CUDA index that fits the driver (https://pytorch.org/get-started/locally/)",
        torch=torch.version,
    )


def _asked(python: JobPython, baseline: Baseline) -> Finding:
    """What torch itself answered in a child process."""
    run = baseline.run
    if isinstance(run, Unavailable):
        return unknown(f"torch was not asked: {run}", how=WITH_RUN)
    if run.via is Caller.NCCL:
        return unknown("torch was not asked: the all-reduce went by NCCL alone", how="netdoctor preflight --via torch")
    facts = run.torch or TorchFacts()
    if run.cuda_available is None:
        why = facts.error or run.reason or "it did not answer"
        return unknown(f"torch in {python.path} did not say whether it can use CUDA: {why}")
    if not run.cuda_available:
        return fail(
            "torch cannot use the GPUs that are here: without them it falls back to Gloo, silently from torch 2.6 on",
            cause="cuda_driver_mismatch",
            expected="torch.cuda.is_available() is True",
            measured={"torch_says": facts.cuda_warning} if facts.cuda_warning else None,
            how="driver and CUDA versions; Fabric Manager on NVSwitch nodes; /dev/nvidia* in the container",
            torch=run.torch_version,
        )
    if facts.nccl_built is False:
        return fail("this torch was built without NCCL: CUDA tensors go by Gloo, over TCP", torch=run.torch_version)
    return _backends(run, facts)


def _by_name(run: Run) -> Cure | None:
    """NCCL asked for by its name, against Gloo with the same tensors."""
    named = run.experiment
    return Cure(named, replace(named, backend="gloo"), "backend nccl") if named.backend == "nccl" and named.env == () else None


def _backends(run: Run, facts: TorchFacts) -> Finding:
    for given, found, error in (
        ("no backend", run.backends, facts.backends_error),
        ('"nccl"', run.backends_nccl, facts.backends_nccl_error),
    ):
        carrier = found.get("cuda")
        if carrier is None:
            why = error or ("no backend for CUDA tensors" if found else "it did not answer")
            return unknown(f"which backend carries CUDA tensors if the job passes {given} is not known: {why}")
        if carrier in ELSEWHERE:
            return fail(
                f"CUDA tensors go by {carrier} if the job passes {given}",
                expected="nccl",
                torch=run.torch_version,
                backends=dict(found),
                cure=_by_name(run) if (given, carrier) == ("no backend", "gloo") else None,
            )
        if carrier != "nccl":
            return unknown(
                f"CUDA tensors go by {carrier} if the job passes {given}: netdoctor does not know this backend",
                torch=run.torch_version,
                backends=dict(found),
            )
    # From torch 2.6 on init_process_group() of a machine with an accelerator makes the accelerator's backend alone.
    notes = () if "cpu" in run.backends else ("a group without a named backend takes no CPU tensors",)
    return ok(
        f"torch {run.torch_version} takes NCCL for CUDA tensors",
        notes=notes,
        torch=run.torch_version,
        nccl=run.nccl_version,
        backends=dict(run.backends),
    )
