"""One NCCL serves the job: the one that its torch loads, no other beside it, and its plugin fits."""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import (
    FROM_JOB,
    Baseline,
    Environ,
    Finding,
    Fix,
    Gpus,
    JobShape,
    Kind,
    Libraries,
    Pci,
    Plugin,
    Rdma,
    Run,
    Severity,
    Torch,
    Unavailable,
    Vantage,
    check,
    fail,
    hcas,
    library_at,
    ok,
    parse_version,
    plugin_interfaces,
    skip,
    unknown,
    used_nccl,
    version_text,
)

Version = tuple[int, int, int]
# Interfaces that NCCL knows itself; any other name is a plugin's.
BUILT_IN = frozenset({"IB", "Socket"})


@check(id="nccl.version", title="One NCCL serves the job, and its plugin fits", cause="version_mismatch")
def nccl_version(
    libraries: Libraries,
    baseline: Baseline | Unavailable,
    environ: Environ | Unavailable,
    rdma: Rdma | Unavailable,
    pci: Pci | Unavailable,
    gpus: Gpus | Unavailable,
    job: JobShape,
    vantage: Vantage,
) -> Iterator[Finding]:
    torch = _of_the_job(libraries, pci, gpus)
    if isinstance(torch, Finding):
        yield torch
        return
    run = (baseline.run or None) if isinstance(baseline, Baseline) and baseline.nccl_ran else None
    found = _of_the_run(run, libraries, torch) if run is not None else None
    if found is None:
        found = _by_the_rules(libraries, torch)
    lost = baseline if isinstance(baseline, Unavailable) else None
    yield _ours(_with_others(found, libraries, job), vantage, lost)
    yield _ours(_plugin(libraries, environ, rdma, run, used_nccl(libraries, baseline)), vantage, lost)


def _of_the_job(libraries: Libraries, pci: Pci | Unavailable, gpus: Gpus | Unavailable) -> Torch | Finding:
    """The job's torch, or why there is nothing to judge."""
    if hcas.no_accelerator(pci, gpus):
        return skip("no accelerator: PCI was read and shows none, libcuda shows none; NCCL has nothing to do")
    python, torch = libraries.python, libraries.torch
    if not isinstance(python, Unavailable) and python.ours:
        return unknown("this is netdoctor's own torch, not the job's", how="give --python")
    if isinstance(torch, Unavailable):
        where = "" if isinstance(python, Unavailable) else f" of {python.path} ({python.why})"
        return unknown(f"the job's torch{where} could not be read: {torch}", how="give --python")
    if isinstance(torch.version, str) and "rocm" in torch.version:
        return unknown(f"torch {torch.version} uses RCCL, which netdoctor does not judge")
    if torch.cuda is None and torch.nccl_linkage == "none":
        return skip(f"torch {torch.version} is a CPU build without NCCL", path=torch.path)
    return torch


def _ours(finding: Finding, vantage: Vantage, lost: Unavailable | None) -> Finding:
    """Nothing passes or skips from outside the job's environment, and nothing passes by rules alone.

    The job's LD_LIBRARY_PATH may lead to libraries and plugins that are not seen from here, and a run may show another library.
    """
    if finding.status.value not in ("pass", "skip"):
        return finding
    if vantage.job_environment:
        if lost is None or finding.status.value == "skip":
            return finding
        return unknown(f"{finding.message}; the all-reduce would show it: {lost}", subject=finding.subject)
    return unknown(f"{finding.message}, {vantage.why_not}", subject=finding.subject, how=FROM_JOB)


