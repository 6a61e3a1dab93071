"""What is compared between nodes, as the nodes tell it."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.cluster.messages import read_traits, trait_data
from netdoctor.compare.traits import Family, Trait, Traits, traits
from netdoctor.compare.versions import Alike, differences
from netdoctor.model import Severity

HCAS = "=" + ",".join(f"rocep{number:03}s0f0:1" for number in range(16))  # 240 characters


def set_to(value: str) -> Traits:
    return traits({"nccl_variables": {"NCCL_IB_HCA": value}}, "")


def test_long_values_that_begin_alike_differ() -> None:
    """The names of 16 HCAs are longer than what is kept of a value."""
    one, other = set_to(HCAS), set_to(HCAS.replace("rocep015", "rocep115"))
    for a, b in ((one, other), (read_traits(trait_data(one)), read_traits(trait_data(other)))):
        (found,) = differences([Alike(a, ("a",)), Alike(b, ("b",))])
        assert found.trait == Trait(Family.ENV, "NCCL_IB_HCA")
        assert all(len(value) <= 200 for value in found.sides.values)


NODE: dict[str, Any] = {
    "shm": "64 MiB",
    "limits": {"memlock": "unlimited", "nofile": 1024, "nproc": 2061234},
    "acs": {"ports": 12, "back": 0},
    "imex": "570.133.20",
    "gpus": [
        {"ecc": True, "ecc_waits": False, "mig": False, "mig_waits": False, "power_limit_w": 700, "clocks_held_low": False}
    ]
    * 8,
}
LOST = {"unavailable": "denied", "detail": "x"}


@pytest.mark.parametrize(
    ("changes", "family", "name", "values"),
    [
        ({"shm": "half of the memory"}, Family.SHM, "", ("64 MiB", "half of the memory")),
        ({"limits": {**NODE["limits"], "nofile": 65536}}, Family.LIMIT, "nofile", ("1024", "65536")),
        ({"limits": {**NODE["limits"], "memlock": 65536}}, Family.LIMIT, "memlock", ("unlimited", "65536")),
        ({"acs": {"ports": 12, "back": 3}}, Family.ACS, "", ("0 of 12", "3 of 12")),
        ({"imex": "565.57.01"}, Family.IMEX, "", ("570.133.20", "565.57.01")),
        ({"gpus": [*NODE["gpus"][:7], {**NODE["gpus"][0], "ecc": False}]}, Family.ECC, "", ("8 × on", "7 × on, 1 × off")),
        (
            {"gpus": [*NODE["gpus"][:7], {**NODE["gpus"][0], "mig_waits": True}]},
            Family.MIG,
            "",
            ("8 × off", "7 × off, 1 × off, another waits for a reset"),
        ),
        ({"gpus": [{**NODE["gpus"][0], "mig": True}] * 8}, Family.MIG, "", ("8 × off", "8 × on")),
        ({"gpus": [{**NODE["gpus"][0], "power_limit_w": 500}] * 8}, Family.POWER, "", ("8 × 700 W", "8 × 500 W")),
        (
            {"gpus": [{**NODE["gpus"][0], "clocks_held_low": True}] * 8},
            Family.CLOCKS,
            "",
            ("8 × as its board can", "8 × held far below its board's own"),
        ),
    ],
)
def test_what_is_set_of_a_node_is_compared(changes: dict[str, Any], family: Family, name: str, values: tuple[str, str]) -> None:
    (found,) = differences([Alike(traits(NODE, ""), ("a",)), Alike(traits({**NODE, **changes}, ""), ("b",))])
    assert found.trait == Trait(family, name)
    assert sorted(found.sides.values) == sorted(values)


def test_an_ecc_mode_that_waits_is_no_difference() -> None:
    other = {**NODE, "gpus": [*NODE["gpus"][:7], {**NODE["gpus"][0], "ecc_waits": True}]}
    assert not list(differences([Alike(traits(NODE, ""), ("a",)), Alike(traits(other, ""), ("b",))]))


@pytest.mark.parametrize("family", [Family.LIMIT, Family.SHM, Family.ACS, Family.IOMMU])
def test_what_each_node_judges_by_itself_is_an_info(family: Family) -> None:
    assert family.loss.severity is Severity.INFO


@pytest.mark.parametrize("key", NODE)
def test_what_was_not_read_is_no_difference(key: str) -> None:
    lost: dict[str, Any] = {key: LOST}
    if key == "gpus":
        lost = {key: [{**NODE["gpus"][0], "ecc": LOST, "mig_waits": LOST, "power_limit_w": LOST, "clocks_held_low": LOST}] * 8}
    assert not list(differences([Alike(traits(NODE, ""), ("a",)), Alike(traits({**NODE, **lost}, ""), ("b",))]))


def test_the_limit_of_processes_follows_from_the_memory() -> None:
    other = {**NODE, "limits": {**NODE["limits"], "nproc": 2061236}}
    assert not list(differences([Alike(traits(NODE, ""), ("a",)), Alike(traits(other, ""), ("b",))]))


def test_long_values_that_are_equal_do_not() -> None:
    told = [set_to(HCAS), read_traits(trait_data(set_to(HCAS)))]
    assert not list(differences(Alike(one, (name,)) for name, one in zip("ab", told, strict=True)))
