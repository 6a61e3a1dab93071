"""Variables found in the files of orchestrators: units, pods, plays, compose."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.variables import manifests
from netdoctor.variables.files import parse
from tests.unit.test_envfiles import problems, seen, twice, unread

UNIT = """\
# a unit
[Unit]
Description=NCCL_X=1
[Service]
Environment=NCCL_OLD=1
Environment=
Environment="NCCL_IB_HCA=mlx5_0" 'NCCL_DEBUG=$IN FO' PATH=/x \\
; NCCL_COMMENT=1
    NCCL_ALGO=Ring
Environment=NCCL_NET=%i NCCL_PROTO=LL%%
EnvironmentFile=-/etc/default/train
PassEnvironment=NCCL_TOPO_FILE HOME
Environment=NCCL_NTHREADS=256 NCCL_BUFFSIZE=1
UnsetEnvironment=NCCL_NTHREADS NCCL_BUFFSIZE=2
ExecStart=-/usr/bin/env NCCL_CROSS_NIC=1 ./a
ExecStartPost=docker run -e NCCL_IB_TC=$TC -e NCCL_IB_SL=%h image
[Container]
PodmanArgs=--env NCCL_P2P_LEVEL=NVL
Environment="NCCL_IB_QPS
"""


def test_a_unit_of_systemd_or_podman() -> None:
    parsed = parse("train.service", UNIT)
    assert seen(parsed) == [
        ("NCCL_IB_HCA", "mlx5_0", 7),
        ("NCCL_DEBUG", "$IN FO", 7),
        ("NCCL_ALGO", "Ring", 7),
        ("NCCL_NET", None, 10),
        ("NCCL_PROTO", "LL%", 10),
        ("NCCL_TOPO_FILE", None, 12),
        ("NCCL_BUFFSIZE", "1", 13),
        ("NCCL_CROSS_NIC", "1", 15),
        ("NCCL_IB_TC", None, 16),
        ("NCCL_IB_SL", None, 16),
        ("NCCL_P2P_LEVEL", "NVL", 18),
    ]
    assert unread(parsed) == [11, 19]


POD = """\
apiVersion: v1
kind: Pod
spec:
  initContainers:
  - name: init
    env: [{name: NCCL_DEBUG, value: WARN}]
  containers:
  - name: train
    env:
    - name: NCCL_DEBUG
      value: "INFO"
    - name: NCCL_DEBUG
      value: "TRACE"
    - name: NCCL_IB_DISABLE
      value: 1
    - name: NCCL_IB_HCA
      valueFrom: {configMapKeyRef: {name: c, key: k}}
    - name: NCCL_SOCKET_IFNAME
      value: $(IFNAME)
    - name: OTHER
      value: x
    command: [bash, -c, "export NCCL_ALGO=Ring; exec train"]
    args: ["-x", "NCCL_PROTO=LL"]
---
apiVersion: v1
kind: ConfigMap
data:
  NCCL_NTHREADS: "256"
  nccl.conf: |
    # nothing
    NCCL_NET=IB
  run.sh: |
    #!/bin/sh
    export NCCL_CROSS_NIC=1
  text: nothing about variables
  train.service: |
    [Service]
    Environment=NCCL_IB_TC=106
"""


def test_kubernetes() -> None:
    parsed = parse("pod.yaml", POD)
    assert seen(parsed) == [
        ("NCCL_DEBUG", "INFO", 11),
        ("NCCL_DEBUG", "TRACE", 13),
        ("NCCL_IB_DISABLE", "1", 15),
        ("NCCL_IB_HCA", None, 16),
        ("NCCL_SOCKET_IFNAME", None, 19),
        ("NCCL_ALGO", "Ring", 22),
        ("NCCL_PROTO", "LL", 23),
        ("NCCL_NTHREADS", "256", 28),
        ("NCCL_NET", "IB", 31),
        ("NCCL_CROSS_NIC", "1", 34),
        ("NCCL_IB_TC", "106", 38),
    ]
    assert problems(parsed) == [("NCCL_IB_DISABLE", "yaml-type")]
    assert twice(parsed) == [("INFO", "TRACE")]
    assert [one.value for one in parsed.assignments if one.overridden] == ["INFO"]


CONTAINERS = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: train
    command: [bash, -c, "exec {command} a.py"]
    env: [{{name: NCCL_A, value: "1"}}]
  - name: sidecar
    env: [{{name: NCCL_B, value: "2"}}]
"""


