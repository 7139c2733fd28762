# SPDX-License-Identifier: Apache-2.0
"""The tuning loop: ask, compile, time, record, until enough configs are finished; then the finals.

Outcomes are values: a variant that does not compile, is wrong, hangs or crashes is recorded and the loop goes
on. Each outcome is committed at once, so that any end (Ctrl-C, a kill, a power cut) keeps what was finished,
and the same command continues from there.

One thread turns in the loop. What is urgent comes first in each turn: the device gets its next config, then
what it did is committed, then another config is asked for and goes to the compilers; only when there is
nothing to do does it wait, for any of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import deque
from typing import Any

from ..codegen.compile import Artifact
from ..codegen.errors import DeclarationError
from ..codegen.liveness import own_mark
from .accounts import Accounts
from .elsewhere import Elsewhere
from .equipment import Equipment, TuneOptions
from .finals import decide, hold, keep_provisional
from .intake import Intake
from .known import Shortcuts, completed, given_up, not_compiled
from .looks import WAIT_FOR_OTHERS_S, Looks
from .outcome import TrialOutcome, TrialResult
from .plan import Plan
from .progress import Snapshot
from .search import DEFAULT_SAMPLER, FeasibleSet, Search, begun_with
from .standing import Standing
from .stream import Flight, Stream
from .study import RUN_AFTER_ALL, Study
from .tools import Job


class Tuner:
    """One run on one study. Use `run` once."""

    def __init__(
        self, plan: Plan, study: Study, feasible: FeasibleSet, equipment: Equipment, options: TuneOptions
    ) -> None:
        """Rebuilds the sampler from the study; touches no compiler and no device.

        Args:
            feasible: the plan's feasible set, fresh; this run marks in it what was seen.

        Raises:
            UnknownName: no such sampler.
        """
        self.plan, self.study, self.options, self.feasible = plan, study, options, feasible
        self._tools, self._guard, self._clock = equipment, equipment.guard, equipment.clock
        self._started = self._clock()
        self.accounts = Accounts(self._clock)
        self.sampler = options.sampler or DEFAULT_SAMPLER
        claims = (
            equipment.record.claims()
        )  # before the study is read: what they finish then is missed nowhere
        self._standing = Standing(options.spill_limit_bytes)
        self._shortcuts = Shortcuts(plan, feasible.defaults, options.spill_limit_bytes, self.accounts.counts)
        self._asked, self._reason, self._mark = 0, "", str(own_mark())
        self._intake = Intake(study, self._standing, self._mark, self._shortcuts.known.learn)
        stored = self._intake.take_in()
        salt = options.salt or (() if claims is None else (os.getpid(),))
        factory, liked = begun_with(self.sampler, options.sibling)
        self._search = Search(feasible, factory, stored, options.seed, salt, (*options.first, *liked))
        self._elsewhere = Elsewhere(equipment.record, self._search, self._standing, claims)
        self._stream = Stream(equipment.compiler, equipment.measurer, equipment.wait)
        parts = (self._elsewhere, self._stream, self._standing)
        self._looks = Looks(equipment, *parts, options.trials, self._started)
        # Judged and not committed yet; what the device did comes first.
        self._judged: deque[tuple[Flight, TrialResult]] = deque()
        self._provisional: tuple[Job, TrialResult] | None = None  # the best, when this run found it

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return self._clock() - self._started

    @property
    def results(self) -> list[TrialResult]:
        """Every result of the study, this run's included."""
        return self._standing.results

    def run(self) -> str:
        """Searches, holds the finals, and stores the winner.

        Returns:
            ``ok``, ``stopped`` (interrupted) or ``failed`` (no variant works, in the finals at the latest).

        Raises:
            ColdforgeError: not a variant but the machine is at fault (no compiler, no device, full disk).
        """
        try:
            self.study.touch()
            self._search_all()
            if not self.options.finals:
                return "ok"
            if self._elsewhere.claims is not None:
                self._show("waiting")
            with self._tools.record.finals():
                self._catch_up()
                if self._standing.best is None:
                    return "failed"
                return "ok" if self._finals() else "failed"
        except KeyboardInterrupt:
            with self._guard.shielded():
                self._keep_best()
            return "stopped"
        except Exception:
            # What ended the search is what is told, not what it did to the storage too.
            with contextlib.suppress(Exception), self._guard.shielded():
                self._keep_best()
            raise
        finally:
            self._tools.progress.close()

    def _keep_best(self) -> None:
        if self._provisional is not None:
            keep_provisional(self.plan, self.study, *self._provisional)

    # --- the loop ---

    def _search_all(self) -> None:
        try:
            self._give_up_suspects()
            while self._turn():
                pass
        finally:
            self.accounts.pause()
            with self._guard.shielded():
                while self._judged:
                    self._commit()
                self._withdraw(self._stream.withdraw())
                if self._stream.running is not None:
                    self._withdraw([self._stream.running.index])
                self._elsewhere.close()

    def _turn(self) -> bool:
        """One turn of the loop; False when there is nothing left to do."""
        self._collect()
        self._poll()
        self._launch()
        self._note_state()
        if self._judged:
            with self._guard.shielded():
                self._commit()
            self._show()
            return True
        if self._ask():
            return True
        if self._stream.running is None and (self._out_of_time() or not self._more_to_come):
            return False
        self._show()
        budget = self.options.time_budget_s
        limits = [] if budget is None or self._out_of_time() else [budget - self.seconds]
        if not len(self._stream) and self._elsewhere.claims is not None:  # what they do wakes nobody here
            limits.append(WAIT_FOR_OTHERS_S)
        if (beat_s := self._tools.record.beat()) is not None:
            limits.append(beat_s)
        self._stream.wait(min(limits, default=None))
        return True

    def _collect(self) -> None:
        """Takes in what the compilers did."""
        counts = self.accounts.counts
        for flight, answer in self._stream.collect():
            if not isinstance(answer, Artifact):
                self._judged.append((flight, self._shortcuts.refused(flight.point, flight.source, answer)))
                continue
            counts.compiled += 1
            counts.cached += answer.cached
            self.accounts.add({"compile": 0.0 if answer.cached else answer.seconds})

    def _poll(self) -> None:
        """Takes in what the device did."""
        with self._guard.shielded():
            found = self._stream.poll()
            if found is None:
                return
            flight, result = found
            assert flight.job is not None
            result = completed(result, flight.job, self._shortcuts.facts(flight.job))
            self.accounts.judged(result)
            self._shortcuts.known.learn(result)
            self._standing.note_best(result)
            self._judged.appendleft((flight, result))

    def _launch(self) -> None:
        """Gives the device its next config; those that need none are judged on the way."""
        while self._stream.ready and self._stream.running is None and not self._out_of_time():
            if self._judged and self._looks.watchful:
                return  # what is judged is committed first, then others' work is looked at: none too many
            self._look()
            if not self._stream.ready:
                return
            flight = self._stream.ready.pop(0)
            assert flight.job is not None
            result = self._shortcuts.result_for(flight.index, flight.job)
            if result is not None:
                self._judged.append((flight, result))
                continue
            best_ms = self._standing.best.time_ms if self._standing.best else None
            key = flight.point.key
            self._stream.begin(flight, best_ms, lambda key=key: self._tools.record.begin(key))

    def _ask(self) -> bool:
        """Asks for one config and gives it to the compilers, if one is wanted; whether it did."""
        if not self._stream.has_room or self._out_of_time() or self._looks.full:
            return False
        self._look()
        if (left := self._left()) is not None and left <= len(self._elsewhere.busy):
            return False
        with self.accounts.phase("ask"):
            given_back = (self._elsewhere.asked_for(key) for key in self._tools.record.offered())
            index = next((index for index in given_back if index is not None), None)
            asked = self._search.ask(1) if index is None else [index]
        if not asked:
            return False
        (index,) = asked
        point = self.feasible.points[index]
        with self.accounts.phase("claim"):
            terms = self._standing.terms(point.key, self.options.trials)
            claimed = self._tools.record.claim(point.key, terms)
        if not claimed:  # it costs nothing here, and is known soon
            self._refused(index)
            return True
        self._looks.granted()
        self._asked += 1
        try:
            with self.accounts.phase("render"):
                source = self.plan.source(point)
        except DeclarationError as error:  # a template that fails for this config
            self._judged.append((Flight(index, self._asked, point, None), not_compiled(point, error)))
            return True
        self._stream.submit(Flight(index, self._asked, point, source))
        return True

    def _refused(self, index: int) -> None:
        """Takes note that a config is another's, or one too many."""
        self._looks.hasten()
        if self._tools.record.full:
            self._search.withdraw(index)
            self._look()  # perhaps all that is left is under way elsewhere
            self._looks.refused()
        else:
            self._elsewhere.keep(index)

    # --- what others did, and how much is left ---

    def _left(self) -> int | None:
        """How many more configs to ask for; None: no limit."""
        if self.options.trials is None:
            return None
        return self.options.trials - len(self._standing.finished) - len(self._judged) - len(self._stream)

    @property
    def _more_to_come(self) -> bool:
        """Whether something is under way, or will be once the compilers are rid of what was withdrawn."""
        left = self._left()
        wanted = (left is None or left > 0) and not self.feasible.exhausted
        if len(self._stream) or (wanted and self._stream.compiling > 0):
            return True
        return (left is None or left > 0) and bool(self._elsewhere.busy)

    def _look(self) -> None:
        """Takes in, now and then, what other runs on this study stored, so that they share the work; where
        claims are not binding, before each step when few are left to do, so that together they do not exceed
        the total."""
        if self._judged:  # the study does not hold yet what is known here
            return
        if self._looks.spared:
            return
        binding = self._tools.record.binding
        with self.accounts.phase("look"):
            departed = self._elsewhere.ask()
            if not binding:
                self._leave_taken()
            due = departed or self._looks.due
            if due:
                self._catch_up()
                self._elsewhere.free()
            self._elsewhere.leave()
        if due:
            self._withdraw(self._stream.withdraw_last(-(self._left() or 0)))
        if binding:
            self._give_up_suspects()

    def _leave_taken(self) -> None:
        """Leaves to others what they took over while this run was silent; only they try it."""
        busy = self._elsewhere.busy
        self._withdraw(self._stream.withdraw(lambda flight: flight.point.key in busy))

    def _catch_up(self) -> None:
        self._looks.note()
        trials = self._intake.take_in()
        if trials:
            running = self._stream.running
            gone = self._search.learn(trials, keep=None if running is None else running.index)
            self._stream.withdraw(lambda flight: flight.index in gone)
            self._judged = deque(one for one in self._judged if one[0].index not in gone)
            self._elsewhere.forget(gone)

    def _withdraw(self, indices: list[int]) -> None:
        for index in indices:
            self._search.withdraw(index)
            self._tools.record.release(self.feasible.points[index].key)

    def _out_of_time(self) -> bool:
        budget = self.options.time_budget_s
        return budget is not None and self.seconds >= budget

    # --- results ---

    def _give_up_suspects(self) -> None:
        """Records configs that tuners died of, which are not tried again."""
        suspects = self._tools.record.suspects(self._standing.finished)
        suspects = [key for key in suspects if self.feasible.index_of_key(key) is not None]
        if not suspects:
            return
        self._catch_up()  # another one that saw them may have recorded them
        for key in suspects:
            if key not in self._standing.seen and self._may_give_up(key):
                index = self._elsewhere.asked_for(key)
                if index is not None:
                    point = self.feasible.points[index]
                    self._judged.append((Flight(index, 0, point, None), given_up(point)))

    def _may_give_up(self, key: str) -> bool:
        """Whether a config that tuners died of is nobody else's. A refusal because somebody departed says
        nothing of that: what it finished is read, and the claim made again."""
        record = self._tools.record
        while not (record.binding or record.claim(key)):
            if not record.departed:
                return False
            self._elsewhere.ask()
            self._catch_up()
        return True

    def _commit(self) -> None:
        """Stores the first of the judged configs."""
        flight, result = self._judged[0]
        index, counts = flight.index, self.accounts.counts
        # Said of each: a result that came by its machine code has the details of another config.
        details = {**result.details, "default": index in self.feasible.defaults, "worker": self._mark}
        details.pop(RUN_AFTER_ALL, None)
        if flight.point.key in self._standing.admitted:
            details[RUN_AFTER_ALL] = True
        seconds = result.seconds + float(result.details.get("compile_s", 0.0))
        stored = dataclasses.replace(result, details=details)
        with self.accounts.phase("record"):
            self.study.record(flight.point, stored, self.feasible.distributions_of(index), seconds)
        self._judged.popleft()
        self._search.tell(index, stored.time_ms if stored.ok else None)
        self._intake.stored(stored)
        counts.added += stored.outcome is not TrialOutcome.ILLEGAL
        if flight.job is not None and (self._standing.best is result or self._standing.best is stored):
            self._provisional = (flight.job, stored)

    def _finals(self) -> bool:
        """Times the best again and stores the winner, unless it is that of finals with these very trials,
        decided by the same objective; whether there is one."""
        results, options = self._standing.results, self.options
        if self.study.winner_is_current(len(results), options.objective):
            return True
        self._show("finals")
        how = (options.finalists, options.objective)
        finals = hold(self.plan, self._tools.compiler, self._tools.measurer, results, *how)
        with self._guard.shielded():
            decided = decide(self.plan, self.study, finals, len(results))
        if not decided:
            self._reason = finals.failure
        return decided

    # --- what is shown ---

    def _note_state(self) -> None:
        compiling = self._stream.compiling / self._tools.compiler.jobs
        self.accounts.state(self._stream.running is not None, compiling)

    def _show(self, phase: str = "") -> None:
        idle = "compiling" if len(self._stream) or self._elsewhere.claims is None else "waiting"
        own = idle if self._stream.running is None else "timing"
        snapshot = Snapshot(
            phase=phase or own,
            **(self._standing.progress(self.options.trials, len(self.feasible)) | self.accounts.progress),
            seconds=self.seconds,
            budget_s=self.options.time_budget_s,
        )
        self._tools.progress.update(snapshot)

    def numbers(self) -> dict[str, Any]:
        """Counts and rates of this run, for the JSON."""
        progress = {"finished": len(self._standing.finished), "feasible_configs": len(self.feasible)}
        reason = {"reason": self._reason} if self._reason else {}
        return {**self.accounts.numbers(self.seconds), **progress, **reason}
