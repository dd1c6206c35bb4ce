"""NVRTC, NVIDIA's run-time compiler: C++ to machine code, in this process or in another one.

Run as a script it compiles what it reads from standard input until that ends. It imports nothing of fewbit, so that it
starts quickly; `processes.py` starts it.
"""

from __future__ import annotations

import json
import os
import sys
from struct import Struct
from typing import IO, Any

REQUEST = Struct("<I")  # bytes of a JSON list: the source, then the options
REPLY = Struct("<BI")  # 1 if it was compiled, bytes of the machine code or of what went wrong
NICE = 5  # lets the threads that load a model come first


def compile_program(source: str, options: list[str]) -> tuple[bytes, str]:
    """Machine code, and what the compiler says. Raises ValueError with that where it refuses the source."""
    from cuda.bindings import nvrtc

    def checked(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise ValueError(f"NVRTC reports {getattr(result[0], 'name', result[0])}")
        return result[1] if len(result) > 1 else None

    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program)))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        text = log.rstrip(b"\0").decode(errors="replace")
        if int(status):
            raise ValueError(f"NVRTC reports {getattr(status, 'name', status)}: {text}")
        code = bytearray(checked(nvrtc.nvrtcGetCUBINSize(program)))
        checked(nvrtc.nvrtcGetCUBIN(program, code))
        return bytes(code), text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def read_exactly(stream: IO[bytes], count: int) -> bytes:
    """So many bytes of a pipe. Raises EOFError where it ends before."""
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Compile until the requests end."""
    while True:
        source, *options = json.loads(read_exactly(requests, REQUEST.unpack(read_exactly(requests, REQUEST.size))[0]))
        try:
            compiled, data = True, compile_program(source, options)[0]
        except Exception as error:
            compiled, data = False, str(error).encode()
        replies.write(REPLY.pack(compiled, len(data)) + data)
        replies.flush()


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no reply
    if hasattr(os, "nice"):
        os.nice(NICE)
    try:
        serve(sys.stdin.buffer, replies)
    except (EOFError, OSError):  # whoever asked has gone
        os._exit(0)


if __name__ == "__main__":
    main()
