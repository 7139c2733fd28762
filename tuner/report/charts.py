# SPDX-License-Identifier: Apache-2.0
"""The charts, as Vega-Lite specifications made by Altair.

A chart reads one of the page's tables (`tables`), which the page hands to it when it draws. Fields have names
of our own and never a user's: a parameter is ``p0``, ``p1``, ...; what a user called it is a title, and a
title is text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from ..limits import ENERGY
from .importance import Importance
from .material import Axis, Material
from .roofline import Roofline
from .tables import FINALS, POSITIONS, ROOFS, TRIALS, time_field
from .verdict import Verdict

BLUE, ORANGE, GREEN, RED, GREY, VIOLET = "#3f83d4", "#e07b1f", "#2f9e6b", "#d6455d", "#8b92a0", "#9163cb"
"""Told apart on a light and on a dark ground, and by the colour-blind in this order."""
_SERIES = [BLUE, VIOLET, GREEN, "#c2a21b", "#19a3b8", GREY]
_ROLES = {"winner": ORANGE, "default": GREEN, "finalist": VIOLET, "other": BLUE}
_SPEEDS = [ORANGE, VIOLET, BLUE, GREY]
"""From the fastest to the slowest."""
_RANKS = [0, 1, 2, 3]
"""Other, finalist, default, winner."""
_DASH = [4, 3]
_FLAT: dict[str, Any] = {"labelAngle": 0}
_TURNED: dict[str, Any] = {"labelAngle": -24, "labelAlign": "left"}


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    Attributes:
        id: of the element that it is drawn in.
        spec: Vega-Lite.
        height: of the element until it is drawn, pixels.
        title: that stands over it; empty for none.
    """

    id: str
    spec: dict[str, Any] = field(repr=False)
    height: int = 320
    title: str = ""


def _chart(id_: str, chart: Any, height: int, title: str = "") -> Chart:
    """Makes the chart as wide as its place."""
    # Altair checks each part when it is made; checking the whole again takes as long as all the rest.
    spec = chart.properties(width="container", height=height).to_dict(validate=False)
    return Chart(id_, spec, height, title)


def _tip(*more: Any) -> list[Any]:
    return [
        alt.Tooltip("ms:Q", title="ms", format=".4g"),
        *more,
        alt.Tooltip("number:Q", title="trial"),
        alt.Tooltip("template:N", title="template"),
        alt.Tooltip("config:N", title="config"),
    ]


def _time(title: str = "time, ms (log scale)") -> Any:
    return alt.Y("ms:Q", title=title, scale=alt.Scale(type="log", nice=False, padding=8))


def _role_colour() -> Any:
    return alt.Color("role:N", scale=alt.Scale(domain=list(_ROLES), range=list(_ROLES.values())), legend=None)


def _role_size() -> Any:
    return alt.Size("rank:Q", legend=None, scale=alt.Scale(domain=_RANKS, range=[28, 40, 70, 130]))


def _role_shape() -> Any:
    shapes = ["diamond", "square", "circle", "circle"]
    return alt.Shape("role:N", legend=None, scale=alt.Scale(domain=list(_ROLES), range=shapes))


def _role_order() -> Any:
    """Draws the winner last, so that nothing hides it."""
    return alt.Order("rank:Q")


