"""What a program tells behind a full count: how long all took; and launchers' words of the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

EPOCHS = "".join(f"[0] [{n}/4: {at}/900 ({at // 9}%)] loss=0.{n}\n" for n in range(1, 5) for at in (0, 300, 600))
HALF = EPOCHS.replace("/4:", "/9:")
PASS = "".join(f"Test:  [{n}/60]  eta: 0:00:47  loss: 0.16 (0.43)\n" for n in (0, 10, 20, 30, 40, 50, 59))
TRAINED = "".join(f"Epoch: [0]  [{n}/60]  eta: 0:00:47  loss: 0.16 (0.43)\n" for n in (0, 10, 20, 30, 40, 50, 59))
TIME = "Test: Total time: 0:08:44 (0.1878 s / it)\n* Acc@1 0.891  loss 0.443\n"


def unwritten(text: str) -> Status:
    return diagnose(replace(parse_text(text), written=False))[0].status


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(EPOCHS + "[0] :: Total training time: 16.5 seconds\n", id="a total"),
        pytest.param(EPOCHS + "[0] :: Training total time: 16.5 seconds\nAverage time per epoch: 0.5\n", id="and a mean"),
        pytest.param(PASS + TIME, id="an evaluation alone"),
        pytest.param(PASS + TIME + "Predizioni salvate in out/p.csv\n", id="and what it wrote"),
        pytest.param(EPOCHS + "INFO 2021-12-06 10:38:58,526 launch.py:304] Local processes completed.\n", id="Paddle"),
        pytest.param("step 200\nFinished mdrun on rank 0 Fri Jan 19 11:42:34 2024\n", id="GROMACS"),
    ],
)
def test_a_total_behind_a_full_count_is_an_end(text: str) -> None:
    assert unwritten(text) is Status.PASS


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(HALF + "[0] :: Total training time: 16.5 seconds\n", id="epochs are left"),
        pytest.param(EPOCHS, id="no word behind the count"),
        pytest.param(EPOCHS + "Total training time: 16.5 seconds\nSaving the model to /w/out ...\n", id="something was begun"),
        pytest.param(TRAINED + PASS + TIME, id="the evaluation behind an epoch"),
        pytest.param(PASS + TIME + PASS[:200], id="another pass has begun"),
        pytest.param("step:2850/2850 val_loss:3.27 train_time:812.4s\n", id="the last step alone"),
        pytest.param("step:250/2850 val_loss:3.27 train_time:81.4s\n", id="an evaluation in between"),
        pytest.param("step 200\nStarted mdrun on rank 0 Fri Jan 19 11:42:34 2024\n", id="a begin"),
        pytest.param(EPOCHS + "Total training time: 16.5 s, rank 3 lost\n", id="taken back"),
    ],
)
def test_what_is_no_end_of_all(text: str) -> None:
    assert unwritten(text) is not Status.PASS
