"""How shells say in other languages that a process died of a signal: where a job's end is told so, it is told nowhere else.

Sources: the translations of glibc (strsignal(3)) and of bash ("%s: line %d: ", " (core dumped)"), as Debian ships them.
"""

from __future__ import annotations

import re
from typing import Final

from netdoctor.nccl.log.pattern import BEGIN, END, row

# de, fr, es, it, pt, pt_BR, ja, ko, ru, zh_CN, zh_TW, pl, nl, sv, tr; the shell's own word beside that of glibc.
_FAULT: Final = (
    *("Speicherzugriffsfehler", "Erreur de segmentation", "Violación de segmento", "Errore di segmentazione"),
    *("Falta de segmentação", "Falha de segmentação", "세그멘테이션 오류", "Ошибка сегментирования", "段错误"),
    *("程式記憶體區段錯誤", "Naruszenie ochrony pamięci", "Segmentatiefout", "Segmenteringsfel", "Parçalama arızası"),
    *("Bus-Zugriffsfehler", "Erreur du bus", "Error del bus", "Errore di bus", "Erro de bus", "Erro no barramento"),
    *("バスエラー", "버스 오류", "Ошибка шины", "总线错误", "匯流排錯誤", "Błąd szyny", "Busfout", "Bussfel"),
    "Veri yolu hatası",
)
_KILLED: Final = (
    *("Getötet", "Abgebrochen (Killed)", "Processus arrêté", "Tué", "Terminado (killed)", "Matado", "Ucciso", "Morto"),
    *("Morto (Killed)", "強制終了", "죽었음", "Убито", "Убит", "已杀死", "強制結束", "Unicestwiony", "Geëlimineerd", "Dödad"),
    *("Süreç durduruldu", "Öldürüldü"),
)
# A program may print these alone for something else.
_ABORTED: Final = (
    *("Abgebrochen", "Abandon", "Abortado", "Annullato", "中止", "중지됨", "Аварийный останов", "已放弃", "Przerwane"),
    *("Afgebroken", "Avbruten (SIGABRT)", "İptal edildi"),
)
_DUMPED: Final = (
    *("Speicherabzug geschrieben", "`core' generado", "core dump creato", "núcleo despejado", "imagem do núcleo gravada"),
    *("コアダンプ", "코어 덤프됨", "образ памяти сброшен на диск", "核心已转储", "核心已傾印", "zrzut pamięci"),
    *("geheugendump gemaakt", "minnesutskrift skapad", "çekirdek döküldü", "core dumped"),
)


def _any(*words: str) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


def _needles(*words: str) -> str:
    """A line is made lower-case by its bytes: letters beyond ASCII stay as they are."""
    return "|".join(dict.fromkeys(word.encode().lower().decode() for word in words))


PATTERNS: Final = (
    row(
        "died",
        _needles(*_FAULT, *_KILLED, *_ABORTED, *_DUMPED),
        # The line of a script ("x.sh: Zeile 12: 4711 Getötet   python"), a line of its own, and whatever left a core.
        rf"(?:[:,]|：) *\d{{2,8}} (?P<how>{_any(*_FAULT, *_KILLED, *_ABORTED)})(?: {{2,}}|\(| \(|（|{END})"
        rf"|{BEGIN} *(?P<how2>{_any(*_FAULT, *_KILLED)}){END}"
        rf"|(?:\(|（)(?:{_any(*_DUMPED)})(?:\)|）) *(?:$| )",
        "how",
    ),
)
