# SPDX-License-Identifier: Apache-2.0
"""A study as JSON and as tables, from storage alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .intervals import median_interval
from .labels import study_label
from .outcome import TrialOutcome, TrialResult
from .show_finals import differs, finals_parts
from .speed import fraction_of_floor, is_highest, percent, speed_text
from .study import Study
from .summary import entry_of, failures, is_alike, may_be_equal, ranked, same_point, summarise

_TOP = 10
_BUSY = 1.5
"""Finals that take this many times what the search saw were disturbed."""


def study_document(study: Study) -> dict[str, Any]:
    """Everything that ``show --json`` prints of one study."""
    results = study.results()
    summary = summarise(study, results)
    top = [_top_entry(result) for result in ranked(results)[:_TOP]]
    causes = causes_of(results)
    return {**summary, "top": top, "failures": causes}


def _top_entry(result: TrialResult) -> dict[str, Any]:
    """One of the search's best: its time has the interval of the samples that it was taken from."""
    interval = median_interval(result.samples_ms).to_list() if len(result.samples_ms) > 1 else None
    return {**entry_of(result), "ci95_ms": interval}


def causes_of(results: list[TrialResult]) -> dict[str, dict[str, Any]]:
    """Why variants failed: cause -> how many, and the first one's reason."""
    return {name: {"count": n, "example": reason} for name, (n, reason) in failures(results).items()}


def studies_document(studies: Sequence[Study]) -> dict[str, Any]:
    """The list of studies, the newest first; ``shape`` is the workload, with what ``--shape`` changed."""
    keys = ("study", "operator", "target", "device", "workload", "shape", "finished", "outcomes", "touched")
    keys += ("best", "finals_held")
    rows = [{**summarise(study), "shape": study_label(study)} for study in reversed(studies)]
    return {"studies": [{key: row[key] for key in keys} for row in rows]}


def study_tables(document: Mapping[str, Any], others: int = 0) -> RenderableType:
    """One study for a person.

    Args:
        others: older studies of the operator that was asked for.
    """
    parts: list[RenderableType] = [_facts(document), *finals_parts(document)]
    if others:
        parts.insert(0, Text(f"the newest of {others + 1} studies; coldforge show lists them"))
    if document["top"]:
        parts.append(_top(document["top"], document["best"]))
    if document["failures"]:
        parts.append(_causes(document["failures"]))
    return Group(*parts)


def result_tables(run: Mapping[str, Any]) -> RenderableType:
    """The end of a tuning run for a person: its status, then the facts of its study, and where no variant is
    right the reasons."""
    best = run["best"]
    head = Text(f"{run['status']}: {_added(run)}{_against_default(run)}", style="bold")
    parts: list[RenderableType] = [head, _facts(run), *finals_parts(run)]
    if reason := run.get("reason"):
        parts.append(Text(reason, style="yellow"))
    if doubt := _disturbed(run):
        parts.append(Text(doubt, style="yellow"))
    if best is None and run["failures"]:
        parts.append(_causes(run["failures"]))
    return Group(*parts)


def _against_default(run: Mapping[str, Any]) -> str:
    """What the best gains, with the doubt that the finals leave: in the words of the report."""
    best, default, ratio = run["best"], run["default"], run.get("over_default")
    if ratio is None:
        return ""
    if same_point(best, default):
        return "; the default is the best of them"
    fast = "as fast" if is_alike(ratio) else f"{ratio:.2f}x as fast"
    doubt = ", though the two may be equally fast" if may_be_equal(run) and not is_alike(ratio) else ""
    energy = ""
    if best.get("energy_j") and default.get("energy_j"):
        energy = (
            f"{',' if doubt else ''} and takes {best['energy_j'] / default['energy_j']:.2f} times its energy"
        )
    return f"; the best is {fast} as the default{doubt}{energy}"


def _added(run: Mapping[str, Any]) -> str:
    """What a run did to its study."""
    if run["added"]:
        return f"{run['added']} configs in {run['seconds']:.0f} s"
    finished, legal = run["finished"], run.get("feasible_configs")
    if finished == legal:
        held = run["best"] is None or run["best"].get("from") == "finals"
        return f"all {finished} configs are done" + ("" if held else ", the finals are not held")
    if run["status"] == "stopped":
        return f"before a config was finished; {finished} of {legal} are"
    return f"no config was added; {finished} of {legal} are done"


def _disturbed(run: Mapping[str, Any]) -> str:
    """What to say when the finals took far longer than the same variants did in the search."""
    best, searched = run["best"], run.get("searched_ms")
    if not best or best.get("from") != "finals" or not searched or best["time_ms"] < _BUSY * searched:
        return ""
    return (
        f"The search saw {searched:.4g} ms: this machine was busy while the finals were held, so these times "
        "say little. On a quiet one, a larger --trials holds them again."
    )


