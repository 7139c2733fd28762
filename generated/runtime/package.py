# SPDX-License-Identifier: Apache-2.0
"""The package's state: whether its extension is built, loaded and verified, and why not."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import build, fallback, manifest, registration, verify
from .extension import Extension, is_whole
from .manifest import PackageError

if TYPE_CHECKING:
    from torch import Tensor

    from .frozen import FrozenOp

OPERATORS: dict[str, FrozenOp] = {}
"""The package's operators by name; each registers itself."""


@dataclass
class State:
    """What calls look at.

    Attributes:
        ready: everything that a first call does is done, well or not.
        why: why there is no extension; empty when there is one.
        extension: the loaded extension.
        record: variant -> result of its check on this machine.
    """

    ready: bool = False
    why: str = ""
    extension: Extension | None = None
    record: dict[str, Any] = field(default_factory=dict)


STATE = State()
_LOCK = threading.RLock()
_PORTABLE_CHECKED: set[tuple[Any, ...]] = set()


def refuse_altered() -> None:
    """Called before operators are imported: where a kernel is refused the reference answers, so nothing may
    answer where that, or what checks its arguments, is not what was frozen. A manifest that cannot be read is
    said by `load_if_built`.

    Raises:
        ImportError: such a file is missing, cut off or altered.
    """
    try:
        found = manifest.load()
    except PackageError:
        return
    try:
        found.check_files("operators", "reference")
    except PackageError as error:
        raise ImportError(f"coldforge: {error}", name=build.PACKAGE) from None


def last_variant() -> str | None:
    """The frozen variant that answered this thread's last call of an operator of this package, as
    ``ENTRY@ARCH``; None where PyTorch's reference did, and before the first call.
    """
    return None if STATE.extension is None else STATE.extension.last()


@contextlib.contextmanager
def reference_only() -> Iterator[None]:
    """While it lasts, PyTorch's reference answers the calls of this thread, without a warning: to compare, or
    to find out whether a kernel is at fault. Compiled graphs follow it too.
    """
    if not STATE.ready:
        prepare()
    if STATE.extension is None:
        yield
        return
    before, fallback.CHECKING.on = fallback.CHECKING.on, True
    try:
        with STATE.extension.none():
            yield
    finally:
        fallback.CHECKING.on = before


def load_if_built() -> None:
    """Loads the extension if it stands there, whole. Called at import: builds nothing, asks no device, never
    raises.
    """
    if not OPERATORS:
        return
    with _LOCK:
        try:
            found = manifest.load()
            path = build.extension_path(found)
            if is_whole(path, found.build_key):
                _load(found, path)
            elif path.exists():
                STATE.why = f"{path} is damaged"
        except (PackageError, OSError) as error:
            STATE.why = str(error)
            STATE.ready = True


def prepare() -> None:
    """What the first call does: builds the extension if that is allowed, loads it, verifies what was not
    yet.
    """
    with _LOCK:
        if STATE.ready:
            return
        try:
            found = manifest.load()
            if STATE.extension is None:
                _load(found, _built(found))
            assert STATE.extension is not None
            STATE.record = _undisturbed(verify.verify_missing, found, STATE.extension, OPERATORS)
        except (PackageError, OSError) as error:
            STATE.why = str(error)
        STATE.ready = True


def check_more(op: FrozenOp, tensor: Tensor) -> bool:
    """What a call does that found no kernel verified here. If it is compiled, it may be the first; and a GPU
    may have no machine code in this package: then the operator's PTX is checked on that GPU, once, which lets
    the driver compile it there.

    Returns:
        Whether there may be something now that there was not before. A second call in a row has no more.
    """
    if STATE.extension is None or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    if not STATE.ready:
        prepare()
        return True
    return tensor.is_cuda and _check_portable(op, tensor)


def _check_portable(op: FrozenOp, tensor: Tensor) -> bool:
    place = (op.name, tensor.dtype, tensor.device)
    known = place in _PORTABLE_CHECKED
    with _LOCK:
        assert STATE.extension is not None
        if place in _PORTABLE_CHECKED:
            return not known  # another thread checked it while this one waited
        before = STATE.extension.enabled()
        try:
            STATE.record = _undisturbed(verify.verify_portable, manifest.load(), STATE.extension, op, tensor)
        except (PackageError, OSError) as error:
            print(f"coldforge: {op.name} cannot be checked: {error}", file=sys.stderr)
        finally:
            _PORTABLE_CHECKED.add(place)
        return STATE.extension.enabled() != before


def _undisturbed(work: Callable[..., Any], *arguments: Any) -> Any:
    """Runs ``work`` in a thread of its own: the caller may be under vmap, fake tensors, autocast or another
    default device, and none of that may reach a check whose result is recorded. A variant that does not run
    ends in the reference: there it must not warn, nor ask for a check, which waits for this one.
    """

    def quietly() -> Any:
        fallback.CHECKING.on = True
        return work(*arguments)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(quietly).result()


def _built(found: manifest.Manifest) -> Path:
    path = build.extension_path(found)
    if is_whole(path, found.build_key):
        return path
    refusal = build.why_not_automatically(found.root)
    if refusal:
        raise PackageError(refusal)
    return build.build(found)


def _load(found: manifest.Manifest, path: Path) -> None:
    """Loads the extension, gives its ops their Python kernels, and enables what is known to be right. A file
    that is not what was frozen is refused before.
    """
    found.check_files()
    extension = Extension(path, found.build_key)
    STATE.extension = extension
    for op in OPERATORS.values():
        registration.register(op)
    STATE.ready = verify.enable_verified(found, extension)
    STATE.record = verify.read_record(found)


def not_built_while_tracing(name: str) -> RuntimeError:
    """The error of a traced call whose extension is not loaded: nothing can be built while tracing."""
    reason = STATE.why or "its extension is not built"
    advice = "" if manifest.MEND in reason else f"; run `{build.by_hand()}` first"
    return RuntimeError(f"coldforge: {name} cannot be compiled: {reason}{advice}")


def missing_name(name: str, package: str, known: list[str]) -> Exception:
    """The error of a name that the package does not have, asked for by the package's ``__getattr__``: an
    ImportError for an import, whose message is shown to the user, and an AttributeError for all that looks
    whether there is such a name (``hasattr``, pickle).
    """
    if name.startswith("_"):
        return AttributeError(f"module {package!r} has no attribute {name!r}")
    own = ("last_variant", "reference_only", "replace")
    frozen = ", ".join(other for other in known if other not in own) or "nothing"
    text = (
        f"{package} has no frozen {name!r} (it has {frozen}); for an operator of `coldforge list`: "
        f"run `coldforge tune {name}`, then `{fallback.freeze_command(name)}`"
    )
    importing = sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap"
    return ImportError(text, name=package) if importing else AttributeError(text)
