"""`netdoctor allreduce` under the launchers themselves: srun, torchrun, and the mpirun of Open MPI and of MPICH."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters import slurm
from tests.support.namespaces.hosts import Hosts

pytestmark = [
    pytest.mark.live,
    pytest.mark.root,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch in this Python"),
]
Report = dict[str, Any]
ONLY = "allreduce.run,allreduce.bandwidth,nccl.environment"
ALLREDUCE = ("allreduce", "--python", sys.executable, "--wait", "60", "--only", ONLY, "-f", "json", "-q")
NETDOCTOR = (sys.executable, "-m", "netdoctor")
COMMAS = {"NCCL_IB_HCA": "mlx5_0,mlx5_1", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


def findings(made: Report, check: str = "allreduce.nodes", status: str = "fail") -> dict[str, Report]:
    return {f["subject"]: f for c in made["checks"] if c["id"] == check for f in c["findings"] if f["status"] == status}


def same_run(reports: list[Report], hosts: list[str], ranks: int) -> None:
    """Every node reports itself, all of them the same run, and names all the others."""
    for number, one in enumerate(reports):
        # --only is no whole look, so never called healthy; yet nothing may have failed.
        assert one["verdict"]["exit_code"] == 0 and one["verdict"]["text"].startswith("nothing failed of what was asked for"), (
            one["verdict"]
        )
        assert one["identity"]["host"] == hosts[number] and one["nodes"]["rank"] == number
        assert [m["host"] for m in one["nodes"]["members"]] == hosts
        # A node alone has nobody to compare its clock with.
        clocks = {"nodes, clocks"} if len(hosts) > 1 else set()
        assert set(findings(one, status="pass")) == set(hosts) - {hosts[number]} | clocks
        assert [(r["ranks"], r["state"], r["verified"]) for r in one["runs"]] == [(ranks, "finished", True)]
    assert len({json.dumps(one["volatile"]["runs"][0]["busbw_gb_s"]) for one in reports}) == 1


# srun

STEPS = r"""
COMMAND = json.loads(sys.argv[3])
os.environ.update(json.loads(sys.argv[4]), MASTER_PORT="29555")
LISTENER = '''
import socket, sys
door = socket.create_server(("", 29555))
print("up", flush=True)
sys.stdin.readline()
door.setblocking(False)
try:
    print("called by", door.accept()[1])
except BlockingIOError:
    print("left alone")
'''
def step(*options, shell='exec "$@"'):
    "What each node's task printed, by node."
    task = ("sh", "-c", shell, "sh", *COMMAND)
    done = text("srun", "-N4", "--ntasks-per-node=1", "-o", "/run/said-%N", *options, *task, seconds=180)
    return {"exit": done["exit"], "err": done["err"], "said": {n: pathlib.Path(f"/run/said-{n}").read_text() for n in NODES}}
job = subprocess.Popen(["nsenter", "-t", str(PIDS["n1"]), "-n", sys.executable, "-c", LISTENER], stdin=subprocess.PIPE,
                       stdout=subprocess.PIPE, text=True)
