"""``python -m mutation`` mutates the targets, runs their tests, and lists the surviving mutants."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mutation.coverage_map import complete_map, read_map
from mutation.hunt import (
    EQUIVALENT,
    KILLED,
    NOT_COVERED,
    SURVIVED,
    TIMED_OUT,
    Chooser,
    ChoosesTests,
    Task,
    Verdict,
    run_fresh,
    run_live,
)
from mutation.killers import KillerChooser, read_killers, write_killers
from mutation.mutants import Mutant, mutants_of
from mutation.project import Project, read_project
from mutation.reasons import Reason, as_entry, read_reasons
from mutation.sessions import prepare

HERE = Path(__file__).resolve().parent
MISSED = (SURVIVED, NOT_COVERED)
Kill = tuple[Mutant, bool, str]


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("--files", nargs="+", default=[], metavar="GLOB", help="targets, such as 'accounting/*'")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="mutants whose identity has this in it")
    parser.add_argument("--rerun-survivors", action="store_true", help="those that the last runs left")
    parser.add_argument("--changed", metavar="BASE", help="targets changed since a commit, if there are any")
    parser.add_argument("--sample", metavar="SEED", help="in random order, by the tests known to find mutants")
    parser.add_argument("--seconds", type=float, help="stop in time")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--check-reasons", action="store_true", help="also run mutants that have a reason")
    parser.add_argument("--keep-killers", action="store_true", help="renew the list of tests for samples")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path, default=HERE / "targets.toml", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    start = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):  # a background process would ignore the first signal
        signal.signal(number, signal.default_int_handler)
    options = _options(words)
    until = start + options.seconds if options.seconds else float("inf")
    try:
        project = read_project(options.config, options.root)
        reasons = read_reasons(project.root / project.reasons)
        targets = _targets(project, options)
    except ValueError as problem:
        _print(str(problem))
        return 2
    mutants = [mutant for target in targets for mutant in mutants_of(target, project.text(target))]
    files = {*targets, *(reason.file for reason in reasons if reason.file not in project.targets)}
    stale = [reason for reason in reasons if reason.file in files and not any(map(reason.covers, mutants))]
    asked = [mutant for mutant in mutants if not options.only or any(t in _names(mutant) for t in options.only)]
    if options.rerun_survivors:
        last = _last(project)
        asked = [mutant for mutant in asked if last.get(mutant.identity) in MISSED]
    if options.list:
        for mutant in asked:
            sys.stdout.write(f"{mutant.short} {mutant.line} {mutant.identity}\n")
        return 0
    excused = {mutant for mutant in asked if any(reason.covers(mutant) for reason in reasons)}
    verdicts: dict[Mutant, Verdict] = {}
    if not options.check_reasons:
        verdicts = dict.fromkeys(excused, (EQUIVALENT, None))
    work = [mutant for mutant in asked if mutant not in verdicts]
    kills: list[Kill] = []
    if options.sample:
        random.Random(options.sample).shuffle(work)
    began = time.monotonic()
    n_cut = _run(project, work, verdicts, kills, options, until)
    spent = time.monotonic() - began
    if options.check_reasons:
        for mutant in excused:
            if verdicts.get(mutant, ("", None))[0] in MISSED:
                verdicts[mutant] = (EQUIVALENT, None)
    wrong = [
        reason
        for reason in reasons
        if options.check_reasons
        and any(map(reason.covers, verdicts))
        and all(verdicts[m][0] in (KILLED, TIMED_OUT) for m in verdicts if reason.covers(m))
    ]
    _report(project, verdicts, stale, wrong, n_cut, len(asked) - len(verdicts), spent, time.monotonic() - start)
    _keep(project, verdicts, options.json, stale)
    if options.keep_killers:
        whole = [target for target in targets if all(m in verdicts for m in mutants if m.file == target)]
        write_killers(project, whole, [kill for kill in kills if kill[0].file in whole])
    missed = any(how in MISSED for how, _ in verdicts.values())
    given_up = not options.seconds and len(verdicts) < len(asked)
    return 1 if missed or stale or wrong or given_up else 0


def _names(mutant: Mutant) -> str:
    return f"{mutant.identity} {mutant.short}"


def _targets(project: Project, options: argparse.Namespace) -> list[str]:
    targets = project.chosen(options.files)
    if options.changed:
        changed = set(_git(project, "diff", "--name-only", options.changed, "--", project.package).split("\n"))
        touched = [target for target in targets if f"{project.package}/{target}" in changed]
        if touched:
            return touched
    if options.sample:  # generating mutants of all targets is slow
        return random.Random(options.sample).sample(targets, min(4, len(targets)))
    return targets


def _git(project: Project, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=project.root, capture_output=True, text=True, check=False).stdout.strip()


def _run(
    project: Project,
    work: list[Mutant],
    verdicts: dict[Mutant, Verdict],
    kills: list[Kill],
    options: argparse.Namespace,
    until: float,
) -> int:
    """Fill in the verdicts. Return the number of tests that were cut from survivors' lists."""
    if not work:
        return 0
    prepare(project)
    chooser = _chooser(project, options, until)
    tasks: dict[Mutant, Task] = {}
    for mutant in work:
        if (task := chooser.task(mutant)) is not None:
            tasks[mutant] = task
        elif isinstance(chooser, Chooser):
            verdicts[mutant] = (NOT_COVERED, None)
    if isinstance(chooser, KillerChooser) and len(tasks) < len(work):
        _print(f"of {len(work) - len(tasks)} mutants no test is known; run make mutation MUTATION=--keep-killers")
    folder = tempfile.mkdtemp(prefix="mutation-")
    os.environ["MUTATION_FOLDER"] = folder
    n_cut, waiting = 0, list(tasks.values())
    try:
        for live, share in ((False, 0.3), (True, 0.7), (False, 1.0)):
            these = [task for task in waiting if task.live == live]
            waiting = [task for task in waiting if task.live != live]
            stop = until if not waiting else time.monotonic() + share * (until - time.monotonic())
            begun, missed, run = time.monotonic(), 0, run_live if live else run_fresh
            answers = run(project, chooser, these, until=stop, workers=options.workers) if these else ()
            for done, (task, verdict) in enumerate(answers, start=1):
                assert task.mutant is not None
                average = (time.monotonic() - begun) / done
                kind = "live" if live else "fresh"
                _progress(f"{kind} {done}/{len(these)}, {missed} survived, {average:.2f} s each")
                if verdict is None:  # the function cannot be replaced in place
                    waiting.append(replace(task, live=False, tests=(*task.later, *task.tests), later=()))
                    continue
                if verdict[0] == SURVIVED and task.later:
                    waiting.append(replace(task, live=not live, tests=task.later, later=()))
                    continue
                verdicts[task.mutant] = verdict
                if verdict[1] is not None:
                    kills.append((task.mutant, live, verdict[1]))
                if verdict[0] in MISSED:
                    missed += 1
                    _print(f"{verdict[0]}: {task.mutant.identity}")
                    n_cut += task.n_cut
    except KeyboardInterrupt:
        _print("interrupted; this is what is known")
    finally:
        _progress("")
        shutil.rmtree(folder, ignore_errors=True)
    return n_cut


