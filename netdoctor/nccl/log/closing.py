"""How programs and scripts say that they have come to their end, and how a count of their work does: by grammar.

Such words are weak.  They count only as the last that a log tells, of a program whose own count is full or that has none: a
part of the work ends in the same words.  What they show is "closed": the end of a process, which refutes nothing that came
before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from netdoctor.nccl.log.counts import Counts
from netdoctor.nccl.log.levels import Level, level

LINES: Final = 25  # at the end of a log, in which a program says that it is done
_TOLD: Final = 2  # lines of which a log consists at least where none shows work
_LONGEST: Final = 300  # bytes of such a line
# Launchers' marks, loggers' heads and ornaments before the words, taken away one after the other.
_MARK: Final = re.compile(
    rb"[ID](?=\d{4}-)"
    rb"|\[[^\]]{0,80}\]:?|\(\w+ pid=[^)]*\)|\d{1,7}: |[\d\-/:.,TZ]{6,40}(?=\s)|(?:INFO|NOTICE|SUCCESS)\b(?::\w{1,60})?:?"
    rb"|[A-Z]{3,9} {0,8}[-|] |[a-z_][\w.]{0,60}(?::\d{1,6}\]?| [-|]| ?:|\]) |[^\w\s]{1,200}|\s{1,200}"
)
_MOST_MARKS: Final = 16
_WHOLE: Final = (
    rb"(?:(?:all|the|whole|entire|full|model|distributed|multi-?(?:node|gpu)|pre-?|fine-?|post-?) ?){0,3}"
    rb"(?:train\w*|tun(?:ing|ed)|jobs?|runs?|scripts?|program|tests?|testing|benchmark\w*|eval\w*|inference|experiments?"
    rb"|generation|process(?:ing)?|tasks?|work(?:load|flow)?|pipeline|steps|epochs|ranks|sweep|search|demo|example|simulation"
    rb"|rollouts?|validation|export|conversion|everything)\b"
)
_DONE: Final = rb"(?:done|finished|completed?|succeeded|ended|passed|successful(?:ly)?)\b"
_WHEN: Final = (
    rb"(?: \w{1,12}ly)?(?: (?:(?:in|after|at|on|with|for)\b|@).{0,120}"
    rb"|[:.!,]? ?\(?[\d.:]+ ?(?:s|sec\w*|min\w*|h|hours?)\b.{0,40}|[!.] .{1,120}"
    rb"|, [a-z ]{1,40}[:=] ?[\w.,%\-]{1,30})?\W{0,12}$"
)
_COMPLETED: Final = re.compile(
    rb"(?:(?:all (?:[\w\-]{1,30} ){0,4}|everything (?:is )?)?"
    + _DONE
    + _WHEN
    + rb"|"
    + _WHOLE
    + rb".{0,40}?\b(?:(?:is|are|was|were|has|have|been) ){0,2}(?:successfully )?"
    + _DONE
    + _WHEN
    + rb"|(?:successfully )?(?:finished|completed|done(?: with)?) "
    + _WHOLE
    + rb".{0,80}$)",
    re.IGNORECASE,
)
# "Pre-training is done", in Chinese, Japanese and Korean; not "before", "not", "failed", "begins", "in part".
_COMPLETED_ELSEWHERE: Final = re.compile(
    "(?:^|[\\s:>|\\]])[^\\d\\s]{0,24}(?:训练|微调|评估|测试|推理|任务|运行|处理|导出|转换|生成|実行|学習|処理|評価|학습|훈련|실행|평가)[^\\d]{0,8}"
    "(?:完成|结束|完毕|完了|終了|成功|완료|종료)[^\\d]{0,8}$"
)
_ELSEWHERE_NOT: Final = re.compile("[未没不无失错误开始前后待中部]|等|までに|ない|안|실패|못|전에|시작")
# The same in a line that shows work itself, as where it tells the last step; and how long all of it took.
_OF_ALL: Final = re.compile(
    rb"(?:the |this |all )?(?:runs?|jobs?|script|program|(?:pre-?|fine-?)?train\w*|experiment)"
    rb"(?: (?:is|was|are|were|has|have|been|now))*(?: successfully)? "
    + _DONE
    + rb"|best metric: [\d.]{1,12} \(epoch \d{1,6}\)$",  # the last of timm's train.py
    re.IGNORECASE,
)
_TOOK: Final = re.compile(
    _WHOLE + rb"(?: \w{1,12})? (?:took|lasted|has taken)\b.{0,20}\d",
    re.IGNORECASE,
)
# The same of a total, which may be an evaluation's ("Test: Total time: 0:08:44 (0.1878 s / it)", as MetricLogger tells it).
_TOTAL: Final = re.compile(
    rb"(?P<part>[A-Za-z]{1,12}: total time)\b\W{1,4}\d|(?:total (?:train\w*|run) time|train\w* total time)\b\W{1,4}\d",
    re.IGNORECASE,
)
# What a shell's script says of its end, a scheduler of the exit, and bash's `time`.
_EXIT: Final = re.compile(
    rb"(?:.{0,60}\b(?:exit(?:ed|ing)?(?: with)?(?: (?:code|status))?|exit_?code|rc|return(?:ed)? ?(?:code|status)?|status)"
    rb" ?[:=]? ?[\"']?0(?::0)?[\"']?\W{0,12}$"
    rb"|(?:.{0,30}\b)?(?:end(?:ed)?|finish(?:ed)?|completed|stopped)(?: time| date| timestamp)?(?: at| on)?"
    rb"\W{1,4}.{0,20}\d\d:\d\d.{0,20}$"
    rb"|(?:real|sys)\s+\d{1,6}m[\d.]{1,8}s$)",
    re.IGNORECASE,
)
# What it has brought: last figures of the whole, and where they are.
_RESULT: Final = re.compile(
    rb"(?:(?:(?:final|overall)(?:\b|_)|total (?:\w+ )?(?:time|runtime|duration|elapsed)|elapsed|wall[ -]?(?:clock|time)"
    rb"|time (?:taken|elapsed)|end-to-end|e2e)[^?]{0,80}\d"
    rb"|.{0,80}\b(?:saved|wrote|written|exported|stored|dumped|uploaded|pushed)\b.{0,80}[/.\\]\w"
    rb"|(?:(?:final|eval\w*|test|validation|benchmark) )?(?:results?|summary)\b.{0,60}[:/\d])",
    re.IGNORECASE,
)
_ROW: Final = re.compile(rb"\|[^|]{1,100}\|.{0,200}\d.{0,80}\|\s*$")  # of a table
# The very last line: a mean of all that came before; the end of a document whose members have numbers.
_SUMMARY: Final = re.compile(rb"(?:average|avg|mean|median)\b.{0,80}\d", re.IGNORECASE)
_MEMBER: Final = re.compile(rb"\s+\"[^\"]{1,80}\": -?\d")
_NAMED_FIGURE: Final = re.compile(rb"\s*[A-Za-z][^=]{1,80}[: ] *[+\-]?\d[\d.,]*\b")
_RULE: Final = re.compile(rb"\s*[=\-*]{8,}\s*$")
_BRACE: Final = re.compile(rb"[\]}]+\s*$")
# Of another time than the end: a beginning, a condition, what is to come.
_NOT_YET: Final = re.compile(
    rb"\b(?:without|before|until|till|when|once|if|will|would|should|can|cannot|to be|skipp\w*|waiting|warn\w*"
    rb"|download\w*|load\w*|initiali[sz]\w*|compil\w*|captur\w*|set ?up|start\w*)\b",
    re.IGNORECASE,
)
# How a process, a job or a node came to no good end, in the words of whoever watches it: signal(7), systemd's units
# (src/core/service.c), Slurm's states and LSF's (sacct, bjobs), a kubelet's reasons.
BAD_END: Final = (
    rb"\bsig(?:kill|segv|abrt|bus|ill|fpe|quit|xcpu|xfsz|sys)\b|\b(?:status|code)=(?!(?:0|2|15)/)(?:\d{1,3}/[a-z]|dumped|killed)"
    rb"|\bout_of_me\w*|\boom[_ -]?kill\w*|\b(?:node|boot)_fail\w*|\babnormal\w*|\brequeue[sd]?\b"
    # of a node, a job, a process: losses go down, an autosave is suspended, and a program kills its own helpers at its end
    rb"|\b(?:jobs?|tasks?|steps?|process\w*|nodes?|partition|instance|vm|pods?|containers?|session|state)\b.{0,40}\bsuspended\b"
    rb"|(?-i:\bSUSPENDED\b)"
    rb"|\b(?:nodes?|hosts?|ranks?|workers?|gpus?|nics?|links?|ports?|servers?|peers?|devices?|jobs?|process\w*"
    rb"|daemon|pods?|containers?)\b"
    rb"[^,;.]{0,40}\b(?:went|goes|is|are|was) (?:offline|dead|gone|down)\b(?! (?:by|from|to)\b)"
    rb"|(?-i:\bDOWN\b)|\b(?:need|had) to kill\b"
    rb"|\bkilling (?:the )?(?:containers?|pods?|jobs?|tasks?|steps?|node|training|program|run)\b"
    rb"|\bconnection\b.{0,80}\b(?:closed|dropped|reset) by\b|\bconnection (?:was |has been |unexpectedly )*(?:dropped|reset)\b"
    rb"|\bended\b.{0,20}\bsignal [1-9]|^\+{1,5} exit [1-9]"
    rb"|(?<![\w\-])(?:rc|exit_?(?:code|status)|return_?code)\W{1,3}[1-9]\d{0,9}\b(?!\.\d| of\b)"
    rb"|\bexited(?: with)?(?: code| status)?\W{1,2}[1-9]\d{0,2}\W{0,3}$"
    rb"|(?-i:\b(?:TIMEOUT|CANCELLED|PREEMPTED|DEADLINE|FAILED)\+? +\d{1,3}:\d{1,3}\b)"
)
# What a line says of itself beside its good word: that something is missing of it, or how it ended (sysexits, Slurm's states).
_DOUBT: Final = re.compile(
    rb"\b(?:but|except|although|however|missing|lost|incomplete\w*|partially|premature\w*|interrupt\w*|un\w*success\w*"
    rb"|unreachable|unrespons\w*|hung|hangs?|hanging|stuck|time[sd]?[ -]?out|timeouts?|diverg\w*|cancell?ed|killed|crash\w*"
    rb"|oom|preempt\w*|evict\w*|absent|stalled|disconnected|mismatch\w*|sig(?:term|kill)|disk full|remaining"
    rb"|terminated(?! normally)|abort\w*|fail\w*|errors?|\w*exceptions?|excluded|dropped|corrupt\w*|faulty|unhealthy|degraded"
    rb"|not|never|none|false|nan|inf|empty"
    rb"|no (?:rank|node|worker|test|task|result|output|checkpoint|gpu|process)\w*)(?![\w/])"
    rb"|\bdiffers?\b(?! (?:by|at) (?:less|most)\b)"
    rb"|\bover (?:capacity|quota|budget|(?:its |the )?limit)\b|\b(?:no|out of) (?:disk |more )?(?:space|time|budget)\b"
    rb"|\binsufficient\b"
    rb"|\bgiv(?:es?|ing) up\b|out[ _]of[ _]memory|\b(?:status|state|result|outcome)['\"]? ?[:=] ?['\"]?"
    rb"(?!(?:ok|success\w*|succeeded|pass\w*|complete\w*|finished|done|true)\b|\d+\.\d)[a-z1-9]"
    rb"|\b(?:exit(?:ed)?(?:[ _]?(?:code|status|value))?|return(?:ed)?[ _]?(?:code|status|value)|rc)\W{0,4}[1-9]\d{0,2}\b(?!\.)"
    rb"|\bsignal\W{1,3}(?:sig|[1-9])|\w\?|\bstopping(?: ?:| (?:due|because|on (?:an? )?(?:signal|error)))"
    rb"|" + BAD_END,
    re.IGNORECASE,
)
# None of what would be bad, figures of that name, and names of files.
_NO_DOUBT: Final = re.compile(
    rb"\b(?:no|0|without(?: any)?) (?:\w{1,20} )?"
    rb"(?:errors?|fail\w*|warnings?|exceptions?|time-?outs?|crash\w*|missing|lost|nan)\b"
    rb"|\b\w*(?:errors?|fail\w*|time-?outs?|missing|lost|dropped|nan|exceptions?)\w*['\"]?\W{1,4}"
    rb"(?:0\b(?!\.)|-?\d{0,9}\.\d+|-?\d{1,9}(?:\.\d+)?(?:e-\d{1,3}\b|\s?%)|none\b|null\b)"
    rb"|\bearly[_ -]?stop\w*['\"]?\W{1,4}false\b|\b(?:no|none|0) remaining\b|\bremaining['\"]?\W{1,4}(?:0\b(?!\.)|00?:00)"
    rb"|\b(?:did not|didn't|has not|not) improv\w*|\berror rate\b|(?<!\S)\S*/\S*|(?<!\S)[\w.\-]+\.[a-z]\w{1,6}(?!\S)"
    # torch's own last words, and its C++ part's, which say what was not done or may come
    # and SGLang's, that it was told to end and does
    rb"|\bSIGTERM received\. signum=.{0,200}Draining requests and shutting down"
    rb"|.*interpreter state is not initialized\..*|process group has NOT been destroyed"
    rb"|destroy_process_group\(\) was not called",
    re.IGNORECASE,
)
# How many of all came to it: "7 of 8 ranks", "completed: 0/8".
_SOME: Final = re.compile(
    rb"(?:\b(?:completed?|finished|done|passed|ok|succeeded"
    rb"|(?:rank|node|worker|gpu|process|task|job)\w*)\W{1,3}(?=\d+ ?/ ?\d+\W*$)|(?<![\w./\-])"
    rb"(?=\d+ ?(?:/|of|out of) ?\d+ (?:ok\b|passed|succe"
    rb"|\w{0,20} ?(?:rank|node|worker|gpu|process|task|job|test|host|check|pod|shard|replica|file))))"
    rb"(?P<at>\d{1,7}) ?(?:/|of|out of) ?(?P<all>\d{1,7})",
    re.IGNORECASE,
)
_OVER: Final = re.compile(
    rb"\b(?:training (?:has |is |was )?(?:completed?|finished|done|over)|(?:finished|completed|done with) training"
    rb"|completed successfully|exit code 0|all done|job .{0,80} succeeded)\b",
    re.IGNORECASE,
)
# A program takes no further steps, by its own will: early, or as many as it was to, for as good as it was to be, as long as it
# was to.  What it only counts for that ("EarlyStopping counter: 1 out of 7"), is set to do or has not come to is none of it.
_ENOUGH: Final = (
    rb"(?:max(?:imum)?|target|desired|goal|limit)(?:\b|_).{0,40}?(?<![a-z])"
    rb"(?:steps?|epochs?|iter(?:ation)?s?|updates?|tokens|samples|acc\w*|loss|quality|score|metric|perplexity|ppl|m?ap)(?![a-z])"
)
_COUNTED_FOR: Final = (
    rb"(?:counter\W{1,3}(?=\d)(?!(?P<n>\d+) (?:out )?of (?P=n)\b)|patience|callback|enabled|false|true|monitor)"
)
_STOPS: Final = re.compile(
    rb"\bearly[ _-]?stop(?!\w*['\"]?\W{1,4}" + _COUNTED_FOR + rb")|\bstop\w*[ _-]early\b"
    rb"|(?<!not )\breached (?:the |its |a )?(?:" + _ENOUGH + rb"|\d{1,12} (?:steps|epochs|iter(?:ation)?s)\b)"
    rb"|\b" + _ENOUGH + rb".{0,30}?(?<!not )(?<!not been )\b(?:reached|hit|met)\b"
    rb"|(?<!not )(?<!n't )(?<!never )\bconverged\b"
    rb"|\b(?:no improvement|(?:not|n't) improved?)\b.{0,80}\bstop"
    rb"|\b(?:time|wall\w*|tokens?|compute|flops?|training|samples?) budget\b.{0,30}\b(?:used up|exhausted|reached|spent|hit)\b",
    re.IGNORECASE,
)


def doubtful(line: bytes) -> bool:
    """Whether a line that has a good word for the end takes it back itself: "training finished with errors", "7 of 8 ranks"."""
    line = line[:_LONGEST]
    some = any(int(one["at"]) < int(one["all"]) for one in _SOME.finditer(line))
    return some or _DOUBT.search(_NO_DOUBT.sub(b"", line)) is not None


def stops(line: bytes) -> bool:
    """Whether a program says that it takes no further steps: what was left of them is not to come."""
    # most lines have none of these
    if not (b"arly" in line or b"each" in line or b"onverged" in line or b"mprove" in line or b"udget" in line):
        return False
    return _STOPS.search(line[:_LONGEST]) is not None


def in_words(line: bytes) -> bool:
    """Whether a line only says that the training is over, not why, nor what came of it."""
    return _OVER.search(line) is not None


def took(line: bytes) -> bool:
    """Whether a line says how long all the work took: a part's would come again."""
    if b"otal t" in line and _TOTAL.match(_words(line[:_LONGEST])):
        return True
    named = b" took " in line or b" lasted " in line or b" taken " in line
    return named and _TOOK.match(_words(line[:_LONGEST])) is not None


