"""Live faults against what the site expects and against the node's own past, as data (tests/lab/row.py)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.lab.row import PAST, SITE, Row
from tests.support.facts.hardware import GPU_BUSES, HCA_BUSES
from tests.support.namespaces.dgx import Scene

CONFIG: Final = "{{job: {{nodes: 2}}, expected: {{gpus: 8, hcas: 8, {0}}}}}"
# A folder as the site would make it, over that of this machine.
KEEPS: Final = "mount -t tmpfs -o mode=755 none /var/lib; mkdir -p /var/lib/netdoctor; cd /var/lib/netdoctor; "


def _expected(fault: str, keys: str, told: str) -> Row:
    return Row(fault, Scene(config=CONFIG.format(keys)), {SITE: told})


def _kept(fault: str, shell: str, told: str) -> Row:
    return Row(fault, Scene(setup=KEEPS + shell), {PAST: told})


# A good look at this very node, whoever it is taken to be: on a host by its machine id, in a container by its name.
LOOK: Final = (
    "echo netdoctor-gpu7 > id; ! [ -e /etc/machine-id ] || mount --bind id /etc/machine-id\n"  # as a recording has it
    "for who in netdoctor-gpu7 $(cat /proc/sys/kernel/hostname); do\n"
    "  for where in host container pod wrapper; do\n"
    """    echo ", {\\"who\\": \\"$who $where\\", \\"day\\": \\"2026-11-10\\", \\"hardware\\": {$HAD},"\n"""
    """    echo '"shape": "", "size": 0, "busbw": 0}'\n"""
    "  done\ndone > looks\n"
    """(echo '{"schema": "netdoctor.past/1", "looks": [{}'; cat looks; echo ']}') > past.json; rm looks"""
)


def _places(key: str, buses: Iterable[int]) -> str:
    """Those of the healthy machine, and one more."""
    return f'"{key}": [{", ".join(f""" "0000:{bus:02x}:00.0" """ for bus in (*buses, 0xEE))}]'


GPUS: Final = _places("gpu_addresses", GPU_BUSES)
HCAS: Final = _places("hca_addresses", HCA_BUSES)


def _was(fault: str, had: str, told: str) -> Row:
    return _kept(fault, f"HAD='{had}'; {LOOK}", told)


EXPECTED_ROWS: Final = (
    _expected("the site expects another model of GPU", "gpu_model: NVIDIA H200", "fail odd_one_out"),
    _expected("the site expects another driver", "driver: 1.2.3", "fail odd_one_out"),
    _expected("the site expects a GPU at a place where none is", "gpu_addresses: ['0000:ee:1f.0']", "fail inventory"),
    _expected("the site expects an HCA at a place where none is", "hca_addresses: ['0000:ee:1f.0']", "fail inventory"),
    _expected("the site expects more NVLinks", "nvlinks: 36", "fail link_degraded"),
    _expected("the site expects firmware that no HCA has", "hca_firmware: ['1.2.3']", "fail odd_one_out"),
    _expected("the site expects an MTU of an interface that is not there", "mtu: {ens99: 9000}", "unknown"),
    _expected("the site expects a larger MTU", "mtu: {lo: 70000}", "fail mtu"),
    _kept("a ring that is no JSON", "echo '{' > past.json", "unknown"),
    _kept("a ring of another schema", 'echo \'{"schema": "netdoctor.past/2", "looks": []}\' > past.json', "unknown"),
    _kept("a ring that others can write", "echo '{}' > past.json; chmod 666 past.json", "unknown"),
    _kept("a ring of somebody else", "echo '{}' > past.json; chown 1000 past.json", "unknown"),
    _kept("a ring in a folder that others can write", "echo '{}' > past.json; chmod 777 .", "unknown"),
    _kept("a ring that is a link of somebody else's", "echo '{}' > x; ln -s x past.json; chown -h 1000 past.json", "unknown"),
    _was("a GPU less than in its past", GPUS, "fail inventory"),
    _was("an HCA less than in its past", HCAS, "fail inventory"),
    _was("a GPU and an HCA less than in its past", f"{GPUS}, {HCAS}", "fail inventory"),
    _was("GPUs of another model than in its past", '"gpu_model": "NVIDIA H200"', "fail odd_one_out"),
    _was("fewer NVLinks than in its past", '"nvlinks": 36', "fail link_degraded"),
    _was("two GPUs less than in its past", _places("gpu_addresses", (*GPU_BUSES, 0xED)), "fail inventory"),
)
