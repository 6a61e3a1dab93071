"""Names of interfaces that do not lead to other nodes of a job: networks of containers and virtual machines, and tunnels.

Which interfaces carry the same address on every node (fleet/extract.py), and which kinds a container has as its own
(checks/net_port_range.py), are other questions: flannel's address is a node's own, a BlueField's tmfifo_net is not.
"""

from __future__ import annotations

from typing import Final

TUNNEL_NAMES: Final = ("tailscale", "wg")  # between hosts: may well be the network that somebody means
INSIDE_NAMES: Final = (
    *("docker", "podman", "lxc", "lxdbr", "cni", "flannel", "cali", "cilium", "kube-", "veth"),  # containers
    *("br-", "virbr", "tun", "tap", *TUNNEL_NAMES),  # Docker networks, libvirt, tunnels
)
