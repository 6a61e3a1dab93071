"""Every reader of what others wrote: some right inputs, and the way of a command from an input to what it prints.

An exception is a failure, and so is a control character in what is printed.  NCCL's topology XML is read by NCCL alone.
"""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netdoctor.allreduce import events, verdict
from netdoctor.cli import clean, env, fleet, log, ras, setup, startable
from netdoctor.cluster import messages
from netdoctor.cluster.coordinator import SUBJECTS
from netdoctor.cluster.observations import Cluster, Nodes
from netdoctor.config import documents
from netdoctor.config.document import ConfigError
from netdoctor.config.load import Config, load
from netdoctor.facts import environ, past
from netdoctor.facts.launcher import detect
from netdoctor.facts.runs import AllReduce, NcclFacts, TorchFacts
from netdoctor.fleet.read import read
from netdoctor.fleet.report import examine
from netdoctor.host.base import RecordingHost, ReplayHost
from netdoctor.host.helpers import elf
from netdoctor.host.redact import Redactor
from netdoctor.model import Command, Report, Unavailable
from netdoctor.nccl.log.parser import Parser
from netdoctor.nccl.ras import parse
from netdoctor.report import formats
from netdoctor.snapshot.diagnose import diagnose
from netdoctor.snapshot.import_tree import import_tree
from netdoctor.snapshot.snapshot import SnapshotError, loads
from netdoctor.variables.catalogue import accepts
from netdoctor.variables.issue import Known
from tests.fuzz import machines, mutate
from tests.fuzz.frames import read_frames, said
from tests.lab import fixtures
from tests.support.clusters import fleets
from tests.support.machines.sysfs import dgx_h100
from tests.support.sources import ROOT
from tests.unit.test_helper_elf import LIBRARY, NAMES, image
from tests.unit.test_log_parser import ERAS, PREFIXES
from tests.unit.test_log_rules import LOGS
from tests.unit.test_nodes_hostile import events as rank_events, part
from tests.unit.test_ras import BEHIND, FINE


@dataclass(frozen=True)
class Target:
    """One reader: what it is given, how that is changed, and what reads it."""

    seeds: Callable[[], list[bytes]]
    feed: Callable[[bytes], None]
    change: Callable[..., bytes] = mutate.of_bytes


