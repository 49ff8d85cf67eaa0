"""Every mistake of a user's ends with exit code 2, one message with the value and the remedy, and nothing lost."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from paths import DATA, ROOT
from stored_studies import reseal
from typer.testing import CliRunner

from evokern.analysis.check.folder import known_problems
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.study.discovery import find_kernel

TABLE = DATA / "table_small.json.gz"
GUIDE = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
RIGHT = 'reference=lambda p, t: {"y": 2 * t["x"]}'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The documents' kernel with its study on a simulated L4, and a study of the small recording."""
    folder = tmp_path / "kernels" / "scale"
    folder.mkdir(parents=True)
    studies = tmp_path / "studies"
    studies.mkdir()
    for name, language in (("kernel.cu", "cuda"), ("kernel.py", "python"), ("reference.h", "cpp")):
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
        (folder / name).write_text(blocks[0])
    (studies / "scale.toml").write_text('kernel = "scale"\nproblems = ["65536"]\ndevice = "sim:l4"\n')
    (studies / "small.toml").write_text(f'kernel = "r"\nproblems = ["recorded"]\ndevice = "replay:{TABLE}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("EVOKERN_DB", raising=False)
    return tmp_path


def _refused(*arguments: str) -> str:
    """Return the one message of a command that must be refused."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    message = result.stderr.splitlines()[-1]
    assert message.startswith("evokern: ")
    return message


def _change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("search", "smal"), "did you mean 'small'?"),
        (("search", "studies/absent.toml"), "file studies/absent.toml"),
        (("search", "small", "--sampler", "evolution"), "'evolution'"),
        (("search", "small", "--device", "gpu"), "'gpu'"),
        (("search", "small", "--device", "h200"), "did you mean 'sim:h200'? known: auto"),
        (("search", "small", "--device", "sim:l5"), "did you mean 'l4'?"),
        (("search", "small", "--device", "replay:absent.json"), "absent.json"),
        (("search", "small", "--budget", "2x"), "'2x'"),
        (("search", "small", "--budget", "2"), "2h, 2m or 2s"),
        (("search", "small", "--budget", "0s"), "'0s'"),
        (("verify", "--fuzz", "0s"), "'0s'"),
        (("search", "small", "--extend", "-5m"), "'-5m'"),
        (("search", "small", "--budget", "9" * 400 + "h"), "100 years"),
        (("search", "small", "--seed", str(2**63)), "seed = 9223372036854775808"),
        (("search", "small", "--seed", str(10**400)), "64 bits"),
        (("search", "small", "--trials", str(2**63)), "2^63 - 1"),
        (("cache", "--cap", "9" * 30 + "GB"), "is too large; use, for example, 500MB"),
        (("cache", "--cap", "9" * 400), "is too large; use, for example, 500MB"),
        (("cache", "--cap", "-1"), "'-1' is not a valid size"),
        (("search", "~nobody/x.toml"), "~nobody/x.toml"),
        (("check", "~nobody"), "'~nobody'"),
        (("search", "small", "--extend", "5m"), "--budget"),
        (("check", "sclae"), "did you mean 'scale'?"),
        (("check", "small"), "'small' is a study"),
        (("sanitize", "draft"), "kernels/draft has no kernel.py"),
        (("search", "attention"), "attention-48k, attention-batch8"),
        (("compare", "a.db", "b.db", "--threshold", "3"), "--threshold 3.0: both must be between 0 and 1"),
        (("show",), "there is no database evokern.db; create it with `evokern search`"),
        (("export",), "there is no database evokern.db; create it with `evokern search`"),
        (("resume",), "there is no database evokern.db; create it with `evokern search`"),
    ],
)
def test_unknown_names_and_values(here: Path, arguments: tuple[str, ...], told: str) -> None:
    """Unknown study, sampler, device, kernel, database, and durations that are none, are named with the nearest."""
    (here / "kernels" / "draft").mkdir()
    assert told in _refused(*arguments)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kernel = [", "TOML"),
        ('kernel = "scale"\n', "'problems'"),
        (
            'kernel = "sclae"\nproblems = ["64"]\ndevice = "sim:l4"\n',
            "did you mean 'scale'?",
        ),
        ('kernel = "scale"\nproblems = ["0"]\ndevice = "sim:l4"\n', "N=0"),
        ('kernel = "scale"\nproblems = ["64"]\ndevice = "sim:l4"\ndtype = "f16"\n', "dtype"),
        ('kernel = "scale"\nproblems = ["64"]\ndevice = "sim:l4"\n[genes]\nTHREAD = [64]\n', "did you mean 'THREADS'?"),
        ('kernel = "scale"\nproblems = ["64"]\ndevice = "sim:l4"\n[genes]\nTHREADS = [65]\n', "'65'"),
        ('kernel = "scale"\nproblems = ["64"]\ndevice = "sim:l4"\n[limits]\nchip = "l5"\n', "did you mean 'l4'?"),
        ('kernel = "scale"\nproblems = ["64"]\nbudget = "2x"\n', "'2x'"),
        ('kernel = "scale"\nproblems = ["64"]\ntrials = 0\n', "at least 1"),
    ],
)
def test_study_files(here: Path, text: str, told: str) -> None:
    """Broken TOML, unknown kernels, genes and values, and problems a kernel cannot take."""
    (here / "studies" / "mine.toml").write_text(text)
    message = _refused("search", "mine")
    assert told in message
    for key in ("[genes]", "budget", "trials"):
        assert key not in text or ("mine.toml" in message and key in message)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("kernel.py", "import", "imoprt", "SyntaxError"),
        ("kernel.py", "kernel = Kernel", "kernle = Kernel", "`kernel"),
        ("kernel.py", "default=", "default=77 + ", "/kernels/scale/kernel.py, line "),
        ("kernel.py", "divides(width(c), p.N)", "p.N / 0", "constraint whole_vectors raised ZeroDivisionError"),
        ("kernel.py", "divides(width(c), p.N)", "p.N / 0", "/kernels/scale/kernel.py:"),
        ("kernel.py", "blocks = -(", "blocks = 1 / 0 -(", "launches raised ZeroDivisionError"),
        ("kernel.py", "(4 * width(c),)", "(1 / 0,)", "vector_accesses raised ZeroDivisionError"),
        ("kernel.py", RIGHT, "reference=lambda p, t: 1 / 0", "ZeroDivisionError"),
        ("kernel.py", RIGHT, 'reference=lambda p, t: {"y": t["x"][:9]}', "shape"),
        ("kernel.py", RIGHT, 'reference=lambda p, t: {"y": t["x"].float()}', "float64"),
        ("kernel.py", RIGHT, 'reference=lambda p, t: {"y": t["x"] / 0}', "NaN"),
        ("kernel.py", 'Launch("scale"', 'Launch("scael"', "no entry point 'scael'"),
        ("kernel.py", "block=c.THREADS", "block=64 * c.THREADS", "block_extent"),
        ("kernel.cu", "y[i] = 2 * x[i];", "y[i] = 2 * x[j];", 'identifier "j" is undefined'),
    ],
)
def test_kernel_folders(here: Path, file: str, old: str, new: str, told: str) -> None:
    """What is wrong with a kernel's declaration, reference or default candidate is said before a search begins."""
    _change(here / "kernels" / "scale" / file, old, new)
    assert told in _refused("search", "scale", "--trials", "1")


@pytest.mark.parametrize("named", ["scale", "kernels/scale", "./kernels/scale"])
def test_a_kernel_with_another_name_than_its_folder(here: Path, caplog: pytest.LogCaptureFixture, named: str) -> None:
    """One warning names both, and the study's problems are found all the same."""
    _change(here / "kernels" / "scale" / "kernel.py", 'name="scale"', 'name="scal"')
    _change(here / "studies" / "scale.toml", 'kernel = "scale"', f'kernel = "{named}"')
    kernel = find_kernel("scale")
    find_kernel("scale")
    assert [record.getMessage() for record in caplog.records if "names the kernel" in record.getMessage()] == [
        f"{here}/kernels/scale/kernel.py names the kernel 'scal', but its folder is 'scale'; commands and studies use "
        "the folder's name"
    ]
    assert "N=65536" in map(str, known_problems(kernel))


@pytest.mark.parametrize(
    "text",
    [
        'kernel = "scale"\nproblems = ["64"]\n[gate]\ninput_sets = [1, 2]\n',
        'kernel = "scale"\nproblems = ["64"]\n[timing]\ncache = -1\n',
        f"seed = {'9' * 5000}\n",
        f"problems = {'[' * 5000}\n",
        'kernel = "scale"\nproblems = ["64"]\n[limits]\nregisters_per_thread = 1.5\n',
        'kernel = "a\\u0000b"\nproblems = ["64"]\n',
        "\x00",
    ],
)
def test_one_bad_study_hides_no_other(here: Path, text: str) -> None:
    """`list` says what is wrong with it, and lists the others."""
    (here / "studies" / "bad.toml").write_text(text)
    done = CliRunner().invoke(app, ["list", "--json"])
    studies = {one["name"]: one.get("error") for one in json.loads(done.stdout)["studies"]}
    assert (done.exit_code, studies["scale"]) == (0, None)
    assert str(here / "studies" / "bad.toml") in str(studies["bad"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("blocks", "command", "told"),
    [
        ("blocks // 2 if p.N > 4096 else blocks", "check", "32768 of 65536 elements of 'y'"),
        ("max(1, blocks // 2)", "sanitize", "unwritten output y"),
    ],
)
def test_half_a_grid_is_found_before_any_search(here: Path, blocks: str, command: str, told: str) -> None:
    """`check` sees at the study's own problem what the small ones do not show, `sanitize` at any that it runs."""
    _change(
        here / "kernels" / "scale" / "kernel.py", "    return [Launch", f"    blocks = {blocks}\n    return [Launch"
    )
    result = CliRunner().invoke(app, [command, "scale"])
    assert result.exit_code == 1
    assert told in result.output


@pytest.mark.thorough
def test_code_from_elsewhere_is_not_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel folder outside the working directory is refused until its user trusts it."""
    other = here / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    assert "--trust" in _refused("check", "../kernels/scale")
    assert CliRunner().invoke(app, ["check", "../kernels/scale", "--trust"]).exit_code == 0
    assert CliRunner().invoke(app, ["check", "../kernels/scale"]).exit_code == 0


def test_a_study_from_elsewhere_finds_the_kernel_beside_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that only the `kernels/` next to the study's folder holds is found there, and still needs trust."""
    other = here / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    told = _refused("search", "../studies/scale.toml")
    assert str(here / "kernels" / "scale" / "kernel.py") in told and "--trust" in told


def _search_some(*arguments: str) -> None:
    result = CliRunner().invoke(app, ["search", "small", "--trials", "3", "--quiet", *arguments])
    assert result.exit_code == 0, result.output


def _newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('evokern', '9999_future', 'now')"
    )
    connection.commit()
    connection.close()  # which folds the log in, so that the file's bytes can be compared


def _corrupt(path: Path) -> None:
    path.write_bytes(b"this is no database, however long one looks at it" * 100)


@pytest.mark.thorough
@pytest.mark.parametrize(("harm", "told"), [(_newer, "newer"), (_corrupt, "corrupt")], ids=["newer", "corrupt"])
def test_databases_that_cannot_be_used(here: Path, harm: Callable[[Path], None], told: str) -> None:
    """A newer version's database and a file that is none are refused by readers and writers, and left as they are."""
    _search_some()
    path = here / "evokern.db"
    harm(path)
    before = path.read_bytes()
    for command in ("search", "show", "resume", "export"):
        assert told in _refused(command, "small")
    assert before == path.read_bytes()


@pytest.mark.thorough
def test_a_database_in_use_says_by_whom(here: Path) -> None:
    """A second search on the same file is refused with the process that has it; reading goes on."""
    _search_some()
    holder = "import sys; from evokern.store import Store; s = Store('evokern.db'); print('held', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=here
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert str(process.pid) in _refused("search", "small")
    assert CliRunner().invoke(app, ["show", "small"]).exit_code == 0
    process.communicate("\n", timeout=30)
    assert CliRunner().invoke(app, ["search", "small", "--trials", "4", "--quiet"]).exit_code == 0


def test_a_place_that_cannot_be_written(here: Path) -> None:
    """A folder that is missing, and a folder instead of a file, are named."""
    assert "does not exist" in _refused("search", "small", "--db", "absent/x.db")
    assert "is a folder" in _refused("search", "small", "--db", "studies")


def test_a_network_file_system_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's log cannot be trusted on NFS, so a search there does not begin."""
    monkeypatch.setattr("evokern.store._files.file_system", lambda path: "nfs4")
    assert "(nfs4)" in _refused("search", "small")


def test_another_device_is_refused(here: Path) -> None:
    """A study goes on only on the model that it began on; the remedy is named."""
    import gzip

    _search_some()
    table = json.loads(gzip.decompress(TABLE.read_bytes()))
    (here / "other.json").write_text(json.dumps({**table, "name": "other"}))
    told = _refused("search", "small", "--device", "replay:other.json")
    assert "replay:table_small" in told and "replay:other" in told
    assert "--fresh" in told


@pytest.mark.thorough
def test_a_changed_study_is_refused(here: Path) -> None:
    """Changed settings are named with old and new value, and both ways on: `--fresh` and `--allow-changes`."""
    _search_some()
    with (here / "studies" / "small.toml").open("a") as file:
        file.write("[timing]\nrotate_sets = 9\n")
    told = _refused("search", "small")
    assert "rotate_sets was 4, is 9" in told
    assert "--fresh" in told and "--allow-changes" in told
    assert CliRunner().invoke(app, ["search", "small", "--trials", "4", "--allow-changes"]).exit_code == 0


def test_trials_that_are_not_there(here: Path) -> None:
    """A trial or a study that the database does not hold is refused with what it holds."""
    _search_some()
    assert "trial 99" in _refused("show", "--trial", "99")
    with sqlite3.connect("evokern.db") as db:
        db.execute("UPDATE evokern_trials SET outcome = NULL WHERE number = 1")
    reseal(here / "evokern.db")
    assert "trial 1 of study small" in _refused("show", "--trial", "1")
    assert "'large': known: small" in _refused("show", "large")


def test_no_gpu_where_one_was_asked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver the message says why there is no GPU and what to do instead."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    told = _refused("search", "scale", "--device", "cuda:0")
    assert "no GPU" in told
    assert "--device sim:l4" in told


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a system folder that claims to be writable")
def test_a_system_folder_is_no_place_for_a_database(here: Path) -> None:
    """A place that claims that it can be written and cannot is the user's mistake too, for writing and reading."""
    done = CliRunner().invoke(app, ["search", "small", "--db", "/proc/x.db"])
    assert (done.exit_code, "/proc/x.db" in done.stderr) == (2, True)
    assert "--db" in done.stderr
    done = CliRunner().invoke(app, ["show", "--db", "/proc/self/mem"])
    assert (done.exit_code, "/proc/self/mem" in done.stderr) == (2, True)
