"""Slurm's list of nodes, written out."""

from __future__ import annotations

from itertools import islice

import pytest

from netdoctor.facts.nodelist import hosts, understood


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("gpu[03-04,9],login1", ["gpu03", "gpu04", "gpu9", "login1"]),
        ("gpu[08-10,12],login", ["gpu08", "gpu09", "gpu10", "gpu12", "login"]),
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("a-1.b,c", ["a-1.b", "c"]),
        ("r[9-10]n", ["r9n", "r10n"]),
        ("r[1-2]n[3,4]", ["r1n3", "r1n4", "r2n3", "r2n4"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_slurms_list_of_nodes(nodelist: str, names: list[str]) -> None:
    assert (list(hosts(nodelist)), understood(nodelist)) == (names, True)


@pytest.mark.parametrize(
    ("nodelist", "names"), [("", []), ("a[x]", []), ("a,b[x]", ["a"]), (",", []), ("gpu[1-", []), ("gpu[1-2", []), ("a[", [])]
)
def test_a_list_that_is_not_of_that_form(nodelist: str, names: list[str]) -> None:
    assert (list(hosts(nodelist)), understood(nodelist)) == (names, False)


def test_a_list_without_an_end_is_no_burden() -> None:
    assert list(islice(hosts("a[1-999999999]b[1-999999999]"), 2)) == ["a1b1", "a1b2"]
