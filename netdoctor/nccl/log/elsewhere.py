"""That something went wrong, in Chinese, Japanese and Korean."""

from __future__ import annotations

import re
from typing import Final

_BAD: Final = (
    "(?:失败|失敗|异常|異常|错误|錯誤|出错|出錯|报错|報錯|中断|中斷|崩溃|崩潰|超时|超時|终止|終止|无法|無法|エラー|例外"
    "|오류|실패|예외|중단)"
)
_FOUND: Final = re.compile(_BAD)
_STOP: Final = r"\s,.;:\uff0c\uff1b\uff1a\u3002"  # where a clause ends, also in the widths of these scripts
# None of it (not of the first of several: "节点 0 失败"), a figure of that name, a setting, what is looked for or is to be kept
# away, and an end that was meant to be.
_NOT: Final = re.compile(
    rf"(?:[无無沒没][有一任何]{{0,3}}|未(?:发现|出现|见|检测到|發現)|零|(?<![\d.])0 ?[个個次件条條건개][^\W\d]{{0,6}}"
    rf"|(?:^|[{_STOP}])0) ?{_BAD}"
    rf"|{_BAD}[^\d{_STOP}]{{0,6}} ?[:=\uff1a]? ?(?:0(?![\d.])|\[\]|无|無)"
    rf"|{_BAD}[はがも가는이은]? ?(?:な[しいか]|無し|あり?ません|없|しません)"
    rf"|{_BAD}(?:[值値率]|处理|處理|処理|检测|檢測|検知|検出|捕获|恢复|恢復|设置|設定|时间|時間|阈值|처리|감지|율|시간)"
    rf"|(?:正常|提前|早期|手动|조기|정상) ?{_BAD}|(?:超时|超時) ?[:=\uff1a] ?\d"
    rf"|(?:避免|防止|如果|以免|忽略)[^{_STOP}]{{0,20}}{_BAD}|[从從][^{_STOP}]{{0,10}}(?:中断|中斷)"
)


def bad(line: bytes) -> bool:
    """Whether a line says so."""
    if line.isascii():
        return False
    text = line.decode("utf-8", "replace")
    return _FOUND.search(text) is not None and _FOUND.search(_NOT.sub(" ", text)) is not None
