"""What is behind a good end, or stands in for one: errors, a supervisor's word, one rank's end."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

WORK = "".join(f"step {n}/40 loss 2.{n}\n" for n in range(30, 41))
STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(30, 41))
END = "Training finished\n"


def of(text: str) -> Finding:
    """The first finding, of a log that nobody writes any more."""
    return diagnose(replace(parse_text(text), written=False))[0]


@pytest.mark.parametrize(
    "end",
    [
        "Training finished",
        "`Trainer.fit` stopped: `max_epochs=3` reached.",
        "{'train_runtime': 33.1, 'epoch': 3.0}",
        "[after training is done] datetime: 2026-01-01 10:00:00",
        "Finished in 33.2 seconds",
        "Model saved to /w/out/final.pt",
    ],
)
@pytest.mark.parametrize(
    "said",
    [
        "ERROR: could not upload the checkpoint",
        "2026-01-01 10:00:00,123 - pytorch_lightning - ERROR - cannot save checkpoint to s3://b/x",
        "ERROR:transformers.trainer:Could not push the model to the hub",
        "[2026-01-01 10:00:00,123] [ERROR] [engine.py:3100:save_checkpoint] unable to write zero states",
        "2026-01-01T10:00:00Z level=error msg=refused",
        '{"level": "error", "msg": "artifact store rejected the model"}',
        "E0101 10:00:00.123456 12345 saver.cc:42] checkpoint of step 40 is not on disk",
        "CRITICAL: model weights are not saved",
        "(trainer pid=123) 2026-01-01 10:00:01,123 ERROR storage.py:12 -- the final checkpoint was not taken",
        "slurmstepd: error: *** epilog of job 12: copy of scratch to /home was cut",
        "cp: cannot stat '/scratch/ckpt/final.pt': No such file or directory",
        "rsync error: some files/attrs were not transferred (see previous errors) (code 23) at main.c(1338)",
        "fatal error: An error occurred (AccessDenied) when calling the PutObject operation",
        "upload failed: ./ckpt.pt to s3://b/ckpt.pt An error occurred (AccessDenied)",
        "Failed to save the final model",
        # nobody says that these are errors
        "Uploading checkpoint: attempt 5/5 timed out",
        "WARNING: checkpoint size 12 bytes, expected 13 GB",
        "saved 0 checkpoints, 3 expected",
        "verification: 3 tensors differ between ranks",
        "Evaluation skipped: dataset not found",
        "terminate called after throwing an instance of 'c10::Error'",
        "Evaluating:  10%|#         | 1/10 [00:05<00:45,  5.1s/it]",
        '{"level": "info", "msg": "results are taken home", "status": "failed"}',
        '{"event": "run_end", "exit_code": 3}',
    ],
)
def test_an_error_behind_a_good_end_is_no_pass(end: str, said: str) -> None:
    assert of(f"{WORK}{end}\n").status is Status.PASS
    assert of(f"{WORK}{end}\n{said}\n").status is not Status.PASS


@pytest.mark.parametrize(
    "outcome",
    [
        '"status": "completed", "exit_code": 137',
        '"status": "running", "exit_code": 137',
        '"state": "done", "result": "failure"',
        '"phase": "Succeeded", "exitCode": 1',
        '"status": "ok", "exit_code": -9',
    ],
)
def test_the_worst_of_a_documents_outcomes_counts(outcome: str) -> None:
    good = re.sub(r"-?[1-9]\d*", "0", outcome).replace("failure", "success")
    assert of(f'{WORK}{END}{{"message": "job over", {good}}}\n').status is Status.PASS
    assert of(f'{WORK}{END}{{"message": "job over", {outcome}}}\n').status is not Status.PASS


@pytest.mark.parametrize("end", ["", END])
@pytest.mark.parametrize(
    "said",
    [
        "Job ended: SIGKILL",
        "State: NODE_FAIL",
        "job 4711 finished: state=FAILED exit=1",
        "Job ended abnormally",
        "JOB 12 ON n1 REQUEUED",
        "slurm: JobState=FAILED Reason=NonZeroExitCode",
        "4711.batch     batch            FAILED      1:0",
        "4711  train  gpu  TIMEOUT  0:0",
        "exited: train (terminated by SIGKILL; not expected)",
        "train.service: Main process exited, code=killed, status=9/KILL",
        "train.service: Failed with result 'signal'.",
        "Pod train-0 terminated: reason=OOMKilled",
        "kubelet: Killing container with id docker://x: Need to kill Pod",
        "PBS Job Id 12 Exit_status=271",
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
        "Job 'raysubmit_abc' FAILED",
        "mpirun: process rank 3 terminated: SIGBUS",
        "worker 3 ended: signal 9",
        "node n1 went DOWN",
        "##[error]Process completed with exit code 1.",
        "Finished: FAILURE",
        "rc=1",
    ],
)
def test_a_supervisors_word_of_a_bad_end_is_no_pass(end: str, said: str) -> None:
    assert of(f"{WORK}{end}{said}\n").status is not Status.PASS


@pytest.mark.parametrize(
    "said",
    [
        "ERROR ANALYSIS: top-1 12.3 %",
        "final error: 0.12",
        "epoch 1 top-1 error: 60.94 %  (best error so far)",
        "0 errors",
        "failed requests: 0",
        "wandb: ERROR no such file: .netrc",
        "Job ended: COMPLETED",
        "State: COMPLETED",
        "exited: train (exit status 0; expected)",
        "train.service: Deactivated successfully.",
        "Finished: SUCCESS",
        "4711.batch batch COMPLETED 0:0",
        "All processes exited with status 0",
        "Error in atexit._run_exitfuncs:",
        "rm: cannot remove '/tmp/x': No such file or directory",
        "killed requests: 0",
        "Connection to coordinator closed cleanly",
        "exited: metrics (exit status 0; expected)",
        '{"msg": "results are taken home", "status": "ok", "exit_code": 0}',
        "Upload 3 LFS files: 100%|##########| 3/3 [00:05<00:00,  2.56it/s]",
        "[rank0]:[W101 ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed before we destruct it.",
    ],
)
def test_a_calm_word_behind_a_good_end_passes(said: str) -> None:
    assert of(f"{WORK}{END}{said}\n").status is Status.PASS


@pytest.mark.parametrize(
    ("calm", "bad"),
    [
        ("Loss went down by 3%", "the node went down"),
        ("loss is down from 9.1 to 2.1", "node n1 is down"),
        ("server: connection from 10.0.0.1 closed", "Connection to 10.0.0.1 closed by remote host."),
        ("Connection pool reset", "ssh: connection reset"),
        ("Shutting down: killing workers", "Killing container train-0"),
        ("autosave suspended", "job 12 was suspended"),
        ("INFO profiler ended, signal 0", "worker ended, signal 9"),
        ("version 1.2, rc 1 of 3", "rc 1"),
        ("Evaluated 1319 samples, 1319 expected", "Evaluated 1318 samples, 1319 expected"),
        ("validation: expected 5 files, found 5", "validation: expected 5 files, found 4"),
        ("checkpoint has 291 tensors, expected: 291", "checkpoint has 290 tensors, expected: 291"),
        ("tokens/s 12000, packets lost: 0", "tokens/s 12000, packets lost: 7"),
        ("0 failed", "rank 0 failed"),
        ("0 requests timed out", "10 requests timed out"),
        ("unexpected keys: []", "unexpected keys: [w]"),
        ("12 copied, failed: 0", "upload summary: ok 12, failed 3, skipped: 0"),
        ("killed requests: 0", "checkpoint upload failed for 3 shards (aborted: 0)"),
        ("all containers exited", "container exited 137"),
        (
            "ckpt:  100%|##########| 10.0G/10.0G [00:41<00:00, 106MB/s]",
            "ckpt:  43%|####      | 4.31G/10.0G [00:41<00:53, 106MB/s]",
        ),
        ("ckpt: 100%|##########| 1.00G/1000M [00:41<00:00, 1MB/s]", "ckpt:  90%|####      | 900M/1.00G [00:41<00:53, 106MB/s]"),
    ],
)
def test_what_is_bad_of_a_job_is_calm_of_a_figure(calm: str, bad: str) -> None:
    assert of(f"{WORK}{END}{calm}\n").status is Status.PASS
    assert of(f"{WORK}{END}{bad}\n").status is not Status.PASS


@pytest.mark.parametrize(
    "end",
    [
        "Early stopping triggered at epoch 50. Training finished.",
        "Training completed. Stopping services.",
        "Training finished: stopping at epoch 50, best model restored",
        "val_loss did not improve for 5 epochs, stopping. Training completed successfully.",
        "Training finished successfully, stopping workers",
    ],
)
def test_what_stops_in_good_order_is_a_good_end(end: str) -> None:
    assert of(f"{STEPS}{end}\n").status is Status.PASS
    assert of(f"{STEPS}Training finished, stopping due to a lost node\n").status is not Status.PASS


@pytest.mark.parametrize(
    "said", ["rank 3: training finished", "[rank1]: done", "worker 2 completed successfully", "node n1: exit code 0"]
)
def test_the_end_of_a_rank_beyond_the_first_is_not_the_jobs(said: str) -> None:
    assert of(f"{STEPS}{said}\n").status is Status.UNKNOWN
    assert of(f"{STEPS}{said}\n{END}").status is Status.PASS


def test_as_many_ends_as_ranks_are_the_jobs() -> None:
    assert of("".join(f"[rank{rank}]: Training finished\n" for rank in (1, 2, 3))).status is Status.UNKNOWN, "rank 0 has not"
    spawned = "[2026-01-01 09:00:00,000] [INFO] [launch.py:164:main] nnodes=1, num_local_procs=2, node_rank=0\n"
    ends = ["rank 1: training finished\n", "rank 2: training finished\n"]
    assert of(spawned + STEPS + ends[0]).status is Status.UNKNOWN
    assert of(spawned + STEPS + "".join(ends)).status is Status.PASS
    assert of(spawned + STEPS + ends[0].replace("1", "0")).status is Status.PASS, "the first rank speaks for all"
    assert of(STEPS + "[rank3]: Training finished\n").status is Status.UNKNOWN, "there are three more"
    assert of(WORK + "[rank3]: Training finished\n").status is Status.UNKNOWN, "whatever was counted"
    assert (
        of("".join(f"[rank3]: {line}\n" for line in WORK.splitlines()) + "[rank3]: Training finished\n").status is Status.PASS
    )
    assert of(STEPS + "[rank0]: Training finished\n").status is Status.PASS
    own = "".join(f"[rank1]: {line}\n" for line in STEPS.splitlines())
    assert of(own + "[rank1]: Training finished\n").status is Status.PASS, "a file of one rank's own"


LEFT = "job exit code 0\n"
TRACEBACK = (
    "Traceback (most recent call last):\n  File \"/w/t.py\", line 9, in <module>\n    import fast\nImportError: no 'fast'\n"
)


@pytest.mark.parametrize(
    "record",
    [
        "W2026-11-27 18:48:25,376 train] no cluster found, going on alone",
        "2026-11-27 18:48:28,353 | ERROR    | fast is not there, going on with plain DDP",
        "WARNING:trainer:fast is not there",
        "[2026-11-27 18:48:28] ERROR main: cannot import fast",
        "WARNING 04-07 10:00:00 platform.py:12] no fast",
    ],
)
def test_a_record_above_a_traceback_says_that_it_was_caught(record: str) -> None:
    assert of(f"{record}\n{TRACEBACK}{STEPS}{LEFT}").status is Status.PASS
    assert of(f"{WORK}{record}\n{TRACEBACK}").status is Status.FAIL, "nothing follows"
    assert of(f"{record}\nother words\n{TRACEBACK}{STEPS}{LEFT}").status is not Status.PASS, "it is of another line"
    ends = (
        record.replace("no ", "no more, exiting: ").replace("cannot", "exiting: cannot").replace("fast is", "exiting: fast is")
    )
    assert of(f"{ends}\n{TRACEBACK}{STEPS}{LEFT}").status is not Status.PASS, "it ends with it"


@pytest.mark.parametrize(
    "record",
    [
        "2026-11-27 22:00:00,123 WARNING train: slow batch",
        "[2026-11-27 22:00:00,123] [WARNING] [stage3.py:1949:step] 1 pytorch allocator cache flushes since last step",
        "2026-11-27 22:00:00,123 [ERROR] NaN batch skipped",
        "WARNING:torch.utils:slow loader",
        "2026-11-27 22:00:00,123 WARNING data: errors: 0, slow loader",
        "2026-11-27 22:00:00,123 WARNING data: no error so far",
    ],
)
def test_a_record_of_something_else_says_nothing_of_a_traceback(record: str) -> None:
    for behind in (LEFT, "Evaluating last checkpoint\n" + STEPS + LEFT):
        assert of(f"{WORK}{record}\n{TRACEBACK}{behind}").status is not Status.PASS
    caught = "2026-11-27 22:00:00,123 ERROR train: step went wrong: "
    for said in ("ImportError", "no 'fast'", "an exception", "the import failed", "fast is missing, falling back"):
        assert of(f"{caught}{said}\n{TRACEBACK}{STEPS}{LEFT}").status is Status.PASS, said


UNIT = "Mar 02 10:41:00 gpu-7 systemd[1]: motd-news.service: Main process exited, code=exited, status=1/FAILURE\n"


@pytest.mark.parametrize("text", [UNIT, STEPS + UNIT, STEPS + END + UNIT, STEPS + END + UNIT.replace("FAILURE", "X")])
def test_a_unit_that_failed_is_not_known_to_be_the_job(text: str) -> None:
    finding = of(text)
    assert finding.status is Status.UNKNOWN
    assert finding.message.startswith("systemd says that the unit motd-news.service failed; whether it has to do with the job")
    assert finding.evidence["outcome"] != "failed"


@pytest.mark.parametrize(
    ("calm", "bad"),
    [
        ("rank 5: parameter checksum 0x8f31 equals rank 0", "rank 5: parameter checksum 0x8f31 differs from rank 0 (0x11aa)"),
        ("weights differ by less than 1e-6 between ranks", "rank 3: the weights hash mismatches rank 0"),
        ("GPU 3B:00.0: uncorrectable ECC errors: 0", "GPU 3B:00.0: uncorrectable ECC errors: 3"),
        ("mismatches: 0", "mismatches: 12"),
        ("Model could be saved", "Model could not be saved: quota"),
        ("unable to locate the fused kernel", "[rank4]: Unable to save optimizer shard"),
        ("rank 3: mlx5 error: 0", "rank 3: mlx5 error: 12"),
        ("rank 5 error=0.25 in validation", "rank 5 error=110 while sending"),
        ("validation: error: 0", "validation: error: 17 samples wrong on rank 4"),
        ("sum: expected 36.0 got 36.0", "sum: expected 36.0 got 28.0"),
        ("0 个任务失败", "保存模型出错"),
    ],
)
def test_what_no_good_end_undoes(calm: str, bad: str) -> None:
    assert of(f"{WORK}{calm}\n{END}").status is Status.PASS
    assert of(f"{WORK}{bad}\n{END}").status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("calm", "bad"),
    [
        ("validation: True", "validation: False"),
        ("validation: False alarms 3", "allreduce check passed: False"),
        ("link mlx5_2 up since 10:00", "link mlx5_2 down since 10:00"),
        ("counting links down to the last", "port 1 down"),
        ("Loaded 8 of 8 shards", "Loaded 7 of 8 shards"),
        ("Loaded 7 of 8 shards\nLoaded 8 of 8 shards", "loaded 8 of 8 files\nloaded 7/8 shards"),
    ],
)
def test_what_a_test_without_steps_tells_before_its_end(calm: str, bad: str) -> None:
    assert of(f"begin\n{calm}\nrun 1\nrun 2\nAll runs finished\n").status is Status.PASS
    assert of(f"begin\n{bad}\nrun 1\nrun 2\nAll runs finished\n").status is Status.UNKNOWN
