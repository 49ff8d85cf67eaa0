"""A report that is served while a search runs: new trials soon, read-only, for this machine alone."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from browser import Browser, find
from engine_helpers import small_table
from search_process import without_progress
from stored_studies import NASTY, measured_at, record, write_study
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.device import StartReport
from evokern.errors import UsageError
from evokern.report.live import FollowedStudy
from evokern.report.server import ReportServer
from evokern.store import Store, add_proof, open_readonly
from evokern.study.trial import Proposal, Trial


class Searching:
    """A search that writes a trial whenever it is told to."""

    def __init__(self, path: Path) -> None:
        self.store = Store(path)
        table = small_table()
        space = table.space()
        self.study = self.store.create(record(genes=table.genes), {"kernel.cu": f"int a = {table.genes[0].name};\n"})
        self.session = self.store.session(self.study, space)
        self.session.write_start_report(StartReport((), {"driver": "580"}, ()))
        self.cells = [config for config in space.grid() if space.feasible(config)]
        self.number = 0

    def propose(self) -> Proposal:
        """Begin a trial and leave it open."""
        proposal = Proposal(self.cells[self.number])
        self.session.propose(self.number, proposal, float(self.number))
        self.number += 1
        return proposal

    def finish(self, number: int, proposal: Proposal, time_us: float) -> None:
        """End a trial that was begun."""
        trial = Trial(number, proposal, measured_at(number, time_us), number + 0.5)
        self.session.record(trial, number + 0.5)

    def trial(self, time_us: float) -> None:
        """Begin and end a trial."""
        self.finish(self.number, self.propose(), time_us)

    def end(self) -> None:
        """End the search."""
        self.session.ended(60.0, "budget")
        self.store.close()


@contextmanager
def served(path: Path, said: Callable[[str], None] = lambda text: None) -> Iterator[ReportServer]:
    """Serve the study of a database."""
    server = ReportServer(FollowedStudy(path, None, on_message=said))
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.shut_down()
        thread.join(timeout=10)
        server.close()


def ask(
    server: ReportServer, part: str = "", method: str = "GET", host: str | None = None, path: str | None = None
) -> tuple[int, bytes, dict[str, str]]:
    """Return status, content and headers of an answer."""
    address = urlsplit(server.address)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
    connection.putrequest(method, path or address.path + part, skip_host=True)
    connection.putheader("Host", host or address.netloc)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read(), dict(answer.getheaders())
    connection.close()
    return found


def news(server: ReportServer, since: int = 0) -> dict[str, Any]:
    """Return what is new."""
    return dict(json.loads(ask(server, f"news?since={since}&texts=0")[1]))


def wait_for(told: Callable[[], bool], seconds: float) -> float:
    """Wait until something is true, and return after how many seconds it was."""
    began = time.monotonic()
    while not told():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s"
        time.sleep(0.02)
    return time.monotonic() - began


def test_new_trials_are_told_within_two_seconds_and_the_end_in_words(tmp_path: Path) -> None:
    """Trials appear as they end, whatever order that is in; then the search is said to have ended, once."""
    said: list[str] = []
    search = Searching(tmp_path / "s.db")
    with served(tmp_path / "s.db", said.append) as server:
        first = news(server)
        assert (first["rows"], first["champion"], first["status"][:20]) == ([], None, "Searching: 0 trials ")
        slow = search.propose()
        search.trial(7.0)
        wait_for(lambda: news(server)["since"] == 1, 2.0)
        search.finish(0, slow, 6.0)
        wait_for(lambda: news(server)["since"] == 2, 2.0)
        found = news(server)
        assert [row[0] for row in found["rows"]] == [1, 0]
        assert [row[0] for row in news(server, since=1)["rows"]] == [0]
        assert found["champion"] == 0
        search.end()
        wait_for(lambda: news(server)["ended"], 2.0)
        assert re.match(r"Ended \(budget\): 2 trials in 1 min, best 6\.00? µs", news(server)["status"])
    assert said == ["the search has ended (budget)"]


def test_the_page_is_for_this_machine_and_reads_only(tmp_path: Path) -> None:
    """Another name, another token, a path and every method that could write are refused; the files stay as they are."""
    path = tmp_path / "r.db"
    write_study(path, 20)

    def digests() -> dict[str, str]:
        return {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in tmp_path.iterdir()}

    before = digests()
    with served(path) as server:
        address = urlsplit(server.address)
        assert address.hostname == "127.0.0.1"
        assert len(address.path.strip("/")) >= 20
        status, content, headers = ask(server)
        assert (status, b"</html>" in content, headers["Cache-Control"]) == (200, True, "no-store")
        assert ask(server, method="HEAD")[:2] == (200, b"")
        assert ask(server, host=f"localhost:{address.port}")[0] == 200
        assert [
            ask(server, host=name)[0] for name in ("evil.example", f"evil.example:{address.port}", "127.0.0.1")
        ] == [421] * 3
        for wrong in ("/", "/other/", f"{address.path[:-3]}/", "/../../etc/passwd", f"{address.path}../r.db"):
            assert ask(server, path=wrong)[0] == 404, wrong
        for part in ("r.db", "../r.db", "%2e%2e/r.db", "/etc/passwd", "news/../r.db", "trial?number=999"):
            assert ask(server, part)[0] == 404, part
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert ask(server, method=method)[0] >= 400, method
        for text in ("-1", "9" * 40, "x", "1;DROP"):
            assert ask(server, f"news?since={text}&texts={text}")[0] == 200, text
    assert digests() == before


@pytest.mark.thorough
def test_a_trial_is_told_in_full_when_asked(tmp_path: Path) -> None:
    """What the page does not hold of a trial comes from the server: reason, samples, difference of the source."""
    write_study(tmp_path / "r.db", 60)
    with served(tmp_path / "r.db") as server, open_readonly(tmp_path / "r.db") as reader:
        study = reader.study()
        best = reader.best(study)
        assert best is not None
        gene = small_table().genes[0].name
        other = next(t for t in reader.trials(study) if t.time_us and t.config[gene] != best.config[gene])
        found = json.loads(ask(server, f"trial?number={other.number}")[1])
        assert found["samples"][0] == 20
        assert [line[0] for line in found["difference"]] == ["@", "-", "+"]
        wrong = next(t for t in reader.trials(study) if t.outcome.value == "wrong")
        assert NASTY in json.loads(ask(server, f"trial?number={wrong.number}")[1])["reason"]


def test_a_new_champion_has_its_cards_before_the_page_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variant and time follow a new best within two seconds; a card's difference is that to the champion of now."""
    monkeypatch.setattr(
        "evokern.report.live.MIN_REBUILD_INTERVAL_S", 1e9
    )  # tables and the model of the genes stay as they are
    search = Searching(tmp_path / "s.db")
    for number in range(8):
        search.trial(9.0 - 0.1 * number)
    with served(tmp_path / "s.db") as server:
        first = news(server)
        assert first["champion"] == 7
        assert b'variant: <a href="#trial=7">' in ask(server, "parts")[1]
        search.trial(4.0)
        search.trial(6.0)
        wait_for(lambda: b'variant: <a href="#trial=8">' in ask(server, "parts")[1], 2.0)
        wait_for(lambda: news(server)["since"] == 10, 2.0)
        assert news(server)["version"] == first["version"] + 1
        assert b"4.00 \xc2\xb5s" in ask(server, "parts")[1].split(b'id="speed"')[-1]
        found = json.loads(ask(server, "trial?number=9")[1])
        assert (found["champion"], found["samples"][0]) == (8, 20)
        assert found["difference"] == [] or found["difference"][0][0] == "@"
        search.store.close()


