"""Step: what netdoctor predicts of NCCL against NCCL on this machine's own driver (docs/fakegpu.md)."""

from __future__ import annotations

import os
import sys

from tests.fakegpu.differential import here, runner
from tools.gpu_proof import tell

CLAIM = "differential.driver"


def main() -> int:
    seconds = float(os.environ.get("GPU_PROOF_SECONDS", "60"))
    try:
        results = here.run(600, "proof", seconds * 0.9)
    except LookupError as error:
        tell.not_seen(CLAIM, str(error))
        return 0
    said = [one for one in results if one.agrees is not None]
    wrong = [one.what for one in said if not one.agrees]
    text = f"{len(said) - len(wrong)} of {len(said)} predictions are what NCCL did"
    if not said:
        tell.not_seen(CLAIM, "nothing was predicted")
    elif runner.agreement(results) < runner.WANTED:
        tell.failed(CLAIM, f"{text}: {'; '.join(wrong)[:600]}")
    else:
        tell.seen(CLAIM, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