def _of_the_run(run: Run, libraries: Libraries, torch: Torch) -> Finding | None:
    """What the ranks of the run had mapped; None where no rank said."""
    said = parse_version(run.nccl_version)
    every = tuple(dict.fromkeys((*run.mapped, *(p for r in run.ranks for p in r.mapped))))
    if not every:
        if said is None:
            return None
        return ok(
            f"NCCL {version_text(said)}, linked into torch (no libnccl is mapped)", subject="loaded", nccl=version_text(said)
        )
    versions = {path: _version(path, libraries) for path in every}
    known = {v for v in versions.values() if not isinstance(v, Unavailable)} | ({said} if said else set())
    listed = ", ".join(f"{p} ({v if isinstance(v, Unavailable) else version_text(v)})" for p, v in versions.items())
    if len(known) > 1:
        return fail(
            f"different NCCL versions meet in the run: {listed}" + (f"; torch says {version_text(said)}" if said else ""),
            subject="loaded",
            expected="one version, mapped once",
            why="which of the two a call reaches depends on load order; ranks that differ refuse each other from 2.23.4",
            fix=Fix(
                "leave one of them: LD_PRELOAD, LD_LIBRARY_PATH, VLLM_NCCL_SO_PATH, a second nvidia-nccl wheel",
                ("grep libnccl /proc/PID/maps", "pip list | grep -i nccl"),
            ),
            mapped=sorted(every),
        )
    unread = [p for p, v in versions.items() if isinstance(v, Unavailable)]
    if len(every) > 1 and unread:
        return unknown(f"several libnccl are mapped, and not every version could be read: {listed}", subject="loaded")
    version = next(iter(known), None)
    if version is None:
        return unknown(f"the version of {every[0]} could not be read: {versions[every[0]]}", subject="loaded")
    if (older := _older(version, torch)) is not None:
        return older
    notes = [f"the same version is mapped from {len(every)} paths: {', '.join(every)}"] if len(every) > 1 else []
    notes += _expectation(every, libraries, torch)
    return ok(
        f"NCCL {version_text(version)} from {every[0]}",
        subject="loaded",
        notes=notes,
        nccl=version_text(version),
        mapped=sorted(every),
    )


def _version(path: str, libraries: Libraries) -> Version | Unavailable:
    found = library_at(path, libraries)
    return found.version if found else Unavailable(Kind.NOT_READ, "not among the libraries that were looked at")


def _older(version: Version, torch: Torch) -> Finding | None:
    """What speaks against this version: older than torch was built against lacks functions; a newer one has them all."""
    compiled = torch.nccl_compiled
    if isinstance(compiled, Unavailable):
        return unknown(
            f"which NCCL torch was built against could not be read: {compiled}", subject="loaded", nccl=version_text(version)
        )
    if compiled is None or version >= compiled:
        return None
    return fail(
        f"torch was built against NCCL {version_text(compiled)}, {version_text(version)} is loaded",
        subject="loaded",
        # Functions come with minor versions (ncclCommShrink 2.27, ncclAlltoAll 2.28): of one, the older lacks mends alone.
        severity=Severity.WARNING if version[:2] == compiled[:2] else None,
        expected=f"{version_text(compiled)} or newer",
        why="an older library lacks functions that torch calls, or behaves as other ranks do not",
        fix=Fix(
            "let torch load its own NCCL",
            ("env | grep -e LD_LIBRARY_PATH -e LD_PRELOAD", f"pip install nvidia-nccl-cu12=={version_text(compiled)}"),
        ),
        nccl=version_text(version),
        compiled=version_text(compiled),
    )


def _expectation(mapped: tuple[str, ...], libraries: Libraries, torch: Torch) -> list[str]:
    """A note where the run mapped another file than the loader's rules say."""
    if not isinstance(torch.nccl_path, str):
        return []
    expected = library_at(torch.nccl_path, libraries)
    names = {torch.nccl_path} | ({expected.path, expected.real_path} if expected else set())
    same = names & set(mapped)
    return [] if same else [f"by the loader's rules it would be {torch.nccl_path} ({torch.nccl_why})"]


