"""The simple commands of a shell script in their order, brackets and functions among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from netdoctor.model import record
from netdoctor.variables.shell_tokens import Comment, HereDoc, Tokenizer, Word

OPEN: Final = frozenset({"if", "while", "until", "for", "case", "select", "{", "("})
CLOSE: Final = frozenset({"fi", "done", "esac", "}", ")"})
# Words before a command that are none themselves.
LEAD: Final = (
    frozenset({"then", "else", "elif", "do", "!", "time", "exec", "command", "nohup", "sudo", "numactl"}) | OPEN | CLOSE
)


@record
class Command:
    """Words up to an operator, or one bracket; ``NAME()`` is the bracket that opens the body of a function."""

    words: list[Word]
    conditional: bool = False  # behind && or ||


@dataclass
class Commands:
    """What a script consists of."""

    listed: list[Command] = field(default_factory=list)
    documents: list[tuple[HereDoc, list[Word]]] = field(default_factory=list)  # each with the command before it
    open: list[int] = field(default_factory=list)  # lines of words with a quote or bracket that does not end


def commands(text: str) -> Commands:
    found = Commands()
    words: list[Word] = []
    conditional, operator = False, ""
    before: list[Word] = []
    defines = ""
    for token in Tokenizer(text):
        if isinstance(token, Word):
            found.open += [token.line] if token.open else []
            words.append(token)
            operator = defines = ""
        elif isinstance(token, Comment):
            found.listed += _directive(token)
        elif isinstance(token, HereDoc):
            found.documents.append((token, before))
        else:
            if name := _function(words, token.text):
                defines, words = name, []
            if words:
                found.listed.append(Command(words, conditional))
                before, words, conditional = words, [], False
            if token.text in ("{" if defines else "(){}"):
                found.listed.append(Command([Word(f"{defines}()" if defines else token.text, token.line)], conditional))
                defines = ""
            elif token.text in ("&&", "||"):
                conditional = True
            elif token.text in "\n;" and operator not in ("&&", "||"):  # a line may end behind &&
                conditional = False
            operator = token.text
    if words:
        found.listed.append(Command(words, conditional))
    return found


def _function(words: list[Word], bracket: str) -> str:
    """The name of a function whose definition begins: ``NAME (``, ``function NAME (`` or ``function NAME {``."""
    texts = [word.text for word in words]
    if texts[:1] == ["function"] and len(texts) == 2 and bracket in ("(", "{"):
        return texts[1]
    named = len(texts) == 1 and bracket == "(" and texts[0] not in LEAD and re.fullmatch(r"[\w.:-]+", texts[0])
    return texts[0] if named else ""


def _directive(comment: Comment) -> Iterator[Command]:
    """``#SBATCH --export=…`` is no comment to sbatch, ``#PBS -v A=1,B=2`` none to qsub."""
    if comment.text.startswith("#PBS") and " -v " in comment.text:
        words = ["#PBS", "--export", *comment.text.partition(" -v ")[2].split()[:1]]
    elif comment.text.startswith("#SBATCH") and "--export" in comment.text:
        words = ["#SBATCH", *comment.text.split()[1:]]
    else:
        return
    yield Command([Word(word, comment.line) for word in words])


def body_end(listed: list[Command], start: int) -> int | None:
    """The index of the bracket that ends the body which begins at `start`; None where none does."""
    level = 0
    for i in range(start, len(listed)):
        text = listed[i].words[0].text
        alone = len(listed[i].words) == 1
        level += alone and (text == "{" or text.endswith("()"))
        level -= alone and text == "}"
        if level == 0:
            return i
    return None
