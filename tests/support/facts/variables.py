"""One variable, one value, one NCCL version, and the verdict: (name, value, version, status, rule); and healthy platforms.

The live test asks a real libnccl about every row of its versions that it can be asked about, so OLD and NEW are those that
tests/support/machines/fetch.py fetches.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import yaml

OLD, NEW = "2.21.5", "2.29.7"
Row = tuple[str, str, str, str, str]
ROWS = [
    cast("Row", tuple(line.split("\t")))
    for line in Path(__file__).with_name("variables.tsv").read_text().splitlines()
    if not line.startswith("# ")
]
# Platform -> its NCCL, and what it exports
HEALTHY: dict[str, tuple[str, dict[str, str]]] = {
    platform: (given["nccl"], given["variables"])
    for platform, given in yaml.safe_load(Path(__file__).with_name("platforms.yaml").read_text()).items()
}
