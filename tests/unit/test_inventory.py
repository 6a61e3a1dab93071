"""The inventory of a node: from facts to comparable data; what could not be read stays told."""

import json
from dataclasses import replace

from netdoctor.facts.gpu import Gpus
from netdoctor.facts.inventory import inventory
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Net
from netdoctor.model import Unavailable
from tests.support import facts


def test_a_whole_node() -> None:
    got = inventory(facts.machine())
    assert got["driver"] == "580.95.05"
    assert got["kernel"] == "6.8.0-1019-nvidia"
    assert got["torch"] == {"version": "2.9.1+cu129", "cuda": "12.9"}
    assert got["nccl"] == {"version": "2.27.5", "source": "run", "path": facts.LIBNCCL, "plugins": []}
    assert got["nccl_interface"] == {"name": "ib0", "address": "10.1.0.7", "prefix": 24, "mtu": 2044}
    assert len(got["gpus"]) == len(got["nics"]) == 8  # type: ignore[arg-type]
    assert got["gpus"][0]["nvlinks_up"] == 18  # type: ignore[index,call-overload]
    assert got["nics"][0]["firmware"] == "28.39.3560"  # type: ignore[index,call-overload]
    assert [d["kind"] for d in got["pci"]] == ["gpu"] * 8 + ["nic"] * 8  # type: ignore[union-attr,index,call-overload]


def test_facts_by_name_and_by_type_are_the_same() -> None:
    by_type = facts.machine()
    assert inventory({t.__name__: f for t, f in by_type.items()}) == inventory(by_type)


def test_no_facts_give_no_values_but_reasons() -> None:
    got = inventory({})
    assert json.loads(json.dumps(got)) == got
    assert got["driver"] == {"unavailable": "not read", "detail": "no Gpus"}
    assert got["links"] == {"unavailable": "not read", "detail": "no Net"}
    assert got["nccl"]["version"]["unavailable"] == "not read"  # type: ignore[index,call-overload]


def test_the_version_is_torchs_library_where_nothing_ran() -> None:
    have = {t: f for t, f in facts.machine().items() if t.__name__ != "Baseline"}
    assert inventory(have)["nccl"]["source"] == "torch"  # type: ignore[index,call-overload]
    have[Libraries] = facts.libraries(torch=facts.torch(nccl_path=None))
    have.pop(NcclChoice)
    assert inventory(have)["nccl"]["version"] is None  # type: ignore[index,call-overload]


def test_variables_of_one_run_are_left_out() -> None:
    environ = facts.environ({"NCCL_HOSTID": "a", "NCCL_IB_HCA": "mlx5"})
    assert inventory({type(environ): environ})["nccl_variables"] == {"NCCL_IB_HCA": "mlx5"}


def test_unreadable_fields_stay_told() -> None:
    have = facts.machine(
        {
            Gpus: facts.gpus(driver=Unavailable("timed out"), all=Unavailable("crashed", "signal 11")),
            Kernel: facts.kernel(sysctls={"net.ipv4.tcp_rmem": Unavailable("denied")}),
        }
    )
    got = inventory(have)
    assert got["gpus"] == {"unavailable": "crashed", "detail": "signal 11"}
    assert got["sysctls"] == {"net.ipv4.tcp_rmem": {"unavailable": "denied", "detail": ""}}


def test_only_usable_global_addresses_count() -> None:
    link = facts.netlink_link("eth0", 2, "10.0.0.7", "fe80::1")
    tentative = replace(facts.address("10.0.0.8"), flags=frozenset({"tentative"}))
    net = facts.net(replace(link, addresses=(*link.addresses, tentative)))
    assert inventory({Net: net})["links"][0]["addresses"] == ["10.0.0.7/24"]  # type: ignore[index,call-overload]