@pytest.mark.thorough
def test_a_refuted_trial_is_no_champion(tmp_path: Path) -> None:
    """A proof that comes in while the page is shown takes the champion's place away."""
    study = write_study(tmp_path / "r.db", 40)
    with open_readonly(tmp_path / "r.db") as reader:
        best = reader.best(study)
    assert best is not None
    stage = {"state": "failed", "detail": "o[0] is 3"}
    with served(tmp_path / "r.db") as server:
        assert news(server)["champion"] == best.number
        add_proof(tmp_path / "r.db", study, "verify", best.number, {"stages": {"fuzz": stage}, "playoff": None})
        wait_for(lambda: news(server)["champion"] != best.number, 15.0)
        assert b"refuted" in ask(server, "parts")[1]


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    """The message names the port and what to do; so does one for a port that cannot be."""
    write_study(tmp_path / "r.db", 5)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(app, ["report", "--db", str(tmp_path / "r.db"), "--serve", port])
        assert done.exit_code == 2
        assert f"port {port}" in done.stderr
        assert "`--serve`" in done.stderr
    done = CliRunner().invoke(app, ["report", "--db", str(tmp_path / "r.db"), "--serve", "70000"])
    assert (done.exit_code, "invalid port 70000" in done.stderr) == (2, True), done.stderr
    done = CliRunner().invoke(app, ["report", "--db", str(tmp_path / "r.db"), "--serve", "-o", "r.html"])
    assert (done.exit_code, "--serve writes no file" in done.stderr) == (2, True), done.stderr
    with pytest.raises(UsageError, match="invalid port -1"):
        ReportServer(FollowedStudy(tmp_path / "r.db", None), -1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--serve",), marks=pytest.mark.slow),
        pytest.param(("small", "--serve"), marks=pytest.mark.slow),
        ("--serve", "small"),
    ],
)
def test_an_interrupt_ends_it_cleanly(words: tuple[str, ...], tmp_path: Path) -> None:
    """The port may be left away; Ctrl-C ends the command with 0 and without a traceback, and closes the database."""
    write_study(tmp_path / "r.db", 5)
    command = [sys.executable, "-m", "evokern", "report", *words, "--db", str(tmp_path / "r.db")]
    # Into a pipe Python keeps back what it writes, unless its user says otherwise.
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=bare) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert re.search(r"small at http://127\.0\.0\.1:\d+/[\w-]{20,}/; stop with Ctrl-C", line), line
            os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()  # of no effect once it ended; else the end of `with` would wait for it
    assert (process.returncode, out, list(without_progress(err.splitlines()))) == (0, "server stopped\n", [])
    assert {one.name for one in tmp_path.iterdir()} == {"r.db"}


