"""What is compared between nodes, as the nodes tell it."""

from __future__ import annotations

from netdoctor.cluster.messages import read_traits, trait_data
from netdoctor.compare.traits import Family, Trait, Traits, traits
from netdoctor.compare.versions import Alike, differences

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


def test_long_values_that_are_equal_do_not() -> None:
    told = [set_to(HCAS), read_traits(trait_data(set_to(HCAS)))]
    assert not list(differences(Alike(one, (name,)) for name, one in zip("ab", told, strict=True)))