@pytest.mark.parametrize(("command", "names"), [("torchrun", ["NCCL_A"]), ("./start", ["NCCL_A", "NCCL_B"])])
def test_the_container_that_launches_is_the_jobs(command: str, names: list[str]) -> None:
    assert [one.name for one in parse("pod.yaml", CONTAINERS.format(command=command)).assignments] == names


JOB = """\
apiVersion: batch/v1
kind: {kind}
spec:
  completions: 4
  parallelism: {parallelism}
  template:
    spec:
      containers:
      - name: t
        env: [{{name: MASTER_ADDR, value: {master}}}]
        command: [{command}]
"""


@pytest.mark.parametrize(
    ("change", "nodes", "line"),
    [
        ({}, 4, 10),
        ({"master": "train-0.train"}, 4, None),
        ({"parallelism": 1}, None, 10),
        ({"command": "torchrun, --rdzv-endpoint=train-0:1"}, 4, None),
        ({"kind": "PyTorchJob"}, None, None),
    ],
)
def test_pods_of_a_job_that_meet_at_the_loopback(change: dict[str, Any], nodes: int | None, line: int | None) -> None:
    given = {"kind": "Job", "parallelism": 4, "master": "localhost", "command": "python", **change}
    parsed = parse("job.yaml", JOB.format(**given))
    assert (parsed.nodes, parsed.loopback.source.line if parsed.loopback else None) == (nodes, line)


PLAY = """\
- hosts: gpus
  environment:
    NCCL_IB_DISABLE: true
    NCCL_IB_TIMEOUT: 22
    NCCL_DEBUG: "{{ level }}"
    NCCL_IB_HCA: !vault |
      $ANSIBLE_VAULT;1.1;AES256
      6230
    NCCL_ALGO: !Ref Algo
  tasks:
  - name: run with NCCL_FOO=1
    shell: |
      cd /x
      NCCL_PROTO=LL mpirun -x NCCL_NET=IB ./a
  - shell: ./a
    environment: &e
      NCCL_P2P_LEVEL: NVL
  - shell: ./b
    environment:
      <<: *e
"""


def test_ansible_with_tags_that_are_not_known() -> None:
    parsed = parse("play.yml", PLAY)
    assert seen(parsed) == [
        ("NCCL_IB_DISABLE", "True", 3),
        ("NCCL_IB_TIMEOUT", "22", 4),
        ("NCCL_DEBUG", None, 5),
        ("NCCL_IB_HCA", None, 6),
        ("NCCL_ALGO", None, 9),
        ("NCCL_PROTO", "LL", 14),
        ("NCCL_NET", "IB", 14),
        ("NCCL_P2P_LEVEL", "NVL", 17),
        ("NCCL_P2P_LEVEL", "NVL", 17),
    ]
    assert [one.why for one in parsed.assignments if one.name == "NCCL_ALGO"] == ["tag !Ref: its value is not known here"]


def test_compose() -> None:
    first = "services:\n  a:\n    environment:\n    - NCCL_A=1\n    - NCCL_B\n"
    text = first + "  b:\n    environment:\n      NCCL_C: 2\n      NCCL_D:\n"
    assert seen(parse("compose.yaml", text)) == [("NCCL_A", "1", 4), ("NCCL_C", "2", 8), ("NCCL_D", None, 9)]


def test_prose_is_no_script() -> None:
    parsed = parse("x.yaml", "description: don't export NCCL_A=1; x\ntext: it's about NCCL_A\nrun: export NCCL_B=2\n")
    assert (seen(parsed), unread(parsed)) == ([("NCCL_B", "2", 3)], [])


def test_a_template_is_unknown_from_where_it_breaks() -> None:
    parsed = parse("pod.yaml", "a: {name: NCCL_A, value: x}\nb: {{ .Values.x }}\nc: [\n")
    assert len(parsed.unread) == 1 and "template" in parsed.unread[0].why


@pytest.mark.slow
def test_aliases_cannot_blow_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert manifests.MAX_NODES <= 200_000
    monkeypatch.setattr(manifests, "MAX_NODES", 10_000)  # the same bound, met sooner
    levels = (f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    bomb = "a0: &a0 [NCCL_A=1, NCCL_A=1]\n" + "".join(levels)
    parsed = parse("x.yaml", bomb)
    assert len(parsed.assignments) < 50_000
    assert any("too many" in one.why for one in parsed.unread)
    assert seen(parse("x.yaml", "a: &a\n  b: *a\n  NCCL_A: 1\n")) == [("NCCL_A", "1", 3)]
    assert parse("x.yaml", "[" * 1000).unread
