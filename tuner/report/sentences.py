# SPDX-License-Identifier: Apache-2.0
"""Why the winner won, in a few plain sentences, each from the study's own figures."""

from __future__ import annotations

from collections.abc import Iterator

from ..limits import ENERGY
from ..outcome import TrialOutcome, TrialResult
from ..summary import failures, is_alike
from .importance import EVALUATOR, Importance
from .material import Material, joules_of
from .verdict import Finalist, Verdict
from .words import changes, changes_text, counted, listed, mj, ms, percent, times
from .words import interval as interval_text

_MEANING = {
    TrialOutcome.ILLEGAL: "refused by the space",
    TrialOutcome.COMPILE_ERROR: "did not compile",
    TrialOutcome.RESOURCE_LIMIT: "asked for more than the device has, or spilled too much to be run",
    TrialOutcome.WRONG_RESULT: "computed something else, or could not be timed truthfully",
    TrialOutcome.TIMEOUT: "did not end in time",
    TrialOutcome.CRASH: "took their process with them",
}
_HALF, _MOST_NAMED = 0.5, 3
_BUSY = 1.5
"""Finals that take this many times what the search saw were disturbed."""


def meaning(outcome: str) -> str:
    """What an outcome means, to complete "3 configs ..."."""
    return _MEANING.get(TrialOutcome(outcome), outcome)


def sentences(material: Material, verdict: Verdict, importance: Importance) -> list[str]:
    """The sentences that a report leads with, the most telling first.

    Args:
        verdict: of the finals.
        importance: of the winner's template.
    """
    if material.best is None:
        return list(_nothing_right(material))
    parts = (
        _time(material, verdict),
        _against_default(material, verdict),
        _against_runner_up(material, verdict),
        _bound(material),
        _resources(material),
        _decisive(material, importance),
        _failed(material),
    )
    return [sentence for part in parts for sentence in part]


def _nothing_right(material: Material) -> Iterator[str]:
    if not material.results:
        yield "Nothing was tried yet, so there is nothing to explain."
        return
    yield (
        f"No config was right: all {counted(len(material.results), 'config')} that "
        f"{'was' if len(material.results) == 1 else 'were'} tried failed, so there is no winner."
    )
    yield from _failed(material)


def _time(material: Material, verdict: Verdict) -> Iterator[str]:
    best = material.best
    assert best is not None
    right, tried = len(material.timed), material.summary["finished"]
    of = "the only right config" if right == 1 else f"the fastest of {right} right configs"
    tried_text = f" ({tried} were tried)" if tried != right else ""
    if not material.is_final:
        yield (
            f"The best so far takes {ms(best['time_ms'])}: {of}{tried_text}. The finals were not held, so "
            "this is a time of the search, taken once: it is provisional."
        )
        return
    winner = verdict.winner
    span = ""
    if winner and winner.low_ms is not None and winner.high_ms is not None:
        span = f" (95% interval {interval_text(winner.low_ms, winner.high_ms)})"
    energy = verdict.objective == ENERGY
    if energy and winner is not None and winner.energy_j is not None:
        yield from _energy(winner, verdict)
        of = f"{right} configs were right"
    elif verdict.level:
        of = f"one of {len(verdict.level) + 1} that may be the fastest of {right} right configs"
    yield f"The winner takes {ms(best['time_ms'])}{span}: {of}{tried_text}."
    searched = material.summary["searched_ms"]
    if searched and best["time_ms"] >= _BUSY * searched:
        yield (
            f"The search saw {ms(searched)}: the machine was busy while the finals were held, so that these "
            "times and ratios say little."
        )


def _energy(winner: Finalist, verdict: Verdict) -> Iterator[str]:
    """What energy decided."""
    span = ""
    if winner.low_j is not None and winner.high_j is not None:
        span = f" (95% interval {interval_text(1e3 * winner.low_j, 1e3 * winner.high_j)})"
    least = (
        f"one of {len(verdict.level) + 1} finalists that may take the least" if verdict.level else "the least"
    )
    yield (
        f"Energy decided: a launch of the winner takes {mj(winner.energy_j or 0.0)}{span}, {least} of the "
        f"{len(verdict.finalists)} finalists, which the search chose by their times."
    )


def _against_default(material: Material, verdict: Verdict) -> Iterator[str]:
    best, default = material.best, material.default
    assert best is not None
    if default is None:
        yield "The default config was not tried here, so there is nothing to compare the winner with."
        return
    if default["config"] == best["config"] and default["template"] == best["template"]:
        yield "The default config itself is the winner: nothing that was tried is faster."
        return
    if not default["time_ms"]:
        yield f"The default config is not right here ({default['outcome']}), so there is no speed-up to name."
        return
    ratio = material.summary["over_default"] or default["time_ms"] / best["time_ms"]
    same = default["template"] == best["template"]
    number = len(changes(best["config"], default["config"]))
    how = (
        f"it differs from it in {number} of {len(best['config'])} parameters: "
        f"{changes_text(best['config'], default['config'])}"
        if same
        else f"it comes from the template {best['template']}, the default from {default['template']}"
    )
    level = any(f.role == "default" and f.config == default["config"] for f in verdict.level)
    alike = is_alike(ratio)
    doubt = ", though the two may be equally fast" if level and not alike else ""
    joules, of_default = joules_of(best), joules_of(default)
    if joules and of_default:
        doubt += f", and takes {joules / of_default:.3g} times its energy"
    fast = "as fast" if alike else f"{times(ratio)} as fast"
    yield f"It is {fast} as the default config, {ms(default['time_ms'])}{doubt}; {how}."


