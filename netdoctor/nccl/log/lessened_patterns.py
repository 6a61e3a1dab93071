# ruff: noqa: E501  (a row a line)
"""What a program says itself of work that is worth less than it was to be: no number, fewer GPUs, the CPU, a faulty file.

Each row has its healthy twins in tests/unit/test_log_lessened.py and test_log_no_number.py.
"""

from __future__ import annotations

from typing import Final

from netdoctor.nccl.log.pattern import BEGIN, END, Pattern, row

# --- A loss that is no number any more: what comes after it is worth nothing.
_WHAT: Final = r"(?:step|batch|update|iter\w*|gradient\w*|optimi[sz]er|sample)"
_SKIPPED: Final = rf"(?P<skipped>\bskip(?:ped|ping|s)?\b(?: (?:the |this |that )?{_WHAT}\b)?(?:[:,(.]| \d).{{0,80}})?"
_SKIPPED_BEHIND: Final = (
    rf"(?:.{{0,80}}?(?P<skipped2>\bskip(?:ped|ping|s)?\b(?: (?:it|(?:the |this |that |current )?{_WHAT}s?)\b|\W*$|[,;.:)])"
    r"(?!.{0,20}[:=] {0,4}0\b)))?"
)
# The best, the least and the first figure begin as infinite, and are no loss of a step.
_EXTREMES: Final = ("best", "min", "max", "lowest", "highest", "initial", "best val", "best eval", "best validation")
_NO_EXTREME: Final = (
    "".join(f"(?<!{word} )" for word in _EXTREMES)
    + r"(?!(?:[\w/.\-]{0,40}[_/.\-])?(?:best|min|max|minimum|maximum|lowest|highest|init|initial|baseline)[_/.\-])"
)


def _no_number(words: str, needles: str = "nan|inf|finite") -> Pattern:
    return row("no_number", needles, f"{_SKIPPED}(?:{words}){_SKIPPED_BEHIND}", "skipped gradient")


# --- Fewer than there were to be.
_THINGS: Final = r"(?:GPUs|devices|nodes|ranks|workers|hosts)"
_GOES_ON: Final = r"(?:going on|carrying on|continuing|proceeding)"
_GONE: Final = "unavailable|missing|lost|unhealthy|offline|dead"
# --- The CPU, for want of a GPU.
_GPU: Final = r"(?:CUDA|GPUs?|ROCm|HIP)"
_NOT_THERE: Final = r"(?:not (?:available|found|detected|usable|installed)|unavailable)"
# Of one part of the work, as its data are made ready: the steps themselves are not said to be on the CPU.
_PART: Final = (
    r"\bop(?:erator|s)?\b|aten::|decod|kernel|\bDALI\b|\bCPU launch\b|(?<!\w)(?:de)?token\w*|resampl|augment"
    r"|pre-?process|post-?process|faiss|data[ _-]?load|jpeg|\bvideo|\baudio|\bindex"
)
_OF_ALL: Final = rf"^(?!(?!.*\b(?:CPU training|train\w* on (?:the )?CPU)\b).*(?:{_PART}))"


def _on_the_cpu(needles: str, words: str) -> Pattern:
    return row("lessened", needles, rf"(?P<cpu>{_OF_ALL}.*{words})")


# --- A start from scratch, for want of a checkpoint that could not be read.
_RESTORE: Final = r"(?:restor|load|resum|read)\w*"
_BROKEN: Final = r"(?:fail(?:ed|ure|s)|corrupt\w*|damaged|truncated|unreadable|incomplete|readable)"
_FROM_SCRATCH: Final = (
    r".{0,80}\b(?:re)?(?:(?:start|train|initiali[sz]|begin)\w* (?:training )?"
    r"(?:from (?:scratch|zero|(?:step|epoch) 0|the beginning)|anew|afresh)|start(?:ing)? (?:fresh|over))\b"
)
_SCRATCH: Final = "from scratch|anew|afresh|from zero|from the beginning|starting fresh|starting over|start fresh|start over|from step|from epoch"


def _from_scratch(words: str) -> Pattern:
    return row("lessened", _SCRATCH, rf"(?P<scratch>{words}{_FROM_SCRATCH})")


