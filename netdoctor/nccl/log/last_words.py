"""What a program prints after its last sign of work: of a job that died in a way that no family knows, it is all there is."""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from netdoctor.nccl.log import closing, elsewhere, spoilt, whose
from netdoctor.nccl.log.awaited import Awaited
from netdoctor.nccl.log.counts import Counts, is_bar, unfilled
from netdoctor.nccl.log.levels import Level, level, of_a_starter
from netdoctor.nccl.log.pattern import any_of
from netdoctor.nccl.log.times import minutes

_ILL: Final = re.compile(
    rb"\b(?:errors?|(?-i:[A-Z])\w{1,60}Error|fail(?:ed|ure|ing)?|abort\w*|killed|fatal|crash\w*|panic\w*|died|traceback|\w*exception|assertion"
    rb"|corrupt\w*|faulty|core dumped|segfault|terminat\w*|non-?zero|exit(?:ed|ing)?(?: with)? (?:code|status)\W{0,4}[1-9]"
    rb"|CUDNN_STATUS_\w+|CUBLAS_STATUS_\w+|SystemExit: [1-9]"
    rb"|make(?:\[\d+\])?: \*\*\* )(?!_?\w*[ ]?\.{3,} )",  # make's own, in whatever language
    re.IGNORECASE,
)
# Most lines have none of these letters, which a tree of them tells in a tenth of the time.
_ILL_LETTERS: Final = any_of(
    b"error|fail|abort|killed|fatal|crash|panic|died|traceback|exception|assertion|corrupt|faulty|core dumped|segfault|terminat"
    b"|zero|exit|cudnn_status_|cublas_status_|make".split(b"|")
)
# an error by its level: of glog and absl, in TensorFlow's form and in Ray's
_GLOG: Final = re.compile(rb"(?<![^\s|>:\]])[EF]\d{4} \d\d:\d\d:\d\d|\d\d:\d\d:\d\d(?:\.\d{1,9}: [EF]|,\d{3} [EC] \d{1,10}) \S")
# The same in words that few lines have: it is searched for where one of these is.
_RARE: Final = any_of(
    b"critical|err!|level=|lvl=|severity=|cp: |mv: |rsync: |tar: |tee: |mkdir: |sig|status=|code|out_of_me|oom|_fail|abnormal"
    b"|requeue|suspended|offline|dead|gone|down|kill|connection|ended|rc|exit|return|timeout|cancelled|preempted|deadline|failed".split(
        b"|"
    )
)
_RARELY: Final = re.compile(
    rb"(?-i:CRITICAL|ERR!)|\b(?:level|lvl|severity)=\W?(?:err|fatal|crit|panic)"  # the second is logfmt's
    # the kernel's words (strerror) of what was to be copied, as where a job's script takes its results away
    rb"|(?:^|[\s/])(?:cp|mv|scp|rsync|tar|tee|mkdir): .{1,300}: (?-i:[A-Z][a-z]{1,20})(?: [\w-]{1,20}){1,5}\s*$"
    rb"|\b(?:links?|ports?|nics?|hcas?|interfaces?) (?:[\w.\-/:]{1,40} )?down\b(?! (?:by|from|to|the|for)\b)"
    rb"|" + closing.BAD_END,
    re.IGNORECASE,
)
# A figure of that name, or that there is none ("test error: 0.12", "no errors", "0 failed", "packets lost: 0"), and counts that
# agree: each excuses the clause that it is, and nothing else of its line.
_BAD: Final = (
    rb"(?:fail\w*|kill\w*|abort\w*|crash\w*|drop\w*|reject\w*|skip\w*|time[ds]?[ _-]?outs?|refused|denied|expired|lost"
    rb"|mismatch\w*|unexpected\w*|invalid|stall\w*|unreachable|exceeded|differ\w*|insufficient|missing|uncorrectable|unhealthy|degraded|interrupted)"
)
# None, and not the first of several: "rank 0 failed".
_NOUGHT: Final = (
    rb"".join(b"(?<!%s )" % name for name in b"item rank worker node gpu step shard task process job".split()) + b"0"
)
_NO_COUNT: Final = re.compile(
    rb"\b(?:no|" + _NOUGHT + rb"|without(?: any)?) (?:errors?|fail\w*)|\berror (?:rate|analysis|handl\w*)\b"
    rb"|\b(?:best|lowest) (?:\w{1,20} )?errors?\b"
    rb"|\berrors? \d{1,9}\.\d+(?:e-?\d+)?%?(?:$|[\s,;)}])"
    # a count of wrong words is a model's figure
    rb"|\b(?:word|char(?:acter)?|token|label|spelling)s?[ _]errors?[:=] *\d+"
    # more errors than none are counted, and a whole number is a code, where a fraction is a figure
    rb"|\berrors?[:=] {0,4}(?:(?:0|\d*\.\d+|\d+(?=e-|%))(?:e-?\d+)?%?|none|null|\"\")(?:$|[\s,;}])"
    rb"|(?<![\w.])(?:no|" + _NOUGHT + rb"|zero) (?:[a-z]{1,20} ){0,2}" + _BAD + rb"\b"
    rb"|\b" + _BAD + rb"(?: ?[^\W\d]{1,20}){0,4} *[:=] *(?:0\b(?!\.)|\[\]|none\b|null\b)|\btimeout[:=] *\d+"
    rb"|(?<![\w.])(?P<n>\d+)\b(?!\.\d)\D{1,40}\bexpect(?:ed|s):? \W?(?P=n)\b(?!\.\d)"
    rb"|(?<![\w.])(?P<m>\d+)\b(?!\.\d)\D{1,40}(?<![\w.])(?P=m),? expected\b"
    rb"|\bexpect(?:ed|s):? \W?(?P<k>\d+)\b(?!\.\d)\D{1,40}(?<![\w.])(?P=k)\b(?!\.\d)",
    re.IGNORECASE,
)
# What Python and ld.so ignored, what cleans up where nothing is left, and others that are of none of the line.
_NONE: Final = re.compile(
    rb": ignored\.?$|Exception ignored|Error in atexit\."
    rb"|(?:^|[\s/])(?:rm|rmdir|unlink|kill|pkill|umount): "
    # kubectl, to which a script gave an empty list of names (k8s.io/cli-runtime, resource/builder.go)
    rb"|\bHYDRA_FULL_ERROR=1 for a complete stack trace"  # Hydra's advice, below what it is about
    rb"|^error: resource\(s\) were provided, but no name was specified"
    rb"|\bto (?:avoid|prevent|disable)\b"
    # of what has not happened: an advice
    rb"|\b(?:otherwise|if not|or else),? (?:you|it|this|they)(?:'ll| will| may| might| would| could| can)\b"
    rb"|HTTP/\d(?:\.\d)?\"? [1-5]\d\d\b",
    re.IGNORECASE,
)
# What is no trouble by itself, and all there is to show where a log holds neither work, nor NCCL, nor what a family knows.
_NOT_FOUND: Final = rb"not found|no such|unavailable|(?:could(?: not|n.t)|cannot|unable to) (?:find|locate|import)"
_EQUAL: Final = (
    rb"reference|expect\w*|baseline|written|saved|originals?|golden|checksum|sha\w*|hash|md5|crc\w*|diff|(?<!per )ranks?"
)
_HINTS: Final = re.compile(
    rb"\b(?:stall\w*|stuck|hangs?|hanging|deadlock\w*|time[ds]?[ -]?out|refused|unreachable|denied|expired|dropped"
    rb"|unexpected(?!ly (?:good|well|fast|high|low|large|small)\b)\w*|unable to|cannot|could(?: not|n.t)"
    rb"|unhealthy|degraded|diverged?|(?<!can be )(?<!may be )interrupted|no heartbeats?|did not(?=\W*$)|uncorrectable"
    rb"|not found|no such|invalid|mismatch\w*|reject\w*|lost|insufficient|unavailable|exceeded|(?<![\d.])\d+,? expected"
    # from what it was to be equal to, and by no tolerance; of one setting, or of two files, it is no fault
    rb"|differs?\b(?! (?:by|at) (?:less|most)\b)(?=.{0,60}\b(?:" + _EQUAL + rb")\b)|(?:" + _EQUAL + rb")\b.{0,60}\bdiffers?"
    # counts of things; a figure need not be what was thought of it
    rb"|(?<![\d.])\d+ [a-z_]\w*[,;]? \(?expect(?:ed|s):? \W?\d+(?![\d.])"
    rb"|expect(?:ed|s):? \W?\d+(?![\d.])(?: [a-z_]\w*){0,4}[,;]? (?:but|got|found|only|have|had|received|saw|there)"
    rb"|(?:got|found|saw|only|received) \d+(?![\d.]).{0,30}\bexpect(?:ed|s):? \W?\d+(?![\d.]))\b",
    re.IGNORECASE,
)
_HINT_LETTERS: Final = any_of(
    b"stall|stuck|hang|deadlock|out|refused|unreachable|denied|expired|dropped|unexpected|unable to|cannot|could|unhealthy"
    b"|degraded|diverge|interrupted|heartbeat|did not|uncorrectable|not found|no such|invalid|mismatch|reject|lost"
    b"|insufficient|unavailable|exceeded|expect|differ".split(b"|")
)
# What was done where something was not there: it was looked for, and not needed.
_INSTEAD: Final = re.compile(
    rb"\b(?:"
    + _NOT_FOUND
    + rb")\b(?P<more>[^,;:]{0,100})[,;:] ?(?:(?:so |thus |we )?(?:us(?:ed?|ing)|keep(?:s|ing)?|kept|creat(?:es?|ed|ing)"
    rb"|read(?:ing)?|tak(?:es?|ing)|took|fall(?:s|ing)? back|fell back|default\w*|build(?:s|ing)?|built)\b"
    rb"(?P<by>[^,;:]{0,60})|ok\W*$)",
    re.IGNORECASE,
)
_BEFORE: Final = re.compile(rb"[^,;:]+$")
_CLAUSE: Final = 80  # bytes before it
# It was needed where it is a part of the job, or where what stands in for it is less: fewer, slower, or no work of anybody's.
_NEEDED: Final = re.compile(
    rb"\b(?:ranks?|nodes?|hosts?|gpus?|workers?|peers?|devices?|nics?|hcas?"
    rb"|(?:mlx5|eth|ib|ens|eno|enp)_?\d\w*|\w*nccl\w*)\b",
    re.IGNORECASE,
)
_LESS: Final = re.compile(
    rb"\b(?:sockets?|tcp|ethernet|(?:eth|ens|eno|enp)\d\w*|gloo|cpus?|random\w*|dummy"
    rb"|\d+ (?:other )?(?:ranks?|nodes?|hosts?|gpus?|workers?|peers?|devices?|nics?)|(?:the )?(?:other|remaining) \d+)\b",
    re.IGNORECASE,
)
# Of a program that stands still and says so calmly, as vLLM does: "This typically happens when some processes are hanging".
_STILL: Final = re.compile(
    rb"\b(?:hang(?:s|ing)?|stuck|stall(?:s|ed|ing)|deadlock\w*|no progress|not making progress|unresponsive|not respond\w*"
    rb"|still (?:not|waiting)|waited (?:for )?\d)\b",
    re.IGNORECASE,
)
# What a program begins behind its last step, and may not come to the end of.
_BEGUN: Final = re.compile(
    rb"(?<!\bfinished )(?<!\bdone )(?<!\bcompleted )(?<!\bdone with )(?<!\bfinished with )"
    rb"\b(?:sav|writ|stor|export|upload|push|load|start|begin|evaluat|validat|test|merg|gather|convert|wait|run"
    rb"|retry|restart|reconnect|resum|compil|copy|sync|compress|archiv|transfer|download|generat)+ing\b|\.\.\.\W*$|\xe2\x80\xa6\W*$",
    re.IGNORECASE,
)
# The same of whatever else, as the first word of a line or behind a logger's mark: not of what is over or is being taken down,
# nor a word that only ends like that.
_BEGINS: Final = re.compile(
    rb"(?:^|[\]:|>)] ?| - |(?:INFO|DEBUG|NOTICE) +)"
    rb"(?!(?i:warn|dur|noth|everyth|anyth|someth|str|remain|miss|learn|train|skipp|keep|us|exit|leav|quitt|shutt|clos|stopp|end"
    rb"|finish|releas|destroy|clean|kill|remov|delet|tear|terminat|free|tim|accord|includ|reach|relinquish|return|rat)ing\b)"
    rb"[A-Z][a-z]{2,30}ing\b(?!\s?[:=])(?!.{0,200}\b(?:finished|done|complete[d]?|succeeded)\b)"
    rb"|\bbegins?\W*$",
)
# What is told of the work elsewhere is no part of it.
_TRACKED: Final = re.compile(
    rb"^(?:.{0,60}\b)?wandb: |\b(?:logg|report|track|stream)ing (?:[\w\-]{1,20} ){0,3}(?:to|with|via) [\w\-]{1,30}\W*$",
    re.IGNORECASE,
)
# What c10 puts below an exception's own words (c10/util/Exception.cpp): it is of the line before, and says nothing by itself.
_STACK: Final = re.compile(
    rb"\bException raised from \S{1,100} at \S{1,400}:\d{1,6} \(most recent call first\):|\bframe #\d{1,3}: "
)
# How many of all were there; the last such line of each counts, as where they come one by one.
_PART: Final = re.compile(
    rb"\b(?:loaded|read|restored|saved|wrote|written|uploaded|copied|joined|connected|started|launched|found):? "
    rb"(?P<at>\d{1,7}) ?(?:/|of|out of) ?"
    rb"(?P<all>\d{1,7} (?:ranks?|nodes?|workers?|gpus?|process\w*|hosts?|shards?|replicas?|files?))\b",
    re.IGNORECASE,
)
# A sentence of some length and nothing else, as a model writes it, or a data set: what it tells of happened to nobody here.
_PROSE: Final = re.compile(rb"[\"'(]?[A-Z][a-z']{0,30}(?: [^\s:=/_\\{}\[\]<>|#]{1,40}){11,}[.!?][\"')]?\s*$")
_MOST: Final = 8  # lines
_LAUNCHERS: Final = re.compile(
    rb"launch\.py:\d|elastic|closing signal|Killing subprocess|Logging error|Traceback|KeyboardInterrupt"
    rb"|\b(?:srun|slurmstepd|torchrun|mpirun)\b"
)
_LEAVES: Final = re.compile(rb"\bSystemExit: \d{1,3}\s*$")  # what it says is the exit code
_TASKS: Final = 4096
# What a rank calls an error itself, and the warning above it that such a line may sum up; NeMo has letters (nemo/utils).
_COMPLAINS: Final = re.compile(rb"(?:^|[\s\[\]|(>:\-])(?:ERROR|CRITICAL|FATAL)\b|\[NeMo E \d")
_WARNS: Final = re.compile(rb"(?:^|[\s\[\]|(>:\-])WARN(?:ING)?\b|\[NeMo W \d")
_LOCAL: Final = re.compile(rb"\[default(\d{1,5})\]:")
_LATELY: Final = 200  # lines
_HEAD: Final = 200  # bytes
_SOME: Final = 3  # lines: one or two may be of the last step
_LABEL: Final = re.compile(rb" {0,8}(\d{1,7}): ")  # srun --label
_USAGE: Final = re.compile(rb"(?: {0,8}(\d{1,7}): )?[Uu]sage: ([\w.\-/]{1,100})")  # getopt's custom, and argparse's


