"""Helper program: the round-trip time of a TCP connection, as the kernel measured it (TCP_INFO, tcp(7)).

Parameters: ``host`` (an IP address), ``port``, ``seconds`` (deadline of connect).  Answers
{"rtt_us": N, "var_us": N}, or {"error": errno name}.  The connection is closed at once; nothing is sent.
"""

from __future__ import annotations

import errno
import socket
import struct

TCPI_RTT = 68  # offset of tcpi_rtt in struct tcp_info (include/uapi/linux/tcp.h): 8 bytes of fields, then 15 u32


def answer(parameters: dict[str, str]) -> object:
    try:
        with socket.create_connection(
            (parameters["host"], int(parameters["port"])), float(parameters.get("seconds", "1"))
        ) as one:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    except TimeoutError:
        return {"error": "ETIMEDOUT"}
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno or 0, str(error.errno))}
    rtt, var = struct.unpack_from("=II", info, TCPI_RTT)
    return {"rtt_us": rtt, "var_us": var}