def harmless(text: str) -> None:
    bad = [c for c in text if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066"]
    assert not bad, f"control characters are printed: {bad[:5]!r}"


def printed(report: Report) -> None:
    for name in ("text", "json"):
        harmless(formats.render(report, name))


@functools.cache
def scratch() -> Path:
    """A folder of this process; /dev/shm is nobody's disk."""
    folder = tempfile.TemporaryDirectory(prefix="netdoctor-fuzz-")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[Any] = []


def file(data: bytes, name: str) -> str:
    path = scratch() / name
    path.write_bytes(data)
    return str(path)


# Logs


def log_seeds() -> list[bytes]:
    texts = [*LOGS.values(), *(row[0] for row in ERAS), *(prefix.replace("MSG", "Using network IB") for prefix, *_ in PREFIXES)]
    connect = json.dumps({"log": "n:1:1 [0] NCCL WARN Call to connect failed: Connection refused\n", "stream": "stderr"})
    magic = "n:1:1 [0] misc/socket.cc:1 NCCL WARN socketFinalizeAccept: wrong magic 20544547202f2031 != 1b2c3d4e5f60718"
    return [text.encode() for text in (connect, magic, *texts) if text]


def read_log(data: bytes) -> None:
    parser = Parser()
    half = len(data) // 3
    parser.feed(data[:half])
    parser.feed(data[half:])
    printed(log.report(parser.facts(), setup.decider(Config(), command=Command.LOG)))


# Snapshots, reports, trees


def snapshot_seeds() -> list[bytes]:
    """The small ones: what a node of eight GPUs has more of them is more of the same, and costs ten times as much."""
    found = sorted((path.read_bytes() for path in ROOT.glob("fixtures/hosts/*/snapshot.json")), key=len)
    return found[:6]


def read_snapshot(data: bytes) -> None:
    try:
        snapshot = loads(data.decode("utf-8", "replace"))
        config = load(environ={}, recorded=snapshot.policy)
    except (SnapshotError, ConfigError) as error:
        harmless(str(error))
        return
    specs, extra = setup.load_checks(config, (), ran=snapshot.ran)
    printed(diagnose(snapshot, specs, setup.decider(config), config.profile, extra))


def report_seeds() -> list[bytes]:
    mine = [path.read_bytes() for path in sorted(ROOT.glob("fixtures/hosts/*/report.json"))[:4]]
    return [json.dumps(fleets.report("n1")).encode(), *mine]


def read_report(data: bytes) -> None:
    reading = read([file(data, "n1.json"), file(report_seeds_cached()[0], "n2.json")])
    printed(fleet.report(examine(reading, None, setup.decider(Config(), command=Command.FLEET), 0.0)))


def cut_seeds() -> list[bytes]:
    """Of a node that had no room left."""
    deep = b'{"identity": {"host": "n1", "x": ' + b"[" * 8000 + b"}, "
    return [deep, *(data[:at] for data in report_seeds()[:2] for at in (400, 3000))]


@functools.cache
def report_seeds_cached() -> list[bytes]:
    return report_seeds()


@functools.cache
def tree() -> tuple[Path, list[Path]]:
    root = scratch() / "tree"
    dgx_h100(root / "sys", gpus=2, hcas=2, roce=True, gids=2)
    return root, sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def tree_seeds() -> list[bytes]:
    return sorted({path.read_bytes() for path in tree()[1]})


def read_tree(data: bytes) -> None:
    root, files = tree()
    path = files[hash(data) % len(files)]
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        import_tree(str(root), Config().as_answer(), fixtures.specs(), setup.policy_data(Config()), "fuzz")
    finally:
        path.write_bytes(before)


# Configuration and variables


def config_seeds() -> list[bytes]:
    found = [one.read_bytes() for one in sorted(ROOT.glob("fixtures/**/*.yaml")) if one.stat().st_size < 4000][:20]
    return [b"profile: gate\nfail_on: major\nexpected: {gpus: 8, busbw_floor: {64MiB: 0.1}}\nlock: true\n", *found]


def read_config(data: bytes) -> None:
    for option in ("path", "expect"):
        with contextlib.suppress(ConfigError):
            load(**{option: file(data, "c.yaml")}, environ={}, site="/nonexistent")  # type: ignore[arg-type]


CONF = b"# site\nNCCL_IB_HCA=mlx5_0,mlx5_1\nNCCL_SOCKET_IFNAME = eth\n NCCL_DEBUG=WARN\nNCCL_TOKEN=x\nPATH=/x\n"


def read_conf(data: bytes) -> None:
    text = data.decode("utf-8", "backslashreplace")
    answers: dict[str, Any] = {"env:": {"NCCL_CONF_FILE": "/x", "HOME": "/h"}, "file:/x": text, "file:/etc/nccl.conf": text}
    host = RecordingHost(ReplayHost(answers), Redactor(accepts))
    environ.effective({}, ())
    environ.probe(host)
    printed(
        env.report(
            env.judge_file("nccl.conf", text, Known(None)), ("nccl.conf",), None, setup.decider(Config(), command=Command.ENV)
        )
    )


SCRIPTS = {
    "job.sh": b"#!/bin/bash\nexport NCCL_DEBUG=INFO NCCL_ALGO='Ring'\nif [ $A = 1 ]; then NCCL_IB_HCA=mlx5 srun x; fi\n\n",
    ".env": b'NCCL_DEBUG="INFO"\nexport NCCL_IB_DISABLE=1\nNCCL_X=${Y:-3}\n',
    "pod.yaml": b"spec: {containers: [{env: [{name: NCCL_DEBUG, value: INFO}], command: [sh, -c, 'NCCL_ALGO=Ring x']}]}\n",
    "Dockerfile": b"FROM x\nENV NCCL_DEBUG=INFO \\\n  NCCL_ALGO=Ring\nENV NCCL_PROTO LL\nRUN export NCCL_X=1\n"
    b'CMD ["sh", "-c", "NCCL_ALGO=Ring x"]\n',
    "a.service": b'[Service]\nEnvironment=NCCL_DEBUG=INFO "NCCL_ALGO=Ring Tree"\nEnvironmentFile=-/etc/x\n',
    "a.container": b"[Container]\nEnvironment=NCCL_DEBUG=INFO\nPodmanArgs=--env NCCL_IB_HCA=mlx5\n",
    "report.json": b'{"schema": "netdoctor.report/1", "env": {"NCCL_DEBUG": "INFO"}}',
    "slurm.sbatch": b"#SBATCH --nodes=4 --export=ALL,NCCL_DEBUG=INFO\nsrun --export=NCCL_ALGO=Ring torchrun --nnodes 4 x\n",
}


def read_script(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    documents.ours(text)
    for name in list(SCRIPTS)[len(data) % len(SCRIPTS) :][:2]:
        findings = env.judge_file(name, text, Known(None))
    printed(env.report(findings, (name,), None, setup.decider(Config(), command=Command.ENV)))


JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "16",
    "SLURM_TASKS_PER_NODE": "8(x2)",
    "SLURM_JOB_NODELIST": "gpu[1-2]",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "3",
    "SLURM_NNODES": "2",
    "RANK": "3",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_RANK": "3",
    "PMI_RANK": "3",
    "PBS_NODEFILE": "/n",
    "LSB_MCPU_HOSTS": "a 8 b 8",
    "NCCL_DEBUG": "INFO",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "JOB_COMPLETION_INDEX": "1",
    "VC_TASK_INDEX": "1",
    "VC_A_NUM": "2",
    "PET_NNODES": "1:2",
    "LD_LIBRARY_PATH": "/a:/b;$LIB",
    "AZUREML_NODE_COUNT": "2",
    "SM_HOSTS": '["a","b"]',
    "NCCL_AUTH_TOKEN": "ghp_" + "x" * 36,
}


def read_variables(data: bytes) -> None:
    variables = {str(k): str(v) for k, v in machines.mapping(data).items()}
    detect(variables)
    host = RecordingHost(ReplayHost({"env:": variables, "file:/n": "a\nb\n"}), Redactor(accepts))
    environ.probe(host)
    kept = host.answers.get("env:")
    assert isinstance(kept, (dict, Unavailable))


# What processes and nodes say


def read_ras(data: bytes) -> None:
    status = parse(data.decode("utf-8", "replace"))
    for finding in ras.findings_of(status, status.behind):
        harmless(finding.message)


def of_ranks() -> list[bytes]:
    facts = [{"event": "fact", "version": "2.13", "device_count": 8, "nccl": "2.27.5", "backends": {"cuda": "nccl"}, "t": 1.0}]
    affinity = [{"event": "affinity", "rank": 0, "t": 2.0, "main": [0, 1], "thread": [0]}]
    return [json.dumps([*rank_events(), *facts, *affinity, {"event": "facts", "status": 1, "t": 1.0}]).encode()]


def read_ranks(data: bytes) -> None:
    try:
        said = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return
    heard = [events.tidy(one) for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    run = verdict.build(AllReduce("gloo", 2, "cpu"), heard, None, facts=verdict.facts_of(TorchFacts, heard))
    verdict.facts_of(NcclFacts, heard)
    assert all(isinstance(text, str) for text in (run.reason, run.torch_version, run.nccl_version))


def of_nodes() -> list[bytes]:
    return [
        json.dumps(
            {"say": "told", "gone": {"1": "died"}, "never": [2], "refused": ["x"], "data": {"0": part(), "1": part()}}
        ).encode()
    ]


def read_nodes(data: bytes) -> None:
    message = machines.mapping(data)
    for subject in SUBJECTS:
        _, parts = messages.take(Cluster(Nodes(3, 0, "127.0.0.1", 1)), subject, message)
        for one in parts.values():
            messages.read_flows(one)
            if isinstance(one, dict):
                messages.read_events(one.get("events"), 0, 2)
                messages.read_interruption(one.get("cut"), 2)
                messages.read_meeting(one)


LOOK = {
    "schema": past.SCHEMA,
    "looks": [{"who": "a", "day": "2026-11-22", "shape": "x", "size": 4, "busbw": 1.5, "cpu": False, "hardware": {"gpus": 8}}],
}


def read_past(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    found = past.parsed(text)
    if not isinstance(found, Unavailable):
        for who, look in found:
            assert past.parsed(past.added(text, who, look))


def libraries() -> list[bytes]:
    return [image(LIBRARY, NAMES), image(LIBRARY, NAMES, ">")]


def read_library(data: bytes) -> None:
    with contextlib.suppress(ValueError, OSError):  # what the helper answers as Unavailable
        elf.describe(file(data, "one.so"))


def read_program(data: bytes) -> None:
    path = file(data, "program")
    Path(path).chmod(0o755)
    found = startable.obstacle(path, direct=True)
    assert found is None or (found.why and found.code in (126, 127))


def cleaned(data: bytes) -> None:
    clean.clean(data.decode("utf-8", "backslashreplace"))


def clean_seeds() -> list[bytes]:
    return [
        *log_seeds()[:20],
        *report_seeds()[:1],
        b'<html><style>x</style><p title="token=abc">Bearer abcdefgh12345678</p></html>',
    ]


TARGETS: dict[str, Target] = {
    "log": Target(log_seeds, read_log),
    "snapshot": Target(snapshot_seeds, read_snapshot, mutate.of_json),
    "report": Target(report_seeds, read_report, mutate.of_json),
    "cut reports": Target(cut_seeds, read_report),
    "tree": Target(tree_seeds, read_tree),
    "config": Target(config_seeds, read_config),
    "nccl.conf": Target(lambda: [CONF], read_conf),
    "variables files": Target(lambda: list(SCRIPTS.values()), read_script),
    "environment": Target(lambda: [json.dumps(JOB).encode()], read_variables, mutate.of_json),
    "ras": Target(lambda: [FINE.encode(), BEHIND.encode()], read_ras),
    "ranks": Target(of_ranks, read_ranks, mutate.of_json),
    "nodes": Target(of_nodes, read_nodes, mutate.of_json),
    "frames": Target(said, read_frames),
    "counters": Target(machines.of_counters, machines.read_counters, mutate.of_json),
    "past": Target(lambda: [json.dumps(LOOK).encode()], read_past, mutate.of_json),
    "libraries": Target(libraries, read_library),
    "programs": Target(lambda: [*libraries(), b"#!/bin/sh\n", b"#!/usr/bin/env bash\necho\n", b"echo hi\n"], read_program),
    "clean": Target(clean_seeds, cleaned),
    "diagnostic": Target(lambda: machines.SEEDS["diagnostic"], machines.read_diagnostic, mutate.of_json),
    "hosts": Target(lambda: machines.SEEDS["hosts"], machines.read_hosts),
    "dcb": Target(machines.dcb_seeds, machines.read_dcb),
    "limits": Target(lambda: machines.SEEDS["limits"], machines.read_limits),
}


def inputs(target: Target, seed: int) -> Iterator[bytes]:
    """The same for the same seed."""
    import random

    dice = random.Random(seed)
    seeds = target.seeds()
    while True:
        yield target.change(dice, dice.choice(seeds), seeds)


__all__ = ["TARGETS", "Target", "inputs"]
