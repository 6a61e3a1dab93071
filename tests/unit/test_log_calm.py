"""Behind a good end: what is told calmly of what was looked for or compared, and what is missing of the result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

ENDED = "".join(f"step {n}/40 loss 2.{n}\n" for n in range(30, 41)) + "Training finished\n"


def status(text: str) -> Status:
    return diagnose(replace(parse_text(text), written=False))[0].status


@pytest.mark.parametrize(
    ("calm", "bad"),
    [
        ("results differ by less than 1e-5 from the reference", "results differ from the reference by 12 %"),
        ("config value lr differs from the default (0.1 vs 0.01)", "sha256 of model.safetensors differs from what was written"),
        ("best checkpoint differs from the last one: keeping both", "reference differs: max abs diff 3.2 > 1e-3"),
        ("peak memory differs per rank: 61.2 GiB to 63.0 GiB", "the weights differ between ranks"),
        ("flash_attn not found; used sdpa", "checkpoint not found at /out/last.pt"),
        ("generation config not found, using defaults", "validation results not found"),
        ("cache miss: tokenizer not found in cache, read from hub", "output file /out/result.json not found"),
        ("could not find a newer checkpoint, keeping the last one", "could not find the checkpoint that was just saved"),
        ("no such checkpoint to remove: ok", "no such checkpoint: 7 of 8 shards are there"),
        ("throughput: 123 samples/s (expected: 120)", "expected 90 checkpoints but found 88"),
        ("results: 91.2 vs. expected 91.0", "expected 8 ranks, got 7"),
        ("val loss: 2.1 (unexpectedly good)", "peer unexpectedly closed"),
        ("ECC errors: 0", "ECC errors: 3"),
        ("uncorrectable ECC errors: 0", "uncorrectable ECC errors: 2"),
        ("0 unhealthy nodes", "GPU 3 is unhealthy and was drained"),
        ("all ranks exited cleanly", "3 ranks exited cleanly, 1 did not"),
        ("loss: 2.1, it did not improve", "the model diverged"),
    ],
)
def test_what_was_looked_for_or_compared_behind_the_end(calm: str, bad: str) -> None:
    assert status(f"{ENDED}{calm}\n") is Status.PASS
    assert status(f"{ENDED}{bad}\n") is Status.UNKNOWN


def test_a_full_bar_that_is_drawn_again_is_no_further_work() -> None:
    """tqdm draws a bar again when it is closed, behind what the program said meanwhile."""
    bar = "1|1625|Loss: 1.58: 100%|##########| 1625/1625 [21:54<00:00,  1.23it/s]"
    saved = "INFO:tune:Model checkpoint of size 2.30 GiB saved to /out/model.safetensors\n"
    assert status(f"{bar}{saved}{saved}{bar}\nRunning with torchrun...\n") is Status.PASS
    assert status(f"{bar}{saved}{saved}{bar.replace('1625', '999')}\nRunning with torchrun...\n") is Status.UNKNOWN
    assert status(f"{bar}\nRunning with torchrun...\n") is Status.UNKNOWN


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("*** Best metric: 81.2 (epoch 299)", ""),
        ("2026-06-01 10:02:00 | INFO | fairseq_cli.train | done training in 1234.5 seconds", "not done training"),
        ("(TaskRunner pid=4) Final validation metrics: {'reward/mean@1': 0.78}", "(TaskRunner pid=4) validating"),
        ("2026-06-15 17:28:57,662 - INFO - 预训练完成！", "2026-06-15 17:28:57,662 - INFO - 预训练未完成！"),
        ("学習が完了しました。", "学習が失敗しました。"),
        ("GPU 1: OK\nAll tests done", "GPU 1: FAULTY\nAll tests done"),
    ],
)
@pytest.mark.parametrize("bar", ["", "(TaskRunner pid=4) Training Progress: 100%|####| 40/40 [5:12:13<00:00, 187.3s/it]\n"])
def test_a_programs_own_way_to_say_that_it_is_done(said: str, instead: str, bar: str) -> None:
    """A bar may be drawn full behind it."""
    work = "".join(f"(TaskRunner pid=4) step {n}/40 loss 2.{n}\n" for n in range(3, 40, 3))
    assert status(f"{work}{said}\n{bar}") is Status.PASS
    assert status(f"{work}{instead}\n{bar}") is Status.UNKNOWN


@pytest.mark.parametrize("said", ["uploaded 7/8 files", "retrying the upload (attempt 2/5)", "pmix_server: unable to connect"])
def test_what_is_not_over_is_no_end_behind_a_full_count(said: str) -> None:
    work = "".join(f"step {n}/40 loss 2.{n}\n" for n in range(30, 41))
    assert status(f"{work}uploaded 8/8 files\n") is Status.PASS
    assert status(f"{work}{said}\n") is Status.UNKNOWN


def test_an_error_behind_nccls_own_end_counts_too() -> None:
    """Of a program that tells nothing of its work."""
    left = "node01:100:130 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1000 - Destroy COMPLETE\n"
    up = "node01:100:130 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1000 commId 0x2 - Init COMPLETE\n"
    assert status(up + left + "bye\n") is Status.PASS
    assert status(f"{up}{left}checkpoint upload failed\n") is Status.UNKNOWN


@pytest.mark.parametrize(
    ("calm", "bad"),
    [
        ("sum: expected 36.0 got 36.0", "sum: expected 36.0 got 28.0"),
        ("expected 28.0, got 28.0", "expected 28.0, got 27.0"),
        ("allreduce: got 36.0002, expected 36.0", "allreduce: got 35.02, expected 36.0"),
        ("check: expected 1.0e+03 but got 1.0e+03", "check: expected 1.0e+03 but got 7.5e+02"),
        ("accuracy: expected 91.0 got 91.2", "test: expected 0.5 got nothing, 1 error"),
        ("got 2.5, expected 2.5", "the sum is wrong: got 0.5, expected 1"),
        ("busbw 312.0 GB/s, expected 320.0", "test of the sum: got 312.25 (expected 320.5)"),
    ],
)
def test_a_sum_that_is_another_than_it_was_to_be(calm: str, bad: str) -> None:
    begin, end = "allreduce check, 8 ranks\n", "Test finished\n"
    assert status(f"{begin}{calm}\n{end}") is Status.PASS
    assert status(f"{begin}{bad}\n{end}") is Status.UNKNOWN


@pytest.mark.parametrize(
    ("calm", "bad"),
    [
        ("config of the server not found, using defaults", "node n7 not found: use 7 nodes"),
        ("no such cache: used the default", "No such device mlx5_0, falling back to eth0"),
        ("cannot find tuned.json, using defaults", "cannot find libnccl.so.2, using gloo"),
        ("unable to locate fused_adam, keeping adamw", "unable to locate GPU 5, keeping 7 workers"),
        ("tokenizer not found, using the model's", "ckpt not found, using random weights"),
        ("could not find a newer checkpoint, keeping the last one", "host n7 not found, using the other 7"),
        ("flash_attn not found; used sdpa", "fused kernel not found, using CPU"),
    ],
)
def test_what_a_job_needs_is_not_done_without(calm: str, bad: str) -> None:
    assert status(f"bench start\n{calm}\nrun 1\nBenchmark finished\n") is Status.PASS
    assert status(f"bench start\n{bad}\nrun 1\nBenchmark finished\n") is Status.UNKNOWN


@pytest.mark.parametrize(
    ("calm", "bad"),
    [
        ("Finished copying checkpoint to /nfs/ckpt/step1000", "copying checkpoint to /nfs/ckpt/step1000"),
        ("Done syncing wandb run abc", "Done, syncing wandb run abc"),
        ("[rank0] completed uploading to s3://b/x", "[rank0] Finished the upload, merging shards"),
    ],
)
def test_what_was_finished_is_not_only_begun(calm: str, bad: str) -> None:
    work = "".join(f"step {n}/40 loss 2.{n}\n" for n in range(30, 41))
    assert status(f"{work}{calm}\n") is Status.PASS
    assert status(f"{work}{bad}\n") is Status.UNKNOWN


@pytest.mark.parametrize(
    ("calm", "bad"),
    [
        ("word errors: 312", "bit errors: 312"),
        ("Press CTRL+C to stop, the server can be interrupted at any time", "the server was interrupted"),
        ("char_errors=12", "errors=12"),
    ],
)
def test_a_models_figure_and_an_advice_are_no_trouble(calm: str, bad: str) -> None:
    assert status(f"{ENDED}{calm}\n") is Status.PASS
    assert status(f"{ENDED}{bad}\n") is Status.UNKNOWN


def test_an_allocation_goes_back_when_its_command_is_done() -> None:
    revoked = "salloc: Job allocation 1234 has been revoked.\n"
    assert status(ENDED + revoked) is Status.PASS
    assert status(f"step 30/40 loss 2.1\n{revoked}") is Status.UNKNOWN
    assert status(f"step 30/40 loss 2.1\n{revoked}Training finished\n") is Status.UNKNOWN


@pytest.mark.parametrize(
    ("calm", "bad"),
    [
        ("validation error: 0.12", "rank 3: transport error: 12"),
        ("rank 5 error=0", "rank 5 error=110"),
        ("error: 1e-05", "error: 17"),
        ("top-1 error: 12%", "worker error: 5, see above"),
    ],
)
def test_a_whole_number_behind_an_error_is_a_code(calm: str, bad: str) -> None:
    assert status(f"bench start\nrun 1\n{calm}\nrun 2\nBenchmark finished\n") is Status.PASS
    assert status(f"bench start\nrun 1\n{bad}\nrun 2\nBenchmark finished\n") is Status.UNKNOWN
    assert status(f"{ENDED}{calm}\n") is Status.PASS
    assert status(f"{ENDED}{bad}\n") is Status.UNKNOWN


@pytest.mark.parametrize(
    ("calm", "bad", "end"),
    [
        ("0 个任务失败", "保存模型出错", "训练完成"),
        ("无异常", "训练异常终止", "任务运行结束"),
        ("失败: 0", "节点 3 连接失败", "任务运行结束"),
        ("超时时间: 600", "超时退出", "任务运行结束"),
        ("错误率 0.12", "训练中断,请检查日志", "作业运行结束"),
        ("エラーはありません", "GPU 3 でエラーが発生しました", "学習が終了しました"),
        ("異常検知モデル", "通信に失敗しました", "学習が完了しました"),
        ("오류 없음", "랭크 3 오류 발생", "학습 종료"),
        ("成功 8, 0 失败", "节点 0 连接失败", "训练完成"),
        ("异常值过滤: 12", "12 个节点异常", "训练完成"),
        ("从中断处继续", "自动保存失败", "训练完成"),
        ("조기 중단 사용", "저장 실패", "학습 종료"),
    ],
)
def test_what_went_wrong_is_said_in_other_languages(calm: str, bad: str, end: str) -> None:
    assert status(f"{ENDED.replace('Training finished', '')}{calm}\n{end}\n") is Status.PASS
    assert status(f"{ENDED.replace('Training finished', '')}{bad}\n{end}\n") is Status.UNKNOWN
    assert status(f"start\nload\n{calm}\n{end}\n") is Status.PASS
    assert status(f"start\nload\n{bad}\n{end}\n") is Status.UNKNOWN


@pytest.mark.parametrize(
    ("calm", "bad"),
    [
        ("Optimizer state consolidated", "Consolidating optimizer state on rank 0"),
        ("Finalizing async checkpoint: done", "Finalizing async checkpoint"),
        ("Using fp8 from now on", "Quantizing model to fp8"),
        ("Destroying the process group", "[rank0] Entering barrier before checkpoint"),
        ("Learning rate at the end 1e-05", "2026-01-01 10:00:00,123 - train - INFO - Packing the results"),
        ("Closing the profiler", "Save checkpoint to /out/step1000 begins"),
        ("salloc: Relinquishing job allocation 12", "Compacting the results"),
        ("Shutting down the loader", "INFO:train:Flattening parameters"),
    ],
)
def test_what_a_program_begins_behind_its_last_step_is_not_over(calm: str, bad: str) -> None:
    work = "".join(f"step {n}/40 loss 2.{n}\n" for n in range(30, 41))
    assert status(f"{work}{calm}\n") is Status.PASS
    assert status(f"{work}{bad}\n") is Status.UNKNOWN
    assert status(f"{work}{bad}\nwent well\nAll done\n") is Status.PASS
