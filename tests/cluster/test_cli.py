from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli import app, run
from cluster.ray_session import RaySession
from cluster.train import TrainResult
from tests.cluster import make_cli_doc

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "numpy", "pydantic", "zarr", "rich.progress", "trainer", "verifier")


def test_help_imports_nothing_heavy() -> None:
    """--help answers at once because no heavy package is imported for it."""
    script = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "from cluster.cli import main\n"
        "try:\n    main()\n"
        f"finally:\n    print('HEAVY', sorted(set({HEAVY}) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "Usage: bitwitness" in done.stdout
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_cli_document_is_what_help_says() -> None:
    """docs/cli.md is the help text of every command, to the letter."""
    assert {command.name or command.callback.__name__ for command in app.registered_commands} == {
        *make_cli_doc.COMMANDS
    }
    assert make_cli_doc.DOCUMENT.read_text() == make_cli_doc.document()


def test_help_in_the_readme_is_what_help_says() -> None:
    """Every block of the README that begins with a --help command shows what it prints."""
    readme = ROOT / "README.md"
    text = readme.read_text() if readme.exists() else ""
    for found in re.finditer(r"```text\n\$ bitwitness(.*?) ?--help\n.*?```\n", text, re.DOTALL):
        assert found[0] == make_cli_doc.block(*found[1].split())


def test_help_fits_the_terminal_and_has_examples() -> None:
    """No line of help is wider than 80 columns, and every command shows an example."""
    for command in ((), *((name,) for name in make_cli_doc.COMMANDS)):
        text = make_cli_doc.help_text(*command)
        assert max(map(len, text.splitlines())) <= 80
        assert re.search(r"Examples?:\n +bitwitness", text)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["train"], "Missing argument"),
        (["nonsense"], "No such command 'nonsense'"),
        (["train", "a.yaml", "--fast"], "No such option"),
        (["audit", "run", "--steps", "many"], "--steps"),
        (["audit", "run", "--steps", "0"], "--steps"),
    ],
)
def test_bad_usage(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that is none gives exit code 2 and one line that points to --help."""
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("bitwitness: E_USAGE: ")
    assert part in captured.err
    assert "--help" in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")


def test_readme_shows_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's list of commands is what --help prints on 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    assert capsys.readouterr().out in (ROOT / "README.md").read_text()


def test_module_is_named_in_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m cluster.train` is the command `train` under its own name."""
    assert run(["--help"], "train") == 0
    assert capsys.readouterr().out.startswith("Usage: python -m cluster.train [OPTIONS]")


def test_cuda_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`device: cuda` without CuPy ends with exit code 3, one line, and nothing written."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    out = tmp_path / "run"
    assert run(["train", str(ROOT / "configs/h200.yaml"), "--out", str(out)]) == 3
    error = capsys.readouterr().err
    assert error.startswith("bitwitness: E_NO_GPU: device cuda: CuPy is missing")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_probe_of_an_emulated_architecture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str]
) -> None:
    """`probe` recovers an emulated architecture and writes a file that loads as one."""
    file = tmp_path / "mine.yaml"
    arguments = ["probe", "--arch", "turing", "--checks", "200", "--brief", "--out", str(file)]
    assert run([*arguments, "--name", "mine", *extra]) == 0
    out = capsys.readouterr().out
    assert ("Unknown    none" in out) or json.loads(out)["file"] == str(file)
    assert "name: mine" in file.read_text()


def test_probe_without_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`probe` without CuPy ends with exit code 3 and one line."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert run(["probe"]) == 3
    assert capsys.readouterr().err.startswith("bitwitness: E_NO_DEVICE: ")