def _against_runner_up(material: Material, verdict: Verdict) -> Iterator[str]:
    second, best, level = verdict.runner_up, material.best, verdict.level
    if second is None or best is None or second.time_ms is None or second.figure is None:
        return
    energy = verdict.objective == ENERGY
    figure = mj(second.figure) if energy else ms(second.figure)
    what = (
        changes_text(second.config, best["config"])
        if second.template == best["template"]
        else f"of the template {second.template}"
    )
    if level:
        rule = f" Among those nearest the rule decided: {verdict.rule}." if verdict.rule else ""
        good, them = ("take as little" if energy else "be as fast"), "it" if len(level) == 1 else "them"
        yield (
            f"{counted(len(level), 'other finalist')} may {good}: the rounds do not tell {them} from the "
            f"winner. The nearest ({what}) takes {figure}.{rule}"
        )
        return
    if second.ratio_low is None or second.ratio_high is None:
        yield f"The runner-up ({what}) takes {figure}."
        return
    than = "the energy" if energy else "as long"
    span = f"{second.ratio_low:.3f} to {second.ratio_high:.3f}"
    # The ratio of two medians may lie outside of the interval of the rounds' ratios: never beside it.
    much = f"{span} times" if second.ratio is None else f"{second.ratio:.3f} times ({span})"
    sure = ", more than chance explains" if verdict.declared is not False else ""
    yield (f"The runner-up ({what}) takes {much} {than}, by the ratios within rounds (95% interval){sure}.")


def _bound(material: Material) -> Iterator[str]:
    floor, share, best = material.floor, material.floor_share, material.best
    if share is None or best is None or not floor.time_ms:
        return
    limit = floor.limit
    why = {
        "memory": "moving the tensors once takes longer than the arithmetic",
        "arithmetic": "the arithmetic takes longer than moving the tensors once",
    }.get(limit, "nothing is said of what sets it")
    if floor.cache_resident and limit == "arithmetic":
        why = "the tensors fit the cache, so that only the arithmetic counts"
    if material.floor_was_raised:
        yield (
            f"It runs at the highest {material.speed_name} seen on this device ({why}): the device was "
            "probed, and this kernel beat the probe. So the 100% says that nothing faster was seen, not that "
            "nothing faster is possible."
        )
        return
    verdict = (
        "most of what is left is out of reach"
        if share >= 0.85
        else "there is room left"
        if share < _HALF
        else "some room is left"
    )
    yield (
        f"It reaches {percent(share)} of the device's {material.speed_name}, which allows "
        f"{ms(best['floor_ms'])} at best ({why}), and {verdict}."
    )


def _resources(material: Material) -> Iterator[str]:
    result = material.best_result
    if not material.on_gpu or result is None or not result.resources.get("registers"):
        return
    spilled = result.resources.get("spill_store_bytes", 0) + result.resources.get("spill_load_bytes", 0)
    spills = f"spills {spilled} bytes" if spilled else "spills nothing"
    text = f"Its kernel has {result.resources['registers']} registers a thread and {spills}"
    if filled := material.occupancy(result):
        limit = f" (limited by {filled.limit})" if filled.share < 0.999 else ""
        text += (
            f"; {counted(filled.blocks, 'block')} fit a multiprocessor at once, which is "
            f"{percent(filled.share)} of the warps that it could hold{limit}"
        )
    yield text + "."


def _decisive(material: Material, importance: Importance) -> Iterator[str]:
    named = [(name, share) for name, share in importance.shares.items() if share >= 0.1][:_MOST_NAMED]
    best = material.best
    if not named or best is None:
        return
    most = listed([f"{name} ({percent(share)})" for name, share in named])
    yield (
        f"What the fastest {importance.top} of {importance.of} have in common is {most}, by {EVALUATOR}'s "
        f"estimate of importance."
    )
    found = [text for name, _ in named if (text := _other_values(material, name))]
    if found:
        yield f"The best of each against the best with another value, in the search: {'; '.join(found)}."


def _other_values(material: Material, name: str) -> str:
    """``TILE_X=64 0.24 ms, TILE_X=32 0.31 ms (1.29x)``."""
    best = material.best_result
    if best is None or name not in best.config:
        return ""
    value, mine = best.config[name], material.of_template(best.template)
    rival = min((r for r in mine if r.config.get(name) != value), key=_ms, default=None)
    own = min((r for r in mine if r.config.get(name) == value), key=_ms)
    if rival is None:
        return ""
    ratio = times(_ms(rival) / _ms(own))
    return f"{name}={value} {ms(_ms(own))}, {name}={rival.config[name]} {ms(_ms(rival))} ({ratio})"


def _ms(result: TrialResult) -> float:
    return result.time_ms or 0.0


def _failed(material: Material) -> Iterator[str]:
    causes = failures(list(material.results))
    total = sum(count for count, _ in causes.values())
    if not total:
        yield "No config failed."
        return
    name, (count, example) = max(causes.items(), key=lambda item: item[1][0])
    share = percent(total / len(material.results))
    most = f"all as {name}" if count == total else f"most of them ({count}) as {name}"
    yield f"{counted(total, 'config')} failed ({share}), {most}: {_short(example)}"


def _short(reason: str, most: int = 160) -> str:
    line = " ".join(reason.split()) or "no reason was recorded"
    line = line if len(line) <= most else line[: most - 1] + "…"
    return line if line.endswith((".", "…")) else line + "."
