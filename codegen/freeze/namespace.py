# SPDX-License-Identifier: Apache-2.0
"""The namespace of a package's PyTorch operators: which names can be one."""

from __future__ import annotations

import inspect
import keyword
import re
import sys

from ..errors import InputError

REPOSITORY_NAMESPACE = "coldforge"

_NAMESPACE = re.compile(r"[a-z][a-z0-9_]{0,60}\Z")
# Namespaces of PyTorch 2.13 and its companions; a library that takes one of them cannot be loaded. Some come
# into being late (with a backend, a quantizer), or in builds for other devices: this PyTorch, when it is
# asked, knows only those that it has.
_TAKEN = {
    "ao",
    "aten",
    "bucketing",
    "c10d",
    "c10d_functional",
    "cuda",
    "debug_mode_ops",
    "debugprims",
    "device_mesh",
    "export",
    "fbgemm",
    "flash_attn_3",
    "flex_lib",
    "fsdp",
    "higher_order",
    "inductor",
    "inductor_prims",
    "mkl",
    "mkldnn",
    "mkldnn_prepacked",
    "onednn",
    "onnx",
    "onnx_symbolic",
    "pippy",
    "prepacked",
    "prim",
    "prims",
    "profiler",
    "pt2e_quant",
    "quantization",
    "quantized",
    "quantized_decomposed",
    "rngprims",
    "semi_structured",
    "sparse",
    "static_runtime",
    "streams",
    "symm_mem",
    "torch",
    "torch_attn",
    "torchao",
    "torchaudio",
    "torchrec",
    "torchvision",
    "triton",
    "xla",
}


def check_namespace(namespace: str) -> None:
    """Refuses what cannot be the namespace of a PyTorch library, or is taken.

    Raises:
        InputError: with the reason.
    """
    if not _NAMESPACE.match(namespace) or keyword.iskeyword(namespace):
        raise InputError(
            f"package name {namespace!r}; it must be lower-case letters, digits and _, not a keyword"
        )
    if namespace == REPOSITORY_NAMESPACE:
        return
    if namespace in _TAKEN or _is_known_here(namespace):
        raise InputError(f"package name {namespace!r} is taken by PyTorch")


def _is_known_here(namespace: str) -> bool:
    """Whether this process's PyTorch has operators of that namespace, or something else under its name in
    ``torch.ops``. A package of ours that this process has loaded may be written anew.
    """
    if f"{namespace}.runtime" in sys.modules:
        return False
    import torch  # takes seconds; only here, so that no other command waits for it
    from torch._ops import _OpNamespace

    # getattr would make a namespace of any name.
    found = inspect.getattr_static(torch.ops, namespace, None)
    if found is not None and not isinstance(found, _OpNamespace):
        return True
    return any(name.startswith(f"{namespace}::") for name in torch._C._dispatch_get_all_op_names())
