# SPDX-License-Identifier: Apache-2.0
"""How many mutations of the CUDA templates `coldforge check` catches, without a GPU.

    python tests/mutation/run.py --jobs 2 --out benchmarks/results/emulator_mutations.json
    python tests/mutation/run.py --only arrival    # those whose name has the word
    python tests/mutation/run.py --keep --out ...  # goes on: what the file has and the list wants is kept
    python tests/mutation/run.py --keep --out ... --only conv2d_tensor --again  # those anew; the rest is kept

Each mutation of mutations.yaml changes one line of a template or header, in a copy of the templates. What is
rendered from the copy is executed in the emulator as `coldforge check` executes it. The exercises that the
list names for it come first, the others of its family after them, until one catches it. The unchanged
templates run through all exercises before that: nothing may be found.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mutants
import torch
from coldforge.codegen.atomic import write_text
from coldforge.codegen.compile import Cache
from coldforge.codegen.compile.host import compiler_version
from mutants import Exercise, Mutation, Result, Tree

COMMAND = "python tests/mutation/run.py --jobs 2 --out benchmarks/results/emulator_mutations.json"
_tree: Tree | None = None
_open = ExitStack()


def _start(folder: str) -> None:
    """A process of its own gets a tree of its own, for all of its work."""
    global _tree
    sys.path.append(str(Path(__file__).parents[1] / "support"))  # where pytest finds it by itself
    torch.set_num_threads(1)
    own = _open.enter_context(tempfile.TemporaryDirectory(dir=folder))
    _tree = Tree(Path(own), Cache(Path(folder) / "cache"))
    _open.enter_context(_tree.in_use())


def _faults(exercise: Exercise) -> tuple[str, list[str]]:
    assert _tree is not None
    return exercise.name, [str(fault.text) for fault in _tree.faults(exercise)]


def _judge(work: tuple[Mutation, Sequence[Exercise]]) -> Result:
    assert _tree is not None
    return _tree.judge(*work)


def ordered(mutation: Mutation, exercises: dict[str, Exercise]) -> list[Exercise]:
    """The exercises that a mutation names, then the rest of their families; the rest only for a mutation that
    has to be caught."""
    named = [exercises[name] for name in mutation.run]
    if mutation.equivalent or mutation.survives:
        return named
    families = {exercise.family for exercise in named}
    return [*named, *(e for e in exercises.values() if e.family in families and e not in named)]


def summary(results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """Counts: an equivalent mutation and one that does not compile are none that change behaviour."""
    changing = [r for r in results if r.outcome != "compile_error" and not r.mutation.equivalent]
    caught = [r for r in changing if r.outcome == "caught"]
    builds = Counter("+".join(sorted(r.causes or {})) for r in caught)
    causes = Counter(
        cause for r in caught for cause in {c for found in (r.causes or {}).values() for c in found}
    )
    return {
        "mutations": len(results),
        "compile_errors": sum(r.outcome == "compile_error" for r in results),
        "equivalent": sum(bool(r.mutation.equivalent) for r in results),
        "behaviour_changed": len(changing),
        "caught": len(caught),
        "survived": len(changing) - len(caught),
        "caught_percent": round(100 * len(caught) / max(1, len(changing)), 1),
        "caught_by_builds": dict(builds.most_common()),
        "caught_by_causes": dict(causes.most_common()),
        "files": dict(Counter(r.mutation.file for r in changing)),
        "seconds": round(seconds),
    }


def surprises(results: Sequence[Result]) -> list[str]:
    """Results that contradict the list."""
    found = []
    for result in results:
        mutation = result.mutation
        if result.outcome == "caught" and mutation.equivalent:
            found.append(f"said to be equivalent, but caught: {mutation.name}: {result.text}")
        if result.outcome == "caught" and mutation.survives:
            found.append(f"said to survive, but caught: {mutation.name}: {result.text}")
        if result.outcome == "survived" and not (mutation.equivalent or mutation.survives):
            found.append(f"survived: {mutation.name}")
    return found


def run_all(
    exercises: dict[str, Exercise], mutations: Sequence[Mutation], jobs: int, unchanged: bool
) -> Iterator[Result | str]:
    """Results as they come, in order; a line of text for a fault of an unchanged template."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        context = multiprocessing.get_context("spawn")
        with context.Pool(jobs, _start, (folder,)) as pool:
            named = {name for mutation in mutations for name in mutation.run} if unchanged else set()
            for name, faults in pool.imap(_faults, (exercises[name] for name in sorted(named))):
                yield from (f"exercise {name}, nothing changed: {fault}" for fault in faults[:3])
            yield from pool.imap(_judge, [(m, ordered(m, exercises)) for m in mutations])


def kept(path: Path, mutations: Sequence[Mutation]) -> tuple[dict[str, Result], float]:
    """What came of mutations in an earlier run, by their names, where the list agrees; its seconds."""
    document = json.loads(path.read_text("utf-8"))
    earlier = {mutants.key(each): each for each in document["mutations"]}
    found = {}
    for mutation in mutations:
        fields = earlier.get(mutants.key(mutants.to_dict(Result(mutation, ""))))
        result = None if fields is None else mutants.from_dict(mutation, fields)
        if result is not None and not surprises([result]):
            found[mutation.name] = result
    return found, float(document["summary"]["seconds"])


def write(
    path: Path, mutations: Sequence[Mutation], results: Mapping[str, Result], seconds: float, went_on: bool
) -> None:
    """The results so far, in the list's order."""
    done = [results[mutation.name] for mutation in mutations if mutation.name in results]
    document = {
        "command": COMMAND + ("; went on by the same with --keep" if went_on else ""),
        "compiler": compiler_version(),
        "summary": summary(done, seconds),
        "survivors": [
            mutants.to_dict(r) for r in done if r.outcome == "survived" and not r.mutation.equivalent
        ],
        "mutations": [mutants.to_dict(r) for r in done],
    }
    write_text(path, json.dumps(document, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="mutations whose name has this word")
    parser.add_argument("--without", help="no mutations whose name has this word")
    parser.add_argument("--again", action="store_true", help="also those that the file has, with --keep")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--no-baseline", action="store_true", help="leave the unchanged templates out")
    parser.add_argument("--out", type=Path, help="write the results here")
    parser.add_argument("--keep", action="store_true", help="keep what the file has, where the list agrees")
    return parser.parse_args()


def wanted(mutation: Mutation, options: argparse.Namespace) -> bool:
    """Whether the options choose it."""
    return options.only in mutation.name and not (options.without and options.without in mutation.name)


def main() -> int:
    """Runs, prints and writes; 1 when a result contradicts the list."""
    options = _options()
    exercises, mutations = mutants.load()
    chosen = [mutation for mutation in mutations if wanted(mutation, options)]
    results, seconds = kept(options.out, mutations) if options.keep else ({}, 0.0)
    waiting = [mutation for mutation in chosen if options.again or mutation.name not in results]
    mutations = mutations if options.keep else chosen
    started, wrong = time.perf_counter() - seconds, []
    for result in run_all(exercises, waiting, options.jobs, not options.no_baseline):
        if isinstance(result, str):
            wrong.append(result)
            continue
        results[result.mutation.name] = result
        causes = {build: ", ".join(kinds) for build, kinds in (result.causes or {}).items()}
        print(f"{result.outcome:13} {result.mutation.name}  {result.exercise} {causes or ''}", flush=True)
        if options.out:
            write(options.out, mutations, results, time.perf_counter() - started, options.keep)
    wrong += surprises(list(results.values()))
    print(json.dumps(summary(list(results.values()), time.perf_counter() - started), indent=1))
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
