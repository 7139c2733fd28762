# SPDX-License-Identifier: Apache-2.0
"""The worker: a spawned process that owns one device and answers plain messages until the pipe closes.

Only this process loads and launches kernels, so a kernel that crashes, hangs or poisons the device takes
nothing but the worker with it. Every message is a dict with a `kind`; every answer too:

    {"kind": "prepare", "request"}            -> {"kind": "done"}
    {"kind": "trial", "request"}              -> {"kind": "result", "result"}
    {"kind": "finals", "requests", "energy"}  -> {"kind": "results", "results"}
    {"kind": "check", "request"}              -> {"kind": "result", "result"}     verified, not timed
    {"kind": "facts"}                         -> {"kind": "facts", "facts", "ceilings", "probe",
                                                  "energy_source"}
    {"kind": "bench", ...}                    -> {"kind": "bench", ...}     see bench.py
    {"kind": "survey", ...}                   -> {"kind": "survey", "rows"} see survey.py
    {"kind": "stop"}                          -> the process ends

Before any request it says {"kind": "up"} (from then on it dies with its parent) and {"kind": "ready"} (the
device is open). While it serves one, a worker whose timings other work on the machine would disturb sends
{"kind": "quiet"} before it times, waits for {"kind": "go"}, and sends {"kind": "noise"} when it has timed.

An answer {"kind": "refused", "input", "message"} means that the request cannot be served (the user's input
when `input` is true); {"kind": "fault", "message"} that a kernel broke the device, after which the process
ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from ..codegen.errors import ColdforgeError, InputError, ReferenceFailed
from ..codegen.places import located
from ..codegen.settings import Settings
from ..codegen.spawn import die_with_parent
from ..codegen.target import Target

if TYPE_CHECKING:
    from .workbench import Workbench

FAULT_EXIT_CODE = 70


def serve(connection: Connection, target: Target, settings: Settings, log_path: str) -> None:
    """Runs the worker; the entry point of the spawned process.

    Args:
        connection: The worker's end of the pipe.
        target: The device.
        settings: The parent's settings.
        log_path: Takes everything that this process and its kernels print; its name is removed.
    """
    _detach(log_path)
    send(connection, {"kind": "up"})
    try:
        workbench = _open(target, settings, connection)
    except ColdforgeError as error:
        send(connection, _refusal(error))
        return
    send(connection, {"kind": "ready"})
    with workbench.device.session():
        while True:
            try:
                message = receive(connection)
            except EOFError:
                return
            if message["kind"] == "stop":
                return
            answer = _answer(workbench, message)
            send(connection, answer)
            if answer["kind"] == "fault":
                os._exit(FAULT_EXIT_CODE)  # no clean-up: it would touch the broken device


def send(connection: Connection, message: Mapping[str, Any]) -> None:
    """Sends a message as JSON: plain for certain, where a pickle would drag classes and modules along."""
    connection.send_bytes(json.dumps(message).encode())


def receive(connection: Connection) -> dict[str, Any]:
    """The inverse of `send`.

    Raises:
        EOFError: The other end is gone.
    """
    return json.loads(connection.recv_bytes())


def _detach(log_path: str) -> None:
    """Keeps the worker off the parent's terminal and its Ctrl-C, and ties its life to the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.unlink(log_path)  # the parent holds it open
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    die_with_parent()  # a killed one must not leave a worker hanging in a kernel


def _open(target: Target, settings: Settings, connection: Connection) -> Workbench:
    from .devices import open_device
    from .workbench import Workbench

    device = open_device(target, settings)
    if not device.wants_quiet:
        return Workbench(device, settings.home)
    return Workbench(device, settings.home, lambda: _quiet(connection))


@contextlib.contextmanager
def _quiet(connection: Connection) -> Iterator[None]:
    """The span in which the parent keeps its compilers still."""
    send(connection, {"kind": "quiet"})
    receive(connection)  # "go"
    try:
        yield
    finally:
        send(connection, {"kind": "noise"})


def _answer(workbench: Workbench, message: Mapping[str, Any]) -> dict[str, Any]:
    from .devices.base import DeviceFault

    try:
        return _HANDLERS[message["kind"]](workbench, message)
    except DeviceFault as error:
        return {"kind": "fault", "message": str(error)}
    except ReferenceFailed as error:
        traceback.print_exc()  # into the log
        return _unexpected(workbench, _refusal(error))
    except ColdforgeError as error:
        return _refusal(error)
    except Exception as error:
        traceback.print_exc()
        line = f"{type(error).__name__}: {error}".splitlines()[0]
        return _unexpected(workbench, {"kind": "refused", "input": False, "message": line})


def _unexpected(workbench: Workbench, refusal: dict[str, Any]) -> dict[str, Any]:
    """The answer to an error of a reference, or one that nobody foresaw: PyTorch may be the first to notice a
    fault of an earlier kernel."""
    from .devices.base import DeviceFault

    try:
        workbench.device.synchronize()
    except DeviceFault as fault:
        return {"kind": "fault", "message": str(fault)}
    return refusal


def _refusal(error: ColdforgeError) -> dict[str, Any]:
    return {"kind": "refused", "input": isinstance(error, InputError), "message": located(error)}


def _prepare(workbench: Workbench, message: Mapping[str, Any]) -> dict[str, Any]:
    from .request import TrialRequest

    study = workbench.study(TrialRequest.from_dict(message["request"]))
    workbench.device.settle()
    _ = workbench.ceilings  # a probe takes seconds, which the first variant's limit has no room for
    return {"kind": "done", "left_out": list(study.checks.left_out)}


def _trial(workbench: Workbench, message: Mapping[str, Any]) -> dict[str, Any]:
    from .request import TrialRequest

    result = workbench.trial(TrialRequest.from_dict(message["request"]))
    return {"kind": "result", "result": result.to_dict()}


def _finals(workbench: Workbench, message: Mapping[str, Any]) -> dict[str, Any]:
    from .energy import ROUNDS
    from .request import TrialRequest

    requests = [TrialRequest.from_dict(request) for request in message["requests"]]
    results = workbench.finals(requests, energy_rounds=ROUNDS if message["energy"] else 0)
    return {"kind": "results", "results": [result.to_dict() for result in results]}


def _check(workbench: Workbench, message: Mapping[str, Any]) -> dict[str, Any]:
    from .check.on_device import run_check

    return run_check(workbench, message)


def _facts(workbench: Workbench, message: Mapping[str, Any]) -> dict[str, Any]:
    device, meter = workbench.device, workbench.device.meter()
    more = {"ceilings": workbench.ceilings.to_dict(), "probe": workbench.probe.to_dict()}
    source = meter.source if meter else None
    return {"kind": "facts", "facts": device.facts(), **more, "energy_source": source}


def _bench(workbench: Workbench, message: Mapping[str, Any]) -> dict[str, Any]:
    from .bench import run_bench

    return {"kind": "bench", **run_bench(workbench, message)}


def _survey(workbench: Workbench, message: Mapping[str, Any]) -> dict[str, Any]:
    from .survey import run_survey

    return {"kind": "survey", **run_survey(workbench, message)}


_HANDLERS: Mapping[str, Callable[[Workbench, Mapping[str, Any]], dict[str, Any]]] = {
    "prepare": _prepare,
    "trial": _trial,
    "finals": _finals,
    "check": _check,
    "facts": _facts,
    "bench": _bench,
    "survey": _survey,
}
