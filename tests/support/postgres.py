# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of a test's own: started, killed, started again, gone at the end."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

SECRET_USER, SECRET = "careful", "s3cret-Pa55word"
"""Who must give a password, and the password."""
_PROGRAMS = "initdb", "pg_ctl", "psql"
_OPTIONS = "-c fsync=off -c shared_buffers=16MB -c max_connections=60 -c log_min_messages=fatal"
_ACCESS = """\
local all all trust
host all careful 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""


def programs() -> Path:
    """The folder of the server's programs; the test is skipped where there are none."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if all((place / name).exists() for name in _PROGRAMS):
            return place
    pytest.skip("no PostgreSQL server: initdb is neither in PATH nor in /usr/lib/postgresql/*/bin")


class Server:
    """One server on a free port, with the database ``studies``."""

    def __init__(self) -> None:
        self._bin = programs()
        self.user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        if os.getuid() == 0:
            try:
                pwd.getpwnam(self.user)
            except KeyError:
                pytest.skip("no user `postgres`, and root may not run a PostgreSQL server")
        # Not in pytest's folder, where another user may not go.
        self.folder = Path(tempfile.mkdtemp(prefix="coldforge-postgres-"))
        if os.getuid() == 0:
            shutil.chown(self.folder, self.user)
        self._data = self.folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._run("initdb", "-D", str(self._data), "--no-sync", "-A", "trust", "-U", "postgres")
        (self._data / "pg_hba.conf").write_text(_ACCESS)
        self.start()
        self.sql(f"CREATE ROLE {SECRET_USER} SUPERUSER LOGIN PASSWORD '{SECRET}'", "postgres")
        self.sql("CREATE DATABASE studies", "postgres")

    def url(self, user: str = "postgres", database: str = "studies") -> str:
        """The storage URL, without a password."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def new_database(self, name: str) -> str:
        """Makes an empty database; its URL."""
        self.sql(f'CREATE DATABASE "{name}"', "postgres")
        return self.url(database=name)

    def start(self) -> None:
        """Starts it and waits until it answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} {_OPTIONS}"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-o", options, "-w", "-t", "60", "start")

    def kill(self) -> None:
        """Kills every process of it at once, as a power cut would."""
        lines = (self._data / "postmaster.pid").read_text().splitlines()
        first = int(lines[0])
        found = [first, *_children(first)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() and not _is_dead(pid) for pid in found):
            assert time.monotonic() < end
            time.sleep(0.02)
        # One that nobody has waited for yet still counts as a running server.
        for left in (self._data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")):
            left.unlink()

    def stop(self) -> None:
        """Ends it and removes all of it."""
        with contextlib.suppress(AssertionError):
            self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def sql(self, text: str, database: str = "studies") -> str:
        """Runs a statement; what it answers, unadorned."""
        place = ["-h", str(self.folder), "-p", str(self.port), "-U", "postgres", "-d", database]
        return self._run("psql", *place, "-qAt", "-c", text).strip()

    def _run(self, program: str, *arguments: str) -> str:
        other = {"user": self.user, "group": self.user, "extra_groups": []} if os.getuid() == 0 else {}
        # A server's own output stays open for as long as it runs: it must not be a pipe that is read.
        with tempfile.TemporaryFile() as said:
            command = [str(self._bin / program), *arguments]
            code = subprocess.run(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False, **other
            ).returncode
            said.seek(0)
            text = said.read().decode()
        assert code == 0, text[-3000:]
        return text


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
