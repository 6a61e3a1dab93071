"""The type of a cloud's instance, from what cloud-init wrote for everybody when the machine started; nothing is asked anew.

Answer: {"type": "Standard_ND96isr_H100_v5"}; "" where cloud-init was not told.  The file has names of hosts and accounts, too:
only this one word leaves it.
"""

from __future__ import annotations

import json
import os

FILE = "/run/cloud-init/instance-data.json"  # cloud-init writes it with mode 0644, secrets redacted (persist_instance_data)
LIMIT = 1 << 20
# Where data sources keep it: EC2 and those like it, Azure (cloud-init: DataSourceEc2, DataSourceAzure).
WHERE = (("ds", "meta_data", "instance-type"), ("ds", "meta_data", "imds", "compute", "vmSize"))


def answer(parameters: dict[str, str]) -> object:
    try:
        with open(parameters.get("root", "") + FILE, "rb") as file:
            data = json.loads(file.read(LIMIT))
    except FileNotFoundError as error:
        return {"unavailable": "absent", "detail": os.strerror(error.errno or 0)}
    except PermissionError as error:
        return {"unavailable": "denied", "detail": os.strerror(error.errno or 0)}
    except (OSError, ValueError, RecursionError) as error:
        return {"unavailable": "malformed", "detail": type(error).__name__}
    return {"type": next((found for way in WHERE if (found := at(data, way))), "")}


def at(data: object, way: tuple[str, ...]) -> str:
    for step in way:
        data = data.get(step) if isinstance(data, dict) else None
    return data[:64] if isinstance(data, str) and data.isprintable() else ""