def test_keygen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keygen makes a pair and says where; a second time it refuses."""
    path = tmp_path / "key.pem"
    assert run(["keygen", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"private_key": str(path), "public_key": f"{path}.pub.pem"}
    assert run(["keygen", str(path)]) == 2
    assert "E_EXISTS" in capsys.readouterr().err


@pytest.mark.ray
def test_the_whole_path(
    local_ray: RaySession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """keygen, train, inspect, audit, verify, report and generate work one after the other."""
    key, out, audit = tmp_path / "key.pem", tmp_path / "run", tmp_path / "audit"
    public, result = f"{key}.pub.pem", str(audit / "audit-result.dsse.json")
    config = str(ROOT / "configs/test.yaml")

    def answer(*arguments: str) -> dict[str, object]:
        capsys.readouterr()
        assert run([*arguments, "--json"]) == 0, capsys.readouterr().err
        document: dict[str, object] = json.loads(capsys.readouterr().out)
        return document

    answer("keygen", str(key))
    trained = answer("train", config, "--out", str(out), "--key", str(key))
    assert (trained["run"], trained["steps"]) == (str(out), 4)
    facts = answer("inspect", str(out))
    assert (facts["logged"], facts["tree_heads"]) == (4, [2, 4])
    assert facts["first_loss"] == trained["first_loss"]
    audited = answer("audit", str(out), "--trust", public, "--out", str(audit), "--steps=3")
    assert (audited["verdict"], audited["result"]) == ("PASS", result)
    verified = answer("verify", result, trained["commitment"])  # type: ignore[arg-type]
    assert [item["ok"] for item in verified["statements"]] == [True, True]  # type: ignore[attr-defined]
    page = Path(str(audited["report"]))
    page.unlink()
    assert answer("report", str(audit)) == {"report": str(page)}
    assert page.exists()
    made = answer("generate", str(out), "--prompt", "de", "--tokens=3", "--key", str(key))
    assert len(str(made["text"])) >= 3
    replayed = answer("audit", str(made["generation"]), "--trust", public)
    assert (replayed["verdict"], replayed["sampled"]) == ("PASS", 4)
    assert replayed["generation"]["text_hex"] == made["text_hex"]
    assert run(["train", config, "--out", str(out)]) == 2
    assert "E_EXISTS" in capsys.readouterr().err


BROKEN = {
    "no run": (shutil.rmtree, "audit", 2),
    "no registration": (lambda run: (run / "registration.dsse.json").unlink(), "audit", 2),
    "truncated registration": (
        lambda run: (run / "registration.dsse.json").write_bytes(b'{"payload":"'), "audit", 2,
    ),
    "no commitment": (lambda run: (run / "commitment.dsse.json").unlink(), "audit", 2),
    "truncated log": (
        lambda run: (run / "log/leaves.jsonl").write_bytes(b'{"step":'), "inspect", 2,
    ),
    "registration is a folder": (
        lambda run: [
            (run / "registration.dsse.json").unlink(), (run / "registration.dsse.json").mkdir(),
        ],
        "inspect", 2,
    ),
}  # fmt: skip


@pytest.mark.ray
@pytest.mark.parametrize("fault", BROKEN)
def test_broken_run_is_one_line(
    trained: TrainResult, tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with something missing or cut gives one line and exit code 2, never a traceback."""
    break_it, command, exit_code = BROKEN[fault]
    folder = tmp_path / "run"
    shutil.copytree(trained.folder, folder)
    break_it(folder)
    options = ["--no-ray"] if command == "audit" else []
    assert run([command, str(folder), *options]) == exit_code
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("auditing ")]
    assert len(lines) == 1
    assert re.match(r"bitwitness: E_[A-Z]+: .*run", lines[0])
    assert "E_BUG" not in lines[0]


@pytest.mark.ray
def test_verify_tells_which_statement_is_bad(
    trained: TrainResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All statements are checked; a changed payload is exit code 1, in a line that names it."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("registration.dsse.json", "commitment.dsse.json"):
        shutil.copy(trained.folder / name, folder)
    good, bad = folder / "registration.dsse.json", folder / "commitment.dsse.json"
    envelope = json.loads(bad.read_text())
    envelope["signatures"][0]["sig"] = json.loads(good.read_text())["signatures"][0]["sig"]
    bad.write_text(json.dumps(envelope))
    assert run(["verify", str(bad), str(good)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"bitwitness: E_SIGNATURE: {bad}: ")
    assert captured.err.count("\n") == 1
    assert captured.out.startswith("Good       registration")
    assert run(["verify", str(folder / "nothing")]) == 2
