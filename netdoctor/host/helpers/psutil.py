"""psutil: duplex and speed of interfaces (ethtool's ioctl, as /sys may show another namespace), memory and CPUs.

Answer: {"interfaces": {NAME: {"up", "duplex", "speed_mbps", "mtu"}}, "memory": {"total", "available"} in bytes,
"cpus": {"logical", "physical"}}; speed 0 and duplex 0 are "not known".
"""

from __future__ import annotations


def answer(parameters: dict[str, str]) -> object:
    try:
        import psutil
    except ImportError as error:
        return {"unavailable": "failed", "detail": str(error)}
    memory = psutil.virtual_memory()
    return {
        "interfaces": {
            name: {"up": one.isup, "duplex": int(one.duplex), "speed_mbps": one.speed, "mtu": one.mtu}
            for name, one in psutil.net_if_stats().items()
        },
        "memory": {"total": memory.total, "available": memory.available},
        "cpus": {"logical": psutil.cpu_count(), "physical": psutil.cpu_count(logical=False)},
    }
