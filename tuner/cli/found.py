# SPDX-License-Identifier: Apache-2.0
"""What ``coldforge freeze`` has to take: the winners of studies and bundles, and the declarations behind
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...codegen.catalogue import Catalogue
from ...codegen.errors import InputError
from ...codegen.settings import load_settings

if TYPE_CHECKING:
    from ...codegen.freeze import Bundle, Winner
    from ..outcome import TrialResult
    from ..same_sources import SameSources
    from ..study import Study
    from ..winners import PassedOver


class Found:
    """The winners that a command line names: of studies, of bundles, and those frozen already.

    Attributes:
        frozen: what generated/ holds.
        held: what the package that is written holds already, of any operator.
        passed_over: study -> why its winner was not taken, though it is newer than what was, or the only one.

    Args:
        operators: only these; all when empty.
        sources: bundle files.
        storage: URL of the studies.
        given: the built-in declarations and those of --templates; ``catalogue`` has those of the folders that
            the operators were tuned from too.
        package: the folder of the package that is written; None for generated/ and bundles.

    Raises:
        InputError: an operator is not declared (any more) where it was, or no study of one that is named was
            tuned from the text that --templates gives.
    """

    def __init__(
        self,
        operators: tuple[str, ...],
        sources: tuple[str, ...],
        storage: str | None,
        given: Catalogue,
        package: Path | None = None,
    ) -> None:
        from ...codegen.freeze import GENERATED, load_winners, read_bundle
        from ..roots import extended, remembered
        from ..same_sources import SameSources
        from ..storage import open_storage, storage_faults
        from ..transfer import parsed_record
        from ..winners import Collected, collect

        self.operators = operators
        self.frozen = load_winners(GENERATED)
        there = package is not None and (package / "manifest.json").is_file()
        self.held = load_winners(package) if package is not None and there else []
        self.bundles: list[Bundle] = [read_bundle(Path(source)) for source in sources]
        for bundle in self.bundles:  # before anything is written
            for name, record in bundle.studies.items():
                parsed_record(name, record)
        self.storage = open_storage(storage, load_settings().home, create=bool(sources))
        from_studies = not sources or bool(operators)
        with storage_faults(self.storage):
            why_not = partial(self._other_text, SameSources(given))
            studies = collect(self.storage, why_not=why_not) if from_studies else Collected([], {})
            self.tuned = self.wanted(studies.winners)
            self.carried = self.wanted([w for bundle in self.bundles for w in bundle.winners])
            elsewhere = {w.operator for w in (*self.new, *self.held)} | set(operators)
            roots = remembered(self.storage, elsewhere - set(given.operators))
        self.left_out = {} if operators else _gone(roots)
        self.catalogue = extended(given, {n: r for n, r in roots.items() if n not in self.left_out})
        if not operators:
            for name in {w.operator for w in self.tuned} - set(self.catalogue.operators) - set(self.left_out):
                self.left_out[name] = f"{name} is not declared here; say --templates DIR"
        self.tuned = [w for w in self.tuned if w.operator not in self.left_out]
        self.passed_over = self._passed_over(studies.passed_over)
        for name in operators:
            self._require_declared([w for w in self.carried if w.operator == name])
            self.catalogue.operator(name)
        for winner in self.held:
            if winner.operator not in self.catalogue.operators:
                raise InputError(
                    f"{package} holds {winner.operator}, which is not declared here, so it could not be "
                    "kept: say --templates DIR, or name another --package"
                )

    def wanted(self, winners: list[Winner]) -> list[Winner]:
        return [w for w in winners if not self.operators or w.operator in self.operators]

    def _other_text(self, same: SameSources, study: Study) -> str:
        about = study.about
        wanted = not self.operators or about["operator"] in self.operators
        return same.difference(about) if wanted else ""

    def _passed_over(self, studies: Mapping[str, PassedOver]) -> dict[str, str]:
        """Study -> why its winner was not taken, where another study's was. Of an operator that has none, it
        is why that is left out.

        Raises:
            InputError: an operator that was named has none.
        """
        found = {}
        have = {winner.operator for winner in self.new}
        for study, passed in studies.items():
            if passed.operator in have:
                found[study] = passed.why
            else:
                self.left_out[passed.operator] = f"study {study}: {passed.why}"
        for name in self.operators:
            if name in self.left_out:
                raise InputError(f"nothing to freeze: {self.left_out[name]}; tune {name} from there first")
        return found

    def keep_to_builtin(self) -> None:
        """Leaves out the operators that coldforge does not declare itself: their place is no checkout of it.

        Raises:
            InputError: one of them was named.
        """
        known = self.catalogue.operators
        mine = {name for name, operator in known.items() if self.catalogue.is_builtin(operator)}
        for name in self.operators:
            if name not in mine:
                raise InputError(
                    f"{name} is declared in {known[name].family.folder}, and generated/ is no place for it: "
                    "freeze it into a package of its own, --package NAME --out DIR"
                )
        foreign = sorted({w.operator for w in self.new} - mine)
        self.left_out = {n: f"{n} is not coldforge's own; freeze it with --package NAME" for n in foreign}
        self.tuned = [w for w in self.tuned if w.operator in mine]
        self.carried = [w for w in self.carried if w.operator in mine]

    def _require_declared(self, winners: Sequence[Winner]) -> None:
        """Raises InputError when a bundle's winner is of an operator that is not declared here."""
        for winner in winners:
            if winner.operator not in self.catalogue.operators:
                raise InputError(
                    f"the bundle holds {winner.name}, but {winner.operator} is not declared here: say "
                    "--templates DIR, the folder with its family.yaml and its reference"
                )

    @property
    def new(self) -> list[Winner]:
        """What the command adds: first of bundles, then of this machine's studies."""
        return [*self.carried, *self.tuned]

    def current(self) -> tuple[list[Winner], list[Winner]]:
        """(what the command adds, what it does not: winners of an older declaration of an operator that has
        newer ones).

        Raises:
            InputError: the operator of a bundle's winner is not declared.
        """
        from ...codegen.freeze import split_stale

        self._require_declared(self.carried)
        good, old = split_stale(self.new, self.catalogue)
        fresh = {w.operator for w in good}
        return good + [w for w in old if w.operator not in fresh], [w for w in old if w.operator in fresh]

    def shape_of(self, name: str) -> str:
        """The workload of a winner, with what ``--shape`` changed of it; empty where there is none of that
        name."""
        from ..labels import winner_label

        winners = (*self.new, *self.held, *self.frozen)
        return next((winner_label(w, self.catalogue) for w in winners if w.name == name), "")

    def stays(self, old: Winner, new: Winner) -> bool:
        """Whether a frozen winner is not replaced by a new one: it was clearly faster, and the new one's
        study knows nothing of it. A study that tried its config found another one faster, or this one wrong.
        """
        from ...codegen.freeze import clearly_faster, is_still_legal

        if not clearly_faster(old, new) or not is_still_legal(old, self.catalogue):
            return False
        config = (old.template, dict(old.config))
        return not any((r.template, dict(r.config)) == config for r in self._tried(new.study))

    def _tried(self, study: str) -> list[TrialResult]:
        """What the study ran, as far as it is at hand."""
        from ..outcome import TrialOutcome
        from ..study import list_studies, result_of
        from ..transfer import parsed_record

        not_run = (TrialOutcome.ILLEGAL, TrialOutcome.RESOURCE_LIMIT)
        found = [r for s in list_studies(self.storage) if s.name == study for r in s.results()]
        for bundle in self.bundles if not found else ():
            if study in bundle.studies:
                trials, _ = parsed_record(study, bundle.studies[study])
                found = [result_of(trial, f"study {study}") for trial in trials]
        return [result for result in found if result.outcome not in not_run]

    def require_some(self, winners: list[Winner]) -> None:
        """Raises InputError when there is nothing to freeze, or nothing of an operator that was named."""
        have = {winner.operator for winner in winners}
        missing = [name for name in self.operators if name not in have]
        if missing or not winners:
            named = " ".join(missing) or "OP"
            why = (
                "; ".join(self.left_out.values())
                or f"no study has a winner; run coldforge tune {named} first"
            )
            raise InputError(f"nothing to freeze: {why}")


def _gone(roots: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """The operators whose folders are no longer there, and what to say of each."""
    found = {}
    for operator, folders in roots.items():
        missing = [folder for folder in folders if not folder.is_dir()]
        if missing:
            found[operator] = f"{operator} was tuned from {missing[0]}, which is gone; say --templates DIR"
    return found
