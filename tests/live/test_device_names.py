"""The names that a real libudev reads from a database of its own format, mounted over this machine's."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = [
    pytest.mark.live,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare"),
]
# A database of udev's own: /run/udev/data/n<ifindex> (libsystemd sd-device, device_get_device_id).
PROGRAM = """
mount -t tmpfs none /run && mkdir -p /run/udev/data || exit 77
ip link add eth7 type veth peer name eth8 && ip addr add 10.77.0.7/24 dev eth7 && ip link set eth7 up || exit 77
mount -t sysfs none /sys || exit 77
printf 'E:ID_NET_NAME_SLOT=ens3\\nE:ID_NET_NAME_PATH=enp0s3\\n' > /run/udev/data/n$(cat /sys/class/net/eth7/ifindex)
exec "$0" -m netdoctor preflight --vantage job --no-allreduce --format json --only net.socket_ifname
"""


def looked(**variables: str) -> str:
    if not shutil.which("ip"):
        pytest.skip("no ip")
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", PROGRAM, sys.executable],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **variables},
        timeout=120,
    )
    if done.returncode == 77:
        pytest.skip(f"no namespaces here: {done.stderr}")
    return " | ".join(one["message"] for check in json.loads(done.stdout)["checks"] for one in check["findings"])


def test_a_name_of_udevs_in_a_variable_is_explained() -> None:
    assert "matches no interface that NCCL can use (udev's name ens3 is eth7 here)" in looked(NCCL_SOCKET_IFNAME="ens3")


def test_nothing_is_said_of_a_name_that_udev_does_not_know() -> None:
    assert "matches no interface that NCCL can use: NCCL stops" in looked(NCCL_SOCKET_IFNAME="ens9")