assert job.stdout.readline() == "up\n"
seen = {"all": step()}
seen["port"] = job.communicate("\n", timeout=30)[0].strip()
# nothing is run without it, so no torch is loaded
seen["absent"] = step(shell='[ "$SLURM_NODEID" = 2 ] || exec "$@" --wait 4 --python /usr/bin/python3')
say(seen)
"""


@pytest.fixture(scope="module")
def seen() -> Any:
    if reason := slurm.why_not():
        pytest.skip(reason)
    return slurm.run(STEPS, "", json.dumps([*NETDOCTOR, *ALLREDUCE]), json.dumps(COMMAS), timeout=300)


def test_srun_four_nodes_agree(seen: Any) -> None:
    step = seen["all"]
    assert step["exit"] == 0, step
    reports = [json.loads(step["said"][f"n{n}"]) for n in range(1, 5)]
    same_run(reports, ["n1", "n2", "n3", "n4"], ranks=4)
    for one in reports:
        assert one["nodes"]["launcher"] == "slurm" and one["nodes"]["master"].startswith("n1:")
        assert {name: one["inventory"]["nccl_variables"].get(name) for name in COMMAS} == COMMAS


def test_srun_the_jobs_master_port_is_left_alone(seen: Any) -> None:
    assert seen["port"] == "left alone"
    assert json.loads(seen["all"]["said"]["n2"])["nodes"]["master"] != "n1:29555"


def test_srun_an_absent_node_is_named_as_slurm_calls_it(seen: Any) -> None:
    step = seen["absent"]
    assert step["exit"] == 3 and step["said"]["n3"] == "", step
    for name in ("n1", "n2", "n4"):
        one = json.loads(step["said"][name])
        named = findings(one)
        assert set(named) == {"n3"} and named["n3"]["cause"] == "missing_node"
        assert "node 2 (n3) is missing: it did not come within 4 s" in named["n3"]["message"]
        assert findings(one, "allreduce.run", "unknown")


# Launchers that reach the other hosts by a remote shell


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(2, tmp_path)
    try:
        yield made
    finally:
        made.close()


def done(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


@pytest.mark.parametrize("nodes", [1, 2])
def test_torchrun(hosts: Hosts, nodes: int) -> None:
    """Two processes a node: local rank 0 works, the other waits for its verdict."""
    launch = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--nnodes={nodes}", "--master-addr=h0")
    started = [
        hosts.spawn(n, *launch, "--master-port=29500", f"--node-rank={n}", "--no-python", *NETDOCTOR, *ALLREDUCE)
        for n in range(nodes)
    ]
    ended = [done(one) for one in started]
    assert [code for code, _, _ in ended] == [0] * nodes, ended
    reports = [json.loads(out) for _, out, _ in ended]
    same_run(reports, hosts.names[:nodes], ranks=2 * nodes)
    assert all(one["nodes"]["launcher"] == "torchrun" and not one["nodes"]["master"].endswith(":29500") for one in reports)


def openmpi(hosts: Hosts, shell: Path) -> list[str]:
    mca = {"plm_rsh_agent": shell, "oob_tcp_if_include": "eth0", "plm_rsh_no_tree_spawn": 1}
    options = [word for name, value in mca.items() for word in ("--mca", name, str(value))]
    exported = [word for name in ("PYTHONPATH", *COMMAS) for word in ("-x", name)]
    return ["mpirun.openmpi", "--allow-run-as-root", *options, *exported, "--host", "h0:2,h1:2", "-np", "4"]


def mpich(hosts: Hosts, shell: Path) -> list[str]:
    remote = ["-launcher", "ssh", "-launcher-exec", str(shell), "-iface", "eth0"]
    return ["mpiexec.hydra", *remote, "-hosts", "h0,h1", "-ppn", "2", "-n", "4"]


MPIRUN = [("openmpi", "OMPI_COMM_WORLD_RANK", openmpi), ("mpich", "PMI_RANK", mpich)]


@pytest.mark.parametrize(("name", "rank", "launch"), MPIRUN, ids=["openmpi", "mpich"])
def test_mpirun(hosts: Hosts, tmp_path: Path, name: str, rank: str, launch: Any) -> None:
    command = launch(hosts, hosts.remote_shell())
    if not shutil.which(command[0]):
        pytest.skip(f"needs {command[0]} (Debian: {'openmpi-bin' if name == 'openmpi' else name})")
    # Both put all that the ranks print into one stream: each report into a file of its own.
    to_file = ("sh", "-c", f'exec "$@" -o {tmp_path}/${rank}.json', "sh")
    code, out, err = done(hosts.spawn(0, *command, *to_file, *NETDOCTOR, *ALLREDUCE, "--master", "h0", variables=COMMAS))
    assert code == 0, out + err
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["0.json", "2.json"]  # one process looks at each node
    reports = [json.loads((tmp_path / f"{n}.json").read_text()) for n in (0, 2)]
    same_run(reports, hosts.names, ranks=4)
    for one in reports:
        assert one["nodes"]["launcher"] == name
        assert {variable: one["inventory"]["nccl_variables"].get(variable) for variable in COMMAS} == COMMAS
    # Where node 0 is these launchers do not say, and nothing is guessed.
    code, _, err = done(hosts.spawn(0, *command, *NETDOCTOR, *ALLREDUCE))
    assert code == 2 and f"--master HOST[:PORT]: where is node 0? ({name} does not say)" in err