def history(material: Material) -> Chart:
    """Time of each trial, the best so far, and where one failed."""
    trials = alt.NamedData(name=TRIALS)
    x = alt.X(
        "number:Q",
        title="trial",
        axis=alt.Axis(tickMinStep=1, tickCount=12, grid=False),
        scale=alt.Scale(nice=False, padding=8),
    )
    several = len(material.templates) > 1
    colour = (
        alt.Color("template:N", title="template", scale=alt.Scale(domain=material.templates, range=_SERIES))
        if several
        else alt.value(BLUE)
    )
    points = (
        alt.Chart(trials, name="timed")
        .transform_filter("isValid(datum.ms)")
        .mark_point(filled=True, size=42, opacity=0.85)
        .encode(
            x=x,
            y=_time(),
            color=colour,
            tooltip=_tip(alt.Tooltip("share:Q", title="of the device's speed", format=".0%")),
        )
    )
    best = (
        alt.Chart(trials, name="best")
        .transform_filter("isValid(datum.best)")
        .mark_line(interpolate="step-after", color=ORANGE, strokeWidth=2)
        .encode(x=x, y=alt.Y("best:Q"))
    )
    winner = (
        alt.Chart(trials, name="winner")
        .transform_filter("datum.role === 'winner'")
        .mark_point(shape="diamond", filled=True, size=170, color=ORANGE, opacity=1)
        .encode(x=x, y=alt.Y("ms:Q"), tooltip=_tip())
    )
    failed = (
        alt.Chart(trials, name="failed")
        .transform_filter("!isValid(datum.ms)")
        .mark_point(shape="cross", angle=45, filled=True, size=46, color=RED, opacity=0.85)
        .encode(
            x=x,
            y=alt.value(4),
            tooltip=[
                alt.Tooltip("outcome:N", title="failed as"),
                alt.Tooltip("reason:N", title="because"),
                *_tip()[1:],
            ],
        )
    )
    layers = [best, points, winner] if material.timed else []
    layers += [failed] if len(material.timed) < len(material.results) else []
    return _chart("history", alt.layer(*layers), 340)


def importances(importance: Importance, index: int) -> Chart:
    """A bar for each parameter."""
    rows = [{"name": name, "share": share} for name, share in importance.shares.items()]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y("name:N", sort=None, title=None),
        x=alt.X("share:Q", title="share of the importance", axis=alt.Axis(format="%", tickCount=6)),
        tooltip=[
            alt.Tooltip("name:N", title="parameter"),
            alt.Tooltip("share:Q", title="share", format=".1%"),
        ],
    )
    bars = base.mark_bar(color=BLUE, cornerRadiusEnd=3)
    labels = base.mark_text(align="left", dx=4).encode(text=alt.Text("share:Q", format=".0%"))
    return _chart(f"importance-{index}", alt.layer(bars, labels), 24 * len(rows) + 10)


def parallel(axes: Sequence[Axis], index: int, timed: int) -> Chart:
    """A line for each right config through its values, coloured by its rank.

    Args:
        axes: the template's parameters that vary.
        index: of the template.
        timed: how many lines there are: the more, the fainter.
    """
    faint = max(0.12, min(0.5, 25 / timed))
    names = [axis.name for axis in axes] + [time_field(axes)]
    data = alt.NamedData(name=f"{POSITIONS}-{index}")
    hover = alt.selection_point(on="pointerover", clear="pointerout", fields=["number"], empty=False)
    x = alt.X(
        "axis:N", sort=names, title=None, scale=alt.Scale(domain=names, padding=0.25), axis=alt.Axis(
            orient="top", labelFontWeight="bold", labelLimit=150, domain=False, ticks=False, grid=True,
            labelOverlap=False, **(_TURNED if len(names) > 8 else _FLAT),
        )
    )  # fmt: skip
    y = alt.Y("position:Q", axis=None, scale=alt.Scale(domain=[-0.06, 1.06]))
    colour = alt.condition(
        hover,
        alt.value(RED),
        alt.Color("slowness:Q", legend=None, scale=alt.Scale(domain=[0, 0.33, 0.66, 1], range=_SPEEDS)),
    )
    lines = (
        alt.Chart(data, name="configs")
        .transform_filter("isValid(datum.number)")
        .mark_line(interpolate="monotone")
        .encode(
            x=x,
            y=y,
            detail="number:N",
            color=colour,
            order=alt.Order("step:Q"),
            strokeWidth=alt.condition(hover, alt.value(3), alt.StrokeWidth(
                "rank:Q", legend=None, scale=alt.Scale(domain=_RANKS, range=[1.1, 1.4, 2, 3.5]))),
            opacity=alt.condition(hover, alt.value(1), alt.Opacity(
                "rank:Q", legend=None, scale=alt.Scale(domain=_RANKS, range=[faint, 0.6, 0.9, 1]))),
            tooltip=_tip(),
        )
        .add_params(hover)
    )  # fmt: skip
    # The lines of a value are spread a little, so that a bundle shows how many it has; its label is not.
    labels = (
        alt.Chart(data)
        .transform_filter("isValid(datum.label)")
        .transform_aggregate(place="min(place)", groupby=["axis", "label"])
        .encode(x=x, y=alt.Y("place:Q"), text="label:N")
    )
    halo = labels.mark_text(align="left", dx=7, fontSize=11, style="halo")
    words = labels.mark_text(align="left", dx=7, fontSize=11)
    return _chart(f"parallel-{index}", alt.layer(lines, halo, words), 380)


