"""Live faults against what the site expects and against the node's own past, as data (tests/lab/row.py)."""

from __future__ import annotations

from typing import Final

from tests.lab.row import PAST, SITE, Row
from tests.support.namespaces.dgx import Scene

CONFIG: Final = "{{job: {{nodes: 2}}, expected: {{gpus: 8, hcas: 8, {0}}}}}"
# A folder as the site would make it, over that of this machine.
KEEPS: Final = "mount -t tmpfs -o mode=755 none /var/lib; mkdir -p /var/lib/netdoctor; cd /var/lib/netdoctor; "


def _expected(fault: str, keys: str, told: str) -> Row:
    return Row(fault, Scene(config=CONFIG.format(keys)), {SITE: told})


def _kept(fault: str, shell: str, told: str) -> Row:
    return Row(fault, Scene(setup=KEEPS + shell), {PAST: told})


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
)
