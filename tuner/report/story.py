# SPDX-License-Identifier: Apache-2.0
"""Everything that a report says, worked out before it is laid out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..study import Study
from ..summary import failures
from .commands import Step, commands_of
from .declared import Declared, declared_for_study
from .difference import Difference, difference
from .importance import Importance, importance_of
from .material import Material, read_material
from .roofline import Roofline, no_share, roofline_of
from .sentences import meaning, sentences
from .verdict import Verdict, verdict_of
from .words import changes

_LONGEST_LOG = 4000
_LONGEST_SOURCE = 400_000


@dataclass(frozen=True)
class Cause:
    """Failures of one kind.

    Attributes:
        outcome: its word.
        meaning: the word explained.
        count: how many.
        example: the first one's log.
        config: the first one's config, with its template.
    """

    outcome: str
    meaning: str
    count: int
    example: str
    config: str


@dataclass(frozen=True)
class SourceView:
    """The winner's source beside the default's of its template.

    Attributes:
        text_lines: how many lines it has; 0 when it is not known.
        difference: of the two.
        parameters: (name, the default's value, the winner's) where they differ.
        note: what is to be said of the comparison.
    """

    text_lines: int
    difference: Difference
    parameters: list[tuple[str, str, str]]
    note: str


@dataclass(frozen=True)
class Story:
    """A report's content.

    Attributes:
        material: the study.
        declared: what the declarations here add.
        sentences: why the winner won.
        verdict: the finals.
        importances: template -> the importance of its parameters.
        roofline: the device's ceilings, or the reason why there are none.
        no_share: why nothing is said of the winner's share of its device's speed, where nothing is.
        no_resources: why there is nothing on registers, spills and occupancy; empty when there is.
        causes: failures by kind, the most frequent first.
        source: the winner's; None without a winner.
        commands, command_notes: what makes the study again, and what that leaves open.
    """

    material: Material
    declared: Declared
    sentences: list[str]
    verdict: Verdict
    importances: Mapping[str, Importance]
    roofline: Roofline
    no_share: str
    no_resources: str
    causes: list[Cause]
    source: SourceView | None
    commands: list[Step]
    command_notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The headline in plain JSON."""
        summary, material = self.material.summary, self.material
        names = (
            "study",
            "operator",
            "workload",
            "target",
            "device",
            "finished",
            "outcomes",
            "best",
            "default",
        )
        return {
            **{name: summary[name] for name in names},
            "provisional": not material.is_final,
            "fraction_of_floor": material.floor_share,
            "sentences": self.sentences,
            "importance": {name: dict(found.shares) for name, found in self.importances.items()},
            "commands": [step.command for step in self.commands],
        }


def tell(study: Study, *, shared: bool = False) -> Story:
    """Works out the report of a study.

    Args:
        study: it.
        shared: it is in a database that its commands have to name.

    Raises:
        ColdforgeError: the study is damaged.
    """
    material = read_material(study)
    declared = declared_for_study(material.about, study.roots)
    verdict = verdict_of(material)
    importances = {name: importance_of(material, name) for name in material.templates}
    own = importances.get(material.best["template"]) if material.best else None
    commands, notes = commands_of(material, declared, shared=shared)
    return Story(
        material=material,
        declared=declared,
        sentences=sentences(material, verdict, own or Importance({})),
        verdict=verdict,
        importances=importances,
        roofline=roofline_of(material, declared),
        no_share=no_share(material, declared),
        no_resources=_no_resources(material),
        causes=_causes(material),
        source=_source(material, declared),
        commands=commands,
        command_notes=notes,
    )


def _no_resources(material: Material) -> str:
    if not material.on_gpu:
        return (
            "This study is of a CPU. Its compiler reports neither registers nor spills, and occupancy is a "
            "word for GPUs, so there is nothing to draw."
        )
    if not any(result.resources.get("registers") for result in material.timed):
        return "No right config of this study has a compiler's report of its registers."
    return ""


def _causes(material: Material) -> list[Cause]:
    found = []
    for outcome, (count, _) in failures(list(material.results)).items():
        first = next(result for result in material.results if result.outcome == outcome)
        config = " ".join(f"{name}={value}" for name, value in first.config.items())
        log = first.reason if len(first.reason) <= _LONGEST_LOG else first.reason[:_LONGEST_LOG] + " …"
        found.append(
            Cause(
                outcome,
                meaning(outcome),
                count,
                log or "no log was kept",
                f"{first.template} {config}".strip(),
            )
        )
    return sorted(found, key=lambda cause: -cause.count)


def _source(material: Material, declared: Declared) -> SourceView | None:
    best = material.best
    if best is None:
        return None
    template, config = best["template"], best["config"]
    rendered = declared.source(template, config)
    text = material.winner.source_text if material.winner else rendered
    default = material.defaults.get(template)
    parameters = changes(config, default) if default else []
    if text is None:
        note = f"The winner's source is not in the study, and cannot be rendered here: {declared.reason}."
        return SourceView(0, difference("", None), parameters, note)
    base, note = None, ""
    if default is None:
        note = "The template's default config is not known, so nothing is marked."
    elif default == config:
        note = "The winner is the default config of its template."
    elif rendered != text:
        why = declared.reason or "the templates have changed since the study was made"
        note = f"The default's source cannot be rendered as it was ({why}), so nothing is marked."
    else:
        base = declared.source(template, default)
        note = "" if base else "The default's source cannot be rendered here, so nothing is marked."
    if len(text) > _LONGEST_SOURCE:
        text, base = text[:_LONGEST_SOURCE], None
        note = f"The source is long: its first {_LONGEST_SOURCE} characters are shown, and nothing is marked."
    return SourceView(len(text.splitlines()), difference(text, base), parameters, note)
