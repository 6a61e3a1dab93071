"""``python -m bench [AREA…]``: run the measurements, print them, write build/bench.json.  Exit 1 where a goal does not hold."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import sys

from bench import Row

AREAS = ("cli", "allreduce", "log", "fleet", "gpu", "comparison", "nodes")


def main() -> int:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every start would compile what was edited last
    chosen = sys.argv[1:] or list(AREAS)
    rows: list[Row] = []
    for area in chosen:
        for one in importlib.import_module(f"bench.{area}").rows():
            rows.append(one)
            reference = "" if one["reference"] is None else f"{one['reference']:.4g} {one['unit']}"
            ratio = "" if one["ratio"] is None else f"{one['ratio']:.3f}"
            sign = "holds" if one["holds"] else "MISSED"
            print(
                f"{one['name']:44} {one['value']:>10.4g} {one['unit']:6} {reference:>16} {ratio:>8}  {sign:7} {one['goal']}",
                flush=True,
            )
    out = pathlib.Path("build/bench.json")
    out.parent.mkdir(exist_ok=True)
    kept = [r for r in _earlier(out) if r["name"].split(".")[0] not in {r["name"].split(".")[0] for r in rows}]
    out.write_text(json.dumps(kept + rows, indent=1) + "\n")
    return 0 if all(r["holds"] for r in rows) else 1


def _earlier(path: pathlib.Path) -> list[Row]:
    """Rows of areas that this run did not measure stay."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return []
    return data if isinstance(data, list) else []


sys.exit(main())
