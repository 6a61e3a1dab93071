"""What a program counts of its own work takes back its good word, and nothing else that its lines tell does."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

END = "Training finished.\n"


def status(text: str) -> Status:
    return diagnose(parse_text(text))[0].status


def lines(form: str, last: int = 300, every: int = 10, total: int = 300) -> str:
    return "".join(form.format(n=n, all=total) + "\n" for n in range(every, last + 1, every))


@pytest.mark.parametrize(
    "form",
    [
        "step {n}/{all} | loss 2.1 | mem 71/80 GB",
        "iter {n}/{all} | loss 1.1 | tokens 12/32 M | gpu 63/80 GB",
        "step {n}/{all} loss 1.1 shard 3/512",
        "step {n}/{all} loss 1.1 eta 0:10:00 date 11/27",
        "Epoch 1/1 Step {n}/{all} loss 1.1 bs 8/64",
        "11-27 10:00 step {n} / {all} loss 1.1 node 1 of 4",
        "Epoch 1/1: step {n}/{all} seen 800/100000 samples",
        "Epoch [{n}/{all}] | Rank 0 of 8 | Loss 1.1",
        "Epoch {n}/{all} train loss 0.98 accuracy 9080/10000 (90.8%)",
        "Epoch {n}/{all}, GPU 0/8, it 500/500, loss 1.1",
        "[11/27 10:00:01] Epoch: [0/1][{n}/{all}] Time 0.1 (0.1) Loss 1.5",
        "11/27 10:00:00 AM | Train: [ 1/1] Step {n}/{all} Loss 1.1 Prec@(1,5) (81.1%, 98.1%)",
        "train: {n}/{all} loss 2.1",
        "batch {n}/{all} loss 2.1",
        "loss 2.1 | global_step={n}/{all}",
        "update {n}/{all} loss 2.1",
        "Epoch 1:  60%|###  | {n}/{all} [00:10<00:10, 1.2it/s, loss=1.1]",
        "Train Epoch: 1 [{n}/{all}]\tLoss: 2.1",
    ],
)
def test_only_its_own_count_says_how_far_it_came(form: str) -> None:
    assert status(lines(form) + END) is Status.PASS
    assert status(lines(form, last=120) + END) is Status.UNKNOWN


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        pytest.param(
            "".join(f"Train Epoch: {e}/3 [{n}/60000 (1%)] Loss: 0.9\n" for e in (1, 2, 3) for n in range(0, 6401, 640)),
            Status.PASS,
            id="a rank's share, epoch by epoch",
        ),
        pytest.param(
            "".join(
                f"Train Epoch: {e}/2 [{n}/60000] Loss: 0.9\n" for e in (1, 2) for n in range(0, 6401 if e == 1 else 1281, 640)
            ),
            Status.UNKNOWN,
            id="less than the epoch before",
        ),
        pytest.param(
            "".join(f"Train Epoch: 1 [{n * 64}/60000 ({n}%)] Loss: 0.9\n" for n in range(0, 101, 10)),
            Status.PASS,
            id="by the share that is told",
        ),
        pytest.param(
            lines("step {n}/{all} loss 1", last=150) + "".join(f"step {n}/220 loss 1\n" for n in range(160, 221, 10)),
            Status.PASS,
            id="anew",
        ),
        pytest.param("  2%|2         | 20/1000 [00:20<00:10,  1.21it/s]\n", Status.UNKNOWN, id="a bar that hardly began"),
        pytest.param("  0%|          | 0/1000 [00:00<?, ?it/s]\n", Status.UNKNOWN, id="a bar that did not begin"),
        pytest.param("100%|##########| 1000/1000 [00:00<00:00, 1.21it/s]\n", Status.PASS, id="a bar that is full"),
        pytest.param("step 10/1000 loss 2\nstep 20/1000 loss 2\n", Status.UNKNOWN, id="two steps of many"),
        pytest.param("step 500/1000 loss 2\nstep 1000/1000 loss 2\n", Status.PASS, id="two steps, the last"),
    ],
)
def test_how_far_a_count_has_come(work: str, expected: Status) -> None:
    assert status(work + END) is expected


@pytest.mark.parametrize(
    "said",
    [
        "Reached max_steps=2000. Stopping training.",
        "Reached 120 steps.",
        "Reached the maximum number of epochs",
        "Target accuracy reached, training done",
        "target loss of 2.1 reached",
        "No improvement for 10 epochs, stopping.",
        "val loss has not improved for 10 epochs; stopping",
        "Converged.",
        "Wall time budget of 4h used up",
        "early stopping at step 120",
        "EarlyStopping counter: 7 out of 7",
        "step 130/300 loss 2.1: early stopping",
    ],
)
def test_what_stops_on_purpose_has_nothing_left(said: str) -> None:
    assert status(f"{lines('step {n}/{all} loss 2', last=120)}{said}\n{END}") is Status.PASS


@pytest.mark.parametrize(
    "said",
    [
        "EarlyStopping counter: 1 out of 7",
        "early stopping counter: 1 of 3",
        "early_stopping: False",
        "EarlyStopping enabled with patience 3",
        "reached rank 3",
        "target accuracy not reached",
        "the loss has not converged",
        "maximum sequence length reached",
        "No improvement for 2 epochs",
        "the memory budget is reached",
    ],
)
def test_what_does_not_stop_it_leaves_what_is_left(said: str) -> None:
    assert status(f"{lines('step {n}/{all} loss 2', last=120)}{said}\n{END}") is Status.UNKNOWN


@pytest.mark.parametrize("said", ["job completed successfully", "The run finished with exit code 0", "all done"])
def test_whatever_the_good_word_its_own_count_takes_it_back(said: str) -> None:
    steps = "step {n}/{all} loss 2"
    assert status(f"{lines(steps, last=120)}{said}\n") is Status.UNKNOWN
    assert status(f"{lines(steps)}{said}\n") is Status.PASS


RAISED = (
    "Traceback (most recent call last):\n"
    '  File "/w/train.py", line 88, in <module>\n'
    "    main()\n"
    '  File "/w/train.py", line 41, in main\n'
    "    loss = step(batch)\n"
    "KeyError: 'ids'\n"
)
UNCOUNTED = "".join(f"step {n} loss 2.1\n" for n in range(10, 301, 10))


@pytest.mark.parametrize("fault", [RAISED, "Killed\n"])
@pytest.mark.parametrize("work", [UNCOUNTED, lines("step {n}/500 loss 2.1")])
@pytest.mark.parametrize(
    "behind",
    [
        "".join(f"eval step {n}/500 loss 2.1\n" for n in range(50, 501, 50)),
        "".join(f"eval step {n} loss 2\n" for n in range(9)),
    ],
)
def test_an_evaluation_behind_a_program_that_died_is_anothers(work: str, fault: str, behind: str) -> None:
    assert status(work + fault + behind + END) is not Status.PASS


@pytest.mark.parametrize("fault", [RAISED, "Killed\n"])
def test_steps_that_begin_again_are_anothers(fault: str) -> None:
    again = "".join(f"step {n} loss 2.1\n" for n in range(1, 9))
    assert status(UNCOUNTED + fault + "Launching eval\n" + again + END) is not Status.PASS


def test_an_evaluation_amid_the_work_ends_nothing() -> None:
    evaluated = "".join(f"eval step {n}/20 loss 2\n" for n in (10, 20))
    on = "".join(f"step {n} loss 2.1\n" for n in range(310, 400, 10))
    assert status(UNCOUNTED + evaluated + on + evaluated + END) is Status.PASS
    assert (
        status(UNCOUNTED + RAISED.replace("Traceback", "WARNING: skipped a batch\nTraceback") + on + evaluated + END)
        is not Status.FAIL
    )
