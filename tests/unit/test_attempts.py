# SPDX-License-Identifier: Apache-2.0
"""The record of what was being tried when a tuner died."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from coldforge.codegen.errors import ColdforgeError
from coldforge.codegen.liveness import Mark, mark_in, own_mark
from coldforge.tuner.attempts import Attempts
from coldforge.tuner.tools import Terms

STUDY = "conv2d_mish-small+-fp32-x86-64-v3-0123456789ab"
GOOD, BAD = "direct:TILE=1", "direct:TILE=2"
# An id that no process of this machine has: past the largest that Linux gives.
NOBODY = replace(own_mark(), pid=2**22 + 7)


def _dead(home: Path, *keys: str, mark: Mark = NOBODY, text: str | None = None) -> Path:
    """What a tuner that died left behind."""
    path = Attempts(home, STUDY).folder / f"{mark}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"key": key}) + "\n" for key in keys) if text is None else text)
    return path


def test_nothing_is_made_before_the_first_attempt(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path / "home", STUDY)
    assert attempts.suspects(()) == ()
    attempts.close()
    assert not (tmp_path / "home").exists()


def test_two_deaths_on_one_config_are_enough(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path, STUDY)
    first = _dead(tmp_path, GOOD, BAD)
    assert attempts.suspects([GOOD]) == ()
    assert first.read_text() == json.dumps({"key": BAD}) + "\n", "only what still counts is kept"
    second = _dead(tmp_path, BAD, BAD, mark=replace(NOBODY, pid=NOBODY.pid + 1))
    assert attempts.suspects([GOOD]) == (BAD,)
    assert attempts.suspects([GOOD, BAD]) == ()
    assert not first.exists()
    assert not second.exists()


def test_one_tuner_that_tried_twice_died_once(tmp_path: Path) -> None:
    _dead(tmp_path, BAD, BAD, BAD)
    assert Attempts(tmp_path, STUDY).suspects(()) == ()


def test_studies_are_kept_apart(tmp_path: Path) -> None:
    _dead(tmp_path, BAD)
    _dead(tmp_path, BAD, mark=replace(NOBODY, pid=NOBODY.pid + 1))
    assert Attempts(tmp_path, "another/../study").suspects(()) == ()
    assert Attempts(tmp_path, "another/../study").folder.parent == tmp_path / "attempts"
    assert Attempts(tmp_path, STUDY).suspects(()) == (BAD,)


def test_a_live_tuner_counts_against_nothing(tmp_path: Path) -> None:
    one, other = Attempts(tmp_path, STUDY), Attempts(tmp_path, STUDY)
    one.begin(BAD)
    _dead(tmp_path, BAD)
    assert other.suspects(()) == ()
    assert other.suspects([BAD]) == ()
    assert (one.folder / f"{own_mark()}.jsonl").exists(), "a live tuner's record stays whole"
    one.begin(GOOD)
    one.close()
    assert not one.folder.exists()


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        ({"pid": NOBODY.pid}, True),
        ({"started": str(int(own_mark().started) + 1)}, True),  # the id was given again
        ({"boot": "00000000"}, True),
        ({"host": "00000000"}, None),
        ({"space": "17"}, None),
        ({}, False),
    ],
)
def test_who_is_dead(tmp_path: Path, change: dict[str, object], dead: bool | None) -> None:
    mark = replace(own_mark(), **change)
    assert mark.alive is (None if dead is None else not dead)
    assert mark_in(f".name.{mark}.abc.partial") == mark
    first = _dead(tmp_path, BAD, GOOD, mark=mark)
    _dead(tmp_path, BAD, GOOD, mark=replace(NOBODY, pid=NOBODY.pid + 1))
    attempts = Attempts(tmp_path, STUDY)
    assert attempts.suspects([GOOD]) == ((BAD,) if dead else ())
    if dead is None:  # another machine's: after a day without a word
        yesterday = time.time() - 25 * 3600
        os.utime(first, (yesterday, yesterday))
        assert attempts.suspects([GOOD]) == (BAD,)
        assert attempts.suspects([GOOD]) == (BAD,), "cutting it down does not make it young again"


def test_torn_lines_are_skipped(tmp_path: Path) -> None:
    line = json.dumps({"key": BAD})
    _dead(tmp_path, text=f'{line}\n{{"key": "dir\n[1]\nnull\n{{}}\n{{"key": 3}}\n\0\0\n')
    _dead(tmp_path, text=line + '\n{"ke', mark=replace(NOBODY, pid=NOBODY.pid + 1))
    assert Attempts(tmp_path, STUDY).suspects(()) == (BAD,)


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    folder = Attempts(tmp_path, STUDY).folder
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    assert Attempts(tmp_path, STUDY).suspects(()) == ()
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "kept"),
    [(None, False), (KeyboardInterrupt(), False), (ColdforgeError("full"), False), (ValueError("bug"), True)],
)
def test_an_end_in_good_order_leaves_nothing(tmp_path: Path, error: BaseException | None, kept: bool) -> None:
    attempts = Attempts(tmp_path, STUDY)
    with contextlib.suppress(KeyboardInterrupt, ColdforgeError, ValueError), attempts:
        attempts.begin(BAD)
        if error is not None:
            raise error
    assert attempts.folder.exists() is kept


KILLED = """
import os, signal, sys
from pathlib import Path
from coldforge.tuner.attempts import Attempts
from coldforge.tuner.tools import Terms
attempts = Attempts(Path(sys.argv[1]), sys.argv[2])
attempts.begin(sys.argv[3])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_counts_once_each(tmp_path: Path) -> None:
    for expected in ((), (BAD,)):
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), STUDY, BAD], check=False)
        assert done.returncode == -9
        assert Attempts(tmp_path, STUDY).suspects([GOOD]) == expected


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_one_line(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    attempts = Attempts(home, STUDY)
    assert attempts.suspects(()) == ()
    with pytest.raises(ColdforgeError, match=r"^cannot write .*\.jsonl: Permission denied$"):
        attempts.begin(BAD)
    attempts.close()
    home.chmod(0o700)
    attempts.folder.mkdir(parents=True)
    attempts.folder.chmod(0)
    with pytest.raises(ColdforgeError, match=r"^cannot read .*: Permission denied$"):
        attempts.suspects(())
    attempts.folder.chmod(0o700)


def test_a_file_in_place_of_the_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text("no folder")
    attempts = Attempts(tmp_path, STUDY)
    with pytest.raises(ColdforgeError, match=r"^cannot write .*: (Not a directory|File exists)$"):
        attempts.begin(BAD)
    with pytest.raises(ColdforgeError, match=r"^cannot read .*: Not a directory$"):
        attempts.suspects(())


def test_a_full_disk_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    attempts = Attempts(Path("/nowhere"), STUDY)
    attempts._handle = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(ColdforgeError, match=r"^cannot write .*: No space left on device$"):
        attempts.begin(BAD)
    attempts.close()


# A live process that is not this one.
ANOTHER = replace(own_mark(), pid=os.getppid(), started="0")


def _write(home: Path, *lines: dict[str, str], mark: Mark = ANOTHER) -> Path:
    return _dead(home, mark=mark, text="".join(json.dumps(line) + "\n" for line in lines))


def test_a_config_is_one_tuners(tmp_path: Path) -> None:
    own = Attempts(tmp_path, STUDY)
    assert own.claims() is None
    path = _write(tmp_path, {"claim": BAD}, {"claim": GOOD}, {"release": GOOD})
    assert own.claims() == {BAD}
    assert own.claim(GOOD)
    assert not own.claim(BAD)
    with path.open("a") as file:
        file.write(json.dumps({"release": BAD}) + "\n")
    assert own.claims() == frozenset()
    assert own.claim(BAD)
    own.release(BAD)
    own.close()
    assert list(own.folder.iterdir()) == [path]


def test_claims_of_the_dead_and_of_the_silent_bind_nobody(tmp_path: Path) -> None:
    own = Attempts(tmp_path, STUDY)
    _write(tmp_path, {"claim": BAD}, mark=NOBODY)
    path = _write(tmp_path, {"claim": BAD})
    os.utime(path, (time.time() - 1000, time.time() - 1000))
    assert own.claims() is None
    assert own.claim(BAD)
    own.close()


def test_a_tuner_that_is_busy_for_long_is_not_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Attempts(tmp_path, STUDY)
    assert own.beat() is None, "nobody listens before the first claim"
    assert own.claim(GOOD)
    path = own.folder / f"{own_mark()}.jsonl"
    old = time.time() - 1000
    os.utime(path, (old, old))
    rest_s = own.beat()
    assert rest_s is not None
    assert 0 < rest_s < 60
    assert path.stat().st_mtime == pytest.approx(old), "it has just said something"
    later = time.monotonic() + rest_s
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert own.beat() == pytest.approx(rest_s, abs=1.0)
    assert path.stat().st_mtime > old + 900
    own.close()


def test_a_claim_is_no_attempt(tmp_path: Path) -> None:
    for pid in (NOBODY.pid, NOBODY.pid + 1):
        _write(tmp_path, {"claim": BAD}, mark=replace(NOBODY, pid=pid))
    assert Attempts(tmp_path, STUDY).suspects(()) == ()


def test_tuners_together_claim_no_more_than_are_wanted(tmp_path: Path) -> None:
    """The one that looked last knows what the others are at; what is finished is not counted twice."""
    other = replace(own_mark(), pid=os.getppid(), started="0")
    path = Attempts(tmp_path, STUDY).folder / f"{other}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"claim": "direct:TILE=7"}\n{"claim": "direct:TILE=8"}\n')
    attempts = Attempts(tmp_path, STUDY)
    finished = {"direct:TILE=8"}
    assert not attempts.claim(GOOD, Terms(left=1, finished=finished))
    assert attempts.claim(GOOD, Terms(left=2, finished=finished))
    assert not attempts.claim(BAD, Terms(left=2, finished=finished))
    attempts.release(GOOD)
    assert attempts.claim(BAD, Terms(left=2, finished=finished))
    assert attempts.claim(GOOD, Terms(finished=finished))


def test_what_others_left_out_is_not_under_way(tmp_path: Path) -> None:
    """A stricter spill limit made short work of it there; it claims it as long as it lives."""
    attempts = Attempts(tmp_path, STUDY)
    _write(tmp_path, {"claim": BAD})
    assert not attempts.claim(GOOD, Terms(left=1))
    assert attempts.claim(GOOD, Terms(left=1, admitted={BAD, GOOD}))
    assert not attempts.claim("direct:TILE=3", Terms(left=1, admitted={BAD, GOOD})), "this one is at GOOD"
    attempts.close()


def test_after_another_one_ended_nothing_is_claimed_before_the_study_is_read(tmp_path: Path) -> None:
    """Its file is gone, and with it what it finished last, which may be the very config."""
    own = Attempts(tmp_path, STUDY)
    assert own.claims() is None
    path = _write(tmp_path, {"claim": BAD})
    assert own.claim(GOOD)  # and the other one was noticed
    path.unlink()
    assert not own.claim(BAD, Terms(left=5))
    assert (own.departed, own.full) == (True, False)
    assert not own.claim(BAD), "until it is asked who is there"
    assert own.claims() is None
    assert own.departed
    assert own.claim(BAD)
    assert own.claims() is None
    assert not own.departed


def test_one_that_ends_while_it_is_listed_has_departed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing of the files and the reading of its own: what it claimed there is not known."""
    own = Attempts(tmp_path, STUDY)
    path = _write(tmp_path, {"claim": GOOD})
    assert own.claims() == {GOOD}
    with path.open("a") as file:
        file.write(json.dumps({"claim": BAD}) + "\n")
    listed = own._others

    def others() -> list[Path]:
        found = listed()
        path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(own, "_others", others)
    assert not own.claim(BAD, Terms(left=1))
    assert (own.departed, own.full) == (True, False)
    assert own.claims() is None
    assert own.departed
    assert own.claim(BAD)


def test_a_file_is_read_on_from_where_it_was_read_to(tmp_path: Path) -> None:
    path = _write(tmp_path, {"claim": BAD}, {"claim": GOOD})
    own = Attempts(tmp_path, STUDY)
    assert own.claims() == {BAD, GOOD}
    whole = path.read_bytes()
    path.write_bytes(b"-" * len(whole))
    with path.open("ab") as file:
        file.write(b'{"release": "' + GOOD.encode())
    assert own.claims() == {BAD, GOOD}, "half a line is read when it is whole"
    with path.open("ab") as file:
        file.write(b'"}\n')
    assert own.claims() == {BAD}


@pytest.mark.parametrize("shorter", [True, False])
def test_a_file_that_was_cut_down_is_read_anew(tmp_path: Path, shorter: bool) -> None:
    own = Attempts(tmp_path, STUDY)
    path = _write(tmp_path, {"claim": BAD})
    assert own.claims() == {BAD}
    if shorter:
        path.write_text("")
    else:
        path.with_suffix(".new").write_text(
            json.dumps({"key": GOOD}) + "\n" + json.dumps({"key": GOOD}) + "\n"
        )
        path.with_suffix(".new").rename(path)
    assert own.claims() == (frozenset() if shorter else {GOOD})


def test_finals_are_of_one_tuner_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with Attempts(tmp_path, STUDY).finals():
            order.append("first")
            entered.set()
            leave.wait(30.0)
            order.append("first is done")

    def second() -> None:
        with Attempts(tmp_path, STUDY).finals():
            order.append("second")

    threads = [threading.Thread(target=work) for work in (first, second)]
    threads[0].start()
    assert entered.wait(30.0)
    threads[1].start()
    threads[1].join(1.0)
    assert threads[1].is_alive()
    with Attempts(tmp_path, "another study").finals():  # waits for nobody
        order.append("another")
    leave.set()
    for thread in threads:
        thread.join(30.0)
    assert order == ["first", "another", "first is done", "second"]
    assert not list(tmp_path.rglob("*.finals"))
