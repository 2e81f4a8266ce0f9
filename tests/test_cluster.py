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
    return str(found.get("run") or found["spec"]["template"]["spec"]["containers"][0]["args"][0])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_script_is_bash_and_its_commands_are_valid(path: Path) -> None:
    script = script_of(path)

    subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    given = re.findall(
        r"arguments=\((.*)\)| vitft finetune (--.*) \|\| exit$", script, re.MULTILINE
    )

    assert given
    for words in map("".join, given):
        args = build_parser("finetune").parse_args(["finetune", *shlex.split(words)])
        assert args.resume or args.weights  # which several processes need


def test_the_pods_of_kubernetes_find_each_other() -> None:
    (path,) = (path for path in FILES if path.name == "kubernetes.yaml")
    service, job = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    name, domain = job["metadata"]["name"], job["spec"]["template"]["spec"]["subdomain"]

    assert (service["metadata"]["name"], service["spec"]["selector"]["job-name"]) == (domain, name)
    assert f"--master-addr {name}-0.{domain} " in script_of(path)
    assert f"--nnodes {job['spec']['completions']} " in script_of(path)
