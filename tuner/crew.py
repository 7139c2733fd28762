# SPDX-License-Identifier: Apache-2.0
"""The devices of one machine on one study: this process works with the first, a child with each of the
others. A child is `coldforge worker` with one device to see; it dies with this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from ..codegen.errors import ColdforgeError, InputError
from ..codegen.target import Target

ALL = "all"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MAIN = "from coldforge.tuner.cli import main; main()"
_END_S = 15.0


def chosen_devices(text: str, devices: Sequence[Target]) -> list[int]:
    """The devices that ``--devices`` means.

    Args:
        text: ``all`` (those that are like the first one), or numbers with commas between.
        devices: what there is.

    Raises:
        InputError: it means none, or one that is not there.
    """
    if text == ALL:
        return [number for number, device in enumerate(devices) if device == devices[0]]
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise InputError(f"--devices {text:.80}: give all, or numbers with commas between, as in 0,1")
    numbers = [int(word) for word in words]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--devices {text:.80}: a device stands there twice")
    beyond = [number for number in numbers if number >= len(devices)]
    if beyond:
        there = f"0 to {len(devices) - 1}" if len(devices) > 1 else "0"
        raise InputError(f"--devices {text:.80}: there is no device {beyond[0]}; this machine has {there}")
    return numbers


def visible_as(number: int, environ: Mapping[str, str] | None = None) -> str:
    """What a process is told that is to see one device alone.

    Args:
        number: as this process counts devices, which may not see all of them itself.
    """
    seen = (os.environ if environ is None else environ).get(_VISIBLE)
    words = [word.strip() for word in seen.split(",")] if seen else []
    return words[number] if number < len(words) else str(number)


def see_only(number: int) -> None:
    """Lets this process, and those that it starts, see one device alone."""
    os.environ[_VISIBLE] = visible_as(number)


class Crew:
    """The workers on the other devices. Use as a context manager around the run of this process.

    Args:
        devices: for each worker the environment variable's word that names its device; none is fine.
        arguments: of `coldforge worker`.
        jobs: compilers that each may run.
        tell: takes a line that a worker said.
        python: runs a program as this interpreter does.
    """

    def __init__(
        self,
        devices: Sequence[str],
        arguments: Sequence[str],
        jobs: int,
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
        python: Sequence[str] = (sys.executable, "-c", _MAIN),
    ) -> None:
        self._devices, self._jobs, self._tell = devices, jobs, tell
        self._command = [*python, "worker", *arguments, "--attached", str(os.getpid())]
        self._started: dict[str, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Crew:
        try:
            for word in self._devices:
                self._start(word)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(wait=kind is None)

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid for process in self._started.values()]

    def _start(self, word: str) -> None:
        environment = {**os.environ, _VISIBLE: word, "COLDFORGE_JOBS": str(self._jobs)}
        nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
        try:
            process = subprocess.Popen(
                self._command,
                env=environment,
                stdin=nothing,
                stdout=nothing,
                stderr=pipe,
                text=True,
                errors="replace",
                start_new_session=True,  # a terminal's Ctrl-C comes to this process, which passes it on
            )
        except OSError as error:
            raise ColdforgeError(
                f"cannot start a worker on device {word}: {error.strerror or error}"
            ) from error
        self._started[word] = process
        assert process.stderr is not None
        reader = threading.Thread(target=self._read, args=(word, process.stderr), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _read(self, word: str, stream: IO[str]) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in stream:
                if line.strip():
                    self._tell(f"device {word}: {line.strip()[:500]}")

    def close(self, *, wait: bool = False) -> None:
        """Ends the workers, each of which gives back what it was at; tells of those that failed.

        Args:
            wait: they are ending by themselves: the study's budget is spent.
        """
        running = [process for process in self._started.values() if process.poll() is None]
        if not wait:
            for process in running:
                process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join(1.0)
        for word, process in self._started.items():
            if wait and process.returncode != 0:
                self._tell(f"device {word}: its worker ended with status {process.returncode}")
            if process.stderr is not None:
                process.stderr.close()
        self._started, self._readers = {}, []
