# SPDX-License-Identifier: Apache-2.0
"""The HTML page: one file, whole in itself, that asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

from ...codegen.errors import ColdforgeError
from . import charts, words
from .charts import Chart
from .story import Story
from .tables import tables

MAX_BYTES = 2_000_000
"""What a page may take; the longest texts are shortened before it does."""
_HERE = files(__package__ or "coldforge.tuner.report")


def render_page(story: Story) -> str:
    """The page of a study.

    Raises:
        ColdforgeError: it would be larger than `MAX_BYTES`.
    """
    drawn = _charts(story)
    data = tables(story.material, story.verdict.finalists, story.roofline)
    data["charts"] = [{"id": chart.id, "spec": chart.spec} for group in drawn.values() for chart in group]
    scripts = [_script(_library()), _script(_read("report.js"))]
    page = _environment().get_template("report.html.jinja").render(
        story=story,
        material=story.material,
        charts=drawn,
        data=data,
        style=Markup(_read("report.css")),
        scripts=[Markup(script) for script in scripts],
        policy=_policy(scripts),
    )  # fmt: skip
    if (size := len(page.encode())) > MAX_BYTES:
        raise ColdforgeError(f"the report would take {size} bytes, more than {MAX_BYTES}")
    return page


def _charts(story: Story) -> dict[str, list[Chart]]:
    """Section -> its charts; those of a template by the section and the template's number."""
    material = story.material
    drawn: dict[str, list[Chart]] = {"history": [charts.history(material)] if material.results else []}
    for index, template in enumerate(material.templates):
        varying = [axis for axis in material.axes(template) if axis.varies]
        timed = len(material.of_template(template))
        importance = story.importances[template]
        drawn[f"importance-{index}"] = [charts.importances(importance, index)] if importance.shares else []
        drawn[f"parallel-{index}"] = [charts.parallel(varying, index, timed)] if varying and timed > 1 else []
        drawn[f"slices-{index}"] = (
            charts.slices(varying, index, material.parameters) if varying and timed else []
        )
    drawn["finals"] = charts.finals(story.verdict) if story.verdict.finalists else []
    drawn["roofline"] = [] if story.roofline.reason else [charts.roofline(story.roofline)]
    known = ["registers", "spills"] + ["occupancy"] * any(map(material.occupancy, material.timed))
    drawn["resources"] = [] if story.no_resources else charts.resources(known)
    return drawn


def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "ms": words.ms,
        "mj": words.mj,
        "percent": words.percent,
        "times": words.times,
        "config": words.config_text,
        "counted": words.counted,
        "bytes": words.readable_bytes,
        "compact": _compact,
    }
    return found


def _compact(document: Mapping[str, Any]) -> Markup:
    """JSON for a script element: no text in it can end the element, or begin another one."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return Markup(re.sub("[<>&\u2028\u2029]", lambda found: escapes[found.group()], text))


def _read(name: str) -> str:
    return _HERE.joinpath(name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, of the versions that Altair writes for."""
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)


def _script(text: str) -> str:
    """A script that no text in it ends early."""
    return re.sub(
        r"</(script)|<!--", lambda m: f"<\\/{m.group(1)}" if m.group(1) else "<\\!--", text, flags=re.I
    )


def _policy(scripts: list[str]) -> str:
    """What the page may do: run these very scripts, and fetch nothing. Whatever else got into it as a script
    does not run. Vega compiles its expressions, which is an eval.
    """
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