def slices(axes: Sequence[Axis], index: int, parameters: Sequence[str]) -> list[Chart]:
    """For each parameter that varies: each right config's time over its value, and the best of each value.

    Args:
        parameters: all names, whose places are the fields' numbers.
    """
    return [_slice(axis, index, number, parameters.index(axis.name)) for number, axis in enumerate(axes)]


def _slice(axis: Axis, template: int, number: int, parameter: int) -> Chart:
    name = f"p{parameter}"
    x = alt.X(
        f"{name}:N", title=None, sort=axis.texts, scale=alt.Scale(domain=axis.texts), axis=alt.Axis(
            labelAngle=0, labelLimit=90)
    )  # fmt: skip
    data = alt.Chart(alt.NamedData(name=TRIALS)).transform_filter(
        f"datum.t === {template} && isValid(datum.ms)"
    )
    points = (
        data.transform_calculate(jitter="(datum.number * 0.618034) % 1")
        .mark_point(filled=True, opacity=0.85)
        .encode(
            x=x,
            xOffset=alt.XOffset("jitter:Q", scale=alt.Scale(domain=[-0.3, 1.3])),
            y=_time("ms"),
            color=_role_colour(),
            size=_role_size(),
            shape=_role_shape(),
            order=_role_order(),
            tooltip=_tip(),
        )
    )
    best = (
        data.transform_aggregate(ms="min(ms)", count="count()", groupby=[name])
        .mark_tick(color=ORANGE, thickness=2.5, size=26)
        .encode(
            x=x,
            y=alt.Y("ms:Q"),
            tooltip=[
                alt.Tooltip(f"{name}:N", title="value"),
                alt.Tooltip("ms:Q", title="best, ms", format=".4g"),
                alt.Tooltip("count:Q", title="configs"),
            ],
        )
    )
    return _chart(f"slice-{template}-{number}", alt.layer(points, best), 170, axis.name)


def finals(verdict: Verdict) -> list[Chart]:
    """The finalists' medians with their intervals: times, and joules where they were read."""
    times = any(f.low_ms is not None for f in verdict.finalists)
    joules = any(f.low_j is not None for f in verdict.finalists)
    height = 26 * len(verdict.finalists) + 40
    title = "Time" if verdict.has_energy else ""
    found = [_chart("finals", _final_figures("ms", ("ms", "low", "high"), times), height, title)]
    if verdict.has_energy:
        fields = ("mj", "low_mj", "high_mj")
        chart = _final_figures("mJ a launch", fields, joules)
        found.insert(
            0 if verdict.objective == ENERGY else 1, _chart("finals-energy", chart, height, "Energy")
        )
    return found


