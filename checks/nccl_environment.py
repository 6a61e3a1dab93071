"""Every variable that NCCL, torch and their plugins read does what it says with the NCCL that the job has."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from netdoctor.api import (
    FROM_JOB,
    DeviceNames,
    Environ,
    Finding,
    Fix,
    Gpus,
    Intent,
    Kind,
    Libraries,
    Loss,
    Net,
    Pci,
    Rdma,
    Status,
    Unavailable,
    Vantage,
    between_nodes,
    check,
    cost,
    count,
    fail,
    fix_environment,
    interfaces,
    missing,
    nccl_environment,
    node_variables,
    ok,
    unknown,
    without_p2p,
)

BETWEEN = frozenset({"transport_fallback_tcp", "gdr_disabled"})  # what is lost of the way to other nodes
HOW_RIGHTS = "as root: stat, of it and of each folder above it"
NOBODY = 65534  # DEFAULT_OVERFLOWUID (include/linux/highuid.h): whose it is could not be told, on NFS without a map of ids
EXPOSED = Loss(None, "who writes it chooses what each job that reads it loads")
SCRIPT = "netdoctor env --file JOBSCRIPT judges the variables of a script"


@check(id="nccl.environment", title=nccl_environment.TITLE, cause="env_misuse")
def environment(
    environ: Environ,
    vantage: Vantage,
    libraries: Libraries,
    net: Net,
    rdma: Rdma,
    job: Intent,
    gpus: Gpus,
    pci: Pci,
    other_names: DeviceNames,
) -> Iterator[Finding]:
    if isinstance(environ.variables, Unavailable):
        yield replace(unknown(f"the environment could not be read: {environ.variables}", how=FROM_JOB), notes=(SCRIPT,))
        return
    if not vantage.job_environment:  # of another environment only the node's own nccl.conf says something about the job
        environ = environ.of_the_node
    known = nccl_environment.known_of(libraries, net, rdma, job)
    if not vantage.job_network:
        known = replace(known, links=Unavailable(Kind.NOT_READ, vantage.network_elsewhere))
    found = [
        *nccl_environment.judge_job(environ, known, job),
        *_topology(environ, gpus),
        *_devices(environ, rdma, gpus, pci, job),
    ]
    weighed = (_weighed(one, gpus, pci, job) for one in found if one.status is not Status.PASS)
    yield from (_mended(one, vantage, net, other_names) for one in weighed)
    yield from _open_to_others(replace(environ, conf_files=tuple(nccl_environment.conf_files(environ, known))), vantage)
    if not vantage.job_environment:
        yield replace(unknown(f"the job's variables are not seen: {vantage.elsewhere}", how=FROM_JOB), notes=(SCRIPT,))
        return
    if isinstance(environ.nccl, Unavailable):  # said above
        return
    passed = [one for one in found if one.status is Status.PASS]
    notes = tuple(dict.fromkeys(f"{one.subject}: {note}" for one in passed for note in one.notes))
    names = sorted({one.subject for one in passed})
    if names:
        yield ok(f"{count(len(names), 'variable')}, read as written", notes=notes, variables=names)
    elif not found:
        yield ok(nccl_environment.NOTHING_SET)


def _open_to_others(environ: Environ, vantage: Vantage) -> Iterator[Finding]:
    """A conf file of the node's, or one that root's job reads, that somebody else may write.

    setEnvFile of src/misc/param.cc sets any variable that is not set, and src/plugin/plugin_open.cc loads the library that
    NCCL_NET_PLUGIN or NCCL_ENV_PLUGIN names.  A container is one user's, and its ids are not the machine's.
    """
    if vantage.runtime or vantage.root_is_root is False:
        return
    where = missing(vantage.runtime, vantage.root_is_root)
    for file in environ.conf_files:
        if isinstance(file.entries, Unavailable) or not (file.of_node or vantage.euid == 0):
            continue
        rights = file.rights
        if isinstance(rights, Unavailable):
            yield unknown(f"{file.path}: who may write it could not be read: {rights}", subject=file.path, how=HOW_RIGHTS)
            continue
        everybody = bool(rights.mode & 0o002)
        if not everybody and rights.uid in (0, vantage.euid, NOBODY):
            continue
        who = f"everybody may write it (mode {rights.mode:04o})" if everybody else f"it belongs to uid {rights.uid}"
        path = shlex.quote(file.path)
        if where is not None:
            yield unknown(f"{file.path}: {who}; whether that is somebody else is not known: {where}", subject=file.path)
            continue
        yield fail(
            f"{file.path}: {who}, and NCCL sets and loads what it says, in "
            + ("every job of this node" if file.of_node else "this job of root's"),
            subject=file.path,
            expected="a file of root's that nobody else may write",
            why="whoever writes it has code run as each user whose job reads it: NCCL_NET_PLUGIN names a library",
            fix=Fix("read what it says, then make it root's alone", (f"chown root:root {path}", f"chmod 644 {path}")),
            loss=EXPOSED,
            rule="open-to-others",
            uid=rights.uid,
            mode=f"{rights.mode:04o}",
        )


def _topology(environ: Environ, gpus: Gpus) -> Iterator[Finding]:
    """A topology file that lacks GPUs of this node, a file of graphs that has more than there are."""
    beyond = [number for number in environ.graph if number >= len(gpus.all or ())]
    if beyond and gpus.all and environ.nccl:
        yield nccl_environment.more_gpus(environ.nccl["NCCL_GRAPH_FILE"], beyond, len(gpus.all))
    strange = sorted({gpu.pci for gpu in gpus.all or () if isinstance(gpu.pci, str)} - {*environ.topology})
    if environ.topology and strange and environ.nccl:
        yield nccl_environment.other_machine(environ.nccl["NCCL_TOPO_FILE"], len(environ.topology), strange)


def _devices(environ: Environ, rdma: Rdma, gpus: Gpus, pci: Pci, job: Intent) -> Iterator[Finding]:
    """Devices that a list leaves out, perhaps by chance, and a protocol that is not for these GPUs."""
    settings = environ.nccl or {}
    hcas, protocols = settings.get("NCCL_IB_HCA"), settings.get("NCCL_PROTO")
    if hcas is not None:
        found = node_variables.left_out(hcas, rdma) or node_variables.beside_the_gpus(hcas, rdma, gpus, pci)
        if found is not None and job.others is not False:
            yield between_nodes(found, job)
    if protocols is not None and (found := node_variables.forced_ll128(protocols, gpus, pci)) is not None:
        yield found


def _weighed(found: Finding, gpus: Gpus, pci: Pci, job: Intent) -> Finding:
    """What a variable switches off, by what this node has of it and what the job needs."""
    if found.loss is None:  # no fail
        return found
    if found.evidence.get("rule") == "p2p-off":
        return replace(found, loss=without_p2p(gpus, pci))
    if found.cause in BETWEEN and found.loss.needed is None:
        return between_nodes(replace(found, loss=replace(found.loss, needed=True)), job)
    return found


def _mended(found: Finding, vantage: Vantage, net: Net, names: DeviceNames) -> Finding:
    """An interface by which no job starts is mended as net.socket_ifname mends it: what both say is then one block."""
    if found.cause != "socket_ifname" or found.loss != cost.STOPS or not vantage.job_network:
        return found
    fine = interfaces.candidates(net)
    change = interfaces.to_set(found.subject, names.meant(fine) if found.subject == "NCCL_SOCKET_IFNAME" else fine)
    return replace(found, fix=fix_environment(vantage, change, unset="=" not in change)) if fine else found
