"""RDMA devices: sysfs, device nodes, and what the user-space provider makes of them."""

from __future__ import annotations

from dataclasses import dataclass

from netdoctor.model import Unavailable


@dataclass(frozen=True)
class Gid:
    """One filled entry of a port's GID table."""

    index: int
    value: str  # "fe80:0000:…"
    kind: str | Unavailable  # "IB/RoCE v1" | "RoCE v2"
    netdev: str | Unavailable  # gid_attrs/ndevs; unreadable where its netdev is in another namespace


@dataclass(frozen=True)
class RdmaPort:
    """One port of an HCA."""

    number: int
    state: str | Unavailable  # "ACTIVE" "DOWN" "INIT" "ARMED"
    physical: str | Unavailable  # "LinkUp"
    link_layer: str | Unavailable  # "InfiniBand" | "Ethernet" | "Unspecified" (EFA)
    rate_gbps: float | Unavailable
    gids: tuple[Gid, ...] | Unavailable


@dataclass(frozen=True)
class Uverbs:
    """The character device of an HCA, /dev/infiniband/uverbsN."""

    name: str  # "uverbs0"
    node: str  # "/dev/infiniband/uverbs0"
    numbers: tuple[int, int] | Unavailable  # major, minor as sysfs says
    node_numbers: tuple[int, int] | Unavailable  # as the node has them; Unavailable("absent") where there is no node
    open_errno: str | Unavailable  # "" opened read-write, else "EPERM" "EACCES" "ENXIO" "ENOENT" …
    owner: tuple[int, int, int] | Unavailable  # mode, uid, gid of the node


@dataclass(frozen=True)
class Provider:
    """What libibverbs answers for a device, in a child process."""

    context: bool  # ibv_open_device succeeded
    error: str  # errno name of a refused open
    dmabuf_errno: (
        str | Unavailable
    )  # errno name of ibv_reg_dmabuf_mr(fd=-1): "EBADF" yes, "EOPNOTSUPP" no; Unavailable: symbol missing


@dataclass(frozen=True)
class RdmaDevice:
    """One entry of /sys/class/infiniband."""

    name: str  # "mlx5_0"
    pci: str | None | Unavailable  # "0000:18:00.0"; None: software device (rxe, siw)
    driver: str | Unavailable  # "mlx5_core" "efa" "bnxt_en" "irdma" "mana" …
    vendor: str | Unavailable  # "0x15b3"
    numa_node: int | Unavailable  # -1: the firmware does not say
    virtual_function: bool | Unavailable
    firmware: str | Unavailable
    ports: tuple[RdmaPort, ...] | Unavailable
    uverbs: Uverbs | Unavailable
    provider: Provider | Unavailable


@dataclass(frozen=True)
class Rdma:
    """All RDMA devices that sysfs shows, and the libraries that speak to them."""

    devices: (
        tuple[RdmaDevice, ...] | Unavailable
    )  # () only where /sys/class/infiniband was read empty, or is absent while /sys is a real sysfs
    nodes: tuple[str, ...] | Unavailable  # entries of /dev/infiniband; () read empty; Unavailable("absent") none
    libibverbs: str | Unavailable  # path or soname of the library that was opened
    verbs_devices: tuple[str, ...] | Unavailable  # names that ibv_get_device_list gives
