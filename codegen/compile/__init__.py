# SPDX-License-Identifier: Apache-2.0
"""Source -> binary, for both targets, in a content-addressed cache and in several processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..settings import COMPILE_LIMIT_S
from .artifact import Artifact, Resources
from .cache import Cache

if TYPE_CHECKING:
    from ..render import KernelSource
    from ..target import Target

__all__ = ["Artifact", "Cache", "Resources", "compile_source"]


def compile_source(
    source: KernelSource, target: Target, cache: Cache, *, time_limit_s: float | None = COMPILE_LIMIT_S
) -> Artifact:
    """Compiles `source` for `target` with the compiler of its language.

    Args:
        source: A rendered, self-contained text; `language` is "cuda" (NVRTC makes a cubin) or "cpp" (g++
            makes a shared library).
        target: What to compile for; its device need not be present.
        cache: Where the result is kept and looked for.
        time_limit_s: Seconds after which g++ and all its children are killed; None: whoever calls sees to
            that. NVRTC runs in this process, where nothing can end it.

    Raises:
        CompileError: The compiler refused the source, crashed, or ran past its time limit; see its `log`.
        ToolMissing: The compiler is not installed.
        ValueError: A language that has no compiler here.
    """
    if source.language == "cuda":
        from .nvrtc import compile_cuda

        return compile_cuda(source, target, cache)
    if source.language == "cpp":
        from .host import compile_cpp

        return compile_cpp(source, target, cache, time_limit_s=time_limit_s)
    raise ValueError(f"no compiler for language {source.language!r}")