def _total(tail: Sequence[tuple[int, bytes]], counts: Counts) -> tuple[int, bytes] | None:
    """The line that says how long all took, behind the last one that counts, where the outermost count is full; an evaluation's
    says that only where nothing else was done."""
    for at, said in tail:
        found = _TOTAL.match(_words(said[:_LONGEST])) if b"otal t" in said else None
        if found and at > counts.number and counts.whole and not (found["part"] and counts.numbered) and not doubtful(said):
            return at, said
    return None


def end(
    tail: Sequence[tuple[int, bytes]], work: tuple[int, bytes], counts: Counts, *, once: bool = False
) -> tuple[int, bytes] | None:
    """The line among a log's last ones that says that the program came to its end; `work` is the last that shows work, `counts`
    what that program counts; `once`: how long all took is told a single time."""
    if once and (whole := _total(tail, counts)) is not None:
        return whole
    number, rest = work[0], counts.left
    behind = [(at, said[:_LONGEST]) for at, said in tail if at > number]
    told = [(at, said) for at, said in behind if said.strip()]
    told = told or [work]
    if rest <= 0 and number and _last(told):
        return told[-1]
    if rest <= 0 and number and _OF_ALL.match(_words(work[1][:_LONGEST])):
        behind.insert(0, (number, work[1][:_LONGEST]))
    done = rest <= 1 and (number or len(told) > _TOLD)  # some count from zero; "done" by itself is done with nothing
    for at, said in reversed(behind):
        if level(said) is Level.WARNED or _NOT_YET.search(_NO_DOUBT.sub(b"", said)) or doubtful(said):
            continue
        words = _words(said)
        completed = (done and (_COMPLETED.match(words) or _EXIT.match(words) or _in_other_words(said))) or (
            once and _TOOK.match(words)
        )
        result = rest <= 0 and number and (_RESULT.match(words) or _ROW.match(said))
        if completed or result or at == number:
            return at, said
    return None


def _in_other_words(line: bytes) -> bool:
    if line.isascii():
        return False
    said = _COMPLETED_ELSEWHERE.search(line.decode("utf-8", "replace").strip())
    return said is not None and _ELSEWHERE_NOT.search(said[0]) is None


def _last(told: Sequence[tuple[int, bytes]]) -> bool:
    """Whether the very last line can only be the last."""
    said = told[-1][1]
    document = _BRACE.match(said) is not None and sum(_MEMBER.match(line) is not None for _, line in told) > 1
    ruled = _RULE.match(said) is not None and sum(_NAMED_FIGURE.match(line) is not None for _, line in told) > 2
    return document or ruled or (_SUMMARY.match(_words(said)) is not None and not (_NOT_YET.search(said) or doubtful(said)))


def _words(line: bytes) -> bytes:
    for _ in range(_MOST_MARKS):
        mark = _MARK.match(line)
        if mark is None:
            break
        line = line[mark.end() :]
    return line