PATTERNS: Final = (
    _no_number(
        rf"(?<![\w/.\-])-{{0,2}}{_NO_EXTREME}"
        r"(?P<quantity>(?:\w[\w/.\-]{0,40}[_/.\-])?(?:loss(?:es)?|ppl|perplexity|nll|reward)(?![_/.\-](?:best|min|max|init|baseline)\b)\w{0,12})\b"
        r"['\"]?\W{1,12}(?:tensor\()?[+-]?(?:nan|inf(?:inity)?)\b(?! ?\(?(?:baseline|initial))"
    ),
    _no_number(
        r"\bloss (?:is|was|became|went) (?:nan|inf|(?:non-?|not )finite)\b|\b(?:non-?finite|nan|inf(?:inite)?) loss(?:es)? (?:encountered|detected|found|at step)\b"
    ),
    _no_number(
        r"\b(?:nan|inf|non-?finite)s?(?: values?)? (?:(?:was|were|is|are) )?(?:encountered|detected|found|appeared) in (?:the )?(?:\w{1,20} )?loss\b"
    ),
    _no_number(r"\b(?P<gradient>grad(?:ient)?[_ ]?norm)\b['\"]?\W{1,12}nan\b", "nan"),
    row(
        "lessened",
        "going on|carrying on|continuing|proceeding",
        rf"(?<![\w.])\d+ (?:\w+ )?(?:joined|came|ready|alive|present|available|healthy|up|of|out of)\b.{{0,20}}?(?<![\w.])(?P<all>\d+)\b.{{0,40}}\b{_GOES_ON} (?:anyway )?with (?:only )?(?!(?P=all)\b)\d+",
    ),
    row(
        "lessened",
        _GONE,
        rf"\b(?:using|with|on|over) (?:only )?\d+ (?:of \d+ )?(?:GPUs?|nodes|ranks|devices|hosts)\b[ ,;:(\-]{{1,4}}(?:[1-9]\d* (?:\w+ )?|(?:GPU|node|rank|device|host) \S{{1,40}} is )(?:{_GONE})\b",
    ),
    row(
        "lessened",
        "continuing|going on|proceeding|carrying on",
        rf"\b(?:dropp|remov|exclud|ignor)ing (?:the )?(?:node|rank|worker|host|GPU)\b.{{0,120}}\b{_GOES_ON}\b",
    ),
    row(
        "lessened",
        " gpus| devices| nodes| ranks| workers| hosts",
        rf"\b(?:(?:running|training|working|starting|launching|continuing|proceeding)(?: \w+)? (?:on|with|over)|using) (?:only )?(?P<some>\d+) ?(?:of|out of|/) ?(?:the )?(?!(?P=some)\b)\d+ (?:\w+ )?{_THINGS}\b(?! per)(?!.{{0,40}}\b\d+ for \w)",
    ),
    row(
        "lessened",
        "but only",
        rf"\bexpected (?P<some2>\d+) (?:\w+ )?{_THINGS},? but only (?!(?P=some2)\b)\d+\b.{{0,40}}\b{_GOES_ON}\b",
    ),
    row(
        "lessened",
        "unavailable",
        r"\b(?:GPU|node|rank|device|host) \S{1,40} (?:is )?unavailable\b[:;,.] (?:us|continu|proceed)ing\b",
    ),
    # a program's own words; torch/amp (autocast_mode.py, grad_scaler.py), jax/_src/xla_bridge.py, Lightning (log_device_info),
    # TensorFlow (gpu_device.cc, cuda_executor.cc), bitsandbytes (cextension.py), ONNX Runtime (onnxruntime_inference_collection.py)
    row(
        "lessened",
        "is_available()",
        r"\bis_available\(\) (?:returned|is) False\b.{0,20}\busing (?:the )?CPU\b|\busing (?:the )?CPU\b.{0,40}\bis_available\(\) (?:returned|is) False\b",
    ),
    _on_the_cpu(
        "falling back|fell back|fallback|fall back",
        r"\b(?:(?:falling|fell|fall) back|fallback) (?:to|on|onto) (?:the )?CPU(?:ExecutionProvider)?\b(?! ?(?:offload|memory|affinity))",
    ),
    _on_the_cpu(
        "using cpu|using the cpu|running on cpu|running on the cpu|use cpu|use the cpu",
        rf"\b{_GPU}\b.{{0,40}}\b(?:{_NOT_THERE}|found|detected)\b.{{0,40}}\b(?:using|running on|use) (?:the )?CPU(?: instead| only)?\b",
    ),
    _on_the_cpu(
        "using cpu|using the cpu|running on cpu|running on the cpu|use cpu|use the cpu",
        rf"\bno {_GPU}\b.{{0,40}}\b(?:using|running on|use) (?:the )?CPU\b",
    ),
    _on_the_cpu(
        "cpu",
        rf"\b(?:using|running on|device)\W{{1,3}}(?:device\W{{1,3}})?cpu\b.{{0,40}}\b(?:cuda|gpus?)\b.{{0,30}}\b{_NOT_THERE}\b",
    ),
    row(
        "lessened",
        "disabling|used: false|gpu will not be used|training on 0 devices|registering gpu devices|call to cuinit|without gpu support|executionprovider|no nvidia driver",
        r"(?P<cpu>\bCould not find cuda drivers on your machine, GPU will not be used\b|\btraining on 0 devices \(GPUs/TPUs\)|\bCUDA is not available\.? {1,2}Disabling\b|\bGPU available: .{1,30}, used: False\b|\bSkipping registering GPU devices|failed call to cuInit: \w+"
        r"|was compiled without GPU support|Failed to create CUDAExecutionProvider|Specified provider 'CUDAExecutionProvider' is not in available"
        r"|CUDA initialization: Found no NVIDIA driver)",
    ),
    # the device that it chose, where a line says nothing else, and is no member of a list of settings nor of an optimizer's state: transformers' pipelines ("Device set to use") and its examples
    row(
        "lessened",
        "cpu",
        rf"^(?!\s{{2,}}\w)(?!.*(?:Adam\b|offload)){BEGIN}[\d\-/:.,TZ \[\]]{{0,40}}(?:\[?(?:INFO|WARNING|DEBUG)\]?[ :|\-]{{1,3}}|[\w.]{{1,60}}(?:: ?| - | ?\| ?)){{0,4}}(?P<chosen>(?:(?:using|running on|training on|selected|torch|compute|training|default) )?device(?: set to use| set to| is|:| =|=| ) ?(?:torch\.device\()?['\"]?cpu\b(?: \(0 GPUs\))?|(?:running|training)(?: the model)? on (?:the )?cpu\b|using (?:the )?cpu(?: device)?\b)['\")]{{0,3}}[.!]{{0,3}}{END}",
    ),
    # that it was asked for: an option, or a variable of JAX's, Accelerate's, transformers' and CUDA's; that the last is
    # empty, a script prints where its scheduler gave it no GPU
    row(
        "meant_cpu",
        "cpu|cuda|gpu",
        r"(?<![\w\-])--?(?:device|device[_-]type|accelerator|platform|compute[_-]device)(?:=| )['\"]?cpu\b|(?<![\w\-])--(?:cpu|use[_-]cpu|no[_-](?:cuda|gpu)|cpu[_-]only)\b|\b(?:JAX_PLATFORMS|JAX_PLATFORM_NAME|XLA_DEVICE)=['\"]?cpu\b|\bACCELERATE_USE_CPU=(?:1|[Tt]rue)\b|\bCUDA_VISIBLE_DEVICES=(?:-1|''|\"\")(?=\s|$)|\bcpu\b.{0,12}\((?:as )?(?:configured|requested|asked|by request)\)",
    ),
    row("lessened", "ultralytics", r"\bUltralytics \S{1,20} .{0,40}(?P<chosen>\btorch-\S{1,30} CPU \()"),  # its select_device
    row("lessened", "n_gpu", r"(?P<chosen>\bdevice: cpu, ?n_gpu: 0)"),
    row(
        "lessened",
        "gloo",
        r"(?P<gloo>\bNCCL\b.{0,40}\b(?:not available|unavailable|not found)\b.{0,40}\b(?:using|(?:falling back|fallback|switching|switched) to) gloo\b|\busing gloo\b.{0,40}\bNCCL\b.{0,30}\b(?:not available|unavailable|not found)\b)",
    ),
    _from_scratch(
        rf"\b(?:(?:{_RESTORE}|checkpoint|ckpt)\b.{{0,80}}\b{_BROKEN}|(?:no such|bad|corrupt\w*|damaged|broken) (?:checkpoint|ckpt))\b"
    ),
    _from_scratch(
        rf"\b(?:could(?: not|n.t)|cannot|can.t|fail\w*|unable|error)\b(?!.{{0,20}}\bfind\b).{{0,80}}\b{_RESTORE}\b.{{0,40}}"
    ),
    row(
        "lessened",
        "differ|mismatch|not match|incorrect|is wrong",
        r"^(?!.*(?:download|retr[yi]|fetch|\bno |\b0 )).*\b(?P<sum>checksum|sha256|md5|crc32c?)\b.{0,100}\b(?:differs?|mismatch(?:es|ed)?|do(?:es)? not match|did not match|incorrect|is wrong)\b",
    ),
)
