# SPDX-License-Identifier: Apache-2.0
"""The Python files of a package that follow from the declarations: one for each operator, and the
package's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..expr import Expr
from ..module_arguments import shape_argument
from .chain_text import chain_texts
from .signature import Signature, TensorArgument, channel_start
from .templates import environment

_FUNCTIONS = ("ceil_div", "round_up")


def render_operator(signature: Signature, tunable: Mapping[str, Sequence[str]] | None = None) -> str:
    """The text of ``operators/<name>.py``: reference, checks, wrapper and module.

    Args:
        tunable: kind of target -> dtypes in which it can be tuned; all where it is not said.
    """
    operator, family = signature.operator, signature.family
    context = {
        "name": operator.name,
        "summary": _in_docstring(operator.summary.rstrip(".")),
        "module": operator.module,
        "family": family.name,
        "reference": family.reference_name,
        "magnitude": family.magnitude_name,
        "tensors": [_tensor(signature, t) for t in signature.tensors],
        # What torch.nn calls the parameters of its own layers.
        "own_layer_names": {t.name for t in family.tensors[1:]} <= {"weight", "bias"},
        "scalars": [{"name": n, "default": repr(v)} for n, v in operator.scalars.items()],
        "attributes": signature.attributes,
        "chain": chain_texts(operator),
        "tunable": {kind: list(dtypes) for kind, dtypes in (tunable or {}).items()},
        "unbatched": _takes_one_sample(signature),
        **_argument_lists(signature),
        "values": signature.value_names,
        "size_names": family.sizes,
        "scaled": [
            (n, f"{signature.tensors[r.tensor].name}.shape[{r.dim}] * {r.factor}")
            for n, r in signature.size_reads.items()
            if r.factor
        ],
        "derived": [(n, e.text) for n, e in family.derived.items()],
        "output": [e.text for e in signature.output_shape],
        "output_names": _names(signature.output_shape),
        "quotients": signature.quotients,
        "output_minimums": signature.output_minimums,
        "reduction": family.reduction_length.text,
        "reduction_names": _names([family.reduction_length]),
        "expression_functions": _functions(signature),
        "module_parameters": [{"name": n, "sizes": s} for n, s in signature.module_parameters.items()],
        "module_attribute_names": _module_attributes(signature),
        "module_quotients": _module_quotients(signature),
    }
    return environment().get_template("operator.py.jinja").render(context)


def _takes_one_sample(signature: Signature) -> bool:
    """Whether a sample without the batch's axis means the same, as to PyTorch's own layers: where samples lie
    along the first axis of the input and of the output, along no other tensor's, and no step numbers the
    axes.
    """
    operator, family = signature.operator, signature.family
    first, *others = signature.tensors
    batch = first.shape[0].text.strip() if first.shape else ""
    if batch not in family.run_time or any(step.is_reduction for step in operator.epilogue):
        return False
    read = [e for t in others for e in t.shape] + [*signature.output_shape[1:], *first.shape[1:]]
    begins = bool(signature.output_shape) and signature.output_shape[0].text.strip() == batch
    return begins and len(first.shape) > 1 and not any(batch in e.names for e in read)


def _in_docstring(text: str) -> str:
    """A declaration's words, so that they cannot end the string that they stand in."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def render_init(signatures: Sequence[Signature], namespace: str) -> str:
    """The text of the package's ``__init__.py``."""
    context = {
        "namespace": namespace,
        "operators": [
            {"name": s.operator.name, "names": sorted(filter(None, (s.operator.name, s.operator.module)))}
            for s in signatures
        ],
    }
    return environment().get_template("package.py.jinja").render(context)


def _argument_lists(signature: Signature) -> dict[str, dict[str, str]]:
    """What each generated function takes, and what it is called with."""
    own = [t for t in signature.tensors if not t.channel]
    vectors = [t for t in signature.tensors if t.channel]
    given = {t.name: "Tensor | None" if t.optional else "Tensor" for t in signature.tensors}
    given |= dict.fromkeys(signature.operator.scalars, "float")
    given |= {a.name: "Sequence[int]" if a.pair else "int" for a in signature.attributes}
    scalars, attributes = list(signature.operator.scalars), [a.name for a in signature.attributes]
    lists = {
        "own": [*(t.name for t in own), *attributes],
        "epilogue": ["v", *(t.name for t in vectors), *scalars],
        "op": [*(t.name for t in signature.tensors), *scalars, *attributes],
        "sizes": [*(t.name for t in signature.tensors), *attributes],
    }
    given["v"] = "Tensor"
    as_written = {**given, **{a.name: "int | Sequence[int]" for a in signature.attributes if a.pair}}
    parameters = {name: ", ".join(f"{n}: {given[n]}" for n in names) for name, names in lists.items()}
    parameters["checked"] = ", ".join(f"{n}: {as_written[n]}" for n in lists["op"])
    call = {name: ", ".join(names) for name, names in lists.items()}
    call["family"] = ", ".join([*(t.name for t in own), *(f"{n}={n}" for n in attributes)])
    return {"parameters": parameters, "call": call}


def _tensor(signature: Signature, tensor: TensorArgument) -> dict[str, Any]:
    number = signature.tensors.index(tensor)
    reads = {r.dim: n for n, r in signature.size_reads.items() if r.tensor == number and not r.factor}
    targets = [reads.get(dim, "_") for dim in range(len(tensor.shape))]
    left = ", ".join(targets) + ("," if len(targets) == 1 else "")
    return {
        "name": tensor.name,
        "optional": tensor.optional,
        "channel": tensor.channel,
        "shape_argument": shape_argument(tensor.name) if tensor.shaped else "",
        "rank": len(tensor.shape),
        "vector_shape": _vector_shape(tensor),
        "shape": ", ".join(e.text for e in tensor.shape),
        "unpack": f"{left} = " if reads else "",
        "checked": any(c.tensor == number for c in signature.shape_checks),
        "start": channel_start(signature, tensor.name),
    }


def _vector_shape(tensor: TensorArgument) -> tuple[int, ...] | None:
    """The shape of a tensor with one axis longer than 1, as ``reshape`` takes it; None of any other."""
    shape = tuple(1 if e.text.strip() == "1" else -1 for e in tensor.shape)
    return shape if shape.count(-1) == 1 else None


def _names(expressions: Sequence[Expr]) -> list[str]:
    return sorted(set().union(*(e.names for e in expressions)))


def _functions(signature: Signature) -> list[str]:
    family = signature.family
    texts = [e.text for e in family.derived.values()] + [family.reduction_length.text]
    texts += [e.text for t in (*signature.tensors, family.output) for e in t.shape]
    return [name for name in _FUNCTIONS if any(f"{name}(" in text for text in texts)]


def _module_attributes(signature: Signature) -> list[dict[str, str]]:
    """Attribute values that the parameters' shapes read, and where the constructor has them."""
    read = set().union(*(e.names for t in signature.tensors[1:] for e in t.shape))
    found = []
    for attribute in signature.attributes:
        for place, name in enumerate(attribute.value_names):
            if name in read:
                source = f"self.{attribute.name}" + (f"[{place}]" if attribute.pair else "")
                found.append({"value": name, "source": source})
    return found


def _module_quotients(signature: Signature) -> list[dict[str, str]]:
    """What a parameter's shape divides in the constructor: the argument, its size, the attribute value."""
    arguments = {sizes[0]: name for name, sizes in signature.module_parameters.items() if len(sizes) == 1}
    return [
        {"argument": arguments[size], "size": size, "attribute": value}
        for size, value in signature.quotients
        if size in arguments
    ]
