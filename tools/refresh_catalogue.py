"""Brings netdoctor/variables/catalogue.tsv up to a libnccl.

    python tools/refresh_catalogue.py LIBNCCL            says what differs (exit 1 if anything does)
    python tools/refresh_catalogue.py LIBNCCL --write    writes it into the table

For a new NCCL: `pip download --no-deps nvidia-nccl-cu12==VERSION`, unzip the wheel, run this with its libnccl.so.2, then look
at each new row: fill in ``accepts`` (catalogue.py says how), ``section`` and ``note`` by hand from NCCL's env.rst.

How it reads the library (tools/libnccl_params.py, in a child): names are the whole strings ``NCCL_…`` of the file.  Which
function reads which name: every name is set to a number of its own, and each integer parameter is asked for its value.
Defaults: the same functions with none of them set.  String variables have no default that can be seen.  No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "netdoctor/variables/catalogue.tsv"
COLUMNS = ("name", "program", "first", "last", "default", "history", "accepts", "section", "note")
UNDEFINED = -(1 << 31)  # NCCL_CONFIG_UNDEF_INT
# Whole strings of the file that are no variables: enumerators that messages and NVTX schemas name, bare prefixes, subsystems.
NO_VARIABLE = re.compile(
    r"NCCL_(ALL|ALLOC|ALLOC_HOST|BOOTSTRAP|CALL|COLL|DESTROY|ENV|GRAPH|INIT|NVLS|P2P|PROFILE|PROXY|RAS|REG|SHM|SIGNAL|TUNING)"
    r"|NCCL_(COMM_MEM|CONFIG_UNDEF|CTA_POLICY|GIN_CONNECTION|GIN_GDAKI_GPU_CONTEXT|GIN_IB_ALL|GIN_TYPE|IPC_COLL|IPC_SENDRECV|LOG|MAX"
    r"|NET_DEVICE|NET_MERGE_POLICY|NUM|PARAM_FLAG|PARAM_TYPE|SHRINK|SIGNAL|SPLIT_NOCOLOR|TOPO_CPU|UNIQUE_ID|VERSION|WIN)_?\w*"
    r"|NCCL_(CFT|CRYPT_HELLO|ENCRYPTION_CONFIG|ENCRYPTION_MODE|DEV_WORK|GIN_MAX|GIN_PROXY_GPU_CONTEXT|IB_MLX|IB_RAIL_POLICY|IB_VR)_?\w*"
    r"|NCCL_(IB_MAX_DEVS_PER_NIC|IB_RECV_WR_ID_DUMMY|PAT_NDIMS|REGULAR_BUFFER)|NCCL_(PROFILER_THREAD|SYMK)_\w*"
    r"|NCCL_(IB_SL|IB_TC)_DEFAULT|NCCL_\w*(_REG_BUFFER|_INITIALIZER|_MSG_ID|_)"
)
ALWAYS = ("NCCL_GRAPH",)  # was a variable up to 2.5.7, is a subsystem since
COMPILED_OUT = ("NCCL_PROXY_PROFILE",)  # only in builds with profiling


def ask(library: str, *arguments: str, **variables: str) -> Any:
    """What tools/libnccl_params.py says, in a child without this process's NCCL variables."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
    program = [sys.executable, str(ROOT / "tools/libnccl_params.py"), library, *arguments]
    done = subprocess.run(
        program,
        env={**clean, "NCCL_CONF_FILE": "/dev/null", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout[done.stdout.index("{" if arguments[0] != "strings" else "[") :])


def version_of(library: str) -> str:
    """X.Y.Z of the library (ncclGetVersion, in a child)."""
    code = "import ctypes,sys; n=ctypes.c_int(); ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(n)); print(n.value)"
    done = subprocess.run([sys.executable, "-c", code, library], capture_output=True, text=True, check=True, timeout=60)
    number = int(done.stdout)
    scale = 1000 if number < 10000 else 10000
    return f"{number // scale}.{number % scale // 100}.{number % 100}"


def readers(library: str, names: list[str]) -> dict[str, str]:
    """{symbol: name}: which variable each integer parameter reads."""
    numbers = {name: str(1_000_003 + 7 * i) for i, name in enumerate(names)}
    values = ask(library, "params", **numbers)
    named = {int(number): name for name, number in numbers.items()}
    return {symbol: named[value] for symbol, value in values.items() if value in named}


def survey(library: str) -> dict[str, int | None]:
    """Every variable that the library names, with the default of its integer parameter or None."""
    known = {row["name"] for row in read_table() if row["program"] == "nccl"} - set(ALWAYS)
    names = [n for n in ask(library, "strings") if n in known or not NO_VARIABLE.fullmatch(n)]
    numeric = [n for n in names if n not in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_CONF_FILE")]
    who = readers(library, numeric)
    defaults = ask(library, "params")
    found: dict[str, int | None] = dict.fromkeys(names)
    found.update({name: defaults[symbol] for symbol, name in who.items()})
    return found


def read_table() -> list[dict[str, str]]:
    lines = TABLE.read_text("utf-8").splitlines()
    return [dict(zip(COLUMNS, line.split("\t"), strict=True)) for line in lines[1:]]


def key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")) if version else ()


def merge(rows: list[dict[str, str]], found: dict[str, int | None], version: str) -> list[str]:
    """Update `rows` in place; what was changed, one sentence each."""
    said = []
    by_name = {row["name"]: row for row in rows}
    newest = max((row["last"] for row in rows if row["program"] == "nccl"), key=key)
    for name, default in sorted(found.items()):
        text = "" if default is None else "undef" if default == UNDEFINED else str(default)
        row = by_name.get(name)
        if row is None:
            accepts = "text" if default is None else "flag" if re.search(r"_(ENABLE|DISABLE)(_|$)", name) else "int"
            cells = (name, "nccl", version, version, text, f"{version}:{text}" if text else "", accepts, "", "")
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
            said.append(f"new: {name} (default {text or 'not set'})")
        elif row["program"] == "nccl":
            if key(version) > key(row["last"]):
                said.append(f"still read: {name}, {row['last']} → {version}")
                row["last"] = version
            if key(version) < key(row["first"]):
                said.append(f"read earlier: {name}, {row['first']} → {version}")
                row["first"] = version
            if text and key(version) >= key(newest) and text != row["default"]:
                said.append(f"default: {name}, {row['default']} → {text}")
                row["default"] = text
                row["history"] = ";".join(filter(None, (row["history"], f"{version}:{text}")))
    for row in rows:
        inside = row["program"] == "nccl" and key(row["first"]) <= key(version) <= key(row["last"])
        if inside and row["name"] not in found and row["name"] not in COMPILED_OUT:
            said.append(f"not in this library: {row['name']} ({row['first']} to {row['last']})")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description="Bring the catalogue of NCCL's variables up to a libnccl.")
    parser.add_argument("library")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = read_table()
    version = version_of(given.library)
    said = merge(rows, survey(given.library), version)
    print(f"NCCL {version}: {len(said)} differences", *said, sep="\n  ")
    if given.write:
        rows.sort(key=lambda row: (row["program"] != "nccl", row["program"], row["name"]))
        lines = ["\t".join(COLUMNS), *("\t".join(row[c] for c in COLUMNS) for row in rows)]
        TABLE.write_text("\n".join(lines) + "\n", "utf-8")
    return 1 if said and not given.write else 0


if __name__ == "__main__":
    raise SystemExit(main())