def _final_figures(title: str, fields: tuple[str, str, str], intervals: bool) -> Any:
    """One of the finals' figures.

    Args:
        fields: the median, and the ends of its interval.
        intervals: whether there are any.
    """
    middle, low, high = fields
    data = alt.Chart(alt.NamedData(name=FINALS))
    y = alt.Y("name:N", sort=alt.SortField("order"), title=None, axis=alt.Axis(labelLimit=260))
    scale = alt.Scale(zero=False, nice=False, padding=16)
    tip = [
        alt.Tooltip(f"{middle}:Q", title=title, format=".5g"),
        alt.Tooltip(f"{low}:Q", title="from", format=".5g"),
        alt.Tooltip(f"{high}:Q", title="to", format=".5g"),
        alt.Tooltip("standing:N", title="standing"),
        alt.Tooltip("template:N", title="template"),
        alt.Tooltip("config:N", title="config"),
    ]
    x = alt.X(f"{middle}:Q", scale=scale, title=title, axis=alt.Axis(tickCount=8))
    points = data.mark_point(filled=True, size=80, opacity=1).encode(
        x=x, y=y, color=_role_colour(), tooltip=tip
    )
    if not intervals:
        return points
    spans = (
        data.transform_filter(f"isValid(datum.{low})")
        .mark_rule(strokeWidth=4, opacity=0.55)
        .encode(
            x=alt.X(f"{low}:Q", scale=scale, title=title),
            x2=f"{high}:Q",
            y=y,
            color=_role_colour(),
            tooltip=tip,
        )
    )
    return alt.layer(spans, points)


def roofline(roofs: Roofline) -> Chart:
    """The device's ceilings, and each right config under them."""
    log = alt.Scale(type="log", nice=False, padding=10)
    lines = (
        alt.Chart(alt.NamedData(name=ROOFS))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("x:Q", scale=log, title="operations a byte that must move (log scale)"),
            y=alt.Y("y:Q", scale=log, title="GFLOP/s (log scale)"),
            color=alt.Color(
                "roof:N",
                title=None,
                legend=alt.Legend(orient="top", labelLimit=420),
                scale=alt.Scale(range=[GREY, RED, GREEN]),
            ),
            strokeDash=alt.condition("indexof(datum.roof, 'alone') > 0", alt.value(_DASH), alt.value([1, 0])),
        )
    )
    points = (
        alt.Chart(alt.NamedData(name=TRIALS))
        .transform_filter("isValid(datum.ms)")
        .transform_calculate(
            x=f"{roofs.intensity!r} * (0.93 + 0.14 * ((datum.number * 0.618034) % 1))",
            y=f"{roofs.flops / 1e6!r} / datum.ms",
        )
        .mark_point(filled=True, opacity=0.85)
        .encode(
            x=alt.X("x:Q"),
            y=alt.Y("y:Q"),
            color=_role_colour(),
            size=_role_size(),
            shape=_role_shape(),
            order=_role_order(),
            tooltip=[
                alt.Tooltip("y:Q", title="GFLOP/s", format=",.4g"),
                *_tip(alt.Tooltip("share:Q", title="of the device's speed", format=".0%")),
            ],
        )
    )
    return _chart("roofline", alt.layer(lines, points).resolve_scale(color="independent"), 360)


RESOURCES = {
    "registers": ("registers a thread", "d"),
    "spills": ("bytes of registers spilled a thread", "d"),
    "occupancy": ("resident warps of those possible", "%"),
}


def resources(names: Sequence[str]) -> list[Chart]:
    """Those of registers, spills and occupancy that are known, against time."""
    return [_resource(name, *RESOURCES[name]) for name in names]


def _resource(name: str, title: str, unit: str) -> Chart:
    chart = (
        alt.Chart(alt.NamedData(name=TRIALS))
        .transform_filter(f"isValid(datum.ms) && isValid(datum.{name})")
        .mark_point(filled=True, opacity=0.85)
        .encode(
            x=alt.X(f"{name}:Q", title=title, axis=alt.Axis(format=unit, tickCount=6)),
            y=_time(),
            color=_role_colour(),
            size=_role_size(),
            shape=_role_shape(),
            order=_role_order(),
            tooltip=[alt.Tooltip(f"{name}:Q", title=name, format=unit), *_tip()],
        )
    )
    return _chart(f"resource-{name}", chart, 240, name.capitalize())