def _chooser(project: Project, options: argparse.Namespace, until: float) -> ChoosesTests:
    """Choose tests by the coverage map, or for a sample without a map by the killers of the last full run."""
    files = project.test_files
    if options.sample and len(read_map(project, files)) < len(files):
        return KillerChooser(project)
    known_map = complete_map(project, files, workers=options.workers, until=until, tell=_progress)
    for file, item in known_map.items():
        if not item.times and item.failed:
            _print(f"{file} cannot be used: it fails without a mutant")
    return Chooser(project, known_map, read_killers(project))


# --- what is said ------------------------------------------------------------------------------------------


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")


_told = [0.0]


def _progress(text: str) -> None:
    """Show one line that is overwritten, or in a log a line every ten seconds."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
    elif text and time.monotonic() > _told[0] + 10.0:
        _told[0] = time.monotonic()
        _print(text)


def _report(
    project: Project,
    verdicts: dict[Mutant, Verdict],
    stale: list[Reason],
    wrong: list[Reason],
    n_cut: int,
    n_left: int,
    spent: float,
    total: float,
) -> None:
    out = sys.stdout.write
    kinds = (KILLED, TIMED_OUT, SURVIVED, NOT_COVERED, EQUIVALENT)
    for mutant in sorted((m for m in verdicts if verdicts[m][0] in MISSED), key=_position(project)):
        place, how = f"{project.package}/{mutant.file}:{mutant.line}", verdicts[mutant][0]
        out(f"\n{place} in {mutant.where}: {how} ({mutant.short})\n")
        out(f"  - {mutant.old}\n  + {mutant.new}\n")
        out("".join(f"    {line}\n" for line in as_entry(mutant).split("\n")))
    for reason in stale:
        out(f"\nno mutant has this reason any more: {reason}\n")
    for item in wrong:
        out(f"\na test finds what this reason excuses: {item}\n")
    out(f"\n{'file':28}{'mutants':>9}" + "".join(f"{kind:>13}" for kind in kinds) + "\n")
    rows = Counter((mutant.file, how) for mutant, (how, _) in verdicts.items())
    files = [target for target in project.targets if any(file == target for file, _ in rows)]
    for file in files:
        counts = [rows[file, kind] for kind in kinds]
        out(f"{file:28}{sum(counts):>9}" + "".join(f"{count:>13}" for count in counts) + "\n")
    counts = [sum(rows[file, kind] for file in files) for kind in kinds]
    out(f"{'all':28}{sum(counts):>9}" + "".join(f"{count:>13}" for count in counts) + "\n")
    ran = sum(counts[:3])
    out(f"\n{total:.0f} s in all, {spent / max(1, ran):.2f} s per mutant that ran")
    out(f"; {n_left} not run for lack of time" if n_left else "")
    out(f"; survivors were spared {n_cut} of their tests by the limit of time" if n_cut else "")
    out("\n")


def _position(project: Project) -> Any:
    return lambda mutant: (project.targets.index(mutant.file), mutant.start)


def _last(project: Project) -> dict[str, str]:
    path = project.state / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _keep(project: Project, verdicts: dict[Mutant, Verdict], file: Path | None, stale: list[Reason]) -> None:
    project.state.mkdir(exist_ok=True)
    results = _last(project) | {mutant.identity: how for mutant, (how, _) in verdicts.items()}
    (project.state / "results.json").write_text(json.dumps(results, indent=0, ensure_ascii=False), encoding="utf-8")
    if file is not None:
        entries = [
            {
                "id": mutant.short,
                "identity": mutant.identity,
                "file": mutant.file,
                "line": mutant.line,
                "where": mutant.where,
                "operator": mutant.operator,
                "old": mutant.old,
                "new": mutant.new,
                "result": how,
                "test": test,
            }
            for mutant, (how, test) in sorted(verdicts.items(), key=lambda item: _position(project)(item[0]))
        ]
        report = {"mutants": entries, "stale": [str(reason) for reason in stale]}
        file.write_text(json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