def _by_the_rules(libraries: Libraries, torch: Torch) -> Finding:
    """No run: what the loader takes, by its rules."""
    if torch.nccl_linkage == "static":
        return unknown(
            "NCCL is linked into torch; only a run tells its version", subject="loaded", how="torch.cuda.nccl.version()"
        )
    path = torch.nccl_path
    if isinstance(torch.nccl_linkage, Unavailable) or isinstance(path, Unavailable):
        why = torch.nccl_linkage if isinstance(torch.nccl_linkage, Unavailable) else path
        return unknown(f"which libnccl torch loads could not be told: {why}", subject="loaded")
    if torch.nccl_linkage == "none":
        return unknown(f"torch {torch.version} for CUDA {torch.cuda} names no NCCL", subject="loaded")
    if path is None:
        return unknown("the loader's rules find no libnccl for torch; torch then looks in its own packages", subject="loaded")
    version = _version(path, libraries)
    if isinstance(version, Unavailable):
        if version.kind == Kind.MALFORMED:
            return fail(
                f"torch loads {path} ({torch.nccl_why}), which is no library: {version.detail}",
                subject="loaded",
                why="importing torch fails",
                fix=Fix("remove or replace that file", (f"file {path}",)),
            )
        return unknown(f"the version of {path} could not be read: {version}", subject="loaded")
    if (older := _older(version, torch)) is not None:
        return older
    message = f"torch loads NCCL {version_text(version)} from {path} ({torch.nccl_why}); no run showed it"
    return ok(message, subject="loaded", nccl=version_text(version), path=path)


def _with_others(finding: Finding, libraries: Libraries, job: JobShape) -> Finding:
    """Notes of a pass: libraries beside it, and what one node cannot show."""
    if finding.status.value != "pass":
        return finding
    mine = str(finding.evidence.get("nccl", ""))
    notes = list(finding.notes)
    notes += (
        f"{one.path} is {version_text(one.version)} ({', '.join(one.found_by)}): it did not win"
        for one in (() if isinstance(libraries.nccl, Unavailable) else libraries.nccl)
        if not isinstance(one.version, Unavailable) and version_text(one.version) != mine
    )
    if libraries.incomplete:
        notes.append(f"not everything could be searched: {'; '.join(libraries.incomplete)}")
    if isinstance(job.nodes, int) and job.nodes > 1:
        notes.append("other nodes were not seen from here: netdoctor fleet report compares them")
    return ok(finding.message, subject=finding.subject, notes=notes, measured=None, **dict(finding.evidence))


def _plugin(
    libraries: Libraries,
    environ: Environ | Unavailable,
    rdma: Rdma | Unavailable,
    run: Run | None,
    version: Version | Unavailable,
) -> Finding:
    """The network plugin: loaded where there is one, and there where EFA needs one."""
    named = environ.get("NCCL_NET_PLUGIN") if isinstance(environ, Environ) else environ
    if isinstance(named, Unavailable):
        return unknown(f"NCCL_NET_PLUGIN could not be read: {named}", subject="plugin")
    log = run.log if run is not None else None
    network, problem = (None, None) if log is None else (log.network, log.plugin_error)
    if network is not None and network not in BUILT_IN:
        return ok(f"the run used the plugin's network {network}", subject="plugin", network=network)
    if isinstance(libraries.plugins, Unavailable):
        return unknown(f"plugins could not be looked for: {libraries.plugins}", subject="plugin")
    wanted = _wanted(named, version)
    reachable = [p for name in wanted for p in libraries.plugins if _is_named(p, name)]
    devices = rdma.devices if isinstance(rdma, Rdma) and not isinstance(rdma.devices, Unavailable) else ()
    efa = [d.name for d in devices if d.driver == "efa"]
    if not reachable:
        return _no_plugin(libraries, rdma, efa, named if wanted else "none", network)
    plugin = reachable[0]
    if isinstance(plugin.symbols, Unavailable) or isinstance(version, Unavailable):
        why = plugin.symbols if isinstance(plugin.symbols, Unavailable) else version
        return unknown(f"whether {plugin.path} fits could not be told: {why}", subject="plugin")
    have = sorted({int(s.rpartition("_v")[2]) for s in plugin.symbols if s.rpartition("_v")[2].isdecimal()})
    low, high = plugin_interfaces(version)
    if not any(low <= n <= high for n in have):
        offers = ", ".join(f"v{n}" for n in have) or "no interface"
        return fail(
            f"{plugin.path} offers {offers}; NCCL {version_text(version)} looks for v{low} to v{high}",
            subject="plugin",
            severity=Severity.CRITICAL if efa else Severity.WARNING,
            cause="plugin_mismatch",
            fix=Fix("install the plugin that fits this NCCL", ("NCCL_DEBUG=INFO … | grep NET/Plugin",)),
            interfaces=have,
        )
    if network is not None and (efa or problem):
        return fail(
            f"{plugin.path} is there, and the run used NCCL's own {network}",
            subject="plugin",
            severity=Severity.CRITICAL if efa else Severity.WARNING,
            cause="plugin_mismatch",
            why=problem,
            fix=Fix("see why it does not load", (f"ldd {plugin.path}", "NCCL_DEBUG=INFO … | grep NET/Plugin")),
        )
    if network is not None and (isinstance(rdma, Unavailable) or isinstance(rdma.devices, Unavailable)):
        text_of = f"{plugin.path} is there, the run used NCCL's own {network}, and whether EFA needs it could not be read"
        return unknown(text_of, subject="plugin")
    return ok(f"{plugin.path} fits NCCL {version_text(version)}", subject="plugin", interfaces=have)


