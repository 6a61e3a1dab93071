"""One NCCL serves the job: the one that its torch loads, no other beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from netdoctor.api import (
    Baseline,
    Caller,
    Environ,
    Finding,
    Fix,
    Gpus,
    Intent,
    Kind,
    Libraries,
    Linkage,
    Pci,
    Rdma,
    Run,
    Status,
    Torch,
    Unavailable,
    Vantage,
    Version,
    check,
    cost,
    fail,
    job_torch,
    loader_rules_say,
    missing,
    net_plugin,
    ok,
    parse_version,
    seen_loaded,
    unknown,
    version_text,
)

Changes = tuple[tuple[str, str | None], ...]
LOADER_VARIABLES = "env | grep -e LD_LIBRARY_PATH -e LD_PRELOAD"


@check(id="nccl.version", title="One NCCL serves the job", cause="version_mismatch")
def nccl_version(
    libraries: Libraries,
    baseline: Baseline,
    environ: Environ,
    rdma: Rdma,
    pci: Pci,
    gpus: Gpus,
    job: Intent,
    vantage: Vantage,
) -> Iterator[Finding]:
    run = baseline.nccl_run
    torch = job_torch(libraries, pci, gpus, run)
    if isinstance(torch, Torch):
        found = (run and _of_the_run(run, libraries, torch, environ)) or _by_the_rules(libraries, torch, environ)
    elif run and run.via is Caller.NCCL and run.mapped and _no_torch(libraries):
        found = _without_torch(run.mapped, run.nccl_version, libraries)
    elif isinstance(torch, Finding):
        yield torch
        return
    else:
        found = _without_torch((torch.path,), version_text(torch.version) if torch.version else "", libraries)
    found = _with_notes(found, libraries, job, net_plugin.gin_dies(str(found.evidence.get("nccl", "")), rdma, environ))
    yield replace(seen_loaded(found, vantage, baseline), subject="loaded")


def _of_the_run(run: Run, libraries: Libraries, torch: Torch, environ: Environ) -> Finding | None:
    """What the ranks of the run had mapped; None where no rank said."""
    said = parse_version(run.nccl_version)
    every = tuple(dict.fromkeys((*run.mapped, *(p for r in run.ranks for p in r.mapped))))
    if not every:
        if said is None or run.via is Caller.NCCL:  # that opened a libnccl, and ended before it told which
            return None
        return ok(f"NCCL {version_text(said)}, linked into torch (no libnccl is mapped)", nccl=version_text(said))
    versions = {path: libraries.nccl_version(path) for path in every}
    known = {v for v in (*versions.values(), said) if v}
    listed = ", ".join(f"{path} ({version_text(v) if v else v})" for path, v in versions.items())
    if len(known) > 1:
        return fail(
            f"different NCCL versions meet in the run: {listed}" + (f"; torch says {version_text(said)}" if said else ""),
            expected="one version, mapped once",
            why="which of the two a call reaches depends on load order; ranks that differ refuse each other from 2.23.4",
            fix=Fix(
                "leave one of them: LD_PRELOAD, LD_LIBRARY_PATH, VLLM_NCCL_SO_PATH, a second nvidia-nccl wheel",
                ("grep libnccl /proc/PID/maps", "pip list | grep -i nccl"),
            ),
            mapped=sorted(every),
        )
    if len(every) > 1 and not all(versions.values()):
        return unknown(f"several libnccl are mapped, and not every version could be read: {listed}")
    version = next(iter(known), None)
    if version is None:
        return unknown(f"the version of {every[0]} could not be read: {versions[every[0]]}")
    if (older := _older(version, torch, _without(every[0], environ))) is not None:
        return older
    notes = [f"the same version is mapped from {len(every)} paths: {', '.join(every)}"] if len(every) > 1 else []
    if (other := loader_rules_say(every, libraries, torch)) is not None:
        notes.append(other)
    message = f"NCCL {version_text(version)} from {every[0]}"
    return ok(message, notes=notes, nccl=version_text(version), mapped=sorted(every))


def _no_torch(libraries: Libraries) -> bool:
    return isinstance(libraries.torch, Unavailable) and libraries.torch.kind == Kind.ABSENT


def _without_torch(used: tuple[str, ...], said: str, libraries: Libraries) -> Finding:
    """Of a job that has no torch: what its ranks mapped, or what its Python brings."""
    every = libraries.nccl
    if isinstance(every, Unavailable) or libraries.incomplete:
        why = every if isinstance(every, Unavailable) else "; ".join(libraries.incomplete)
        return unknown(f"the job has no torch, and which other libnccl it could load is not known: {why}")
    known = {path: libraries.nccl_version(path) for path in used} | {one.path: one.version for one in every}
    if len({version_text(v) if v else path for path, v in known.items()}) > 1:
        listed = ", ".join(f"{path} ({version_text(v) if v else v})" for path, v in known.items())
        text = f"the job has no torch, and what it loads NCCL by decides which: {listed}"
        return unknown(text, how="grep libnccl /proc/PID/maps of the job; leave one of them", mapped=sorted(used))
    if not said:
        return unknown(f"the version of {used[0]} could not be read: {known[used[0]]}")
    return ok(f"NCCL {said} from {used[0]}", nccl=said, mapped=sorted(used))


def _older(version: Version, torch: Torch, without: Changes) -> Finding | None:
    """What speaks against this version: older than torch was built against lacks functions; a newer one has them all."""
    compiled, have = torch.nccl_compiled, version_text(version)
    if isinstance(compiled, Unavailable):
        return unknown(f"which NCCL torch was built against could not be read: {compiled}", nccl=have)
    if compiled is None or version >= compiled:
        return None
    built = version_text(compiled)
    return fail(
        f"torch was built against NCCL {built}, {have} is loaded",
        # Functions come with minor versions (ncclCommShrink 2.27, ncclAlltoAll 2.28): of one, the older lacks mends alone.
        loss=cost.MIGHT if version[:2] == compiled[:2] else None,
        expected=f"{built} or newer",
        why="an older library lacks functions that torch calls, or behaves as other ranks do not",
        fix=Fix("let torch load its own NCCL", (LOADER_VARIABLES, f"pip install nvidia-nccl-cu12=={built}"), tries=without),
        nccl=have,
        compiled=built,
    )


def _without(path: str, environ: Environ) -> Changes:
    """Changes to the loader's variables (ld.so(8)) that leave this library out."""
    changes = []
    for name, value in ((name, environ.get(name)) for name in ("LD_PRELOAD", "LD_LIBRARY_PATH")):
        every = re.split("[: ]+" if name == "LD_PRELOAD" else "[:;]", value or "")
        kept = [one for one in every if one.rstrip("/") not in (path, path.rpartition("/")[0])]
        changes += [(name, ":".join(kept) or None)] if value and kept != every else []
    return tuple(changes)


