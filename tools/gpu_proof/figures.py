"""Step: every figure of bench/gpu.py as a claim, with its rows as evidence.  A goal that does not hold is a failure."""

from __future__ import annotations

import sys

from bench import gpu
from tools.gpu_proof import tell


def main() -> int:
    count, why = gpu.devices()
    for measure in gpu.MEASURES:
        if not count:
            tell.not_seen(measure.name, why)
            continue
        tell.line(begin=measure.name)
        try:
            rows = list(measure.rows())
        except gpu.CannotError as error:
            tell.not_seen(measure.name, str(error))
            continue
        except Exception as error:  # noqa: BLE001  (one figure that breaks costs no other)
            tell.failed(measure.name, f"{type(error).__name__}: {error}")
            continue
        data = {one["name"]: {k: one[k] for k in ("value", "unit", "reference", "ratio", "goal", "holds")} for one in rows}
        missed = [f"{one['name']}: {one['goal']}" for one in rows if not one["holds"]]
        if not rows:
            tell.not_seen(measure.name, "no figure")
        elif missed and measure.name != "gpu.torch_free":
            tell.failed(measure.name, "; ".join(missed), data)
        else:  # that the way without torch does not pay is a result, too
            said = "; ".join(f"{one['name']} {one['value']:.4g} {one['unit']}" for one in rows)
            tell.seen(measure.name, said, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
