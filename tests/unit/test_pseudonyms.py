"""A pseudonymised snapshot names nobody, keeps what belongs together together, and is judged as before."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from netdoctor.snapshot.pseudonyms import pseudonymise
from netdoctor.snapshot.snapshot import dumps
from tests.lab import fixtures, matrix
from tests.support.machines.composed import HOSTS

KEY = b"a key"


def statuses(taken: object) -> dict[str, list[str]]:
    found = fixtures.findings(fixtures.facts_of(taken))  # type: ignore[arg-type]
    return {check: sorted(status for _, status in matrix._statuses(those)) for check, those in found.items()}


@pytest.mark.parametrize("slug", ["dgx-h100", "hgx-h100-roce", "aws-p5", "cpu-node"])
def test_names_and_addresses_are_gone_and_the_verdicts_stay(slug: str) -> None:
    taken = fixtures.snapshot(slug)
    node = HOSTS[slug]().node
    told = [
        node.hostname,
        "/home/ada",
        *(a["ip"] for a in node.addresses if a["scope"] == "global"),
        *(x["address"] for x in node.links[1:]),
    ]
    told += [gpu["uuid"] for gpu in node.gpus] + [one["uuid"] for one in node.cuda]
    text = dumps(taken)
    given = pseudonymise(taken, KEY)
    made = dumps(given)
    assert [word for word in told if word in made] == [] and sum(word in text for word in told) >= 3
    assert statuses(given) == statuses(taken)


def test_the_same_key_gives_the_same_names_and_another_does_not() -> None:
    taken = fixtures.snapshot("cpu-node")
    assert dumps(pseudonymise(taken, KEY)) == dumps(pseudonymise(taken, KEY)) != dumps(pseudonymise(taken, b"another"))


def test_prefixes_stay_prefixes() -> None:
    def netlink(*ips: str) -> dict[str, object]:
        return {"addresses": [{"ip": ip} for ip in ips]}

    taken = replace(
        fixtures.snapshot("cpu-node"), answers={"ask:netlink": netlink("10.1.2.3", "10.1.2.4", "10.7.2.3", "fe80::1")}
    )
    given = pseudonymise(taken, KEY).answers["ask:netlink"]
    assert isinstance(given, dict)
    a, b, c, d = (one["ip"] for one in given["addresses"])
    assert a.rpartition(".")[0] == b.rpartition(".")[0] != c.rpartition(".")[0] and len({a, b, c}) == 3
    assert d.startswith("fe80::") and d != "fe80::1"


def test_listings_are_cut_to_what_counts() -> None:
    answers = {
        "dir:/": ["bin", "our-secret-project", "proc"],
        "file:/etc/passwd": "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n",
        "file:/proc/self/cgroup": "0::/kubepods/burstable/pod1\n1:name=x:/our-secret-project/7\n",
        "file:/proc/self/mountinfo": "1 1 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /our-secret-project rw - nfs filer:/x rw\n",
    }
    given = pseudonymise(replace(fixtures.snapshot("cpu-node"), answers=answers), KEY)
    assert "our-secret-project" not in dumps(given) and "ada" not in json.dumps(given.answers["file:/etc/passwd"])
    assert given.answers["dir:/"] == ["bin", "proc"] and "/kubepods/" in str(given.answers["file:/proc/self/cgroup"])


def test_folders_of_the_recorder_go() -> None:
    answers = {"ask:elf?dirs=%2Fdata%2Fada%2Fjob%2Flib&files=": {"dirs": {"/data/ada/job/lib": []}, "files": {}}}
    given = pseudonymise(replace(fixtures.snapshot("cpu-node"), answers=answers), KEY, ["/data/ada/job"])
    assert "/data/ada" not in dumps(given) and "%2Fdata" not in dumps(given)
    (question,) = given.answers
    assert question.count("%2Fsrv%2F") == 1 and "/srv/" in json.dumps(given.answers[question])