def _by_the_rules(libraries: Libraries, torch: Torch, environ: Environ) -> Finding:
    """No run: what the loader takes, by its rules."""
    path = torch.nccl_path
    if torch.nccl_linkage == Linkage.STATIC:
        return unknown("NCCL is linked into torch; only a run tells its version", how="torch.cuda.nccl.version()")
    if isinstance(torch.nccl_linkage, Unavailable) or isinstance(path, Unavailable):
        return unknown(f"which libnccl torch loads could not be told: {missing(torch.nccl_linkage, path)}")
    if torch.nccl_linkage == Linkage.NONE:
        return unknown(f"torch {torch.version} for CUDA {torch.cuda} names no NCCL")
    if path is None:
        return unknown("the loader's rules find no libnccl for torch; torch then looks in its own packages")
    version = libraries.nccl_version(path)
    if isinstance(version, Unavailable):
        if version.kind == Kind.MALFORMED:
            text = f"torch loads {path} ({torch.nccl_why}), which is no library: {version.detail}"
            return fail(text, why="importing torch fails", fix=Fix("remove or replace that file", (f"file {path}",)))
        return unknown(f"the version of {path} could not be read: {version}")
    if (older := _older(version, torch, _without(path, environ))) is not None:
        return older
    message = f"torch loads NCCL {version_text(version)} from {path} ({torch.nccl_why})"
    return ok(message, nccl=version_text(version), path=path)


def _with_notes(finding: Finding, libraries: Libraries, job: Intent, dies: str | None) -> Finding:
    """What is known of this version; of a pass also the libraries beside it, and what one node cannot show."""
    known = (*finding.notes, *([dies] if dies else []))
    if finding.status is not Status.PASS:
        return replace(finding, notes=known)
    mine = str(finding.evidence.get("nccl", ""))
    notes = [
        f"{one.path} is {version_text(one.version)} ({', '.join(one.found_by)}): it did not win"
        for one in libraries.nccl or ()
        if one.version and version_text(one.version) != mine
    ]
    if libraries.incomplete:
        notes.append(f"not everything could be searched: {'; '.join(libraries.incomplete)}")
    if job.nodes and job.nodes > 1:
        notes.append("other nodes were not seen from here: netdoctor fleet report compares them")
    return replace(finding, notes=(*known, *notes))
