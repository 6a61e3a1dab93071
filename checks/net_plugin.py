"""The plugins that this NCCL opens: each loads, has an interface that this NCCL takes, and finds its provider.

The network's is always judged, for NCCL goes on without one and takes its own network, unless NCCL_NET asks for the plugin's:
then it stops.  Tuner, profiler and environment only where one is named or there.
"""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import (
    Baseline,
    Environ,
    Finding,
    Fix,
    Gpus,
    Intent,
    Libraries,
    Pci,
    Rdma,
    Vantage,
    between_nodes,
    check,
    cost,
    fail,
    job_torch,
    nccl_plugins,
    net_plugin,
    seen_loaded,
    transport,
    used_nccl,
)


@check(id="net.plugin", title="NCCL's plugins load, and fit this NCCL", cause="plugin_mismatch")
def plugins(
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
    if isinstance(torch, Finding) and run is None:
        yield torch
        return
    version = used_nccl(libraries, baseline)
    found = [net_plugin.judge(libraries, environ, rdma, transport.log_of(run), version)]
    found += [one for role in nccl_plugins.BESIDE if (one := nccl_plugins.judge(role, libraries, environ, version)) is not None]
    found += _files(environ)
    for one in found:
        yield seen_loaded(between_nodes(one, job) if one.loss is not None and one.loss.partial else one, vantage, baseline)


def _files(environ: Environ) -> Iterator[Finding]:
    """Files of plugins; each goes on without, by what it has compiled in."""
    for name in environ.plugin_files_gone:
        value = environ.get(name)
        yield fail(
            f"{name}={value}: no such file",
            subject=name,
            loss=cost.MIGHT,
            why="the plugin that reads it goes on with what is compiled into it, or is not used",
            fix=Fix(f"name a file that is there, or remove {name}", (f"unset {name}",)),
        )