def _wanted(named: str | None, version: Version | Unavailable) -> tuple[str, ...]:
    """The names that NCCL tries in turn, "" for the default; a list since 2.28.3 (src/plugin/net.cc)."""
    listed = isinstance(version, Unavailable) or version >= (2, 28, 3)
    if named is None or (named == "" and not listed):
        return ("",)
    if named.lower() == "none":
        return ()
    return tuple(one for one in named.split(",") if one) if listed else (named,)


def _is_named(plugin: Plugin, named: str) -> bool:
    """Whether dlopen finds it under the name that NCCL asks for (src/plugin/plugin_open.cc)."""
    paths = (plugin.path, *plugin.aliases)
    names = {path.rpartition("/")[2] for path in paths}
    if not named:
        return "libnccl-net.so" in names and set(plugin.found_by) != {"site-packages"}
    return named in paths or named in names or f"libnccl-net-{named}.so" in names


def _no_plugin(
    libraries: Libraries, rdma: Rdma | Unavailable, efa: list[str], named: str | None, network: str | None
) -> Finding:
    if isinstance(rdma, Unavailable) or isinstance(rdma.devices, Unavailable):
        return unknown("no plugin was found, and whether one is needed (EFA) could not be read", subject="plugin")
    if efa and named == "none":
        return fail(
            f"{', '.join(efa)}: EFA needs aws-ofi-nccl, and NCCL_NET_PLUGIN keeps it away",
            subject="plugin",
            severity=Severity.CRITICAL,
            cause="plugin_mismatch",
            why="without it NCCL takes TCP sockets",
            fix=Fix("remove NCCL_NET_PLUGIN", ("unset NCCL_NET_PLUGIN",)),
        )
    if efa:
        if libraries.incomplete and network is None:
            return unknown(f"no plugin was found, but {'; '.join(libraries.incomplete)}", subject="plugin")
        return fail(
            f"{', '.join(efa)}: EFA needs aws-ofi-nccl, and no libnccl-net.so is where NCCL looks",
            subject="plugin",
            severity=Severity.CRITICAL,
            cause="plugin_mismatch",
            why="without it NCCL takes TCP sockets",
            fix=Fix(
                "install aws-ofi-nccl and put it on the loader's path",
                ("export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:$LD_LIBRARY_PATH",),
            ),
        )
    if named not in (None, "", "none") and network is not None:
        return fail(
            f"NCCL_NET_PLUGIN={named} names no plugin that NCCL finds; the run used NCCL's own {network}",
            subject="plugin",
            severity=Severity.WARNING,
            cause="plugin_mismatch",
        )
    if named not in (None, "", "none"):
        return unknown(f"no file was found for NCCL_NET_PLUGIN={named}", subject="plugin")
    return skip("no network plugin is installed, and no device needs one", subject="plugin")
