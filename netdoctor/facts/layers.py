"""What each layer of a machine says of each GPU, joined by bus id and UUID."""

from __future__ import annotations

from typing import Final

from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.runs import Caller, Run, Way
from netdoctor.model import Unavailable

MAX_RANKS: Final = 16  # of a run: GPUs of the largest single node (DGX-2, HGX with 16)


def lacks(run: Run, gpus: Gpus, job: Intent) -> str:
    """That a run that ended well had fewer GPUs than its library shows the job, or may have had: it proves nothing about them.

    "": it had all, or it is no such run.
    """
    one = run.experiment
    if not run.verified or any(r.wrong for r in run.ranks):
        return ""
    if one.backend != "nccl" or one.path.way == Way.BETWEEN_NODES:
        return ""
    told = run.torch.device_count if run.torch and run.via is Caller.TORCH else None
    seen = told if told is not None else gpus.visible if isinstance(gpus.visible, Unavailable) else len(gpus.visible)
    if isinstance(seen, Unavailable):
        return f"and whether every GPU of the job took part could not be read: {seen}"
    ran, wanted = len(set(one.gpus)), min(seen, job.ranks_per_node or MAX_RANKS, MAX_RANKS)
    return f"with {ran} of the job's {wanted} GPUs: nothing is known of the others" if ran < wanted else ""
