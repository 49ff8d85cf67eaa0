"""Whose code runs: only what belongs to the user, and only the text that was read."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import shutil
from pathlib import Path

import pytest
from paths import DATA, KERNELS
from typer.testing import CliRunner

from evokern import ownership
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.errors import KernelError
from evokern.study import discovery
from evokern.study.discovery import distrust_reason, find_kernel, is_trusted, load_kernel, remember_trust

TOLD = "\nimport os\nopen(os.path.join(os.path.dirname(__file__), '..', '..', 'ran'), 'w').close()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel below the working directory that tells when its code runs."""
    made = tmp_path / "kernels" / "dial"
    shutil.copytree(DATA / "kernels" / "dial", made, ignore=shutil.ignore_patterns("__pycache__"))
    made.joinpath("kernel.py").write_text((made / "kernel.py").read_text() + TOLD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return made


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file somebody else's: root can, any other user becomes somebody else to its own files."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    else:
        monkeypatch.setattr(ownership, "_own_users", lambda: {0, os.geteuid() + 1})


def ran(folder: Path) -> bool:
    return (folder.parents[1] / "ran").exists()


@pytest.mark.parametrize("place", [".", "kernels", "kernels/dial", "kernels/dial/kernel.py", "kernels/dial/kernel.cu"])
def test_a_folder_of_another_user_does_not_run(folder: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the working directory too, whatever of it is somebody else's; after `--trust` it runs."""
    assert find_kernel("dial").name == "dial"
    (folder.parents[1] / "ran").unlink()
    give_away(folder.parents[1] / place, monkeypatch)
    done = CliRunner().invoke(app, ["check", "dial"])
    assert (done.exit_code, ran(folder)) == (2, False)
    assert f"{folder / 'kernel.py'} is untrusted code, and " in done.stderr
    assert " belongs to " in done.stderr
    assert "--trust" in done.stderr
    monkeypatch.undo()
    monkeypatch.chdir(folder.parents[1])
    monkeypatch.setenv("XDG_STATE_HOME", str(folder.parents[1] / "state"))
    assert find_kernel("dial", trust=True).name == "dial"
    assert ran(folder)


@pytest.mark.parametrize(
    ("place", "mode", "who"),
    [
        ("kernels/dial", 0o777, "anybody can write to"),
        ("kernels/dial", 0o1777, "anybody can write to"),
        ("kernels", 0o777, "anybody can write to"),
        (".", 0o777, "anybody can write to"),
        ("kernels/dial/kernel.py", 0o666, "anybody can write to"),
        ("kernels/dial/kernel.cu", 0o666, "anybody can write to"),
        ("kernels/dial", 0o775, "its group can write to"),
    ],
)
def test_code_that_others_can_write_does_not_run(
    folder: Path, place: str, mode: int, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder or file that others may change is theirs as much as the user's."""
    monkeypatch.setattr(ownership, "_only_ours", lambda group: False)
    (folder.parents[1] / place).chmod(mode)
    with pytest.raises(KernelError, match=f"and {who}" if "any" in who else "and its group can write to"):
        find_kernel("dial")
    assert not ran(folder)
    find_kernel("dial", trust=True)
    assert is_trusted(folder)


@pytest.mark.parametrize(("place", "mode"), [(".", 0o1777), ("kernels", 0o1777)])
def test_a_sticky_folder_holds_one_s_own(folder: Path, place: str, mode: int) -> None:
    """Below `/tmp` nobody else can replace a folder of the user's."""
    (folder.parents[1] / place).chmod(mode)
    assert distrust_reason(folder) == ""


def test_a_group_of_one_s_own_counts_as_oneself(folder: Path) -> None:
    """With umask 002, every folder is writable by the user's own group, in which is nobody else."""
    if ownership._only_ours(os.getgid()):
        folder.chmod(0o775)
        assert is_trusted(folder)
    assert not ownership._only_ours(4_000_000_000)


def test_a_header_beside_the_folder_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header from elsewhere that is somebody else's is code as well."""
    common = folder.parent / "common"
    common.mkdir()
    (common / "own.cuh").write_text("")
    source = folder / "kernel.cu"
    source.write_text('#include "../common/own.cuh"\n' + source.read_text())
    assert find_kernel("dial").name == "dial"
    (common / "own.cuh").chmod(0o666)
    with pytest.raises(KernelError, match=r"own\.cuh is included by kernel .*, and anybody can write to"):
        find_kernel("dial")


def test_trust_is_for_a_path_and_its_owner(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends where the folder became somebody else's; lines of versions before count; a name is never two lines."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    assert distrust_reason(folder) == "outside the working directory"
    remember_trust(folder)
    kept = tmp_path / "state" / "evokern" / "trusted_folders"
    assert (is_trusted(folder), oct(kept.stat().st_mode & 0o777)) == (True, "0o600")
    path, owner = json.loads(kept.read_text())
    kept.write_text(json.dumps([path, owner + 1]) + "\n")
    assert not is_trusted(folder)
    kept.write_text(f"{folder}\n")
    assert is_trusted(folder)
    kept.unlink()
    double = tmp_path / f"x\n{folder}".replace("/", "_") / "y"
    double.mkdir(parents=True)
    remember_trust(double)
    assert (is_trusted(double), is_trusted(folder), len(kept.read_text().splitlines())) == (True, False, 1)
    kept.write_text(f"{folder}\n")
    kept.chmod(0o666)
    assert not is_trusted(folder), "anybody may have written that"


def test_a_relative_state_folder_is_not_the_working_directory_s(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that brings its own list of trusted folders is not trusted by it."""
    (tmp_path / "state" / "evokern").mkdir(parents=True)
    (tmp_path / "state" / "evokern" / "trusted_folders").write_text(f"{folder}\n")
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder.chmod(0o777)
    assert not is_trusted(folder)


def test_a_stale_pyc_does_not_run(folder: Path) -> None:
    """Compiled code of another text that bears the file's time and size is passed over, and none is written."""
    path = folder / "kernel.py"
    text = path.read_text()
    assert load_kernel(folder).name == "dial"
    assert not (folder / "__pycache__").exists()
    path.write_text(text.replace("'ran'", "'old'"))
    state = path.stat()
    cached = Path(importlib.util.cache_from_source(str(path)))
    py_compile.compile(str(path), str(cached))
    path.write_text(text)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert load_kernel(folder).name == "dial"
    assert not (folder.parents[1] / "old").exists()
    assert ran(folder)


def test_the_code_that_runs_matches_the_digest(folder: Path) -> None:
    """A `kernel.py` that is another by the time that its digest is taken is not used."""
    path = folder / "kernel.py"
    path.write_text(path.read_text() + "open(__file__, 'w').close()\n")
    with pytest.raises(KernelError, match=r"kernel\.py changed while it was read; run the command again"):
        load_kernel(folder)


def test_a_link_does_not_lead_out_of_the_folder(folder: Path, tmp_path: Path) -> None:
    """A `kernel.py` elsewhere would be other code than the folder's; a link within the folder is none of that."""
    elsewhere = tmp_path / "elsewhere.py"
    (folder / "kernel.py").rename(elsewhere)
    (folder / "kernel.py").symlink_to(elsewhere)
    with pytest.raises(KernelError, match=rf"is a link to {elsewhere}, outside its folder"):
        find_kernel("dial", trust=True)
    assert not ran(folder)
    (folder / "kernel.py").unlink()
    elsewhere.rename(folder / "declared.py")
    (folder / "kernel.py").symlink_to("declared.py")
    assert load_kernel(folder).name == "dial"


def test_a_folder_that_hides_a_packaged_kernel_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kernels/rmsnorm` of the working directory stands for the package's, which is said once; a copy hides nothing."""
    monkeypatch.setattr(discovery, "_said_hidden", set())
    (tmp_path / "kernels").mkdir()
    shutil.copytree(KERNELS / "common", tmp_path / "kernels" / "common")
    shutil.copytree(KERNELS / "rmsnorm", tmp_path / "kernels" / "rmsnorm", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["profile", "rmsnorm", "--device", "sim:nothing"]).stderr.count("hides") == 0
    own = tmp_path / "kernels" / "rmsnorm" / "kernel.py"
    own.write_text(own.read_text() + "\n")
    for times in (1, 0):
        told = CliRunner().invoke(app, ["profile", "rmsnorm", "--device", "sim:nothing"]).stderr
        assert told.count(f"evokern: {own.parent} hides the kernel rmsnorm that comes with evokern (") == times
    own.chmod(0o666)
    assert "anybody can write to" in CliRunner().invoke(app, ["check", "rmsnorm"]).stderr, (
        "and somebody else's is refused"
    )
