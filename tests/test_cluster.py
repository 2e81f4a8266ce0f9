"""The files for clusters in examples/cluster: well formed, with commands that vitft accepts."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from vitft.cli.main import build_parser

FILES = sorted((Path(__file__).parents[1] / "examples" / "cluster").iterdir())


def script_of(path: Path) -> str:
    """Return the shell script in a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sh":
        return text
    *_, found = yaml.safe_load_all(text)
    if "run" in found:
        return str(found["run"])
    return str(found["spec"]["template"]["spec"]["containers"][0]["args"][0])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_script_is_bash_and_its_commands_are_valid(path: Path) -> None:
    script = script_of(path)

    subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    given = re.findall(
        r"arguments=\((.*)\)|-m -- vitft finetune (--.*?)(?: \|\||$)", script, re.MULTILINE
    )

    assert given
    for words in map("".join, given):
        build_parser("finetune").parse_args(["finetune", *shlex.split(words)])


def test_the_pods_of_kubernetes_find_each_other() -> None:
    service, job = yaml.safe_load_all(FILES[0].read_text(encoding="utf-8"))
    name, pod = job["metadata"]["name"], job["spec"]["template"]["spec"]

    assert service["spec"] == {"clusterIP": "None", "selector": {"job-name": name}}
    assert f"--rdzv-endpoint {name}-0.{service['metadata']['name']}:" in script_of(FILES[0])
    assert pod["subdomain"] == service["metadata"]["name"]
    assert f"--nnodes {job['spec']['completions']} " in script_of(FILES[0])
