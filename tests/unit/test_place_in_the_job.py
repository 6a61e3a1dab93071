"""Who is rank 0, and where: a MASTER_ADDR that is no address of its node, a place that nothing tells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from checks import net_socket_ifname
from netdoctor.cluster.membership import Given, NodesError, find
from netdoctor.facts.launcher import Launcher
from netdoctor.facts.peers import Peer, Route
from netdoctor.model import Status


@pytest.mark.parametrize(("rank", "local", "nodes", "says"), [(0, False, 2, True), (1, False, 2, False), (0, True, 2, False)])
def test_rank_0_is_not_where_its_name_leads(rank: int, local: bool, nodes: int, says: bool) -> None:
    name = "203.0.113.80"
    master = Peer(name, (name,), {name: Route("eth0")}, 0.4, local, 29500, "MASTER_ADDR")
    intent = SimpleNamespace(others=True)
    shown = (SimpleNamespace(master=master), (), None, intent, None, SimpleNamespace(paths={}))
    seen = net_socket_ifname.Seen(*(cast("Any", one) for one in shown))
    environ = SimpleNamespace(launcher=Launcher("env", rank, nodes, None, None, nodes, rank))
    found = list(net_socket_ifname._master(seen, cast("Any", environ), nodes))
    assert [(one.status, one.subject) for one in found] == ([(Status.UNKNOWN, "MASTER_ADDR")] if says else [])


def test_slurm_s_batch_script_is_told_of_srun() -> None:
    with pytest.raises(NodesError, match="srun --ntasks-per-node=1"):
        find(Given(), {"SLURM_JOB_ID": "4711", "SLURM_NNODES": "4", "SLURM_PROCID": "0", "SLURM_NODEID": "0"})
    with pytest.raises(NodesError, match=r"how many nodes\? \(RANK is empty\)"):
        find(Given(), {"RANK": "", "WORLD_SIZE": "2"})
    assert find(Given(nodes=1), {}).rank == 0  # it can be no other
    with pytest.raises(NodesError, match="JOB_COMPLETION_INDEX is empty"):
        find(Given(nodes=2), {"JOB_COMPLETION_INDEX": ""})
    with pytest.raises(NodesError, match="--ranks-per-node: must be 1 to 64, not 0"):
        find(Given(1, ranks_per_node=0), {})
