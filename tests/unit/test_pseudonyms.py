"""A pseudonymised snapshot names nobody, keeps what belongs together together, and is judged as before."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from netdoctor.cluster.observations import Endpoints, Gone, OwnAddress
from netdoctor.facts import nodelist
from netdoctor.facts.gpu import PARAMETERS
from netdoctor.snapshot.pseudonyms import environments, pseudonymise
from netdoctor.snapshot.snapshot import dumps
from tests.fakegpu import answers
from tests.lab import fixtures, matrix
from tests.support.facts import cluster
from tests.support.machines import composed

KEY = b"a key"


def statuses(taken: object) -> dict[str, list[str]]:
    found = fixtures.findings(fixtures.facts_of(taken))  # type: ignore[arg-type]
    return {check: sorted(status for _, status in matrix._statuses(those)) for check, those in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("slug", ["dgx-h100", "hgx-h100-roce", "aws-p5", "cpu-node"])
def test_names_and_addresses_are_gone_and_the_verdicts_stay(slug: str) -> None:
    taken = fixtures.snapshot(slug)
    machine = composed.read(slug).machine
    told = [machine.hostname, "/home/ada", *(one.mac for one in machine.interfaces), *(one.uuid for one in machine.gpus)]
    told += [one.address.partition("/")[0] for one in machine.interfaces if one.address]
    told += [answers.uuid(one) for one in machine.gpus]
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


def test_the_other_hosts_of_a_job_have_no_names() -> None:
    variables = {
        "MASTER_ADDR": "head.corp.example",
        "SLURM_JOB_NODELIST": "gpu-[01-03],login1",
        "SLURMD_NODENAME": "gpu-01",
        "LSB_MCPU_HOSTS": "gpu-07 8 gpu-08 8",
        "VC_WORKER_HOSTS": "w-0.job,w-1.job",
        "PBS_NODEFILE": "/spool/3",
    }
    taken = fixtures.snapshot("cpu-node")
    more = {"env:": variables, "file:/spool/3": "gpu-01\nmars\n", "config:": {"expected": {"peers": ["venus", "10.9.1.7"]}}}
    asked: dict[str, object] = {
        "ask:resolve?name=head.corp.example": {"addresses": ["10.1.0.7"]},
        "ask:resolve?name=gpu-02": {},
    }
    given = pseudonymise(replace(taken, answers={**taken.answers, **more, **asked}), KEY)
    text = dumps(given)
    names = ("head", "corp", "gpu-", "login1", "w-0", "w-1", "mars", "venus", "10.9.1.7")
    assert [name for name in names if name in text] == []
    env, peers = given.answers["env:"], given.answers["config:"]
    assert isinstance(env, dict) and isinstance(peers, dict)
    listed = str(env["SLURM_JOB_NODELIST"]).split(",")
    assert len(set(listed)) == 4 and env["SLURMD_NODENAME"] == listed[0] == str(given.answers["file:/spool/3"]).split()[0]
    assert f"ask:resolve?name={listed[1]}" in given.answers and f"ask:resolve?name={env['MASTER_ADDR']}" in given.answers
    assert str(env["LSB_MCPU_HOSTS"]).split()[1::2] == ["8", "8"] and env["PBS_NODEFILE"] == "/spool/3"


def test_who_held_a_gpu_is_not_told() -> None:
    named = {"4711": {"name": "secret-model", "user": "ada"}, "4712": {"name": "python3", "user": "root"}}
    text = "GPU 0 is in use by secret-model (pid 4711, ada), python3 (pid 4712, root)"
    taken = replace(
        fixtures.snapshot("cpu-node"), answers={"ask:psutil?pids=4711%2C4712": {"processes": named}, "file:/x": text}
    )
    given = pseudonymise(taken, KEY).answers
    assert "secret" not in str(given) and "ada" not in str(given)
    assert str(given["file:/x"]).startswith("GPU 0 is in use by program-")
    assert str(given["file:/x"]).endswith(" (pid 4711, user), python3 (pid 4712, root)")


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


def test_limits_of_a_cgroup_are_kept_under_another_name() -> None:
    answers = {
        "file:/proc/self/cgroup": "0::/our-secret-project/ada\n",
        "file:/proc/self/mountinfo": "3 1 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "dir:/sys/fs/cgroup": ["cgroup.procs", "our-secret-project", "another-s"],
        "dir:/sys/fs/cgroup/our-secret-project": ["ada", "memory.max", "memory.stat"],
        "dir:/sys/fs/cgroup/our-secret-project/ada": ["pids.current", "pids.max"],
        "file:/sys/fs/cgroup/our-secret-project/memory.max": "1048576\n",
        "file:/sys/fs/cgroup/our-secret-project/memory.stat": "anon 4096\nfile 8192\n",
        "file:/sys/fs/cgroup/our-secret-project/ada/pids.max": "20\n",
        "file:/sys/fs/cgroup/our-secret-project/ada/pids.current": "7\n",
    }
    taken = replace(fixtures.snapshot("cpu-node"), answers=answers)
    given = pseudonymise(taken, KEY)
    assert not [word for word in ("secret", "ada", "another") if word in json.dumps(given.answers)]
    before, after = (fixtures.facts_of(one)["Cgroups"] for one in (taken, given))
    assert [(cap.most, cap.used) for cap in (*after.pids, *after.memory)] == [(20, 7), (1048576, 4096)]
    assert (before.cpu, before.hidden) == (after.cpu, after.hidden)


def test_folders_of_the_recorder_go() -> None:
    answers = {"ask:elf?dirs=%2Fdata%2Fada%2Fjob%2Flib&files=": {"dirs": {"/data/ada/job/lib": []}, "files": {}}}
    given = pseudonymise(replace(fixtures.snapshot("cpu-node"), answers=answers), KEY, ["/data/ada/job"])
    assert "/data/ada" not in dumps(given) and "%2Fdata" not in dumps(given)
    (question,) = given.answers
    assert question.count("%2Fsrv%2F") == 1 and "/srv/" in json.dumps(given.answers[question])


def test_a_host_that_is_called_as_a_sysctl_begins() -> None:
    """As a real one was: "vm"."""
    said = "net.ipv4.tcp_congestion_control=bbr\n"
    answers = {
        "file:/proc/sys/kernel/hostname": "net\n",
        "file:/etc/sysctl.d/90-ours.conf": f"# of ada's cluster\nvm.max_map_count=1048576\n{said}{said}",
    }
    given = pseudonymise(replace(fixtures.snapshot("cpu-node"), answers=answers), KEY)
    assert given.answers["file:/etc/sysctl.d/90-ours.conf"] == said * 2
    assert str(given.answers["file:/proc/sys/kernel/hostname"]).startswith("node-")


def test_a_working_folder_tells_only_of_the_packages_in_it() -> None:
    answers = {"dir:/data/ada": ["secret-model", "torch", "libnccl.so.2", "python3.12"]}
    given = pseudonymise(replace(fixtures.snapshot("cpu-node"), answers=answers), KEY, ["/data/ada"])
    assert list(given.answers.values()) == [["torch", "libnccl.so.2", "python3.12"]]


def test_the_environment_of_a_python_is_a_folder_of_its_recorder() -> None:
    assert environments("/opt/ada/.venv/bin/python3", "/usr/bin/python3", "python3", None) == ["/opt/ada/.venv"]
    assert environments("/opt/conda/bin/python") == []


def test_the_other_nodes_of_a_common_run_get_other_names() -> None:
    place = Endpoints("s", {"gloo": ("eth0", "10.0.0.9")}, (OwnAddress("eth0", "10.0.0.9", 24, 1500),))
    met = cluster(2, hosts={0: "h0", 1: "gpu-of-mine"}, addresses={1: "10.0.0.9"}, endpoints={1: place})
    met = replace(met, nodes=replace(met.nodes, master="head-of-mine"), gone={1: Gone("result", "gpu-of-mine left")})
    given = pseudonymise(replace(fixtures.snapshot("cpu-node"), runs={"Cluster": met}), KEY)
    text = dumps(given)
    assert not [word for word in ("gpu-of-mine", "head-of-mine", "10.0.0.9") if word in text]
    assert given.runs["Cluster"].addresses[1] == given.runs["Cluster"].endpoints[1].addresses[0].ip


BATCH = {
    "env:": {
        "SLURM_JOB_NODELIST": "secret-gpu[03-04],secret-login1",
        "SLURM_STEP_NODELIST": "secret-gpu[03-",
        "VC_WORKER_HOSTS": "secret-w-0.job,secret-w-1.job",
        "LSB_MCPU_HOSTS": "secret-a 8 secret-b.example.org 8",
        "LSB_HOSTS": "secret-a secret-a secret-b.example.org",
        "LSB_DJOB_HOSTFILE": "/spool/7.hosts",
        "PBS_JOBID": "31.secret-pbs.example.org",
        "PBS_NODEFILE": "/spool/aux/31.secret-pbs.example.org",
        "MASTER_ADDR": "secret-gpu03",
        "PET_MASTER_ADDR": "10.1.2.3",
    },
    "file:/spool/7.hosts": "secret-a\nsecret-a\nsecret-c\n",
    "file:/spool/aux/31.secret-pbs.example.org": "secret-gpu03\nsecret-d.example.org\n",
    "config:": {"expected": {"peers": ["secret-e:29500", "10.1.2.4", "[fd00::7]:22"]}},
    "ask:resolve?name=secret-gpu03": {"name": "secret-gpu03"},
    "ask:x?names=secret-gpu03%2Csecret-d.example.org": {},
}


def test_the_hosts_of_a_job_are_not_told() -> None:
    given = pseudonymise(replace(fixtures.snapshot("cpu-node"), answers=BATCH), KEY).answers
    assert "secret" not in str(given) and "example" not in str(given)
    variables = given["env:"]
    assert isinstance(variables, dict)
    names = variables["SLURM_JOB_NODELIST"].split(",")
    assert len(set(names)) == 3 and all(name.startswith("node-") for name in names)
    assert variables["MASTER_ADDR"] == names[0] and f"ask:resolve?name={names[0]}" in given
    assert not nodelist.understood(variables["SLURM_STEP_NODELIST"])
    a, eight, b, _ = variables["LSB_MCPU_HOSTS"].split()
    assert eight == "8" and variables["LSB_HOSTS"].split() == [a, a, b]
    assert str(given["file:/spool/7.hosts"]).split()[:2] == [a, a]
    text = given[f"file:{variables['PBS_NODEFILE']}"]
    assert isinstance(text, str) and text.split()[0] == names[0], "the file is still the one that the variable names"
    assert variables["PBS_JOBID"].startswith("31.node-")


def test_other_parameters_of_the_driver_are_not_told() -> None:
    text = 'NvLinkDisable: 1\nTemporaryFilePath: "/our-secret-project"\n'
    given = pseudonymise(replace(fixtures.snapshot("cpu-node"), answers={f"file:{PARAMETERS}": text}), KEY).answers
    assert given == {f"file:{PARAMETERS}": "NvLinkDisable: 1\n"}
