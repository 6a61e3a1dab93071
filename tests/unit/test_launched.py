"""What a launcher in the job's command is told, and what the facts make of it."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.cli.command import result, seen_through
from netdoctor.cli.launched import launched
from netdoctor.facts import environ, intent, launcher, net
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Told
from netdoctor.facts.job import Expected
from netdoctor.host.base import ReplayHost
from netdoctor.model import Kind, Status, Unavailable

LOST = Unavailable(Kind.NOT_READ)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("torchrun --nnodes 2 --node-rank 2 t.py", "none of the 2 nodes"),  # a group scaled up, the command was not
        ("srun torchrun --nnodes=2 --node_rank=3 t.py", "none of the 2 nodes"),
        ("python -m torch.distributed.run --nnodes=4 --node-rank= t.py", "must be a number"),  # a variable that nobody set
        ("torchrun --nnodes 2 --node-rank 1 t.py", ""),
        ("torchrun --nnodes 2:4 --node-rank 3 t.py", ""),
        ("torchrun --nnodes 2 --node-rank 7 --rdzv-backend c10d t.py", ""),  # c10d numbers the nodes by itself
        ("env PET_RDZV_BACKEND=c10d torchrun --nnodes 2 --node-rank 7 t.py", ""),
        ("torchrun --standalone --node-rank 1 t.py", ""),
        ("torchrun --nnodes 1 --node-rank 1 t.py", ""),
        ("deepspeed --num_nodes 2 --node_rank 5 t.py", ""),  # its words were not read
        ("python t.py --nnodes 2 --node-rank 2", ""),
        ("env PET_NODE_RANK= torchrun t.py", "takes no PET_NODE_RANK='': it must be a number"),
        ("env PET_NODE_RANK= torchrun --node-rank 0 t.py", ""),
        ("env PET_NODE_RANK= torchrun --who-knows 1 --node-rank 0 t.py", ""),  # it may stand among the words that were not read
        ("env PET_NODE_RANK=3 PET_NNODES=2 torchrun t.py", "PET_NODE_RANK=3 is none of the 2 nodes that PET_NNODES says"),
        ("env PET_MASTER_PORT=$PORT torchrun t.py", "takes no PET_MASTER_PORT='$PORT': it must be a number"),
        ("env PET_NNODES= torchrun t.py", "takes no PET_NNODES=''"),
        ("env PET_NNODES=1:2 PET_MONITOR_INTERVAL=0.5 PET_NPROC_PER_NODE=gpu torchrun t.py", ""),
        ("env PET_NPROC_PER_NODE= torchrun t.py", "takes no PET_NPROC_PER_NODE=''"),
        ("env PET_NPROC_PER_NODE= torchrun --nproc-per-node 8 t.py", ""),
        ("env RANK= WORLD_SIZE= torchrun t.py", ""),  # it sets them anew
    ],
)
def test_a_number_that_torchrun_does_not_take(command: str, says: str) -> None:
    job = seen_through(command.split())
    assert says in job.refused and bool(job.refused) == bool(says)
    words = [f.message for f in result(job, "/usr/bin/python3").findings if f.status is Status.FAIL]
    assert words == ([job.refused] if says else [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("env RANK= WORLD_SIZE=2 python t.py", ("RANK is set and empty: torch's env:// takes it for not set",)),
        ("env PET_NNODES=2 PET_NPROC_PER_NODE=8 python t.py", ("PET_NNODES=2, PET_NPROC_PER_NODE=8: torchrun alone reads",)),
        ("env PET_NPROC_PER_NODE=gpu python -m t", ("PET_NPROC_PER_NODE=gpu: torchrun alone reads it",)),
        ("env PET_NNODES=1 PET_NPROC_PER_NODE=1 RANK=0 python t.py", ()),
        ("env RANK= PET_NPROC_PER_NODE=8 torchrun t.py", ()),
        ("env RANK= PET_NPROC_PER_NODE=8 python -m torch.distributed.run t.py", ()),
    ],
)
def test_what_variables_mean_to_a_plain_python(command: str, says: tuple[str, ...]) -> None:
    notes = [note for one in result(seen_through(command.split()), "/usr/bin/python3").findings for note in one.notes]
    assert len(notes) == len(says) and all(part in note for part, note in zip(says, notes, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node=8 t.py", {"nodes": 1, "local_world": 8, "master": "", "port": 29500}),
        ("torchrun --nnodes 2 --nproc_per_node 8 --master-addr n0 t.py", {"nodes": 2, "local_world": 8, "master": "n0"}),
        ("torchrun --nnodes 2 t.py", {"nodes": 2, "master": "127.0.0.1", "option": "--master-addr (its default)"}),
        ("torchrun --standalone --nproc 8 t.py", {"nodes": 1, "local_world": 8, "port": 0}),  # a beginning
        ("torchrun --nnodes=1:4 --rdzv-endpoint=h:29400 t.py --nnodes 7", {"nodes": 4, "master": "h", "port": 29400}),
        ("env PET_STANDALONE=0 torchrun --nnodes 2 t.py", {"nodes": 2}),  # check_env of its argparse_util.py
        ("env PET_STANDALONE=1 torchrun --nnodes 2 t.py", {"nodes": 1}),
        ("torchrun --nproc-per-node gpu t.py", {"nodes": 1, "local_world": None}),
        ("torchrun --who-knows 4 --nnodes 2 t.py", {"nodes": 1}),
        ("python -u -m torch.distributed.run --nnodes 2 --node-rank 1 t.py", {"nodes": 2, "node_rank": 1}),
        ("accelerate launch --num_machines 2 --num_processes 16 --main_process_ip m t.py", {"local_world": 8, "master": "m"}),
        ("accelerate launch t.py", {"nodes": None, "master": None}),  # its own file says it
        ("deepspeed --num_nodes 2 --num_gpus 8 t.py", {"nodes": 2, "local_world": 8}),
        ("deepspeed --hostfile h t.py", {"nodes": None}),
        ("mpirun -np 16 -N 8 -x A -mca btl tcp a.out", {"nodes": 2, "local_world": 8, "world": 16}),
        ("mpirun -np 4 -H a:2,b:2 a.out -N 1", {"nodes": 2, "local_world": 2}),
        ("mpirun -np 4 a.out", {"nodes": None, "world": 4}),
        ("mpirun --who-knows x -np 4 -N 2 a.out", {"nodes": None, "world": None}),
        ("srun -N2 -n16 a.out", {"nodes": 2, "local_world": 8}),
        ("srun -N 2 torchrun --nnodes 4 --nproc-per-node 2 t.py", {"name": "torchrun", "nodes": 4, "local_world": 2}),
    ],
)
def test_options(command: str, expected: dict[str, Any]) -> None:
    found = seen_through(command.split()).launch or {}
    assert {name: found.get(name) for name in expected} == expected


def test_variables_are_torchruns_defaults() -> None:
    found = launched(["torchrun", "--nnodes=2", "t.py"], "", {"PET_NNODES": "8", "PET_NPROC_PER_NODE": "4", "MASTER_ADDR": "x"})
    assert found is not None and (found["nodes"], found["local_world"], found["master"]) == (2, 4, "127.0.0.1")


def test_what_starts_no_ranks_is_no_launcher() -> None:
    assert launched(["accelerate", "config"], "", {}) is None
    assert seen_through(["python3", "train.py", "--nnodes", "2"]).launch is None


def test_its_word_counts_for_more_than_what_is_around() -> None:
    around = launcher.detect({"SLURM_JOB_ID": "1", "SLURM_NNODES": "4", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"})
    inner = launcher.in_command(around, {"name": "torchrun", "nodes": 1, "local_world": 8})
    assert (inner.nodes, inner.world, inner.local_world, inner.rank) == (1, 8, 8, None)
    assert launcher.in_command(around, {"name": "mpirun"}).nodes == 4


def asked(launch: dict[str, Any]) -> ReplayHost:
    return ReplayHost({"env:": {"MASTER_ADDR": "elsewhere"}, "config:": {"launch": launch}})


def test_intent_says_whose_word_it_is() -> None:
    host = asked({"name": "torchrun", "nodes": 2, "local_world": 8})
    found = intent.infer({}, environ.probe(host), net.Net.unread(LOST), Gpus.unread(LOST), Expected())
    assert (found.told, found.ranks_here) == (Told.LAUNCHER, 8)
    assert found.across == (True, "torchrun's command line says that the job has 2 nodes")


def test_node_0_is_where_the_launcher_is_told() -> None:
    for launch, expected in (
        ({"master": "n0", "port": 29400, "option": "--rdzv-endpoint"}, ("--rdzv-endpoint", "n0", 29400)),
        ({"master": "", "port": 0, "option": "--master-addr"}, ("--master-addr", None, None)),
        ({"nodes": 2}, None),  # it leaves it to MASTER_ADDR
    ):
        assert net.by_command({"name": "x", **launch}) == expected