def _node_of(line: bytes) -> bytes:
    label = _LABEL.match(line)
    return label[1] if label else b""


def _is_ill(line: bytes) -> bool:
    low = line.lower()
    if (_ILL_LETTERS.search(low) and _ILL.search(line)) or _GLOG.search(line) or elsewhere.bad(line) or of_a_starter(line):
        return True
    return _RARE.search(low) is not None and _RARELY.search(line) is not None


def _instead(found: re.Match[bytes]) -> bytes:
    """What is left of a clause that says what was done where something was not there."""
    before = _BEFORE.search(found.string[max(0, found.start() - _CLAUSE) : found.start()])
    what = (before[0] if before else b"") + found["more"]
    return found[0] if _NEEDED.search(what) or _LESS.search(found["by"] or b"") else b" "


def _hinting(line: bytes) -> bool:
    return (_HINT_LETTERS.search(line.lower()) is not None and _HINTS.search(line) is not None) or spoilt.wrong(line)


class LastWords:
    """Feed it the lines of one file that no family knows; a sign of work makes what was said before it count for nothing."""

    def __init__(self) -> None:
        self.latest = b""  # the last line of all, whatever it says
        self.before = b""  # the one before it
        self._latest_at = 0
        self._of_a_warning = False  # the stack that is being read
        self._work = b""  # the last that shows work
        self._work_at = 0
        self._counts = Counts()
        self._stops = False  # the last line says that no further steps are taken
        self._took = 0  # lines that say how long all took
        self._tail = deque[tuple[int, bytes]](maxlen=closing.LINES)
        self._lines: dict[int, bytes] = {}
        self._hints: dict[int, bytes] = {}
        self._parts: dict[bytes, tuple[int, bytes]] = {}  # "8 shards" -> the last line that says that some of them were there
        self._hinted = deque[tuple[int, bytes]](maxlen=_MOST)  # the last of them, also behind work
        self._ended = 0  # the line of the last good end
        self.awaited = Awaited()
        # a launcher's label, the local rank -> the last that it calls an error
        self._errors: dict[tuple[bytes, bytes], tuple[int, bytes]] = {}
        self._usage: dict[bytes, bytes] = {}  # a task's label -> the program whose usage it printed

    def saw(self, line: bytes, number: int) -> None:
        """Any line, before anything else is made of it."""
        self.before, self.latest, self._latest_at = self.latest, line, number
        self._tail.append((number, line))
        self._took += closing.took(line)
        if b"sage: " in line and (usage := _USAGE.match(line)) is not None and len(self._usage) < _TASKS:
            self._usage[usage[1] or b""] = usage[2]
        if b" ready" in line or b" healthy" in line or b" reachable" in line:
            self.awaited.feed(line, number)
        if (b"ERROR" in line or b" E " in line or b"CRITICAL" in line or b"FATAL" in line) and _COMPLAINS.search(line[:_HEAD]):
            self._complained(line, number)
        self._stops = closing.stops(line)
        if self._stops:
            self._counts.stopped()
        if b"%|" in line and b" 0/" in line:
            self._counts.begun(line)

    def _complained(self, line: bytes, number: int) -> None:
        mark = _LOCAL.search(line[:_HEAD])
        if mark is None or _LAUNCHERS.search(line) or len(self._errors) >= _TASKS:
            return
        warned = mark[0] in self.before[:_HEAD] and _WARNS.search(self.before[:_HEAD])
        above = b" (right above it: " + self.before.strip()[: 2 * _HEAD] + b")" if warned else b""
        self._errors[_node_of(line), mark[1]] = number, line.strip()[: 2 * _HEAD] + above

    def error_of(self, local_rank: str) -> str:
        """What a rank of the node whose launcher speaks called an error last, not long ago."""
        number, said = self._errors.get((_node_of(self.latest), local_rank.encode()), (0, b""))
        return said.decode("utf-8", "replace") if number and self._latest_at - number <= _LATELY else ""

    def above(self, number: int) -> bytes:
        """The line right before this one, where it was read and is no record of NCCL's."""
        return self.latest if self._latest_at == number - 1 else b""

    @property
    def begun(self) -> str:
        """What the program said last that it does, where that is among the last lines."""
        said = next((line for _, line in list(self._tail)[-2::-1] if _BEGUN.search(line) and not _LAUNCHERS.search(line)), b"")
        return said.strip()[:200].decode("utf-8", "replace")

    @property
    def stood(self) -> str:
        """What the program said last before this line, where it had said more since its last sign of work."""
        behind = [line for number, line in self._tail if number > self._work_at][:-1]
        said = [line for line in behind if line.strip() and not (line[:1].isspace() or _LAUNCHERS.search(line))]
        return said[-1].strip()[:200].decode("utf-8", "replace") if len(said) >= _SOME else ""

    def of_a_task(self, task: bytes) -> str:
        """What a task complained of last before its launcher says that it ended: behind its own label, or where no line has a
        label, in the line right above.  A usage says whose complaint it is, which may be a tool's that starts the program."""
        before = [line for _, line in self._tail][-2::-1]
        before = [line for line in before if not _LEAVES.search(line)]
        own = [line for line in before if (found := _LABEL.match(line)) is not None and found[1] == task]
        labelled = own or any(map(_LABEL.match, before))
        said = next((line for line in (own if labelled else before[:1]) if line.strip()), b"")
        label = _LABEL.match(said)
        words = said[label.end() :] if label else said
        if words[:1].isspace() or not ((_ILL.search(words) or _HINTS.search(words)) and not _NONE.search(words)):
            return ""
        program = self._usage.get(task if labelled else b"", b"")
        return ((program + b": " if program and program not in words else b"") + words.strip()[:200]).decode("utf-8", "replace")

    def work(self, line: bytes, number: int) -> int:
        """A line that shows work; the number that it counts up to, or 0; -1 where it shows nothing new."""
        if self._counts.redrawn(line) or closing.took(line):
            return -1
        self._counts.follow(line)
        counted = self._counts.feed(line, number)
        if self._stops:
            self._counts.stopped()
        if not (counted and self._work and self._counts.filled(line)):  # when it is drawn full says nothing of what came first
            self._work, self._work_at = line, number
            self._lines.clear()
            self._hinted.clear()
        return counted

    @property
    def whose(self) -> tuple[bool, bool]:
        """Whether the last line of work evaluates, and whether it begins again from a much smaller number."""
        return self._counts.evaluates, self._counts.anew

    def doubtful(self, line: bytes) -> bool:
        """Whether a good word for the end is taken back: by the line itself, or by the program's own count, which most of its
        lines show and which has not come to its end."""
        return closing.doubtful(line) or (self._counts.short > 0 and closing.in_words(line))

    def ended(self, number: int) -> None:
        """A line that says that the program, or a part of it, came to a good end."""
        self._ended = number

    @property
    def end(self) -> tuple[int, bytes] | None:
        """The line with which the program says that it is done, where that is the last that the log tells."""
        once = self._took == 1 and not _BEGUN.search(self.latest)
        return closing.end(self._tail, (self._work_at, self._work), self._counts, once=once)

    def feed(self, line: bytes, number: int) -> bool:
        """Whether it is of what goes wrong."""
        if (stack := _STACK.search(line)) is not None:
            if not stack[0].startswith(b"frame"):
                same = whose.rank(self.before) == whose.rank(line)
                self._of_a_warning = same and level(self.before) is Level.WARNED
            if self._of_a_warning:
                return True
        if _PROSE.match(line) is not None:
            return False
        if (b"/" in line or b" of " in line) and (part := _PART.search(line)) is not None and len(self._parts) < _MOST:
            self._parts[part["all"]] = number, line if int(part["at"]) < int(part["all"].split()[0]) else b""
        if not (_is_ill(line) or _STILL.search(line) or _hinting(line)):
            return False  # most lines
        clauses = _INSTEAD.sub(_instead, _NO_COUNT.sub(b" ", line))
        none = _NONE.search(line) is not None
        still = _STILL.search(clauses) is not None and not none
        ill = _is_ill(clauses) and not none
        if not (ill or still or _hinting(clauses)):
            return False
        said = level(line)
        if said is Level.UNKNOWN and not none:
            self._hinted.append((number, line))
        if len(self._lines) < _MOST and ((ill and said is Level.UNKNOWN) or (still and self._work)):
            self._lines[number] = line
        elif not (self._work or self._lines) and len(self._hints) < _MOST and said is Level.UNKNOWN:
            self._hints[number] = line
        return True

    def doubted(self, line: bytes, number: int) -> None:
        """A line that says of the end that it was a good one, and takes it back."""
        if len(self._lines) < _MOST:
            self._lines[number] = line

    @property
    def silence(self) -> int:
        """Minutes between the last sign of work and the last line."""
        return minutes(self._work, self.latest) if self._work else 0

    @property
    def counted(self) -> str:
        """The program's own count of its steps where the last sign of work is its end, and it has told something after it."""
        own = next((line for _, line in reversed(self._tail) if _TRACKED.search(line) is None), b"")
        if self._hinted or self._lines or _BEGUN.search(own) or _BEGINS.search(own):
            return ""
        if self.latest in {self._counts.line, self._work} or is_bar(self.latest):
            return ""
        if closing.doubtful(self.latest) or any(0 < one != whose.rank(self._work) for one in whose.spoken_of(self.latest)):
            return ""  # a rank beyond the first, of a log that others write, too, speaks for itself
        return self._counts.full

    def _unfilled(self) -> bool:
        """Whether the very last line is a bar that is not full, of what the program began behind its good end."""
        return self._latest_at > self._ended and unfilled(self.latest)

    def close(self, silent: bool) -> dict[int, bytes]:
        """The lines by number; what follows is another file's.  `silent`: without work they are all that such a log holds."""
        lines = self._lines if self._work or silent else {}
        if silent and not self._work:
            lines = lines or self._hints or dict(part for part in self._parts.values() if part[1])
        if self._ended and self._unfilled():
            lines = lines | {self._latest_at: self.latest}
        if self._ended:  # nobody doubts a good end for nothing
            lines = lines | {number: line for number, line in self._hinted if number > self._ended or spoilt.lasting(line)}
        self._hinted.clear()
        self._parts.clear()
        self._lines, self._hints, self._of_a_warning = {}, {}, False
        self._work = self.latest = self.before = b""
        self._counts = Counts()
        self._work_at = self._took = self._latest_at = self._ended = 0
        self._tail.clear()
        return lines