@pytest.mark.thorough
@pytest.mark.skipif(find() is None, reason="no Chromium here")
def test_a_page_lives(tmp_path: Path) -> None:
    """New trials show without a reload within two seconds, a selection stays, and the end is said."""
    search = Searching(tmp_path / "s.db")
    for number in range(12):
        search.trial(9.0 - 0.1 * number)
    browser = Browser(str(find()), tmp_path)
    try:
        with served(tmp_path / "s.db") as server:
            browser.open(f"{server.address}#trial=3", 1400)
            browser.run("window.kept = true")
            browser.wait_until("document.getElementById('status').textContent.startsWith('Searching: 12')", 5)
            search.trial(4.0)
            browser.wait_until("document.querySelector('#came figcaption').textContent.includes('measured: 13')", 2.5)
            browser.wait_until("document.getElementById('status').textContent.includes('(trial 12)')", 2.5)
            browser.wait_until("document.querySelector('#variant h2').textContent.includes('trial 12')", 60)
            # A trial that came while the page was shown opens with all that is known of it, and keeps the keyboard.
            search.trial(4.4)
            browser.wait_until("document.querySelector('#came figcaption').textContent.includes('measured: 14')", 2.5)
            browser.run("location.hash = 'trial=13'")
            browser.wait_until("document.getElementById('card').textContent.includes('20 samples')", 5)
            told = browser.run("document.getElementById('card').innerText")
            for words in ("128 registers", "champion, 12", "the champion's time", "proposed by", "after 0.2"):
                assert words in told, told
            assert "Source:" in told
            assert "Computing the source difference" not in told
            browser.run("document.querySelector('#card .close').focus()")
            search.trial(8.0)
            browser.wait_until("document.querySelector('#came figcaption').textContent.includes('measured: 15')", 2.5)
            assert browser.run("document.activeElement.className") == "close"
            browser.run("location.hash = 'trial=3'")
            search.end()
            browser.wait_until("document.getElementById('status').textContent.startsWith('Ended (budget)')", 2.5)
            assert browser.run("window.kept === true && location.hash === '#trial=3'")
            assert browser.run("document.getElementById('card-title').textContent") == "Trial 3: measured"
            quiet = [e for e in browser.events if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
            assert quiet == []
    finally:
        browser.close()


@pytest.mark.thorough
def test_what_is_followed_costs_little(tmp_path: Path) -> None:
    """Nothing is read while nobody looks, and the parts made of all trials are spaced by what they cost."""
    write_study(tmp_path / "r.db", 30)
    followed = FollowedStudy(tmp_path / "r.db", None)
    taken: list[int] = []
    followed._read_trials = lambda reader: taken.append(1)  # type: ignore[method-assign]
    followed._looked = -1e9
    followed.start()
    time.sleep(1.5)
    assert taken == []
    followed.stop()
    with open_readonly(tmp_path / "r.db") as reader:
        before = time.thread_time()
        followed._make(reader)
        spent, due = time.thread_time() - before, followed._next_parts - time.monotonic()
    assert due >= 0.9 * max(5.0, 100 * spent)


@pytest.mark.thorough
def test_a_study_begun_anew_is_followed(tmp_path: Path) -> None:
    """A fresh search that takes the study's name over is shown from its beginning."""
    path = tmp_path / "r.db"
    write_study(path, 20)
    with served(path) as server:
        assert news(server)["since"] == 20
        with Store(path) as store:
            store.rename_old_study("small")
        write_study(path, 3)
        wait_for(lambda: news(server)["since"] == 3, 5.0)
        with open_readonly(path) as reader:
            assert news(server)["study"] == reader.study("small").uuid