def studies_list(document: Mapping[str, Any]) -> RenderableType:
    """The list of studies for a person: the whole name, which one may copy, and two lines about it."""
    if not document["studies"]:
        return Text("no studies yet; coldforge tune OP makes one")
    parts: list[RenderableType] = []
    for row in document["studies"]:
        best = "none yet" if row["best"] is None else f"{row['best']['time_ms']:.4g} ms"
        provisional = "" if row["finals_held"] or row["best"] is None else " (no finals yet)"
        failed = sum(count for name, count in row["outcomes"].items() if name != TrialOutcome.OK)
        configs = f"{row['finished']} configs" + (f", {failed} of them failed" if failed else "")
        touched = row["touched"][:16].replace("T", " ")
        parts.append(Text(row["study"], style="bold", no_wrap=True, overflow="ignore"))
        parts.append(Text(f"    {row['shape']}: {configs}, best {best}{provisional}"))
        parts.append(Text(f"    {row['device']}, {touched} UTC"))
    return Group(*parts)


def follow_line(document: Mapping[str, Any]) -> str:
    """One study in one line."""
    best = "none yet" if document["best"] is None else _time(document["best"])
    counts = ", ".join(f"{count} {name}" for name, count in document["outcomes"].items())
    counted = f" ({counts})" if counts else ""
    held = ", finals held" if document["finals_held"] else ""
    return f"{document['study']}: {document['finished']} configs{counted}, best {best}{held}"


def _facts(document: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    dims = document["problem"]["dims"]
    shape = " ".join(f"{name}={value}" for name, value in dims.items())
    rows = [
        ("study", document["study"]),
        ("operator", f"{document['operator']}, workload {document['workload']} ({shape})"),
        ("device", f"{document['device']}, {document['target']} {document['arch']}"),
        ("class", f"{document['problem']['dtype']} tensors, {document['precision']} errors"),
        ("compiler", document["compiler"] + (f", driver {document['driver']}" if document["driver"] else "")),
        ("last run", document["touched"][:19].replace("T", " ") + " UTC"),
        ("outcomes", ", ".join(f"{count} {name}" for name, count in document["outcomes"].items()) or "none"),
        ("best", _entry(document["best"])),
        ("default", _entry(document["default"])),
    ]
    for name, value in rows:
        table.add_row(Text(name, style="bold"), Text(value))
    return table


def _causes(causes: Mapping[str, Mapping[str, Any]]) -> Table:
    total = sum(cause["count"] for cause in causes.values())
    table = Table("failed", "configs", "of these", "for example", box=None)
    for name, cause in sorted(causes.items(), key=lambda item: -item[1]["count"]):
        share = f"{100 * cause['count'] / total:.0f}%"
        table.add_row(name, str(cause["count"]), share, Text(cause["example"]))
    return table


def _top(entries: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None) -> Table:
    """The fastest of the search. What has no value in any of them has no column."""
    table = Table("#", "ms", box=None)
    # One problem on one device: what the device can do is what was learned of it last.
    floor_ms = min((entry["floor_ms"] for entry in entries if entry["floor_ms"]), default=None)
    optional = {"95%": _interval, "speed": partial(_share, floor_ms=floor_ms), "error": _error}
    resources = [name for name in entries[0]["resources"] if any(e["resources"].get(name) for e in entries)]
    shown = {name: cell for name, cell in optional.items() if any(cell(entry) != "-" for entry in entries)}
    for name in (*shown, *(name.removesuffix("_bytes") for name in resources)):
        table.add_column(name, no_wrap=True)
    table.add_column("where it differs from the best")
    for rank, entry in enumerate(entries, start=1):
        figures = [cell(entry) for cell in shown.values()]
        figures += [str(entry["resources"].get(name, "-")) for name in resources]
        table.add_row(*map(Text, (str(rank), f"{entry['time_ms']:.4g}", *figures, _from_best(entry, best))))
    return table


def _from_best(entry: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    return differs(entry, best) or "(the best)"


def _interval(entry: Mapping[str, Any]) -> str:
    ends = entry.get("ci95_ms")
    return "-".join(f"{end:.4g}" for end in ends) if ends else "-"


def _share(entry: Mapping[str, Any], floor_ms: float | None) -> str:
    """Of the device's memory or arithmetic speed, as the best's line says."""
    known = {**entry, "floor_ms": floor_ms}
    share = fraction_of_floor(known)
    if share is None:
        return "-"
    return "highest" if is_highest(known) else percent(share)


def _error(entry: Mapping[str, Any]) -> str:
    return "-" if entry["error"] is None else f"{entry['error']:.1e}"


def _entry(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "none"
    if entry["time_ms"] is None:
        return f"{entry['outcome']}: {entry['template']} {_config(entry['config'])}"
    return f"{_time(entry)}, {entry['template']} {_config(entry['config'])}"


def _time(entry: Mapping[str, Any]) -> str:
    speed, joules = speed_text(entry), entry.get("energy_j")
    share = f" ({speed})" if speed else ""
    return f"{entry['time_ms']:.4g} ms{share}" + ("" if joules is None else f", {1e3 * joules:.4g} mJ")


def _config(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())
